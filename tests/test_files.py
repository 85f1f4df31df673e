"""Files: what is read, written whole or not at all, locked, and refused, each in one line."""

import errno
import gzip
import io
import lzma
import os
import stat
import subprocess
import sys
import threading

import pytest

from fairseq_klang import files
from fairseq_klang.errors import KlangError
from fairseq_klang.files import (
    LockedError,
    OutputError,
    TextError,
    filled_folder,
    locked,
    raw_lines,
    read_json,
    read_lines,
    remove_folder,
    set_aside,
    write_json,
    written,
)


def write(path, text="new\n"):
    with written(path) as stream:
        stream.write(text)


# -- input --


def test_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "x").write_bytes("\ufeffa\u2028b\x85c\rd\r\n  e \t f\n\ufefflast".encode())
    assert list(read_lines(tmp_path / "x")) == ["a b c d", "e f", "last"]
    assert list(raw_lines(tmp_path / "x")) == ["a\u2028b\x85c\rd\r\n", "  e \t f\n", "last"]


@pytest.mark.parametrize("name", ["x.gz", "x"])
def test_packed_text(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"eins\nzwei\n"))
    assert list(read_lines(tmp_path / name)) == ["eins", "zwei"]


def test_a_stream_that_is_open_already():
    assert list(read_lines("standard input", io.BytesIO(b"a  b\n\nc"))) == ["a b", "", "c"]


def test_unreadable_text(tmp_path):
    for name, content, words in (
        ("latin", "ok\nfünf\n".encode("latin-1"), "latin line 2 is not UTF-8"),
        ("wide", "fünf\n".encode("utf-16"), r"wide line 1 is not UTF-8 \(it is UTF-16\)"),
        ("half", "fünf\nfü".encode()[:-1], "half stops in the middle of line 2"),
        ("xz", lzma.compress(b"eins\n"), "xz is packed with xz; unpack it first"),
        ("cut.gz", gzip.compress(os.urandom(5000).hex().encode())[:-900], "cut.gz is damaged"),
        ("fake.gz", b"plain", "fake.gz cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TextError, match=words):
            list(read_lines(tmp_path / name))
    with pytest.raises(TextError, match="standard input is packed with gzip; unpack it first"):
        list(read_lines("standard input", io.BytesIO(gzip.compress(b"eins\n"))))
    with pytest.raises(TextError, match="none does not exist"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(TextError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


# -- output --


def test_a_file_is_written_as_it_is(tmp_path):
    write(tmp_path / "x", "ä\nb\r\n")
    assert (tmp_path / "x").read_bytes() == b"\xc3\xa4\nb\r\n"
    with written(tmp_path / "x", "wb") as stream:
        stream.write(b"\0")
    assert (tmp_path / "x").read_bytes() == b"\0" and os.listdir(tmp_path) == ["x"]


def test_names_that_are_not_utf8_are_spelled_out(tmp_path):
    with written(tmp_path / "list") as stream:
        stream.write(os.fsdecode(b"l\xe4uf\n"))
    assert (tmp_path / "list").read_text() == "l\\udce4uf\n"
    write_json(tmp_path / "json", os.fsdecode(b"l\xe4uf"))
    assert read_json(tmp_path / "json") == "l\udce4uf"


def test_the_mode_is_kept_and_a_new_file_follows_the_umask(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o640)
    before = os.umask(0o027)
    try:
        write(tmp_path / "old")
        write(tmp_path / "new")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")] == [
        0o640
    ] * 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError, SystemExit])
def test_what_stops_half_way_leaves_the_old_file(tmp_path, stop):
    write(tmp_path / "x", "old")
    with pytest.raises(stop), written(tmp_path / "x") as stream:
        stream.write("half")
        assert (tmp_path / "x").read_text() == "old"
        raise stop
    assert (tmp_path / "x").read_text() == "old" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, call):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "x", "old")
    if call != "write":
        monkeypatch.setattr(files.os, call, full)
    with pytest.raises(OutputError, match=f"{tmp_path}/x cannot be written: No space left"):
        with written(tmp_path / "x") as stream:
            stream.write("new")
            if call == "write":
                full()
    monkeypatch.undo()
    assert (tmp_path / "x").read_text() == "old" and os.listdir(tmp_path) == ["x"]


