"""`klang study gradients`: how large is the SB head's gradient beside the CE head's, update by
update at the start of training, or epoch by epoch in whole runs (claims C1, C2, C6)?"""

import argparse
import math
import os
import shutil
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..analysis.logs import INNER, TRAIN, by_update, read_log, read_runs
from ..analysis.logs import Row as LogRow
from ..analysis.tables import Row, as_table, provenance, write_rows
from ..collision import collision_size
from ..errors import KlangError
from ..files import read_lines, written
from .options import add_lanes, add_machine, device_of, named_paths, number, seed_number
from .plan import Data, Plan, read_data
from .recipes import find_recipe, read_table
from .runner import References, check_flags, run_all

EPILOG = """\
examples:
  klang study gradients --data bpe=data/multi30k --out runs/gradients
  klang study gradients --data bpe=data/multi30k 56k=data/multi30k --pad 56k=56652 --out ...
  klang study gradients --runs runs/m30k-softbleu-seed1 runs/m30k-softbleu-seed2

With --data, each vocabulary is trained for --updates updates from the same initial weights, once
with the full softmax and once for each K. K is given as a share of V (0.003) or as a number of
tokens (170). Each update's figures are those of the weights before it, so that the first row is
the untrained model. Printed and written: the norm of the CE head's gradient over that of the SB
head's, both of the combined loss, and the amplification, the SB head's norm over that with the
full softmax. Any further flag goes to fairseq-train, such as --finetune-from-model CHECKPOINT for
other initial weights. --pad NAME=V fills the dictionary of a vocabulary with unused words up to V
entries: the softmax has the size of V, the text stays.

With --runs, logs that are there are read: CE / SB at update --first and for each epoch, and SB.
"""

# gradient norms of the two heads' weights for the combined loss, per token, and SB
CE, SB, SCORE = METRICS = ("gnorm_ce_head", "gnorm_sb_head", "sb")
SPECIAL = 4  # fairseq's own entries of a dictionary


class StudyError(KlangError):
    """Logs or options that the study cannot use."""


class Point(NamedTuple):
    """One update: gradient norms of both heads, and SB in training."""

    update: int
    ce: float
    sb: float
    score: float

    @property
    def ratio(self) -> float:
        """CE / SB; inf where the SB head has no gradient."""
        return self.ce / self.sb if self.sb else math.inf


def points(rows: Sequence[LogRow], split: str) -> List[Point]:
    """The rows of one split that hold all three figures, in order of update."""
    return [
        Point(update, *(stats[name] for name in METRICS))
        for update, stats in by_update(rows, split).items()
        if all(name in stats for name in METRICS)
    ]


# -- the start of training -------------------------------------------------------------------------


class Cell(NamedTuple):
    """One training: a vocabulary, and k as asked for ("full", "0.003", "170") and in tokens."""

    name: str
    vocabulary: int
    asked: str
    k: int

    @property
    def label(self) -> str:
        """`bpe, V = 7,896, k = 24`"""
        k = f"k = {self.k:,}" if self.k else "full softmax"
        return f"{self.name}, V = {self.vocabulary:,}, {k}"


def size_of(text: str) -> Tuple[str, float]:
    """(text, number) of --k: a share of V below 1, or a number of tokens. Raises ValueError."""
    value = float(text)
    if not (0 < value < 1 or (value >= 1 and value == int(value))):
        raise argparse.ArgumentTypeError(
            f"{text} is no size: a share of V between 0 and 1, or a whole number of tokens"
        )
    return text, value


def cells_of(name: str, vocabulary: int, sizes: Sequence[Tuple[str, float]]) -> List[Cell]:
    """The trainings of one vocabulary: the full softmax, then each size that is below V."""
    found = [Cell(name, vocabulary, "full", 0)]
    for text, value in sizes:
        k = collision_size(vocabulary, value) if value < 1 else int(value)
        if k < vocabulary:
            found.append(Cell(name, vocabulary, text, k))
    return found


