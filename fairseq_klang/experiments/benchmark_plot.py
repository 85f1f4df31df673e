"""Draw what scripts/benchmark.py measured, and print its tables, from the CSV alone.

    plot_benchmark.py benchmark.csv --out benchmark.png

The picture: time of output layer and loss and peak memory by vocabulary, each as a ratio to
fairseq's cross-entropy, and the time against N * V * d. Printed, as Markdown: the ratios of every
cell, the share of the lower bound that was reached, and how time grows with V, N and d (the
exponents of a least-squares fit of logarithms).
"""

import argparse
import csv
import logging
import math
import os
import sys

import numpy as np

from ..errors import KlangError, exit_status

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)


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


def read(path):
    """The rows of the CSV with numbers as numbers; raises KlangError for a file that is not the
    benchmark's, or of several settings."""
    with open(path, newline="", encoding="utf-8", errors="replace") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or not {"what", "vocab", "criterion", "median_s", "ratio"} <= set(rows[0]):
        raise KlangError(
            f"{path} holds no rows of scripts/benchmark.py; give the CSV that it wrote"
        )
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values() or row["criterion"] not in LABELS:
            raise KlangError(
                f"{path} is damaged at line {number}; measure again, or remove that line"
            )
        for key, value in row.items():
            try:
                row[key] = float(value) if "." in value else int(value)
            except ValueError:
                pass
    for key in ("device", "dtype", "threads"):
        values = sorted({str(row[key]) for row in rows})
        if len(values) > 1:
            raise KlangError(
                f"{path} holds measurements with {key} {' and '.join(values)}, which cannot be "
                "compared; keep one setting in a file"
            )
    return rows


def cells(rows):
    """{(what, vocab, rows, dim): {criterion: row}}, in the order of the file."""
    found = {}
    for row in rows:
        found.setdefault((row["what"], row["vocab"], row["rows"], row["dim"]), {})[
            row["criterion"]
        ] = row
    return found


def memory_ratio(cell, name):
    """Peak memory of `name` over fairseq's, or None where it was not measured."""
    base, value = (
        cell[key].get("peak_mib") if key in cell else None for key in ("fairseq_ce", name)
    )
    return value / base if base and value else None


def exponents(rows, name):
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


def markdown(rows):
    """The tables as lines of Markdown."""
    yield "| what | V | N | d | criterion | seconds (p20-p80) | time / first | memory MiB | memory / first | lower bound / time |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (what, vocab, count, dim), cell in cells(rows).items():
        for name, row in cell.items():
            memory, share = memory_ratio(cell, name), row["bound_share"]
            yield (
                f"| {what} | {vocab:,} | {count:,} | {dim} | {LABELS[name]} | "
                f"{row['median_s']:.3f} ({row['p20_s']:.3f}-{row['p80_s']:.3f}) "
                f"| {row['ratio']:.2f} | {row['peak_mib'] or ''} | "
                f"{'' if memory is None else f'{memory:.2f}'} | {share if share != '' else ''} |"
            )
    yield ""
    for name in LABELS:
        found = exponents(rows, name)
        if found:
            yield f"{LABELS[name]}: time grows as " + " ".join(
                f"{key}^{value:.2f}" for key, value in found.items()
            )


def draw(rows, path):
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
            (key[1] * key[2] * key[3], cell[name]["median_s"])
            for key, cell in heads.items()
            if name in cell
        )
        label = LABELS[name] + (
            ": " + ", ".join(f"{key}^{value:.2f}" for key, value in found.items()) if found else ""
        )
        axes[2].plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=label)
    axes[2].set(xscale="log", yscale="log", xlabel="N * V * d", ylabel="seconds")
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
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:  # of an ending that matplotlib does not know
        raise KlangError(f"--out {path}: {error}") from None


def run(options):
    """Print the tables and write the picture."""
    rows = read(options.csv)
    print("\n".join(markdown(rows)))
    draw(rows, options.out)
    print(f"\n{options.out}")


def main():
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("csv", help="what scripts/benchmark.py wrote")
    parser.add_argument("--out", default="benchmark.png", metavar="PNG")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # fairseq's import turns on matplotlib's debugging notes
    return exit_status("plot_benchmark.py", lambda: run(options), resumes=False)


if __name__ == "__main__":
    sys.exit(main())
