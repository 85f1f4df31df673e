"""Print the source's figures beside those of runs made by recipe.py, with seeds pooled and systems
compared pair by pair.

    compare.py runs/A8-* runs/A10-* runs/A15-*            tables as text
    compare.py runs/* --markdown > table.md               the same tables in Markdown
    compare.py runs/* --csv > table.csv                   one figure a line

Runs that differ in nothing but the seed are one row: mean, standard deviation and, from two seeds
on, a 95 % interval of the mean by Student's t. The first run named (or --baseline ID) is what the
others are compared with on the same test set: each seed by a paired bootstrap over the sentences,
and all seeds together (docs/statistics.md).
"""

import argparse
import csv
import dataclasses
import logging
import os
import statistics
import sys
from typing import Dict, List, Optional, Tuple

import numpy as np
from tqdm import tqdm

from ..analysis import scoring
from ..analysis.hypotheses import read_hypotheses
from ..analysis.significance import (
    FEWEST_SAMPLES,
    Difference,
    holm,
    paired_bootstrap,
    score_of,
    sentence_statistics,
)
from ..analysis.tokens import moses_tokenizer
from ..errors import KlangError, exit_status
from ..files import read_json, read_lines, sha256
from .plan import difference


class CompareError(KlangError):
    """Runs that cannot be put into one table."""


# -- runs and groups -------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """One run folder of recipe.py."""

    folder: str
    settings: dict
    scores: dict

    @property
    def seed(self):
        """The seed it was trained with."""
        return self.settings["key"]["seed"]

    @property
    def test(self):
        """Its test scores, or None."""
        return self.scores["test"]

    @property
    def epochs(self):
        """{epoch: validation BLEU}"""
        return {epoch["epoch"]: epoch["bleu"] for epoch in self.scores["epochs"] if "bleu" in epoch}

    def same(self):
        """Its key without the seed and the machine: what runs that are pooled have in common."""
        key = {
            name: value
            for name, value in self.settings["key"].items()
            if name not in ("seed", "device")
        }
        flags = list(key["train"])
        for name in ("--seed", "--distributed-world-size"):
            at = flags.index(name)
            del flags[at : at + 2]
        key["train"] = [flag for flag in flags if flag != "--cpu"]
        key["generate"] = {
            beam: [flag for flag in flags if flag != "--cpu"]
            for beam, flags in key["generate"].items()
        }
        return key


def read_run(folder):
    """A finished run. Raises CompareError."""
    names = ("settings.json", "scores.json") if os.path.isdir(folder) else ()
    settings, scores = [read_json(os.path.join(folder, name)) for name in names] or [None, None]
    if not settings:
        raise CompareError(
            f"{folder} is no run folder: it has no settings.json; name what recipe.py wrote"
        )
    if not scores:
        raise CompareError(
            f"{folder} is not finished: it has no scores.json; run its recipe again to go on"
        )
    return Run(folder, settings, scores)


def read_runs(folders):
    """The finished runs among what is named, for runs/* names all; says which are left out. Raises
    CompareError where none is left."""
    runs, left_out = [], []
    for folder in folders:
        if not os.path.exists(folder):
            raise CompareError(f"{folder} does not exist")
        try:
            runs.append(read_run(folder))
        except CompareError as error:
            left_out.append(str(error))
    if not runs:
        raise CompareError("; ".join(left_out))
    for reason in left_out:
        print(f"compare: left out: {reason}", file=sys.stderr)
    return runs


@dataclasses.dataclass
class Group:
    """Runs that differ in the seed alone."""

    label: str  # id, criterion, and the overrides that not all groups have: unique in the table
    runs: List[Run]

    @property
    def first(self):
        """Any of its runs: what is not a result is the same in all."""
        return self.runs[0]

    @property
    def recipe(self):
        """The recipe's own words and figures, kept in the run."""
        return self.first.settings["recipe"]

    @property
    def by_seed(self):
        """{seed: run}"""
        return {run.seed: run for run in self.runs}


