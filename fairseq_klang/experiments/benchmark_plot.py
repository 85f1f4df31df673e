"""`klang benchmark plot`: the picture and the tables of what `klang benchmark time` measured, from
its file alone."""

import argparse
import csv
import math
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..analysis.tables import as_table
from ..errors import KlangError
from ..files import written

EPILOG = """\
example:
  klang benchmark plot benchmark.csv --out benchmark.png

The picture: time of output layer and loss and peak memory by vocabulary, each as a ratio to
fairseq's cross-entropy, and the time against N * V * d. Printed, as Markdown: the ratios of every
cell, the share of the lower bound that was reached, and how time grows with V, N and d (the
exponents of a least-squares fit of logarithms).
"""

Row = Dict[str, Any]
OTHERS = "what criterion peak_mib bound_share threads device dtype versions python machine".split()
PARTS = ("p20", "median", "p80")
NUMBERS = ("vocab", "rows", "dim", "median_s", "p20_s", "p80_s", "ratio")
LABELS = {
    "fairseq_ce": "fairseq CE",
    "fused_ce": "fused CE",
    "torch_ce": "torch's fused CE",
    "dense": "dense dual head",
    "klang": "restricted soft BLEU",
    "klang_clipped": "restricted, clipped",
    "ngrams": "n-gram part",
    "ae_linear": "autoencoding, linear",
    "ae_decoder": "autoencoding, decoder",
    "masked_lm": "masked LM",
    "contrastive": "contrastive",
    "translate": "translating",
    "adapt_0": "--adapt-steps 0",
    "adapt_1": "--adapt-steps 1",
}


def read(path: str) -> List[Row]:
    """The rows of the CSV with numbers as numbers.

    Raises KlangError for a file that is not the benchmark's, damaged, or of several settings.
    """
    with open(path, newline="", encoding="utf-8", errors="replace") as stream:
        try:
            rows: List[Row] = list(csv.DictReader(stream))
        except csv.Error as error:
            raise KlangError(f"{path} is no CSV file ({error})") from None
    if not rows or not {*NUMBERS, *OTHERS} <= set(rows[0]):
        raise KlangError(
            f"{path} holds no rows of klang benchmark time; give the CSV that it wrote"
        )
    for line, row in enumerate(rows, 2):
        if None not in row and None not in row.values():
            row.update({key: _number(value) for key, value in row.items()})
        numbers = [row.get(key) for key in NUMBERS]
        whole = all(isinstance(value, (int, float)) and 0 < value < 1e30 for value in numbers)
        optional = [row.get(key) for key in ("peak_mib", "bound_share")]
        whole = whole and all(value == "" or isinstance(value, (int, float)) for value in optional)
        if not whole or row["criterion"] not in LABELS:
            raise KlangError(
                f"{path} is damaged at line {line}; measure again, or remove that line"
            )
    for key in ("device", "dtype", "threads"):
        values = sorted({str(row[key]) for row in rows})
        if len(values) > 1:
            raise KlangError(
                f"{path} holds measurements with {key} {' and '.join(values)}, which cannot be "
                "compared; keep one setting in a file"
            )
    return rows


def _number(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return text


def cells(rows: Sequence[Row]) -> Dict[Tuple[str, int, int, int], Dict[str, Row]]:
    """{(what, vocab, rows, dim): {criterion: row}}, in the order of the file."""
    found: Dict[Tuple[str, int, int, int], Dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["what"], row["vocab"], row["rows"], row["dim"]), {})[
            row["criterion"]
        ] = row
    return found


def memory_ratio(cell: Dict[str, Row], name: str) -> Optional[float]:
    """Peak memory of `name` over fairseq's, or None where it was not measured."""
    base, value = (
        cell[key].get("peak_mib") if key in cell else None for key in ("fairseq_ce", name)
    )
    return value / base if base and value else None


def exponents(rows: Sequence[Row], name: str) -> Dict[str, float]:
    """{"V": a, "N": b, "d": c} of a fit time = e^k V^a N^b d^c to the `head` rows of one criterion;
    {} with too few cells."""
    chosen = [row for row in rows if row["what"] == "head" and row["criterion"] == name]
    columns = {
        key: [row[column] for row in chosen]
        for key, column in (("V", "vocab"), ("N", "rows"), ("d", "dim"))
    }
    columns = {key: values for key, values in columns.items() if len(set(values)) > 1}
    if len(chosen) <= len(columns) + 1 or not columns:
        return {}
    design = np.array([[1.0] * len(chosen)] + [np.log(values) for values in columns.values()]).T
    fit, *_ = np.linalg.lstsq(design, np.log([row["median_s"] for row in chosen]), rcond=None)
    return dict(zip(columns, fit[1:].tolist()))


