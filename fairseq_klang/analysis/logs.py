"""The one reader of fairseq's training logs: JSON, simple and tqdm lines, from a --log-file or from
the standard output."""

import json
import math
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..errors import KlangError

LOG_NAME = "train.log"
# fairseq's names: a row every --log-interval updates, one an epoch, and one a validation
INNER, TRAIN, VALID = "train_inner", "train", "valid"


class LogError(KlangError):
    """A training log that is missing, unreadable or without numbers."""


class Row(NamedTuple):
    """One logged number.

    split: "train_inner", "train", or the name of a validation subset; update: optimiser steps.
    """

    split: str
    epoch: int
    update: int
    metric: str
    value: float


class Line(NamedTuple):
    """The numbers of one line of a log; progress: epochs done so far, of "train_inner" only."""

    split: str
    epoch: int
    stats: Dict[str, float]
    progress: Optional[float] = None


# --log-format simple: "epoch 001:     20 / 67 loss=9.1, ..." and "epoch 001 | valid on 'valid'
# subset | loss 8.9 | ..."
_SIMPLE_INNER = re.compile(r"\bepoch (\d+):\s+\d+ / \d+ (\S.*)$")
_SIMPLE_EPOCH = re.compile(r"\bepoch (\d+) \| (?:valid on '([^']+)' subset \| )?(\S.*)$")


def _number(value: Any) -> Optional[float]:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _line(split: str, epoch: Any, stats: Dict[str, Any], progress: Any = None) -> Optional[Line]:
    """A Line of values that may be text; None without a whole number of the epoch."""
    numbers = {name: _number(value) for name, value in stats.items()}
    found = _number(epoch)
    if found is None or not math.isfinite(found):
        return None
    known = {name: value for name, value in numbers.items() if value is not None}
    return Line(split, int(found), known, _number(progress))


def _json_line(text: str) -> Optional[Line]:
    """The lines of a --log-file do not name their split: the names of their numbers tell it."""
    try:
        stats = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):  # not JSON, or the line that a killed run was writing
        return None
    if not isinstance(stats, dict) or "epoch" not in stats:
        return None
    epoch = stats.pop("epoch")
    progress = stats.pop("update", None)
    if progress is not None:
        return _line(INNER, epoch, stats, progress)
    ending = "_num_updates"
    split = next((key[: -len(ending)] for key in stats if key.endswith(ending)), None)
    if split is None:
        return None
    start = f"{split}_"
    own = {key[len(start) :]: value for key, value in stats.items() if key.startswith(start)}
    return _line(split, epoch, own)


def _simple_line(text: str) -> Optional[Line]:
    """--log-format simple, and tqdm, whose lines at the end of an epoch look alike."""
    match = _SIMPLE_INNER.search(text)
    if match:
        parts = [part.split("=", 1) for part in match.group(2).split(", ") if "=" in part]
        return _line(INNER, match.group(1), {name: value for name, value in parts})
    match = _SIMPLE_EPOCH.search(text)
    if match:
        pairs = [part.split(None, 1) for part in match.group(3).split(" | ")]
        stats = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
        return _line(match.group(2) or TRAIN, match.group(1), stats)
    return None


def read_line(text: str) -> Optional[Line]:
    """What one line of a log says, or None where it holds no numbers."""
    return _json_line(text.rstrip()) if "{" in text else _simple_line(text.rstrip())


def read_log(path: str) -> List[Row]:
    """The rows of a fairseq training log, in order of update within each split.

    fairseq writes a line several times into a --log-file, and a resumed run repeats the updates
    after its checkpoint: of all lines for one split and update the last one counts. Raises LogError
    where there is no file or no row.
    """
    records = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for text in stream:
                line = read_line(text)
                update = line.stats.pop("num_updates", math.nan) if line else math.nan
                if line and line.stats and math.isfinite(update):
                    records[line.split, int(update)] = line
    except FileNotFoundError:
        raise LogError(
            f"there is no log {path}; train with --log-file {path} --log-format json"
        ) from None
    except OSError as error:
        raise LogError(f"log {path} cannot be read: {error.strerror}") from None
    if not records:
        raise LogError(
            f"log {path} has no line with numbers yet; train with --log-format json and a smaller "
            "--log-interval"
        )
    return [
        Row(split, line.epoch, update, name, value)
        for (split, update), line in sorted(records.items(), key=lambda record: record[0])
        for name, value in line.stats.items()
    ]


def read_runs(run_dirs: Sequence[str]) -> Dict[str, List[Row]]:
    """{name: rows} for folders that hold a train.log, or logs themselves.

    The name is the shortest that tells the runs apart. Raises LogError as :func:`read_log` does,
    and for a run given twice.
    """
    paths = [run if os.path.isfile(run) else os.path.join(run, LOG_NAME) for run in run_dirs]
    parts = [os.path.abspath(run).split(os.sep) for run in run_dirs]
    if len({tuple(part) for part in parts}) < len(parts):
        raise LogError("a run is named twice; name each run once")
    depth = 1
    while len({tuple(part[-depth:]) for part in parts}) < len(parts):
        depth += 1
    names = (os.sep.join(part[-depth:]) for part in parts)
    # A name that is not UTF-8 is spelled out: tables and pictures cannot hold it as it is.
    shown = (name.encode("utf-8", "backslashreplace").decode() for name in names)
    return {name: read_log(path) for name, path in zip(shown, paths)}


def by_update(rows: Sequence[Row], split: str) -> Dict[int, Dict[str, float]]:
    """{update: {metric: value}} of one split, in order of update."""
    found: Dict[int, Dict[str, float]] = {}
    for row in rows:
        if row.split == split:
            found.setdefault(row.update, {})[row.metric] = row.value
    return dict(sorted(found.items()))


def by_epoch(rows: Sequence[Row], split: str = VALID) -> Dict[int, Dict[str, float]]:
    """{epoch: {metric: value}} of one split, in order of epoch; the last of an epoch counts."""
    found: Dict[int, Dict[str, float]] = {}
    for row in rows:
        if row.split == split:
            found.setdefault(row.epoch, {})[row.metric] = row.value
    return dict(sorted(found.items()))