def group_runs(runs):
    """Groups in the order of their first run, each with a label of its own. Raises CompareError for
    a seed given twice."""
    groups, shared = [], common_overrides(runs)
    for run in runs:
        group = next((group for group in groups if group.first.same() == run.same()), None)
        if group is None:
            key = run.settings["key"]
            own = [override for override in _overrides(run) if override not in shared]
            groups.append(Group(" ".join([key["id"], key["loss"], *own]), [run]))
        elif run.seed in group.by_seed:
            raise CompareError(
                f"{group.by_seed[run.seed].folder} and {run.folder} are the same recipe with the "
                "same seed; name one of them"
            )
        else:
            group.runs.append(run)
    for number, group in enumerate(groups):
        like = next((other for other in groups[:number] if other.label == group.label), None)
        if like:
            what, _, value = difference(like.first.same(), group.first.same())
            group.label += f" ({what}: {value if len(value) < 40 else value[:8]})"
            group.label += (
                f" #{number + 1}"
                if group.label in [other.label for other in groups[:number]]
                else ""
            )
    return groups


def _overrides(run):
    """["--max-epoch 2", ...]: the flags that were appended to the recipe's own."""
    flags = []
    for word in run.settings["overrides"]:
        if word.startswith("-") or not flags:
            flags.append(word)
        else:
            flags[-1] += " " + word
    return flags


def common_overrides(runs):
    """The overrides that all runs have."""
    first, *others = [_overrides(run) for run in runs]
    return [override for override in first if all(override in other for other in others)]


# -- figures ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pooled:
    """A figure over seeds; sd needs two of them, as does the 95 % interval of the mean."""

    n: int
    mean: float
    sd: Optional[float] = None
    interval: Optional[Tuple[float, float]] = None