def tables(rows: Sequence[Row]) -> str:
    """The figures of every cell in Markdown, and the exponents."""
    heads = ["what", "V", "N", "d", "criterion", "seconds (p20-p80)", "time / fairseq's"]
    heads += ["memory MiB", "memory / fairseq's", "lower bound / time"]
    lines = [heads]
    for (what, vocab, count, dim), cell in cells(rows).items():
        for name, row in cell.items():
            memory = memory_ratio(cell, name)
            lines.append(
                [
                    *[what, f"{vocab:,}", f"{count:,}", str(dim), LABELS[name]],
                    f"{row['median_s']:.3f} ({row['p20_s']:.3f}-{row['p80_s']:.3f})",
                    f"{row['ratio']:.2f}",
                    str(row["peak_mib"]),
                    "" if memory is None else f"{memory:.2f}",
                    str(row["bound_share"]),
                ]
            )
    found = {LABELS[name]: exponents(rows, name) for name in LABELS}
    growth = [
        f"{label}: time grows as " + " ".join(f"{key}^{value:.2f}" for key, value in fit.items())
        for label, fit in found.items()
        if fit
    ]
    return "\n".join([as_table(lines, "github"), "", *growth])


def draw(rows: Sequence[Row], path: str) -> None:
    """Write the picture. Raises KlangError where the file holds no `head` cell."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    heads = {key: cell for key, cell in cells(rows).items() if key[0] == "head"}
    if not heads:
        raise KlangError("there is no row of --what head to draw; measure it first")
    most, least = max(key[2] for key in heads), min(key[3] for key in heads)
    shown = {
        key[1]: cell for key, cell in sorted(heads.items()) if key[2] == most and key[3] == least
    }
    names = [name for name in LABELS if any(name in cell for cell in shown.values())]
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6))
    width = 0.8 / len(names)
    for axis, title, value in (
        (axes[0], "time of output layer and loss", lambda cell, name: cell[name]["ratio"]),
        (axes[1], "peak memory of the step", memory_ratio),
    ):
        for i, name in enumerate(names):
            heights = [
                value(cell, name) or math.nan if name in cell else math.nan
                for cell in shown.values()
            ]
            places = np.arange(len(shown)) + (i - (len(names) - 1) / 2) * width
            bars = axis.bar(places, heights, width, label=LABELS[name])
            axis.bar_label(bars, [f"{h:.2f}" for h in heights], fontsize=7, rotation=90, padding=2)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(shown)))
        axis.set_xticklabels([f"V = {vocab:,}" for vocab in shown])
        axis.set_ylabel("ratio to fairseq's cross-entropy")
        axis.margins(y=0.15)
        axis.set_title(f"{title}, N = {most:,}, d = {least}", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower left", ncol=len(names), fontsize=8, bbox_to_anchor=(0.03, 0.03)
    )
    for name in names:
        found = exponents(rows, name)
        points = sorted(
            (key[1] * key[2] * key[3], *(cell[name][f"{part}_s"] for part in PARTS))
            for key, cell in heads.items()
            if name in cell
        )
        sizes, low, middle, high = (np.array(values) for values in zip(*points))
        label = LABELS[name] + (
            ": " + ", ".join(f"{key}^{value:.2f}" for key, value in found.items()) if found else ""
        )
        axes[2].errorbar(
            sizes,
            middle,
            yerr=[middle - low, high - middle],
            marker="o",
            markersize=3,
            linewidth=1,
            capsize=2,
            label=label,
        )
    axes[2].set(
        xscale="log",
        yscale="log",
        xlabel="N * V * d",
        ylabel="seconds, median and 20-80 % of rounds",
    )
    axes[2].xaxis.set_minor_formatter(ticker.NullFormatter())
    axes[2].set_title("time of output layer and loss against its size", fontsize=10)
    axes[2].legend(fontsize=7)
    for axis in axes:
        axis.grid(alpha=0.3)
    first = rows[0]
    figure.text(
        0.03,
        0.01,
        f"{first['machine']}, {first['threads']} threads, {first['device']}, {first['dtype']}; "
        f"Python {first['python']}, {first['versions']}",
        fontsize=7,
    )
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    ending = os.path.splitext(path)[1][1:]
    if ending not in figure.canvas.get_supported_filetypes():
        raise KlangError(f"--out {path}: its name must end in .png, .pdf or .svg")
    with written(path, "wb") as stream:
        figure.savefig(stream, format=ending, dpi=110)
    pyplot.close(figure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang benchmark plot`."""
    parser.epilog = EPILOG
    parser.set_defaults(resumes=False)
    parser.add_argument("csv", metavar="CSV", help="what klang benchmark time wrote")
    parser.add_argument(
        "--out", default="benchmark.png", metavar="PNG", help="default: benchmark.png"
    )


def run(options: argparse.Namespace) -> int:
    """Print the tables and write the picture."""
    rows = read(options.csv)
    print(tables(rows))
    draw(rows, options.out)
    print(f"\n{options.out}")
    return 0
