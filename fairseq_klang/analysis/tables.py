"""Results as data: a CSV file with one figure a row, and tables as text or Markdown."""

import csv
import dataclasses
import io
import math
from typing import Any, Dict, List, Optional, Sequence, Union

from ..errors import KlangError
from ..files import Path, git_hash, versions, written


class TableError(KlangError):
    """A file of results that cannot be read, or a row that cannot be written."""


@dataclasses.dataclass
class Row:
    """One figure, with all that is needed to print it and to measure it again.

    Attributes:
        run: the system or training that was measured, e.g. `A10 softbleu` or `m30k ce`.
        measure: what was measured, e.g. `bleu_lc`; of a difference `bleu_lc minus RUN`.
        value: the figure; a mean where `n` is above 1.
        subset, decoding: the data that were translated, and `beam5` or `greedy`.
        low, high: the 95 % interval of `value`.
        p: the two-sided p-value of a difference.
        n: how many figures `value` is the mean of; None for one figure that needs no count.
        seeds: the seeds of the trainings.
        settings: what else tells this row from others, such as {"V": 8000, "k": 24, "epoch": 3}.
        signature: sacreBLEU's, for a score.
        commit, versions: see :func:`provenance`.
    """

    run: str
    measure: str
    value: float
    subset: str = ""
    decoding: str = ""
    low: Optional[float] = None
    high: Optional[float] = None
    p: Optional[float] = None
    n: Optional[int] = None
    seeds: List[int] = dataclasses.field(default_factory=list)
    settings: Dict[str, Any] = dataclasses.field(default_factory=dict)
    signature: str = ""
    commit: str = ""
    versions: Dict[str, Any] = dataclasses.field(default_factory=dict)


COLUMNS = (
    "run",
    "subset",
    "decoding",
    "measure",
    "value",
    "low",
    "high",
    "p",
    "n",
    "seeds",
    "settings",
    "signature",
    "commit",
    "versions",
)
NUMBERS = ("value", "low", "high", "p")


def provenance() -> Dict[str, Any]:
    """{"commit", "versions"} of the code that runs: fields for every :class:`Row` of a study.

    The commit is "" for an installed copy, whose version is among the versions.
    """
    return {"commit": git_hash() or "", "versions": versions("torch", "numpy", "sacrebleu")}


# -- the file --------------------------------------------------------------------------------------


def _pairs_as_text(pairs: Dict[str, Any]) -> str:
    for name, value in pairs.items():
        if "=" in name or ";" in f"{name}{value}" or "\n" in f"{name}{value}":
            raise TableError(f"{name}={value} cannot be a setting: it holds '=', ';' or a new line")
    return "; ".join(f"{name}={value}" for name, value in pairs.items())


def _typed(text: str) -> Union[int, float, str]:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _text_as_pairs(text: str, typed: bool) -> Dict[str, Any]:
    pairs = dict(part.split("=", 1) for part in text.split("; ")) if text else {}
    return {name: _typed(value) if typed else value for name, value in pairs.items()}


def _cells(row: Row) -> List[str]:
    cells = []
    for name in COLUMNS:
        value = getattr(row, name)
        if isinstance(value, dict):
            cells.append(_pairs_as_text(value))
        elif isinstance(value, list):
            cells.append(" ".join(map(str, value)))
        else:
            cells.append("" if value is None else str(value))
    return cells


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV: a line of :data:`COLUMNS`, then one line for each figure.

    Seeds are separated by spaces; settings and versions are written as `name=value; name=value`.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_cells, rows))
    return stream.getvalue()


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write :func:`as_csv`; the file is complete or absent. Raises OutputError."""
    text = as_csv(rows)
    with written(path) as stream:
        stream.write(text)


def read_rows(path: Path) -> List[Row]:
    """The rows of a file that :func:`write_rows` wrote; numbers among the settings are numbers.

    Raises TableError, in one line, for any other file.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            lines = list(csv.reader(stream))
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        raise TableError(f"{path} is no CSV file of results ({error})") from None
    if not lines or tuple(lines[0]) != COLUMNS:
        raise TableError(f"{path} is no CSV file of results: its first line is not the columns")
    return [_read_row(path, number, cells) for number, cells in enumerate(lines[1:], 2)]


def _read_row(path: Path, number: int, cells: List[str]) -> Row:
    try:
        if len(cells) != len(COLUMNS):
            raise ValueError("another number of columns")
        found: Dict[str, Any] = dict(zip(COLUMNS, cells))
        for name in NUMBERS:
            found[name] = float(found[name]) if found[name] or name == "value" else None
        found["n"] = int(found["n"]) if found["n"] else None
        found["seeds"] = [int(seed) for seed in found["seeds"].split()]
        found["settings"] = _text_as_pairs(found["settings"], typed=True)
        found["versions"] = _text_as_pairs(found["versions"], typed=False)
    except ValueError as error:
        raise TableError(
            f"{path} is damaged at row {number} ({error}); make it again with its study"
        ) from None
    return Row(**found)


# -- tables to read --------------------------------------------------------------------------------


def as_table(rows: Sequence[Sequence[Any]], style: str = "plain") -> str:
    """Rows of cells, the first of them the heads, as a table.

    style: `plain` for text in columns, `github` for Markdown.
    """
    from tabulate import tabulate

    cells = [[str(cell) for cell in row] for row in rows]
    if style == "github":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    return tabulate(cells[1:], cells[0], tablefmt=style, disable_numparse=True)


def rounded(value: Optional[float], digits: int = 2, sign: bool = False) -> str:
    """A figure as a table prints it; "-" where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:{'+' if sign else ''}.{digits}f}"