def pool(values):
    """Pool one value a seed; None where there is no value."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Pooled(1, mean)
    from scipy.stats import t

    sd = statistics.stdev(values)
    half = float(t.ppf(0.975, len(values) - 1)) * sd / len(values) ** 0.5
    return Pooled(len(values), mean, sd, (mean - half, mean + half))


# measure: (what it is, how it is read from a run; None where the run lacks it)
def _test(beam, name):
    return lambda run: run.test["systems"][beam][name]["score"] if run.test else None


MEASURES = {
    "tok": ("BLEU tok", _test("beam5", "bleu_tok")),
    "tok_greedy": ("greedy", _test("greedy", "bleu_tok")),
    "lc": ("sacreBLEU lc", _test("beam5", "bleu_lc")),
    "cased": ("sacreBLEU", _test("beam5", "bleu")),
    "chrf": ("chrF", _test("beam5", "chrf")),
    "valid": ("valid", lambda run: max(run.epochs.values()) if run.epochs else None),
}


def figure(group, measure):
    """A measure of a group, pooled over the runs that have it, or None."""
    values = [MEASURES[measure][1](run) for run in group.runs]
    return pool([value for value in values if value is not None])


def epoch_figures(group):
    """{epoch: validation BLEU, pooled}"""
    epochs = sorted({epoch for run in group.runs for epoch in run.epochs})
    return {
        epoch: pool([run.epochs[epoch] for run in group.runs if epoch in run.epochs])
        for epoch in epochs
    }


# -- pairs -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    """A group against the baseline: BLEU on tokens, beam 5, second minus first."""

    first: Group
    second: Group
    differences: Dict[int, Difference]  # {seed: over sentences}
    pooled: Optional[Difference]  # all seeds
    reason: str = ""  # why there are none
    adjusted: Optional[float] = None  # pooled's p by Holm's correction, of all pairs in the table


def compare_groups(baseline, group, samples):
    """Both groups on the test set that both translated, with the seeds that both have; returns
    Pair."""
    seeds = sorted(set(baseline.by_seed) & set(group.by_seed))
    pairs = {seed: (baseline.by_seed[seed], group.by_seed[seed]) for seed in seeds}
    reason = "" if seeds else "no seed in common"
    for pair in pairs.values():
        reason = reason or _why_not(*pair)
    if reason:
        return Pair(baseline, group, {}, None, reason)
    metric, _ = scoring.metrics()["bleu_tok"]
    first, second = (
        np.stack([_statistics(pair[place], metric) for pair in pairs.values()]) for place in (0, 1)
    )

    def test(rows):
        return paired_bootstrap(first[rows], second[rows], score_of(metric), samples=samples)

    rows = tqdm(range(len(seeds)), desc=group.label, unit="seed", leave=False)
    differences = {seeds[row]: test([row]) for row in rows}
    return Pair(baseline, group, differences, test(range(len(seeds))))


def _why_not(first, second):
    """Why two runs cannot be compared sentence by sentence, or ""."""
    if not (first.test and second.test):
        return "no test scores"
    if first.test["reference_sha256"] != second.test["reference_sha256"]:
        return "another test set"
    path = first.test["reference"]
    if not os.path.isfile(path) or sha256(path) != first.test["reference_sha256"]:
        return f"the reference {path} is gone or was changed"
    return ""


def _statistics(run, metric):
    """[N, C], the metric's statistics of a run's beam-5 translations."""
    reference, data = list(read_lines(run.test["reference"])), run.settings["data"]
    path = os.path.join(run.folder, f"gen.{run.test['subset']}.beam5.out")
    options = {"subword": data["subword"], "tokenizer": data["tokenizer"]}
    lines = read_hypotheses(path, len(reference), data["target"], **options).tokens
    split = moses_tokenizer(data["target"])
    return sentence_statistics(metric, lines, [split(line) for line in reference])


# -- tables ----------------------------------------------------------------------------------------


def _text(pooled, interval=False):
    if pooled is None:
        return "-"
    text = f"{pooled.mean:.2f}" + ("" if pooled.sd is None else f" +- {pooled.sd:.2f}")
    return text + (
        " [{:.2f}, {:.2f}]".format(*pooled.interval) if interval and pooled.interval else ""
    )


def score_table(groups):
    """Rows of the first table: the source's figure beside the run's."""
    heads = [MEASURES[name][0] for name in ("tok", "tok_greedy", "lc", "chrf", "valid")]
    rows = [["run", "what", "V", "seeds", "source", heads[0] + " [95 %]", *heads[1:]]]
    for group in groups:
        recipe, data = group.recipe, group.first.settings["data"]
        source = recipe["source"]
        if recipe["source_epochs"]:
            source = f"{max(recipe['source_epochs']):.2f} (best epoch)"
        cells = [_text(figure(group, "tok"), interval=True)] + [
            _text(figure(group, name)) for name in ("tok_greedy", "lc", "chrf", "valid")
        ]
        seeds = " ".join(map(str, sorted(group.by_seed)))
        changed = [
            flag for flag in _overrides(group.first) if flag.startswith(("--sb-", "--k-lang"))
        ]  # "k = 170" would be false
        about = recipe["about"] + (f" (here {' '.join(changed)})" if changed else "")
        rows.append(
            [
                group.label,
                about,
                str(data["vocabulary"][data["target"]]),
                seeds,
                source or "-",
                *cells,
            ]
        )
    return rows


def epoch_table(groups):
    """Rows of the second table: BLEU by epoch, the source's above the run's."""
    found = [(group, epoch_figures(group)) for group in groups]
    last = max(
        [epoch for _, figures in found for epoch in figures]
        + [len(group.recipe["source_epochs"]) for group, _ in found]
    )
    if last > 12:  # too wide for a table; --csv has them all
        found = [(group, figures) for group, figures in found if group.recipe["source_epochs"]]
        last = max(
            [max([*figures, len(group.recipe["source_epochs"])]) for group, figures in found],
            default=0,
        )
    rows = [["run", "", *(f"epoch {epoch}" for epoch in range(1, last + 1))]]
    for group, figures in found:
        source = group.recipe["source_epochs"]
        if source:
            rows.append(
                [group.label, "source"]
                + [f"{value:.2f}" for value in source]
                + ["-"] * (last - len(source))
            )
        rows.append(
            [group.label, "here"] + [_text(figures.get(epoch)) for epoch in range(1, last + 1)]
        )
    return rows


def _difference(found):
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(found.delta, *found.interval)


def pair_table(pairs):
    """Rows of the third table: each group against the baseline."""
    several = len(pairs) > 1
    rows = [
        [
            "run",
            "against",
            "seeds",
            "difference [95 %]",
            "p",
            *(["p (Holm)"] if several else []),
            "seed: difference [95 % over sentences] p",
        ]
    ]
    for pair in pairs:
        pooled, cells = pair.pooled, ["-"] * (4 if several else 3)
        if pooled:
            cells = [str(pooled.seeds), _difference(pooled), f"{pooled.p_value:.4f}"]
            cells += [f"{pair.adjusted:.4f}"] if several else []
        seeds = [
            f"{seed}: {_difference(found)} {found.p_value:.4f}"
            for seed, found in pair.differences.items()
        ]
        rows.append(
            [
                pair.second.label,
                pair.first.label,
                *cells,
                "; ".join(seeds) or f"not compared: {pair.reason}",
            ]
        )
    return rows


def csv_rows(groups, pairs):
    """One figure a line, with what is needed to draw it."""
    yield [
        "run",
        "measure",
        "epoch",
        "source",
        "n",
        "mean",
        "sd",
        "low",
        "high",
        "p",
        "seeds",
        "signature",
    ]

    def row(group, measure, epoch, source, pooled, p="", seeds=None, signature=""):
        low, high = pooled.interval or ("", "")
        sd = "" if pooled.sd is None else pooled.sd
        seeds = " ".join(map(str, sorted(seeds or group.by_seed)))
        return [
            group.label,
            measure,
            epoch,
            source,
            pooled.n,
            pooled.mean,
            sd,
            low,
            high,
            p,
            seeds,
            signature,
        ]

    for group in groups:
        for measure in MEASURES:
            pooled = figure(group, measure)
            if pooled:
                source = group.recipe["source"] if measure == "tok" else ""
                yield row(
                    group,
                    measure,
                    "",
                    source,
                    pooled,
                    signature=_signatures([group]).get(measure, ""),
                )
        source = dict(enumerate(group.recipe["source_epochs"], 1))
        for epoch, pooled in epoch_figures(group).items():
            yield row(group, "valid", epoch, source.get(epoch, ""), pooled)
    for pair in pairs:
        for seed, found in pair.differences.items():
            pooled = Pooled(1, found.delta, None, found.interval)
            yield row(
                pair.second,
                f"tok minus {pair.first.label}, over sentences",
                "",
                "",
                pooled,
                found.p_value,
                [seed],
            )
        if pair.pooled and pair.pooled.seeds > 1:
            yield row(
                pair.second,
                f"tok minus {pair.first.label}, over {pair.pooled.over}",
                "",
                "",
                Pooled(pair.pooled.seeds, pair.pooled.delta, None, pair.pooled.interval),
                pair.pooled.p_value,
                seeds=pair.differences,
            )


def _signatures(groups):
    """{measure: sacreBLEU's signature}, several joined by " / " where runs were scored by several
    versions."""
    found = {}
    for run in (run for group in groups for run in group.runs if run.test):
        system = run.test["systems"]["beam5"]
        for measure, name in (
            ("tok", "bleu_tok"),
            ("lc", "bleu_lc"),
            ("cased", "bleu"),
            ("chrf", "chrf"),
        ):
            found.setdefault(measure, {})[system[name]["signature"]] = None
    return {measure: " / ".join(signatures) for measure, signatures in found.items()}


def align(rows):
    """Rows as text in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def markdown(rows):
    """Rows as a table in Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def notes(groups, pairs, samples):
    """What the tables do not say by themselves."""
    lines = [
        "source: the figure of the source, for its own data; it was measured once, by its own "
        "scorer.",
        "BLEU tok, greedy: test set, beam 5 and 1, on Moses tokens, lower-cased. lc: detokenised, "
        "lower-cased. +- is the standard deviation over seeds.",
        "valid: the best epoch's BLEU as fairseq's --eval-bleu finds it (validation set, "
        "detokenised, reference rebuilt from ids).",
    ]
    lines += [
        f"signature of {MEASURES[measure][0]}: {signature}"
        for measure, signature in _signatures(groups).items()
        if measure != "cased"
    ]
    if any(pair.differences for pair in pairs):
        lines.append(
            "differences: BLEU tok, beam 5, run minus baseline, over seeds and sentences, with one "
            f"seed over sentences only; two-sided paired bootstrap, {samples} resamples "
            "(docs/statistics.md)."
        )
        if len(pairs) > 1:
            lines.append(f"p (Holm): adjusted for the {len(pairs)} pairs of this table.")
    shared = common_overrides([run for group in groups for run in group.runs])
    if shared:
        lines.append(f"all runs were made with {' '.join(shared)}")
    for run in (run for group in groups for run in group.runs):
        used, meant = (
            run.scores.get("checkpoint"),
            "average.pt" if run.settings["key"]["average"] else "checkpoint_best.pt",
        )
        if used not in (None, meant):
            lines.append(
                f"translated with {used}, not with {meant} as the recipe says: {run.folder}"
            )
    unscored = [run.folder for group in groups for run in group.runs if not run.test]
    if unscored:
        lines.append(f"no test scores (no raw reference was at hand): {', '.join(unscored)}")
    return lines


# -- the command line ------------------------------------------------------------------------------


def parser():
    """The arguments of this script."""
    root = argparse.ArgumentParser(
        prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root.add_argument("runs", nargs="+", metavar="RUN", help="run folders of recipe.py")
    shape = root.add_mutually_exclusive_group()
    shape.add_argument("--csv", action="store_true", help="one figure a line")
    shape.add_argument("--markdown", action="store_true", help="tables in Markdown")
    root.add_argument(
        "--baseline",
        metavar="ID",
        help="what the others are compared with (default: the first run)",
    )
    root.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="resamples of the paired bootstrap (default: 1000)",
    )
    root.add_argument(
        "--no-pairs", action="store_true", help="leave out the paired bootstrap, the slow part"
    )
    return root


def _pairs(args, groups):
    if args.no_pairs:
        return []
    if args.samples < FEWEST_SAMPLES:
        raise CompareError(f"--samples is {args.samples}; it must be {FEWEST_SAMPLES} or more")
    named = [
        group
        for group in groups
        if args.baseline in (None, group.label, group.first.settings["key"]["id"])
    ]
    if not named:
        raise CompareError(
            f"--baseline is {args.baseline!r}; it must be one of "
            f"{', '.join(group.label for group in groups)}"
        )
    pairs = [
        compare_groups(named[0], group, args.samples) for group in groups if group is not named[0]
    ]
    tested = [pair for pair in pairs if pair.pooled]
    for pair, adjusted in zip(tested, holm([pair.pooled.p_value for pair in tested])):
        pair.adjusted = adjusted
    return pairs


def command(args):
    """Read the runs and print their tables."""
    groups = group_runs(read_runs(args.runs))
    pairs = _pairs(args, groups)
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(groups, pairs))
        return 0
    show = markdown if args.markdown else align
    tables = [score_table(groups), epoch_table(groups), pair_table(pairs)]
    parts = [show(rows) for rows in tables if len(rows) > 1]
    print(
        "\n\n".join(
            parts
            + [
                "\n".join(
                    ("* " if args.markdown else "") + line
                    for line in notes(groups, pairs, args.samples)
                )
            ]
        )
    )
    return 0


def main(argv=None):
    """Print the tables; returns the exit status: 0, or 2 for bad input."""
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    args = parser().parse_args(argv)
    return exit_status("compare", lambda: command(args), resumes=False)


if __name__ == "__main__":
    sys.exit(main())