def padded(data: Data, size: int, folder: str) -> str:
    """A copy of a data folder whose dictionaries are filled with unused words up to `size` entries,
    fairseq's four included; returns it. Raises StudyError."""
    missing = {lang: size - SPECIAL - count for lang, count in data.vocabulary.items()}
    if min(missing.values()) < 0:
        raise StudyError(f"--pad to {size}: {data.folder} has more entries than that already")
    os.makedirs(folder, exist_ok=True)
    for name in data.files:
        source, target = os.path.join(data.folder, name), os.path.join(folder, name)
        if name.startswith("dict."):
            lang = name.split(".")[1]
            with written(target) as stream:
                stream.writelines(f"{line}\n" for line in read_lines(source))
                stream.writelines(f"unused{i} 0\n" for i in range(missing[lang]))
        elif not os.path.exists(target):
            with open(source, "rb") as reader, written(target, "wb") as writer:
                shutil.copyfileobj(reader, writer)
    return folder


def start_rows(found: Dict[Cell, List[Point]], settings: Dict[str, object]) -> List[Row]:
    """Four rows for each update of each training: the two norms, the ratio, the amplification."""
    made = provenance()
    rows = []
    full = {
        (cell.name, point.update): point.sb
        for cell, line in found.items()
        if not cell.k
        for point in line
    }
    for cell, line in found.items():
        for point in line:
            base = full.get((cell.name, point.update))
            amplified = point.sb / base if base else math.nan
            figures = {CE: point.ce, SB: point.sb, "ratio": point.ratio, SCORE: point.score}
            figures["amplification"] = amplified
            where = {"V": cell.vocabulary, "k": cell.k or "full", "update": point.update - 1}
            for measure, value in figures.items():
                if not math.isnan(value):
                    own = {**where, **settings}
                    seeds = [int(str(own.pop("seed")))]
                    rows.append(Row(cell.name, measure, value, seeds=seeds, settings=own, **made))
    return rows


def start_table(found: Dict[Cell, List[Point]], shown: Sequence[int]) -> List[List[str]]:
    """CE / SB at some updates, and the amplification before the first."""
    rows = [["V", "k", "amplification before training"]]
    rows[0] += [f"CE / SB at {update}" for update in shown]
    for cell, line in found.items():
        full = next(
            line for other, line in found.items() if other.name == cell.name and not other.k
        )
        first = line[0].sb / full[0].sb if full[0].sb else math.nan
        ratios = {point.update - 1: point.ratio for point in line}
        values = [f"{ratios[update]:,.1f}" if update in ratios else "-" for update in shown]
        k = f"{cell.k:,}" if cell.k else "full"
        rows.append([f"{cell.name}, {cell.vocabulary:,}", k, f"{first:,.1f}", *values])
    return rows


