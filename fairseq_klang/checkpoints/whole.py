"""Tells a checkpoint that was cut short while it was written, and mends the last one of a
training."""

import glob
import os
import re
import shutil
import zipfile
from typing import Optional

from ..files import Path, written
from .reading import CheckpointError


def is_cut_short(path: Path) -> bool:
    """Whether the file at `path` is a torch archive without its directory, which is written last.

    Reads only a few bytes. A file of torch's older format, which is no archive, is never called cut
    short.
    """
    with open(path, "rb") as stream:
        start = stream.read(3)
    return (start[:2] == b"PK" or len(start) < 3) and not zipfile.is_zipfile(path)


def mend_last_checkpoint(folder: Path) -> Optional[str]:
    """Replace a checkpoint_last.pt that was cut short by the newest whole checkpoint beside it.

    fairseq writes the first file of an epoch under a name of its own and then copies it, to
    checkpoint_last.pt at the end. A kill during the copying leaves a whole newer file beside the
    broken one.

    Returns:
        The path that was copied, or None where there was nothing to mend.
    Raises:
        CheckpointError: no whole checkpoint is there.
    """
    last = os.path.join(os.fspath(folder), "checkpoint_last.pt")
    if not os.path.exists(last) or not is_cut_short(last):
        return None
    others = glob.glob(os.path.join(glob.escape(os.fspath(folder)), "checkpoint*.pt"))
    whole = [
        path
        for path in others
        if re.search(r"checkpoint(\d+|_\d+_\d+|_best)\.pt$", path) and not is_cut_short(path)
    ]
    if not whole:
        raise CheckpointError(
            f"{last} was cut short and no other checkpoint is there; delete {folder} to train from "
            "the start"
        )
    newest = max(whole, key=os.path.getmtime)
    with open(newest, "rb") as source, written(last, "wb") as target:
        shutil.copyfileobj(source, target)
    return newest
