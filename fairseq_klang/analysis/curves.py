"""Training curves: read fairseq's logs, write their numbers as one table and one picture."""

import csv
import json
import logging
import math
import os
import re
from typing import NamedTuple

from ..errors import KlangError

LOG_NAME = "train.log"
INNER, TRAIN = (
    "train_inner",
    "train",
)  # fairseq's names: a row every --log-interval updates, and one an epoch
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")


class LogError(KlangError):
    """A training log that is missing or empty."""


class Row(NamedTuple):
    """One logged number. split: "train_inner", "train", or the name of a validation subset; update:
    optimiser steps."""

    split: str
    epoch: int
    update: int
    metric: str
    value: float


# -- reading ---------------------------------------------------------------------------------------

# --log-format simple: "epoch 001:     20 / 67 loss=9.1, ..." and "epoch 001 | valid on 'valid'
# subset | loss 8.9 | ..."
_SIMPLE_INNER = re.compile(r"\bepoch (\d+):\s+\d+ / \d+ (\S.*)$")
_SIMPLE_EPOCH = re.compile(r"\bepoch (\d+) \| (?:valid on '([^']+)' subset \| )?(\S.*)$")


def _json_record(line):
    """(split, epoch, {metric: text}) of a JSON line, or None. The lines of a --log-file do not name
    their split."""
    try:
        stats = json.loads(line[line.index("{") :])
    except ValueError:  # not JSON, or the line that a killed run was writing
        return None
    if not isinstance(stats, dict) or "epoch" not in stats:
        return None
    epoch = stats.pop("epoch")
    if stats.pop("update", None) is not None:
        return INNER, epoch, stats
    split = next(
        (key[: -len("_num_updates")] for key in stats if key.endswith("_num_updates")), None
    )
    if split is None:
        return None
    return (
        split,
        epoch,
        {
            key[len(split) + 1 :]: value
            for key, value in stats.items()
            if key.startswith(split + "_")
        },
    )


def _simple_record(line):
    """The same for a line of --log-format simple (and tqdm, whose end-of-epoch lines look
    alike)."""
    match = _SIMPLE_INNER.search(line)
    if match:
        return (
            INNER,
            match.group(1),
            dict(part.split("=", 1) for part in match.group(2).split(", ") if "=" in part),
        )
    match = _SIMPLE_EPOCH.search(line)
    if match:
        pairs = (part.split(None, 1) for part in match.group(3).split(" | "))
        return (
            match.group(2) or TRAIN,
            match.group(1),
            dict(pair for pair in pairs if len(pair) == 2),
        )
    return None


def _number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def read_log(path):
    """The rows of a fairseq training log (its --log-file or its standard output; --log-format json,
    simple or tqdm).

    Rows come in order of update within each split. fairseq writes a line several times into a
    --log-file, and a resumed run repeats the updates after its checkpoint: of all lines for one
    split and update the last one counts. Raises LogError where there is no file or no row.
    """
    records = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                record = (
                    _json_record(line.rstrip()) if "{" in line else _simple_record(line.rstrip())
                )
                if record is None:
                    continue
                split, epoch, stats = record
                numbers = {name: _number(value) for name, value in stats.items()}
                update, epoch = numbers.pop("num_updates", None), _number(epoch)
                if update is None or epoch is None:
                    continue
                numbers = {name: value for name, value in numbers.items() if value is not None}
                records[split, int(update)] = int(epoch), numbers
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
        Row(split, epoch, update, name, value)
        for (split, update), (epoch, numbers) in sorted(records.items())
        for name, value in numbers.items()
    ]


def read_runs(run_dirs):
    """{name: rows} for folders that hold a train.log, or logs themselves; the name is the shortest
    that tells them apart.

    Raises LogError as :func:`read_log` does, and for a run given twice.
    """
    paths = [run if os.path.isfile(run) else os.path.join(run, LOG_NAME) for run in run_dirs]
    parts = [os.path.abspath(run).split(os.sep) for run in run_dirs]
    if len({tuple(part) for part in parts}) < len(parts):
        raise LogError("a run is named twice; name each run once")
    depth = 1
    while len({tuple(part[-depth:]) for part in parts}) < len(parts):
        depth += 1
    return {os.sep.join(part[-depth:]): read_log(path) for part, path in zip(parts, paths)}


# -- the table -------------------------------------------------------------------------------------


def _write_csv(path, runs):
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("run",) + Row._fields)
        for name, rows in runs.items():
            writer.writerows((name,) + row for row in rows)


# -- the picture -----------------------------------------------------------------------------------


class Panel(NamedTuple):
    """metrics: (name, label in the panel's own legend, or "" where there is one metric only); log:
    a log scale."""

    title: str
    label: str
    metrics: tuple
    log: bool = False
    from_zero: bool = False