def draw(found: Dict[Cell, List[Point]], path: str) -> None:
    """CE / SB by update, a panel for each vocabulary, on a common logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(cell.name for cell in found))
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(5.5 * len(names), 4.2), squeeze=False, sharey=True
    )
    for axis, name in zip(axes[0], names):
        own = {cell: line for cell, line in found.items() if cell.name == name}
        for cell, line in own.items():
            finite = [(point.update - 1, point.ratio) for point in line if point.sb and point.ce]
            axis.plot(*zip(*finite), label=f"k = {cell.k:,}" if cell.k else "full softmax")
        vocabulary = next(iter(own)).vocabulary
        axis.set(yscale="log", xlabel="updates done", title=f"{name}, V = {vocabulary:,}")
        axis.set_ylabel("gradient norm, CE head / SB head")
        axis.axhline(1, color="0.5", linewidth=0.8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.tight_layout()
    with written(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=120)
    pyplot.close(figure)


def start(options: argparse.Namespace) -> None:
    """Train the first updates of every cell, print and write what their logs say."""
    recipe = find_recipe(read_table(), options.recipe)
    sizes = {
        name: number(int, 5)(text) for name, text in named_paths("--pad", options.pad or []).items()
    }
    datas = named_paths("--data", options.data)
    for name in sizes:
        if name not in datas:
            raise StudyError(f"--pad names {name}, which --data does not")
    jobs: List[Tuple[Plan, References]] = []
    cells: List[Cell] = []
    for name, folder in datas.items():
        data = read_data(folder, subsets=())
        if name in sizes:
            data = read_data(
                padded(data, sizes[name], os.path.join(options.out, f"{name}-data")), subsets=()
            )
        for cell in cells_of(name, data.vocabulary[data.target] + SPECIAL, options.k):
            flags = ["--sb-topk", str(cell.k), "--max-update", str(options.updates)]
            flags += ["--log-interval", "1", "--disable-validation", *options.extra]
            out = os.path.join(os.path.abspath(options.out), f"{name}-k{cell.k or 'full'}")
            device = device_of(options.device)
            plan = Plan(
                recipe, data, out, "softbleu", options.seed, device, subsets=[], extra=flags
            )
            check_flags(plan)
            jobs.append((plan, {}))
            cells.append(cell)
    run_all(jobs, options.lanes, options.threads)
    found = {}
    for cell, (plan, _) in zip(cells, jobs):
        found[cell] = points(read_log(plan.log), INNER)
        if not found[cell]:
            raise StudyError(f"{plan.log} logs no {SB}; give the criterion's own flags only")
    settings: Dict[str, object] = {"seed": options.seed, "recipe": recipe.id}
    if options.extra:
        settings["flags"] = " ".join(options.extra)
    table, picture = (os.path.join(options.out, f"gradients.{end}") for end in ("csv", "png"))
    write_rows(table, start_rows(found, settings))
    draw(found, picture)
    shown = [update for update in (0, 1, 2, 5, 10, 20, 50, 100) if update < options.updates]
    print(as_table(start_table(found, shown), "github"))
    for name, size in sizes.items():
        print(f"{name}: the dictionary is filled with unused words up to {size:,} entries")
    print(f"{table}\n{picture}")


# -- whole runs ------------------------------------------------------------------------------------


def whole(options: argparse.Namespace) -> None:
    """Print CE / SB and SB of logs, at one update and by epoch."""
    made, rows = provenance(), []
    table = {}
    for name, log in read_runs(options.runs).items():
        epochs = points(log, TRAIN)
        if not epochs:
            raise StudyError(f"{name} logs no {SB}; give runs of --criterion restricted_softbleu")
        inner: Optional[Point] = next(
            (point for point in points(log, INNER) if point.update >= options.first), None
        )
        found = ([("", inner)] if inner else []) + list(enumerate(epochs, 1))
        cells = [f"{point.ratio:,.1f} ({point.score:.3f})" for _, point in found]
        table[name] = cells if inner else ["", *cells]
        for epoch, point in found:
            where = {"update": point.update, **({"epoch": epoch} if epoch else {})}
            for measure, value in (("ratio", point.ratio), (SCORE, point.score)):
                rows.append(Row(name, measure, value, settings=where, **made))
    columns = max(map(len, table.values()))
    head = ["run", f"update {options.first}", *(f"epoch {i}" for i in range(1, columns))]
    lines = [[name, *cells, *[""] * (columns - len(cells))] for name, cells in table.items()]
    print(as_table([head, *lines], "github"))
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        path = os.path.join(options.out, "gradients_by_epoch.csv")
        write_rows(path, rows)
        print(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study gradients`; further ones are meant for fairseq-train."""
    parser.epilog = EPILOG
    parser.set_defaults(takes_flags=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data",
        nargs="+",
        metavar="NAME=DIR",
        help="vocabularies: a name, and the folder that klang prepare wrote",
    )
    source.add_argument("--runs", nargs="+", metavar="RUN", help="logs, or folders with one")
    parser.add_argument("--out", metavar="DIR", help="folder for trainings, table and picture")
    parser.add_argument(
        "--pad", nargs="+", metavar="NAME=V", help="fill a dictionary with unused words up to V"
    )
    parser.add_argument(
        "--k",
        nargs="+",
        type=size_of,
        metavar="K",
        # the series' 50, 170 and 500 of 56,652, as shares of V
        default=[size_of(text) for text in ("0.00088", "0.003", "0.0088")],
        help="sizes of the restricted softmax (default: 0.00088 0.003 0.0088 of V)",
    )
    parser.add_argument(
        "--updates", type=number(int, 1), default=101, metavar="N", help="default: 101"
    )
    parser.add_argument("--recipe", default="m30k", metavar="ID", help="what is trained (m30k)")
    parser.add_argument("--seed", type=seed_number, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--first",
        type=number(int, 0),
        default=50,
        metavar="N",
        help="with --runs: update of the first column (default: 50)",
    )
    add_lanes(parser)
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Train the start, or read whole runs."""
    if options.runs:
        if options.extra:
            raise StudyError(f"{' '.join(options.extra)}: no such option goes with --runs")
        whole(options)
        return 0
    if not options.out:
        raise StudyError("--out DIR is needed with --data: the trainings go there")
    os.makedirs(options.out, exist_ok=True)
    start(options)
    return 0
