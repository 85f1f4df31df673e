"""Training curves: the numbers of fairseq's logs as one table and one picture."""

import csv
import logging
import math
import os
from typing import IO, Any, Dict, List, NamedTuple, Sequence, Tuple

from ..files import written
from .logs import INNER, TRAIN, LogError, Row, read_runs

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES: Tuple[Any, ...] = ("-", "--", "-.", ":")
LARGEST = 1e30  # what an axis can show; a training that has diverged logs more

Runs = Dict[str, List[Row]]


# -- the table -------------------------------------------------------------------------------------


def _write_csv(stream: IO[Any], runs: Runs) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("run",) + Row._fields)
    for name, rows in runs.items():
        writer.writerows((name,) + row for row in rows)


# -- the picture -----------------------------------------------------------------------------------


class Panel(NamedTuple):
    """One drawing of the picture.

    metrics: (name, label in the panel's own legend, or "" where there is one metric only);
    log: a log scale.
    """

    title: str
    label: str
    metrics: Tuple[Tuple[str, str], ...]
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


def _series(
    rows: Sequence[Row], metric: str, positive: bool
) -> Dict[str, Tuple[List[int], List[float]]]:
    """{split: ([update], [value])} of a metric.

    There is a gap where a value is not finite or above LARGEST, or not positive on a log scale.
    """
    series: Dict[str, Tuple[List[int], List[float]]] = {}
    for row in rows:
        if row.metric == metric:
            fits = abs(row.value) < LARGEST and (row.value > 0 or not positive)
            updates, values = series.setdefault(row.split, ([], []))
            updates.append(row.update)
            values.append(row.value if fits else math.nan)
    return {split: data for split, data in series.items() if any(map(math.isfinite, data[1]))}


def _perplexity(bits: float) -> str:
    """2 ** bits as a tick of the right axis; "" where that is no number of use."""
    return "" if abs(bits) > 100 else f"{2**bits:,.0f}" if bits > 3 else f"{2**bits:.2g}"


def _draw(axes: Any, panel: Panel, runs: Runs) -> None:
    """Training as a faint line and validation as a strong one with points.

    Training that is alone is strong, too.
    """
    from matplotlib.lines import Line2D

    drawn: List[Tuple[str, Any]] = []
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
        perplexity.yaxis.set_major_formatter(lambda value, _: _perplexity(value))
        perplexity.set_ylabel("perplexity")
    if panel.from_zero:
        axes.set_ylim(bottom=0)


def _colours(count: int) -> List[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _write_png(stream: IO[Any], runs: Runs) -> None:
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
        Line2D([], [], color=colour, linewidth=2, label=name.replace("$", r"\$"))  # no formula
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
    figure.savefig(stream, format="png")


def write_report(run_dirs: Sequence[str], out_dir: str) -> List[str]:
    """Write curves.csv (run, split, epoch, update, metric, value) and curves.png to `out_dir`.

    A run is a folder with a train.log, or the log itself. Both files are complete or absent.
    Returns their paths. Raises LogError and OutputError, in one line.
    """
    runs = read_runs(run_dirs)
    os.makedirs(out_dir, exist_ok=True)
    paths = []
    for name, write, mode in (("curves.csv", _write_csv, "w"), ("curves.png", _write_png, "wb")):
        path = os.path.join(out_dir, name)
        with written(path, mode) as stream:
            write(stream, runs)
        paths.append(path)
    return paths
