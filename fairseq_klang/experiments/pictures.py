"""The pictures of docs/results that no single run draws, made of the committed CSV files alone."""

import os
import re
from typing import Any, Callable, Dict, List

from ..analysis.tables import Row, read_rows
from ..files import written

SIZE = {"dpi": 130, "format": "png"}


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: str) -> None:
    with written(path, "wb") as stream:
        figure.savefig(stream, **SIZE)
    _pyplot().close(figure)


# -- BLEU against k --------------------------------------------------------------------------------

# The sweep's recipes with alpha 0.5, and the share of V that k is in the series.
SHARES = {"A9": 50 / 56652, "A10": 170 / 56652, "A11": 500 / 56652, "A12": 1.0}
BASE = "A8"


def series_k(rows: List[Row], path: str) -> None:
    """BLEU minus that of cross-entropy alone against k / V: here with intervals over sentences, and
    the series' last epoch."""
    pyplot = _pyplot()
    labels = {row.settings["id"]: row.run for row in rows if "id" in row.settings}
    base = f"bleu_tok minus {labels[BASE]}"
    found = {row.run: row for row in rows if row.measure == base and row.decoding == "beam5"}
    series: Dict[str, Dict[int, float]] = {}
    for row in rows:
        if row.measure == "bleu of the series":
            epochs = series.setdefault(str(row.settings["id"]), {})
            epochs[int(row.settings.get("epoch", 1))] = row.value
    figure, axis = pyplot.subplots(figsize=(6.4, 4.0), constrained_layout=True)
    here = [(share, found[labels[name]]) for name, share in SHARES.items()]
    for share, row in here:
        if row.low is None or row.high is None:
            axis.plot(share, row.value, marker="o", mfc="white", color="C0")
            continue
        errors = [[row.value - row.low], [row.high - row.value]]
        axis.errorbar(share, row.value, yerr=errors, marker="o", capsize=3, color="C0")
    axis.plot([], [], marker="o", color="C0", label="here, 95 % over sentences, one seed")
    last = {name: values[max(values)] for name, values in series.items()}
    axis.plot(
        list(SHARES.values()),
        [last[name] - last[BASE] for name in SHARES],
        marker="s",
        linestyle=":",
        color="C1",
        label="the series, last epoch, one run, no interval",
    )
    axis.axhline(0, color="black", linestyle="--", linewidth=1)
    axis.axvline(0.003, color="gray", linestyle=":", linewidth=1)
    axis.annotate("0.003", (0.003, axis.get_ylim()[0]), fontsize=8, color="gray")
    axis.set(
        xscale="log",
        xlabel="k / V (1: the full softmax)",
        ylabel="BLEU minus that of cross-entropy alone (A8)",
    )
    axis.legend(fontsize=8)
    _save(figure, path)


# -- what the SB head says -------------------------------------------------------------------------


def heads(rows: List[Row], path: str) -> None:
    """Shares of positions at which the SB head says the target, the previous token, or one token
    always, by epoch; a panel for each run."""
    pyplot = _pyplot()
    texts = {"target": "= target", "previous": "= previous token", "mode": "one token, always"}
    rows = [
        row
        for row in rows
        if row.settings.get("head") == "sb" and isinstance(row.settings.get("epoch"), int)
    ]
    runs = sorted({row.run for row in rows})
    across = 3
    down = -(-len(runs) // across)
    figure, axes = pyplot.subplots(
        down,
        across,
        figsize=(11.5, 3.3 * down + 0.3),
        sharey=True,
        squeeze=False,
        constrained_layout=True,
    )
    for axis in axes.flat[len(runs) :]:
        axis.remove()
    for axis, run in zip(axes.flat, runs):
        for measure, text in texts.items():
            own = [row for row in rows if row.run == run and row.measure == measure]
            own.sort(key=lambda row: int(row.settings["epoch"]))
            if measure == "mode":
                text += f" (at the end {own[-1].settings['token']!r})"
            epochs = [row.settings["epoch"] for row in own]
            axis.plot(epochs, [row.value for row in own], marker="o", label=text)
        axis.set(title=f"{run}, SB head", xlabel="epoch", ylim=(-0.03, 1.03))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="center right")
    for row in axes:
        row[0].set_ylabel("share of target positions")
    _save(figure, path)


# -- all of them -----------------------------------------------------------------------------------

PICTURES: Dict[str, Callable[[List[Row], str], None]] = {
    "series_k.png": series_k,
    "heads.png": heads,
}


def draw_all(folder: str) -> List[str]:
    """Draw each picture from the CSV file of its name (series_k.png from series.csv); returns their
    paths. Raises TableError for a file that is missing or damaged."""
    paths = []
    for name, draw in PICTURES.items():
        path = os.path.join(folder, name)
        draw(read_rows(os.path.join(folder, re.sub(r"(_k)?\.png$", ".csv", name))), path)
        paths.append(path)
    return paths
