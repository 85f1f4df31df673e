"""Writing checkpoints: complete or absent, and straight into what is no plain file."""

import os
import stat
import threading

import pytest
import torch

from fairseq_klang.checkpoints.average import average_to_file
from fairseq_klang.checkpoints.reading import load_checkpoint
from fairseq_klang.checkpoints.saving import save_adapted, write_checkpoint
from fairseq_klang.files import OutputError, written
from helpers.checkpoints import save


def average_two(folder, output):
    """`klang average` of two checkpoints."""
    average_to_file([save(folder / f"{value}.pt", value) for value in (1, 3)], output)


def adapt_one(folder, output):
    """What --adapt-save does at the end."""
    model = torch.nn.Linear(2, 3)
    torch.nn.init.constant_(model.weight, 2)
    save_adapted(model, save(folder / "trained.pt", 1), output)


def table(path):
    """The table of twos that both writers above write."""
    model = load_checkpoint(path)["model"]
    return model.get("embed", model.get("weight"))


WRITERS = pytest.mark.parametrize("write", [average_two, adapt_one])


@WRITERS
def test_a_named_pipe_stays_one_and_its_reader_gets_the_checkpoint(tmp_path, write):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(tmp_path, pipe)
    reader.join(60)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    (tmp_path / "received.pt").write_bytes(received[0])
    assert torch.equal(table(tmp_path / "received.pt"), torch.full((3, 2), 2.0))


@WRITERS
def test_a_link_is_followed(tmp_path, write):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.pt").symlink_to(tmp_path / "elsewhere" / "model.pt")
    write(tmp_path, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.equal(table(tmp_path / "elsewhere" / "model.pt"), torch.full((3, 2), 2.0))
    assert os.listdir(tmp_path / "elsewhere") == ["model.pt"]


@WRITERS
def test_a_device_stays_a_device(tmp_path, write):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        open(device, "wb").close()
    except OSError:
        device = "/dev/null"  # only root may make devices
    write(tmp_path, device)
    assert stat.S_ISCHR(os.stat(device).st_mode)


class Full:
    """A stream on a disk that is full after `room` bytes."""

    def __init__(self, stream, room):
        self.stream, self.room = stream, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return self.stream.write(data)

    def flush(self):
        self.stream.flush()


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, room):
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")
    with pytest.raises(OutputError, match="model.pt cannot be written: No space left on device"):
        with written(path, "wb") as stream:
            write_checkpoint({"model": {"weight": torch.zeros(1000)}}, Full(stream, room))
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["model.pt"]