PANELS = (
    Panel("Negative log-likelihood", "bits per token", (("nll_loss", ""),)),
    Panel("BLEU", "BLEU", (("bleu", ""),), from_zero=True),
    Panel("Soft BLEU", "SB", (("sb", ""),), from_zero=True),
    Panel(
        "Soft n-gram precisions",
        "$P_n$",
        tuple((f"sb_p{n}", f"$P_{n}$") for n in (1, 2, 3, 4)),
        log=True,
    ),
    Panel("Candidates of the restricted softmax", "mean $|K_t|$", (("sb_candidates", ""),)),
    Panel(
        "Gradient norm of the two heads",
        "L2 norm",
        (("gnorm_ce_head", "cross-entropy head"), ("gnorm_sb_head", "soft BLEU head")),
        log=True,
    ),
    Panel("Weight of soft BLEU", "alpha", (("sb_alpha", ""),), from_zero=True),
)


def _series(rows, metric, positive):
    """{split: ([update], [value])} of a metric; a gap where a value is not finite, or not positive
    on a log scale."""
    series = {}
    for row in rows:
        if row.metric == metric:
            fits = math.isfinite(row.value) and (row.value > 0 or not positive)
            updates, values = series.setdefault(row.split, ([], []))
            updates.append(row.update)
            values.append(row.value if fits else math.nan)
    return {split: data for split, data in series.items() if any(map(math.isfinite, data[1]))}


def _draw(axes, panel, runs):
    """Training as a faint line and validation as a strong one with points; training alone is
    strong, too."""
    from matplotlib.lines import Line2D

    drawn = []
    for colour, rows in zip(_colours(len(runs)), runs.values()):
        for (metric, label), style in zip(panel.metrics, STYLES):
            series = _series(rows, metric, panel.log)
            training = series.pop(INNER, None)
            epochs = series.pop(TRAIN, None)
            training = training or epochs
            if (training or series) and (label, style) not in drawn:
                drawn.append((label, style))
            if training:
                alone = not series
                axes.plot(
                    *training,
                    style,
                    color=colour,
                    linewidth=1.4 if alone else 1.0,
                    alpha=0.9 if alone else 0.35,
                )
            for data in series.values():
                axes.plot(*data, style, color=colour, linewidth=1.7, marker="o", markersize=3.5)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel("updates")
    axes.set_ylabel(panel.label)
    axes.grid(True, color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.log:
        axes.set_yscale("log")
    if len(panel.metrics) > 1:
        handles = [
            Line2D([], [], color="0.3", linestyle=style, label=label) for label, style in drawn
        ]
        axes.legend(handles=handles, fontsize=8, frameon=False, ncol=2 if len(handles) > 2 else 1)
    if panel.metrics[0][0] == "nll_loss":
        perplexity = axes.secondary_yaxis("right", functions=(lambda x: x, lambda x: x))
        perplexity.yaxis.set_major_formatter(
            lambda value, _: f"{2**value:,.0f}" if value > 3 else f"{2**value:.2g}"
        )
        perplexity.set_ylabel("perplexity")
    if panel.from_zero:
        axes.set_ylim(bottom=0)


def _colours(count):
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _write_png(path, runs):
    logging.getLogger("matplotlib").setLevel(
        logging.WARNING
    )  # fairseq turns on every logger's debug messages
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = [
        panel
        for panel in PANELS
        if any(
            _series(rows, metric, panel.log)
            for rows in runs.values()
            for metric, _ in panel.metrics
        )
    ]
    if not panels:
        raise LogError(
            "the logs hold none of the numbers that curves are drawn from (nll_loss, bleu, sb, ...)"
        )
    columns = 4 if len(panels) in (4, 7) else min(3, len(panels))  # few empty places
    lines = -(-len(panels) // columns)
    handles = [
        Line2D([], [], color=colour, linewidth=2, label=name)
        for colour, name in zip(_colours(len(runs)), runs)
    ]
    handles.append(
        Line2D([], [], color="0.3", linewidth=1.7, marker="o", markersize=3.5, label="validation")
    )
    handles.append(
        Line2D(
            [], [], color="0.3", linewidth=1.0, alpha=0.35, label="training (strong where alone)"
        )
    )
    legend_columns = min(len(handles), 2 * columns)
    legend_height = 0.3 * -(-len(handles) // legend_columns) + 0.1
    height = 3.3 * lines + legend_height
    figure = Figure(figsize=(4.5 * columns, height), dpi=110)
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels):
        _draw(axes, panel, runs)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.legend(
        handles=handles, loc="upper center", ncol=legend_columns, frameon=False, fontsize=10
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - legend_height / height), w_pad=2.5, h_pad=1.5)
    figure.savefig(path, format="png")


def write_report(run_dirs, out_dir):
    """Write curves.csv (run, split, epoch, update, metric, value) and curves.png to `out_dir`;
    returns their paths.

    A run is a folder with a train.log. Both files are complete or absent. Raises LogError, in one
    line.
    """
    runs = read_runs(run_dirs)
    os.makedirs(out_dir, exist_ok=True)
    paths = []
    for name, write in (("curves.csv", _write_csv), ("curves.png", _write_png)):
        path = os.path.join(out_dir, name)
        write(path + ".tmp", runs)
        os.replace(path + ".tmp", path)
        paths.append(path)
    return paths
