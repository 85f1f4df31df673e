"""Checkpoints that were cut short: which are told, and how the last one of a training is mended."""

import os

import pytest
import torch

from fairseq_klang.checkpoints.reading import CheckpointError
from fairseq_klang.checkpoints.whole import is_cut_short, mend_last_checkpoint


def save(path, value=0.0, **options):
    torch.save({"model": {"weight": torch.full((1000,), value)}}, path, **options)
    return path


def cut(path, size=None):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 if size is None else size])


def test_an_archive_is_whole_only_with_its_last_byte(tmp_path):
    path = save(tmp_path / "a.pt")
    assert not is_cut_short(path)
    whole = path.read_bytes()
    for size in (0, 1, 2, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert is_cut_short(path), size


def test_a_file_of_the_older_format_is_left_to_the_reader(tmp_path):
    assert not is_cut_short(save(tmp_path / "old.pt", _use_new_zipfile_serialization=False))


def test_the_last_checkpoint_is_mended_from_the_newest_whole_one(tmp_path):
    for age, name in enumerate(
        ("checkpoint_best.pt", "checkpoint_1_500.pt", "checkpoint2.pt", "checkpoint3.pt")
    ):
        os.utime(save(tmp_path / name, float(age)), (1000 + age, 1000 + age))
    save(tmp_path / "checkpoint_other.pt")  # newest of all, but no name that fairseq copies from
    cut(tmp_path / "checkpoint3.pt")
    last = save(tmp_path / "checkpoint_last.pt")
    assert mend_last_checkpoint(tmp_path) is None
    cut(last)
    assert mend_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint2.pt")
    assert last.read_bytes() == (tmp_path / "checkpoint2.pt").read_bytes()
    assert not (tmp_path / "checkpoint_last.pt.partial").exists()


def test_without_a_whole_checkpoint_nothing_is_touched(tmp_path):
    assert mend_last_checkpoint(tmp_path) is None
    last = save(tmp_path / "checkpoint_last.pt")
    cut(last)
    before = last.read_bytes()
    with pytest.raises(CheckpointError, match="was cut short and no other checkpoint is there"):
        mend_last_checkpoint(tmp_path)
    assert last.read_bytes() == before
