"""`klang results`: the pages of docs/ from templates and committed CSV files, so that no figure is
typed by hand."""

import argparse
import math
import os
import re
import textwrap
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

import jinja2
import numpy as np
import pandas
from scipy import stats

from ..analysis.tables import COLUMNS, as_table
from ..errors import KlangError
from ..files import written
from .pictures import draw_all

TEMPLATES = "templates"  # below the folder of the documentation
DATA = "results"  # where the CSV files lie, and the pages that are made of them
VERDICTS = ("supported", "refuted", "undecided", "undecided: not tested")


class PageError(KlangError):
    """A template or a CSV file that no page can be made of."""


# -- what templates may call -----------------------------------------------------------------------


def select(frame: pandas.DataFrame, **where: Any) -> pandas.DataFrame:
    """The rows whose columns hold these values; a list stands for any of its values.

    Raises PageError where the frame lacks a column.
    """
    for column, value in where.items():
        if column not in frame.columns:
            raise PageError(f"no column {column!r}; there are {', '.join(frame.columns)}")
        wanted = value if isinstance(value, (list, tuple)) else [value]
        frame = frame[frame[column].isin(wanted)]
    return frame


def one(frame: pandas.DataFrame, **where: Any) -> pandas.Series:
    """The only row whose columns hold these values. Raises PageError where there is not one."""
    found = select(frame, **where)
    if len(found) != 1:
        asked = ", ".join(f"{column}={value!r}" for column, value in where.items())
        raise PageError(f"{len(found)} rows where {asked}; there must be one")
    return found.iloc[0]


def number(value: Any, digits: int = 2) -> str:
    """A number with so many decimals; a dash for one that is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{float(value):,.{digits}f}"


def signed(value: Any, digits: int = 2) -> str:
    """A difference, with its sign."""
    return f"{float(value):+,.{digits}f}"


def interval(row: pandas.Series, digits: int = 2) -> str:
    """An estimate and its 95 % interval, as +0.25 [-0.54, +1.04]; the row has value, low, high."""
    value, low, high = (signed(row[name], digits) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def ratio_of_seeds(values: Sequence[float]) -> Tuple[float, float, float]:
    """(mean, low, high) of a positive figure over seeds: the geometric mean, and Student's 95 %
    interval of the logarithms. Raises PageError for fewer than two seeds."""
    if len(values) < 2:
        raise PageError(f"{len(values)} seeds; an interval needs two or more")
    logs = np.log(np.asarray(values, dtype=float))
    half = stats.t.isf(0.025, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    middle = logs.mean()
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def brief(value: float) -> str:
    """A ratio with two significant digits or all of its whole ones: 0.83, 3.8, 107, 20,311."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}"


def verdict(word: str) -> str:
    """The verdict on a claim, in bold. Raises PageError unless it is one of VERDICTS."""
    if word not in VERDICTS:
        raise PageError(f"verdict is {word!r}; it must be one of {', '.join(VERDICTS)}")
    return f"**{word}**"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as a table in Markdown."""
    return as_table([list(headers), *map(list, rows)], "github")


FUNCTIONS: Dict[str, Callable[..., Any]] = dict(
    select=select,
    one=one,
    number=number,
    signed=signed,
    interval=interval,
    verdict=verdict,
    ratio_of_seeds=ratio_of_seeds,
    brief=brief,
    table=table,
    zip=zip,
)


# -- pages -----------------------------------------------------------------------------------------


def _with_settings(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A study's rows (analysis/tables.py) with a column for each of their settings."""
    pairs = [
        dict(part.split("=", 1) for part in text.split("; ")) if isinstance(text, str) else {}
        for text in frame["settings"]
    ]
    settings = pandas.DataFrame(pairs, index=frame.index)
    for column in settings.columns:
        numbers = pandas.to_numeric(settings[column], errors="coerce")
        if numbers.notna().sum() == settings[column].notna().sum():
            settings[column] = numbers
    return frame.join(settings.drop(columns=[c for c in settings.columns if c in frame.columns]))


def _environment(docs: str) -> jinja2.Environment:
    frames: Dict[str, pandas.DataFrame] = {}

    def data(name: str) -> pandas.DataFrame:
        """The CSV file docs/results/NAME.csv; cells without a value are missing, not empty text."""
        path = os.path.join(docs, DATA, f"{name}.csv")
        if name not in frames:
            try:
                frame = pandas.read_csv(path)
            except (OSError, ValueError) as error:
                raise PageError(f"{path} cannot be read: {error}") from None
            if list(frame.columns) == list(COLUMNS):
                frame = _with_settings(frame)
            frames[name] = frame
        return frames[name]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.join(docs, TEMPLATES)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(FUNCTIONS, data=data)
    return environment


