"""Averaging checkpoints: the numbers, what is kept and dropped, and what is refused."""

import os

import pytest
import torch

from fairseq_klang.checkpoints.average import AverageError, average, average_to_file, find_last
from fairseq_klang.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_klang.files import OutputError
from helpers.checkpoints import save


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_mean_of_the_weights(tmp_path, dtype):
    paths = [save(tmp_path / f"{value}.pt", value, dtype) for value in (1, 2, 6)]
    output = tmp_path / "average.pt"
    average_to_file(paths, output)
    state = load_checkpoint(output)
    model = state["model"]
    assert torch.equal(model["embed"], torch.full((3, 2), 3.0, dtype=dtype))
    assert torch.equal(model["bias"], torch.tensor([3.0, -3.0], dtype=dtype))
    assert model["steps"] == 6  # a counter, of the last
    assert model["embed"].data_ptr() == model["out"].data_ptr()  # still tied
    assert (
        state["cfg"]["model"].note == "6" and state["extra_state"]["train_iterator"]["epoch"] == 6
    )
    assert "last_optimizer_state" not in state and state["averaged_from"] == [
        "1.pt",
        "2.pt",
        "6.pt",
    ]
    assert sorted(os.listdir(tmp_path)) == ["1.pt", "2.pt", "6.pt", "average.pt"]


def test_half_precision_does_not_overflow(tmp_path):
    paths = [save(tmp_path / f"{number}.pt", 60000, torch.float16) for number in range(3)]
    assert average(paths)["model"]["bias"].tolist() == [
        60000.0,
        -60000.0,
    ]  # the sum, 180,000, is beyond float16


def test_one_checkpoint_is_itself(tmp_path):
    path = save(tmp_path / "1.pt", 0.1)
    assert torch.equal(average([path])["model"]["embed"], load_checkpoint(path)["model"]["embed"])


def test_weights_tied_only_in_the_last_stay_apart(tmp_path):
    paths = [save(tmp_path / "1.pt", 1, out=torch.zeros(3, 2)), save(tmp_path / "2.pt", 3)]
    model = average(paths)["model"]
    assert model["embed"][0, 0] == 2.0 and model["out"][0, 0] == 1.5


@pytest.mark.parametrize(
    "more, words",
    [
        ({"bias": torch.zeros(3)}, r"bias \(2,\) / \(3,\)"),
        ({"extra": torch.zeros(1)}, r"extra missing / \(1,\)"),
        ({"bias": torch.zeros(2).long()}, r"bias \(2,\) / \(2,\) of whole numbers"),
    ],
)
def test_other_models_are_refused(tmp_path, more, words):
    paths = [save(tmp_path / "1.pt", 1), save(tmp_path / "2.pt", 2, **more)]
    with pytest.raises(AverageError, match=words) as caught:
        average_to_file(paths, tmp_path / "out.pt")
    assert (
        "1.pt" in str(caught.value)
        and "2.pt" in str(caught.value)
        and not (tmp_path / "out.pt").exists()
    )


def test_not_finite_is_refused(tmp_path):
    paths = [
        save(tmp_path / "1.pt", 1),
        save(tmp_path / "2.pt", 2, bias=torch.tensor([1.0, float("nan")])),
    ]
    with pytest.raises(AverageError, match="2.pt: bias holds a value that is not finite"):
        average(paths)


def test_cut_checkpoint_is_refused(tmp_path):
    path = save(tmp_path / "1.pt", 1)
    whole = open(path, "rb").read()
    (tmp_path / "2.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="2.pt"):
        average_to_file([path, tmp_path / "2.pt"], tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_bad_arguments(tmp_path):
    path = save(tmp_path / "1.pt", 1)
    with pytest.raises(AverageError, match="is one of the inputs"):
        average_to_file([path], path)
    with pytest.raises(AverageError, match="given twice"):
        average([path, path])
    with pytest.raises(AverageError, match="no checkpoint"):
        average([])
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        average_to_file([path], tmp_path / "none" / "out.pt")
    with pytest.raises(OutputError, match="is a folder"):
        average_to_file([path], tmp_path)
    assert os.listdir(tmp_path) == ["1.pt"]


def test_find_last(tmp_path):
    names = [f"checkpoint{epoch}.pt" for epoch in (1, 2, 9, 10)] + [
        f"checkpoint_{e}_{u}.pt" for e, u in ((1, 500), (2, 1000), (10, 10000))
    ]
    for name in names + ["checkpoint_best.pt", "checkpoint_last.pt", "checkpoint11.pt.partial"]:
        (tmp_path / name).touch()
    assert [os.path.basename(path) for path in find_last(str(tmp_path), epochs=3)] == [
        "checkpoint2.pt",
        "checkpoint9.pt",
        "checkpoint10.pt",
    ]
    assert [os.path.basename(path) for path in find_last(str(tmp_path), updates=2)] == [
        "checkpoint_2_1000.pt",
        "checkpoint_10_10000.pt",
    ]
    with pytest.raises(AverageError, match="has 4 files named checkpointEPOCH.pt, not 5"):
        find_last(str(tmp_path), epochs=5)
    for arguments in ({}, {"epochs": 1, "updates": 1}):
        with pytest.raises(AverageError, match="give one of"):
            find_last(str(tmp_path), **arguments)
    with pytest.raises(AverageError, match="must be 1 or more"):
        find_last(str(tmp_path), epochs=0)
    with pytest.raises(AverageError, match="is no folder"):
        find_last(str(tmp_path / "none"), epochs=1)
