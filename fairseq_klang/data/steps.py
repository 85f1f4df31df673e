"""Steps that each fill a folder once: what a folder was made from is kept in it, so that a stopped
run goes on, and a folder made from something else is refused."""

import os
import sys
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ..files import filled_folder, read_json, remove_folder, write_json
from .options import PrepareError, PrepareOptions, flag

RECORD = ".step.json"  # inside each step's folder: what it was made from, and what came out
UNCOUNTED = (RECORD, "preprocess.log")  # what a step leaves that is no result

Facts = Dict[str, Any]


def say(text: str) -> None:
    """Print a line of progress, at once, where it does not mix with what a command prints."""
    print(text, file=sys.stderr, flush=True)


def file_sizes(folder: str) -> Dict[str, int]:
    """{name: bytes} of the results in a step's folder."""
    return {
        entry.name: entry.stat().st_size
        for entry in os.scandir(folder)
        if entry.is_file() and entry.name not in UNCOUNTED
    }


def read_record(folder: str, facts: Any = dict) -> Tuple[Facts, Facts, Dict[str, int]]:
    """(key, facts, sizes of the files) that run_step left in a step's folder.

    facts: the fields that the facts must hold, as in files.read_json.
    Raises PrepareError where there is no record, or a damaged one.
    """
    fix = "choose another --out, or move the folder away"
    fields = {"key": dict, "result": facts, "files": dict}
    record = read_json(os.path.join(folder, RECORD), PrepareError, fix, fields)
    if record is None:
        raise PrepareError(f"{folder} was not made by klang prepare; {fix}")
    return record["key"], record["result"], record["files"]


def damage(folder: str) -> str:
    """What a step's folder has lost since it was filled, as "NAME is gone" or "NAME has other
    bytes", or ""."""
    found = file_sizes(folder)
    for name, size in read_record(folder)[2].items():
        if name not in found:
            return f"{name} is gone"
        if found[name] != size:
            return f"{name} has {found[name]} bytes, not {size}"
    return ""


def _refuse_other(out: str, step: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise PrepareError unless the folder of this step was made from the same inputs and
    options."""
    for name in new:
        # An option may be younger than the folder, which then has its default.
        before = old.get(name, getattr(PrepareOptions, name, None))
        if before == new[name]:
            continue
        what = f"{out} was prepared with {flag(name)} {before}, now it is {new[name]}"
        if name == "inputs":
            before = before if isinstance(before, dict) else {}
            changed = [
                key
                for key in sorted(set(before) | set(new[name]))
                if before.get(key) != new[name].get(key)
            ]
            what = f"{out} was prepared from other text ({', '.join(changed)})"
        raise PrepareError(
            f"{what}; choose another --out, or delete {os.path.join(out, step)} and the steps "
            "after it"
        )


def finished_step(
    out: str, step: str, key: Mapping[str, Any], facts: Any = dict
) -> Optional[Facts]:
    """What run_step returned for OUT/STEP, or None where that folder is not there.

    facts: as in read_record. Raises PrepareError where the folder was made from another key.
    """
    folder = os.path.join(out, step)
    if not os.path.exists(folder):
        return None
    old, result, _ = read_record(folder, facts)
    _refuse_other(out, step, old, key)
    return result


def remove_step(folder: str) -> None:
    """Remove what a step has made, to make it again; raises PrepareError where files of others are
    there too."""
    theirs = sorted(set(file_sizes(folder)) - set(read_record(folder)[2]))
    if theirs:
        raise PrepareError(
            f"{folder} must be made again, but {theirs[0]} there was not made by klang prepare; "
            "move it away"
        )
    remove_folder(folder)


def run_step(out: str, step: str, key: Mapping[str, Any], work: Callable[[str], Facts]) -> Facts:
    """Fill the folder OUT/STEP by calling work(folder), which returns facts to keep; returns these.

    The folder takes its name only when it is complete. It records the facts, the sizes of its files
    and `key`, all that they depend on. The caller holds the lock on `out`.
    """
    with filled_folder(os.path.join(out, step), alone=True) as folder:
        result = work(folder)
        write_json(
            os.path.join(folder, RECORD),
            {"key": key, "result": result, "files": file_sizes(folder)},
        )
    return result
