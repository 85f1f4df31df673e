"""Whatever is given as a checkpoint is read, or refused in one line."""

import argparse
import collections
import io
import os
import pickle
import random
import zipfile

import numpy as np
import pytest
import torch

from fairseq_klang.checkpoints.average import average_to_file
from fairseq_klang.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_klang.errors import KlangError
from helpers.checkpoints import save


def checked(path):
    """The checkpoint at `path`, or None where it is refused in one printable line that names it."""
    try:
        state = load_checkpoint(path)
    except CheckpointError as error:
        assert str(path) in str(error) and str(error).isprintable(), error
        return None
    assert all(torch.is_tensor(tensor) for tensor in state["model"].values())
    return state


def noise(rng, count):
    return bytes(rng.choices(range(256), k=count))


def flipped(content, rng, count):
    content = bytearray(content)
    for _ in range(count):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def repacked(content, change):
    """The archive with its pickle changed: checksums hold, so the bytes reach the unpickler."""
    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            archive.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return target.getvalue()


def damaged(whole, rng):
    """One damaged copy of the bytes `whole`."""
    way = rng.randrange(6)
    if way == 0:
        return whole[: rng.randrange(len(whole))]
    if way == 1:
        return flipped(whole, rng, rng.randint(1, 20))
    if way == 2:
        place, length = rng.randrange(len(whole)), rng.randrange(200)
        return whole[:place] + whole[place + length :]
    if way == 3:
        place = rng.randrange(len(whole))
        return whole[:place] + noise(rng, 100) + whole[place + 100 :]
    if way == 4 and whole[:2] == b"PK":
        if rng.randrange(2):
            return repacked(whole, lambda pickled: pickled[: rng.randrange(len(pickled))])
        return repacked(whole, lambda pickled: flipped(pickled, rng, rng.randint(1, 4)))
    return rng.choice([b"", b"PK\x03\x04", whole[:100]]) + noise(rng, rng.randrange(300))


@pytest.mark.parametrize("archive", [True, False])
def test_damaged_checkpoints_are_read_or_refused_in_one_line(tmp_path, archive):
    save(tmp_path / "whole.pt", 1)
    state = torch.load(tmp_path / "whole.pt", weights_only=False)
    state["last_optimizer_state"] = None  # its zeros would take most of the damage
    state["extra_state"]["meters"] = {"bleu": np.arange(3), "best": np.float64(1.5)}
    torch.save(state, tmp_path / "whole.pt", _use_new_zipfile_serialization=archive)
    whole, rng = (tmp_path / "whole.pt").read_bytes(), random.Random(1)
    assert checked(tmp_path / "whole.pt")
    refused = 0
    for _ in range(300):
        (tmp_path / "damaged.pt").write_bytes(damaged(whole, rng))
        refused += checked(tmp_path / "damaged.pt") is None
    assert refused > 200  # some bytes only change a weight, or pad


TEXTS = [
    "", "a", "hello\n", "<html>not found</html>", '{"model": {}}', "I1\n.", "cos\nsystem\n.",
    "(dp0\n.", "version https://git-lfs.github.com/spec/v1\n", "\ufeffläuft\n", "c" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_is_refused(tmp_path, text):
    (tmp_path / "text.pt").write_text(text, encoding="utf-8")
    assert checked(tmp_path / "text.pt") is None


OTHERS = [
    None, 1, "model", [1], {}, {"model": None}, {"model": [1]}, {"model": {"weight": 1}},
    {"model": {1: torch.zeros(1)}}, {"model": {}, "cfg": 1}, {"model": {}, "task_state": [1]},
    argparse.Namespace(model={}), torch.zeros(3), {1: 2},
]  # fmt: skip


@pytest.mark.parametrize("content", OTHERS, ids=range(len(OTHERS)))
def test_other_content_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "other.pt")
    (tmp_path / "other.pickle").write_bytes(pickle.dumps(content))
    assert checked(tmp_path / "other.pt") is None
    assert checked(tmp_path / "other.pickle") is None


def test_other_archives_folders_and_places_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "book.zip", "w") as archive:
        archive.writestr("chapter.txt", "text" * 1000)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    (tmp_path / "deep.pickle").write_bytes(b"]" * 100000 + b"a" * 99999 + b".")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    for name in ("book.zip", "empty.zip", "deep.pickle", "script.pt", "", "none.pt", "none/a.pt"):
        assert checked(tmp_path / name) is None, name
    assert checked("/dev/null") is None


@pytest.mark.parametrize("archive", [True, False])
def test_a_claim_of_more_memory_than_there_is_is_refused(tmp_path, archive):
    path = tmp_path / "huge.pt"
    torch.save(
        {"model": {"weight": torch.zeros(1000)}}, path, _use_new_zipfile_serialization=archive
    )
    # 1000 and 2 ** 55, as pickle writes them
    few, many = b"M" + (1000).to_bytes(2, "little"), b"\x8a\x08" + (1 << 55).to_bytes(8, "little")
    if archive:
        content = repacked(path.read_bytes(), lambda pickled: pickled.replace(few, many))
    else:
        content = path.read_bytes().replace(few, many)
    assert content != path.read_bytes()
    path.write_bytes(content)
    assert checked(path) is None


def test_averaging_refuses_what_the_reader_refuses(tmp_path):
    good = save(tmp_path / "good.pt", 1)
    for number, content in enumerate(OTHERS):
        bad = tmp_path / f"{number}.pt"
        torch.save(content, bad)
        with pytest.raises(KlangError) as error:
            average_to_file([good, bad], tmp_path / "out.pt")
        assert str(error.value).isprintable()
    assert not os.path.exists(tmp_path / "out.pt")


def test_an_ordered_dict_of_tensors_is_a_model(tmp_path):
    torch.save({"model": collections.OrderedDict(weight=torch.ones(2))}, tmp_path / "a.pt")
    assert load_checkpoint(tmp_path / "a.pt")["model"]["weight"].tolist() == [1, 1]