def test_an_error_of_another_file_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), written(tmp_path / "x"):
        open(tmp_path / "x.input")
    assert os.listdir(tmp_path) == []


def test_two_writers_do_not_mix(tmp_path):
    with written(tmp_path / "x") as one:
        one.write("one" * 9)
        write(tmp_path / "x", "two")
        one.write("!")
    assert (tmp_path / "x").read_text() == "one" * 9 + "!" and os.listdir(tmp_path) == ["x"]


def test_links_stay(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    (tmp_path / "inner").symlink_to("folder/file")
    (tmp_path / "outer").symlink_to(tmp_path / "inner")
    (tmp_path / "dangling").symlink_to("folder/later")
    write(tmp_path / "outer")
    write(tmp_path / "dangling")
    assert all((tmp_path / name).is_symlink() for name in ("inner", "outer", "dangling"))
    assert (tmp_path / "folder" / "file").read_text() == "new\n"
    assert (tmp_path / "folder" / "later").read_text() == "new\n"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OutputError, match="round cannot be written: Too many levels of symbolic"):
        write(tmp_path / "round")


def through_pipe(pipe, path):
    """What a reader of the named pipe gets when `path` is written."""
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write(path)
    reader.join(60)
    return read


def test_a_named_pipe_is_written_into_also_behind_a_link(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        assert through_pipe(tmp_path / "pipe", tmp_path / name) == ["new\n"]
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_device_is_written_into(tmp_path, monkeypatch):
    """Told by the file's type; no real device, which a mistake here would replace."""
    (tmp_path / "device").write_text("before ")
    monkeypatch.setattr(files.os.path, "isfile", lambda path: False)
    number = os.stat(tmp_path / "device").st_ino
    write(tmp_path / "device")
    assert (tmp_path / "device").read_text() == "before new\n"
    assert os.stat(tmp_path / "device").st_ino == number


def test_an_open_file_goes_on_where_it_is(tmp_path):
    """As `klang ... --output /dev/stdout > file` has it, also behind a link."""
    with open(tmp_path / "opened", "w") as stream:
        stream.write("before\n")
        stream.flush()
        (tmp_path / "link").symlink_to(f"/dev/fd/{stream.fileno()}")
        write(f"/dev/fd/{stream.fileno()}", "one\n")
        write(tmp_path / "link", "two\n")
        stream.write("after\n")
    assert (tmp_path / "opened").read_text() == "before\none\ntwo\nafter\n"


def test_a_broken_pipe_stays_one(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(BrokenPipeError):
            write(f"/dev/fd/{writing}")
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "name, words",
    [
        ("", "'' is a folder"),
        (".", r"\. is a folder; name a file in it"),
        ("none/", "none/ is a folder"),
        ("none/x", "none/x cannot be written: No such file or directory"),
        ("/proc/x", "/proc/x cannot be written: "),
    ],
)
def test_places_that_cannot_be_written(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=words):
        write(name)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_forbids_writing(tmp_path, monkeypatch):
    def denied(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("builtins.open", denied)  # the tests may run as root
    with pytest.raises(OutputError, match=f"{tmp_path}/x cannot be written: Permission denied"):
        write(tmp_path / "x")


# -- folders --


def test_a_folder_is_filled_whole_or_not_at_all(tmp_path):
    with filled_folder(tmp_path / "deep" / "x") as folder:
        write(f"{folder}/file")
        assert not (tmp_path / "deep" / "x").exists()
    assert (tmp_path / "deep" / "x" / "file").read_text() == "new\n"
    with pytest.raises(KeyboardInterrupt), filled_folder(tmp_path / "y") as folder:
        write(f"{folder}/file")
        raise KeyboardInterrupt
    with pytest.raises(OutputError, match="y cannot be written: No space"):
        with filled_folder(tmp_path / "y") as folder:
            raise OSError(errno.ENOSPC, "No space left on device", f"{folder}/file")
    with pytest.raises(FileNotFoundError), filled_folder(tmp_path / "y"):
        open(tmp_path / "input")
    assert os.listdir(tmp_path) == ["deep"] and os.listdir(tmp_path / "deep") == ["x"]


def test_folders_that_cannot_be_filled(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    for name in (tmp_path, tmp_path / "link"):
        with pytest.raises(OutputError, match="exists; choose another folder, or remove it"):
            with filled_folder(name):
                raise AssertionError("is there")
    with pytest.raises(OutputError, match="/proc/x cannot be written"), filled_folder("/proc/x"):
        raise AssertionError("is there")


def test_what_killed_ones_left_goes_when_nobody_else_is_there(tmp_path):
    for name in (".x.0123abcd.partial", ".y.0123abcd.partial"):
        (tmp_path / name).mkdir()
    with filled_folder(tmp_path / "x"):
        pass
    assert (tmp_path / ".x.0123abcd.partial").exists()
    remove_folder(tmp_path / "x")
    with filled_folder(tmp_path / "x", alone=True):
        pass
    assert sorted(os.listdir(tmp_path)) == [".y.0123abcd.partial", "x"]


def test_a_file_is_set_aside(tmp_path):
    write(tmp_path / "x")
    assert set_aside(tmp_path / "x", ".unusable") == f"{tmp_path}/x.unusable"
    assert os.listdir(tmp_path) == ["x.unusable"]


# -- JSON --


def test_json_comes_back(tmp_path):
    value = {"ä": [1, None, {"b": "c"}]}
    write_json(tmp_path / "x", value)
    assert read_json(tmp_path / "x") == value and read_json(tmp_path / "none") is None
    with pytest.raises(TypeError):
        write_json(tmp_path / "x", {"one": 1, "two": object()})
    assert read_json(tmp_path / "x") == value


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", r"is \[\]"),
        (b"{}", "key is null"),
        (b'{"key": [1]}', r"key is \[1\]"),
        (b'{"key": "a", "more": {"deep": "b"}}', 'deep is "b"'),
    ],
)
def test_damaged_json(tmp_path, content, words):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(KlangError, match=f"{tmp_path}/x is damaged: (it )?{words}; delete it$"):
        read_json(tmp_path / "x", fields={"key": str, "more": {"deep": (int, type(None))}})
    with pytest.raises(KlangError, match="cannot be read: Is a directory"):
        read_json(tmp_path)


# -- locks --

HOLD = """
import multiprocessing, os, sys, time
sys.path.insert(0, {root!r})
from fairseq_klang.files import locked
if __name__ == "__main__":
    with locked({folder!r}):
        worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
        worker.start()
        print(worker.pid, flush=True)
        time.sleep(60)
"""


def test_a_lock_holds_within_a_process_and_is_given_back(tmp_path):
    with locked(tmp_path):
        with pytest.raises(LockedError, match="is in use by another process"), locked(tmp_path):
            raise AssertionError("has it twice")
    with locked(tmp_path), locked(tmp_path, name=".other"):
        pass


def test_a_lock_ends_with_its_process_whose_workers_do_not_keep_it(tmp_path):
    from helpers.running import ROOT

    script = tmp_path / "hold.py"
    script.write_text(HOLD.format(root=ROOT, folder=str(tmp_path)))
    holder = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    worker = int(holder.stdout.readline())
    try:
        with pytest.raises(LockedError), locked(tmp_path):
            raise AssertionError("two have it")
        holder.kill()
        holder.wait()
        os.kill(worker, 0)  # is still there
        with locked(tmp_path, patience=10):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        os.kill(worker, 9)


def test_a_folder_that_cannot_be_changed_needs_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    with locked(tmp_path), locked(tmp_path):
        assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_locked(tmp_path):
    write(tmp_path / "file")
    with pytest.raises(OutputError, match="file/.lock cannot be locked: "):
        with locked(tmp_path / "file"):
            raise AssertionError("is held")
