"""The checks before training: what they refuse, what they leave alone."""

import logging
from argparse import Namespace

import pytest
import torch

from fairseq_klang.checks.preflight import (
    check_arguments,
    check_checkpoint_metric,
    check_restore_file,
)
from fairseq_klang.errors import UsageError


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dict.de.txt").write_text("a 1\n")
    return Namespace(data=str(tmp_path / "bin"), save_dir=str(tmp_path / "new" / "run"))


def test_a_sound_command_line_passes(folders):
    check_arguments(folders)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: vars(a).update(data=a.data + "x"), "does not exist; make it with klang prepare"),
        (
            lambda a: vars(a).update(data=a.save_dir.rsplit("/", 2)[0]),
            r"holds no dictionary \(dict.LANG.txt\)",
        ),
        (
            lambda a: vars(a).update(save_dir=a.data + "/dict.de.txt/run"),
            "--save-dir .* cannot be written",
        ),
    ],
)
def test_folders_that_cannot_work_are_refused(folders, change, message):
    change(folders)
    with pytest.raises(UsageError, match=message):
        check_arguments(folders)


def test_the_folders_of_a_checkpoints_configuration_are_left_alone(folders):
    folders.data, folders._name = "/nowhere", "transformer_dualhead"
    check_arguments(folders)


def test_checkpoints_cut_anywhere_are_refused_and_whole_ones_pass(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": {"weight": torch.zeros(1000)}}, path)
    whole = path.read_bytes()
    check_restore_file(str(tmp_path), "checkpoint_last.pt")
    for size in (0, 2, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="was cut short while written"):
            check_restore_file(str(tmp_path), "checkpoint_last.pt")
        with pytest.raises(UsageError, match="was cut short while written"):
            check_restore_file(str(tmp_path / "other"), str(path))
    check_restore_file(str(tmp_path), "checkpoint_none.pt")


@pytest.mark.parametrize(
    "metric, maximise, warning",
    [
        ("loss", False, "nll gets worse as BLEU improves"),
        ("ppl", False, "nll gets worse as BLEU improves"),
        ("bleu", False, "the worst is kept"),
        ("bleu", True, ""),
    ],
)
def test_warnings_about_the_best_checkpoint(caplog, metric, maximise, warning):
    with caplog.at_level(logging.WARNING):
        check_checkpoint_metric(metric, maximise)
    assert warning in caplog.text and bool(caplog.text) == bool(warning)
