"""klang study sb-head: shares counted as a reader would, and checkpoints of a tiny training."""

import collections

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.experiments import sb_head
from helpers.recipes import error_of
from helpers.running import TINY_TRANSFORMER, run, train_arguments


def slow_counts(best, target, previous, scored):
    """Position by position."""
    found = {"target": 0, "previous": 0, "given": 0}
    for b in range(len(best)):
        for t in range(len(best[b])):
            if scored[b][t]:
                found["target"] += best[b][t] == target[b][t]
                found["previous"] += best[b][t] == previous[b][t]
                found["given"] += best[b][t] in previous[b][: t + 1]
    return found


def test_counts_are_those_of_a_loop():
    generator = torch.Generator().manual_seed(1)
    best, target, previous = (torch.randint(5, (7, 9), generator=generator) for _ in range(3))
    scored = torch.rand(7, 9, generator=generator) < 0.7
    expected = slow_counts(*(tensor.tolist() for tensor in (best, target, previous, scored)))
    assert sb_head.counts(best, target, previous, scored) == expected


def test_a_head_that_always_says_the_full_stop():
    """Words 4, 5 and the full stop 6: the second of three sentences does not end in it."""
    sentences = [[4, 5, 6], [6, 4], [5, 6]]
    sums = collections.Counter(target=3)
    found = sb_head._found(sums, collections.Counter({6: 7}), sentences, 7, {6: "."})
    assert found.token == "."
    assert found.shares == pytest.approx(
        {"target": 3 / 7, "previous": 0, "given": 0, "mode": 1, "ends": 2 / 3, "holds": 1}
    )


def test_names_of_checkpoints():
    assert sb_head.name_of("/runs/A10-s1/checkpoints/checkpoint3.pt") == ("A10-s1", 3)
    assert sb_head.name_of("/runs/x/checkpoint_best.pt") == ("x/checkpoint_best.pt", 0)


@pytest.mark.slow
def test_checkpoints_by_epoch(joined_data, tmp_path, capsys):
    save = tmp_path / "run" / "checkpoints"
    flags = ["--arch", "transformer_dualhead", *TINY_TRANSFORMER, "--max-epoch", "2"]
    flags += ["--criterion", "restricted_softbleu", "--max-tokens", "2000"]
    run("fairseq_cli.train", *train_arguments(joined_data, save, *flags))
    paths = [str(save / f"checkpoint{epoch}.pt") for epoch in (1, 2)]
    out = tmp_path / "out"
    capsys.readouterr()
    assert cli.main(["study", "sb-head", str(joined_data), *paths, "--out", str(out)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("checkpoint") and table[1].startswith("run, epoch 1")
    rows = read_rows(out / "sb_head.csv")
    assert len(rows) == 2 * 2 * 6  # epochs, heads, measures
    assert {row.settings["epoch"] for row in rows} == {1, 2}
    modes = [row for row in rows if row.measure == "mode"]
    assert all(0 < row.value <= 1 and row.settings["token"] for row in modes)
    assert (out / "sb_head.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_one_line(joined_data, tmp_path, capsys):
    text = tmp_path / "text.pt"
    text.write_text("no checkpoint")
    study = ["study", "sb-head"]
    assert "text.pt" in error_of(capsys, *study, joined_data, text)
    assert "none.pt" in error_of(capsys, *study, joined_data, tmp_path / "none.pt")
    assert "no split test9" in error_of(capsys, *study, joined_data, text, "--subset", "test9")
    assert "there is no folder" in error_of(capsys, *study, tmp_path / "none", text)
    assert "1 or more" in error_of(capsys, *study, joined_data, text, "--batch-tokens", "0")