def _wrap(text: str, width: int = 100) -> str:
    """Text whose paragraphs and list items are filled to lines of `width`, for figures have lengths
    that who writes a template cannot know. Tables, code, headings and pictures stay as they are."""
    lines: List[str] = []
    block: List[str] = []
    code = False

    def flush() -> None:
        if block:
            first = re.match(r"\s*(?:[*-] |\d+\. )?", block[0])
            hanging = " " * len(first.group(0)) if first else ""
            words = " ".join(line.strip() for line in block)
            words = re.sub(r" ([=+]) (?=[\w.])", "\u00a0\\1\u00a0", words)  # V = 8,000 stays whole
            start = hanging[: len(block[0]) - len(block[0].lstrip())]
            filled = textwrap.wrap(
                start + words,
                width,
                subsequent_indent=hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines.extend(line.replace("\u00a0", " ") for line in filled)
            block.clear()

    for line in text.split("\n"):
        code ^= line.startswith("```")
        kept = code or not line.strip() or line.startswith(("|", "```", "<!--", "![", "#", "    "))
        if kept or re.match(r"\s*(?:[*-] |\d+\. )", line):
            flush()
        if kept:
            lines.append(line.rstrip())
        else:
            block.append(line)
    flush()
    return "\n".join(lines)


def pages(docs: str) -> List[Tuple[str, str]]:
    """[(path, text)] of every page of the folder `docs`, and of README.md beside the folder.

    Each template docs/templates/X.md.j2 becomes docs/X.md. The template README.j2 fills README.md
    between its two marks. Raises PageError for a template, file or figure that is not there.
    """
    environment = _environment(docs)
    found = []
    names = environment.list_templates(
        filter_func=lambda name: name.endswith((".md.j2", "README.j2"))
    )
    if not names:
        raise PageError(f"{os.path.join(docs, TEMPLATES)} holds no templates; name the docs folder")
    for name in sorted(names):
        try:
            text = environment.get_template(name).render()
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f" line {line}" if line else ""
            raise PageError(f"template {name}{place}: {error.message or error}") from None
        except (PageError, TypeError, LookupError) as error:
            raise PageError(f"template {name}: {error}") from None
        if name == "README.j2":
            path = os.path.join(os.path.dirname(os.path.abspath(docs)), "README.md")
            found.append((path, _fill(path, text)))
        else:
            mark = f"<!-- Made by klang results from {TEMPLATES}/{name} -->\n"
            found.append((os.path.join(docs, name[: -len(".j2")]), mark + _wrap(text)))
    return found


BEGIN, END = "<!-- begin: klang results -->\n", "<!-- end: klang results -->\n"


def _fill(path: str, text: str) -> str:
    """The file's content with `text` between its two marks."""
    with open(path, encoding="utf-8") as stream:
        whole = stream.read()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise PageError(f"{path} must hold the line {BEGIN.strip()} once, and {END.strip()} once")
    before, rest = whole.split(BEGIN)
    return before + BEGIN + text + END + rest.split(END)[1]


def changed(docs: str) -> List[Tuple[str, str]]:
    """Those of :func:`pages` whose file does not hold their text."""
    different = []
    for path, text in pages(docs):
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                old = stream.read()
        if old != text:
            different.append((path, text))
    return different


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang results`."""
    parser.add_argument(
        "--docs", default="docs", metavar="DIR", help="folder of the documentation (default: docs)"
    )
    parser.add_argument(
        "--pictures", action="store_true", help="draw the pictures again, too, from the same data"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with status 1 if a page would change",
    )


def run(options: argparse.Namespace) -> int:
    """Make the pages, and the pictures where asked for; returns the exit status."""
    if options.pictures:
        for path in draw_all(os.path.join(options.docs, DATA)):
            print(f"written: {path}")
    different = changed(options.docs)
    for path, text in different:
        if options.check:
            print(f"{path} is not what its template and data give; run klang results")
        else:
            with written(path) as stream:
                stream.write(text)
            print(f"written: {path}")
    return 1 if options.check and different else 0
