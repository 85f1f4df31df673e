"""Reading checkpoints safely, which command is running, and the bridges that the commands do not
cover."""

import argparse
import sys

import numpy as np
import pytest
import torch
from fairseq.data.iterators import BufferedIterator

import fairseq_klang
from fairseq_klang import compat
from fairseq_klang.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_klang.compat import (
    follow_training,
    is_training_command,
    is_validation_command,
    strip_legacy_keys,
)
from fairseq_klang.errors import UsageError
from helpers.running import TINY_TRANSFORMER, train_arguments

fairseq_klang.register()

SAFE_LOADER = hasattr(torch.serialization, "add_safe_globals")


def save(path, **more):
    torch.save(
        {"model": {"weight": torch.ones(3)}, "args": argparse.Namespace(arch="x"), **more}, path
    )
    return path


def test_the_plain_data_of_fairseqs_checkpoints_loads(tmp_path):
    meters = {
        "counts": np.array([1, 2]),
        "total": np.float64(0.5),
        "flag": np.array([True]),
        "half": np.array([1.0], dtype="float32"),
    }
    state = load_checkpoint(save(tmp_path / "c.pt", extra_state=meters))
    assert state["args"].arch == "x"
    assert (
        state["extra_state"]["counts"].tolist() == [1, 2] and state["extra_state"]["total"] == 0.5
    )


@pytest.mark.parametrize("size", [0, 10, 400])
def test_a_file_cut_short_is_told_in_one_line(tmp_path, size):
    path = save(tmp_path / "c.pt")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value) and "cut short" in str(error.value)


def test_what_is_no_checkpoint_is_told_in_one_line(tmp_path):
    (tmp_path / "page.pt").write_text("<html>not found</html>")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, message in (
        ("none.pt", "does not exist"),
        ("page.pt", "not a readable checkpoint|damaged"),
        ("list.pt", "no 'model' entry"),
    ):
        with pytest.raises(CheckpointError, match=message) as error:
            load_checkpoint(tmp_path / name)
        assert "\n" not in str(error.value)


class Attack:
    """Would run code when unpickled by an unsafe loader."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


# Under an older torch there is no safe loader: README says to load only what one trusts.
if SAFE_LOADER:

    @pytest.mark.parametrize(
        "function, argument", [(eval, "open('attacked', 'w')"), (exec, "open('attacked', 'w')")]
    )
    @pytest.mark.parametrize("place", ["top", "namespace", "array"])
    def test_pickles_that_would_run_code_are_refused(
        tmp_path, monkeypatch, function, argument, place
    ):
        monkeypatch.chdir(tmp_path)
        attack = Attack(function, argument)
        more = {
            "top": dict(surprise=attack),
            "namespace": dict(cfg=argparse.Namespace(x=attack)),
            "array": dict(meters=np.array([attack], dtype=object)),
        }[place]
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(save(tmp_path / "c.pt", **more))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "attacked").exists()


def test_the_second_copy_of_the_encoder_is_stripped():
    state = {
        "encoder.layers.0.fc1_weight": 1,
        "encoder.layers.0.fc1.weight": 2,
        "decoder.layers.0.in_proj_weight": 3,
    }
    assert strip_legacy_keys(state) == {
        "encoder.layers.0.fc1.weight": 2,
        "decoder.layers.0.in_proj_weight": 3,
    }


def test_importing_a_command_is_not_running_it():
    import fairseq_cli.train  # noqa: F401
    import fairseq_cli.validate  # noqa: F401

    assert not is_training_command() and not is_validation_command()


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/site-packages/fairseq_cli/train.py", (True, False)),
        ("/site-packages/fairseq_cli/validate.py", (False, True)),
        ("/site-packages/fairseq_cli/generate.py", (False, False)),
        ("/my_project/train.py", (False, False)),
    ],
)
def test_the_running_command_is_the_main_that_calls(path, expected):
    program = {"ask": lambda: (is_training_command(), is_validation_command())}
    exec(compile("def main():\n    return ask()", path, "exec"), program)
    assert program["main"]() == expected


def test_training_within_this_process_is_training(joined_data, tmp_path, monkeypatch):
    """With fairseq's own model, so that the criterion alone can tell of the damaged checkpoint;
    test_package.py and test_end_to_end.py hear it warn in a worker and under hydra."""
    from fairseq_cli.train import cli_main

    path = save(tmp_path / "checkpoint_last.pt")
    path.write_bytes(path.read_bytes()[:300])
    options = ("--arch", "transformer", *TINY_TRANSFORMER, "--criterion", "restricted_softbleu")
    arguments = ["fairseq-train", *train_arguments(joined_data, tmp_path, *options)]
    monkeypatch.setattr(sys, "argv", list(map(str, arguments)))
    with pytest.raises(UsageError, match="was cut short"):
        cli_main()


def test_following_a_task_changes_that_task_alone():
    class Task:
        def begin_epoch(self, epoch, model):
            return epoch, model

        def train_step(self, sample, model, criterion, optimizer, update_num):
            return update_num

    criterion, task, other = argparse.Namespace(), Task(), Task()
    follow_training(task, criterion)
    assert task.begin_epoch(3, "model") == (3, "model") and criterion.epoch == 3
    assert task.train_step(1, 2, 3, 4, 17) == 17 and criterion.num_updates == 17
    assert (
        task.train_step(sample=1, model=2, criterion=3, optimizer=4, update_num=18) == 18
        and criterion.num_updates == 18
    )
    other.begin_epoch(9, "model")
    assert criterion.epoch == 3


class Endless:
    """More batches than any test reads; a thread that loads them never ends of itself."""

    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:
            yield torch.zeros(2)


def test_loading_threads_end_before_the_process_does():
    # Ended by Python in the middle of torch's C++ code, such a thread turns exit status 1 into an
    # abort.
    batches = BufferedIterator(2, Endless())
    next(batches)
    assert batches._consumer.is_alive()
    compat._end_loaders()
    assert not batches._consumer.is_alive()


def test_training_asks_for_that(monkeypatch):
    registered = []
    monkeypatch.setattr(compat.atexit, "register", registered.append)
    follow_training(argparse.Namespace(begin_epoch=None, train_step=None), argparse.Namespace())
    assert registered == [compat._end_loaders]
