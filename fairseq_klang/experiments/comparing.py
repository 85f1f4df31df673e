"""`klang compare`: runs of recipes in one table, seeds pooled, and tested against a baseline."""

import argparse
import dataclasses
import functools
import os
import re
import statistics
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

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
from ..analysis.tables import Row, as_csv, as_table, rounded
from ..analysis.tokens import bleu_tokenizer, moses_tokenizer
from ..errors import KlangError
from ..files import read_json, read_lines, sha256, written
from .options import number
from .plan import BEAMS, difference
from .recipes import Recipe, read_table

EPILOG = """\
examples:
  klang compare runs/A8-* runs/A10-* runs/A15-*         tables as text
  klang compare runs/* --markdown > table.md            the same tables in Markdown
  klang compare runs/* --csv table.csv                  one figure a row

Runs that differ in nothing but the seed are one row: mean, standard deviation and, from two seeds
on, a 95 % interval of the mean by Student's t. The first run named (or --baseline) is what the
others are compared with, over the seeds that both have. All differences are printed. One measure,
named beforehand, is tested (docs/statistics.md), and Holm's correction covers all tests of the
table.
"""

MEASURES = tuple(scoring.MEASURES)
SHORT = {"bleu": "sacreBLEU", "bleu_lc": "sacreBLEU lc", "bleu_tok": "BLEU tok", "chrf": "chrF"}


class CompareError(KlangError):
    """Runs that cannot be put into one table."""


# -- runs and groups -------------------------------------------------------------------------------


@dataclasses.dataclass
class Test:
    """The scores of one split: systems is {decoding: {measure: (score, signature)}}."""

    reference: str
    digest: str
    systems: Dict[str, Dict[str, Tuple[float, str]]]


@dataclasses.dataclass
class Run:
    """One run folder.

    Attributes:
        same: its key without the seed and the machine: what runs that are pooled have in common.
        overrides: the flags that were appended to the recipe's own.
        vocabulary: entries of the target dictionary, without fairseq's four special ones.
        epochs: {epoch: validation BLEU}.
        checkpoint, meant: the checkpoint that translated, and the one that the recipe asks for.
        commit, versions: of the code that trained.
    """

    folder: str
    id: str
    loss: str
    seed: int
    same: Dict[str, Any]
    overrides: List[str]
    about: str
    target: str
    vocabulary: int
    subword: str
    tokenizer: str
    epochs: Dict[int, float]
    checkpoint: Optional[str]
    meant: str
    tests: Dict[str, Test]
    commit: str
    versions: Dict[str, Any]


def read_run(folder: str) -> Run:
    """A finished run. Raises CompareError."""
    settings, scores = None, None
    if os.path.isdir(folder):
        fix = "run its recipe again in another folder"
        settings, scores = (
            read_json(os.path.join(folder, name), CompareError, fix)
            for name in ("settings.json", "scores.json")
        )
    if settings is None:
        raise CompareError(
            f"{folder} is no run folder: it has no settings.json; name what klang recipe wrote"
        )
    if scores is None:
        raise CompareError(
            f"{folder} is not finished: it has no scores.json; run its recipe again to go on"
        )
    try:
        return _read_run(folder, settings, scores)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CompareError(
            f"{folder} is damaged: settings.json or scores.json does not hold what klang recipe "
            f"writes ({type(error).__name__}: {error}); run its recipe again in another folder"
        ) from None


def _read_run(folder: str, settings: Dict[str, Any], scores: Dict[str, Any]) -> Run:
    key, data, start = settings["key"], settings["data"], settings["starts"][-1]
    tests = scores.get("tests", {})
    if scores.get("test"):  # version 0.1.0 translated one split
        tests = {scores["test"]["subset"]: scores["test"]}
    return Run(
        folder=folder,
        id=str(key["id"]),
        loss=str(key["loss"]),
        seed=int(key["seed"]),
        same=_same(key),
        overrides=_overrides(settings["overrides"]),
        about=str(settings["recipe"]["about"]),
        target=str(data["target"]),
        vocabulary=int(data["vocabulary"][data["target"]]),
        subword=str(data["subword"]),
        tokenizer=str(data["tokenizer"]),
        epochs={int(it["epoch"]): float(it["bleu"]) for it in scores["epochs"] if "bleu" in it},
        checkpoint=scores.get("checkpoint"),
        meant="average.pt" if key["average"] else "checkpoint_best.pt",
        tests={
            str(subset): Test(
                str(test["reference"]),
                str(test["reference_sha256"]),
                {
                    str(beam): {
                        name: (float(system[name]["score"]), str(system[name]["signature"]))
                        for name in MEASURES
                    }
                    for beam, system in test["systems"].items()
                },
            )
            for subset, test in tests.items()
        },
        commit=str(start["git"] or ""),
        versions={str(name): str(version) for name, version in start["versions"].items()},
    )


def _same(key: Dict[str, Any]) -> Dict[str, Any]:
    same = {name: value for name, value in key.items() if name not in ("seed", "device")}
    flags = list(key["train"])
    for name in ("--seed", "--distributed-world-size"):
        at = flags.index(name)
        del flags[at : at + 2]
    same["train"] = [str(flag) for flag in flags if flag != "--cpu"]
    same["generate"] = {
        name: [str(flag) for flag in flags if flag != "--cpu"]
        for name, flags in key["generate"].items()
    }
    return same


def _overrides(words: Sequence[str]) -> List[str]:
    """["--max-epoch 2", ...] of appended flags."""
    flags: List[str] = []
    for word in words:
        if re.match(r"-{1,2}[A-Za-z]", word) or not flags:
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    return flags


def read_runs(folders: Sequence[str]) -> List[Run]:
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
    """Runs that differ in the seed alone.

    label: id, criterion, and the overrides that not all groups have; unique in the table.
    """

    label: str
    runs: List[Run]

    @property
    def first(self) -> Run:
        """Any of its runs: what is not a result is the same in all."""
        return self.runs[0]

    @property
    def by_seed(self) -> Dict[int, Run]:
        """{seed: run}"""
        return {run.seed: run for run in self.runs}

    @property
    def recipe(self) -> Optional[Recipe]:
        """The recipe in today's table whose series figures belong to these runs, or None."""
        recipe = read_table().get(self.first.id)
        return recipe if recipe and recipe.loss == self.first.loss else None


def group_runs(runs: Sequence[Run]) -> List[Group]:
    """Groups in the order of their first run, each with a label of its own. Raises CompareError for
    a seed given twice."""
    groups: List[Group] = []
    shared = common_overrides(runs)
    for run in runs:
        group = next((group for group in groups if group.first.same == run.same), None)
        if group is None:
            own = [override for override in run.overrides if override not in shared]
            groups.append(Group(" ".join([run.id, run.loss, *own]), [run]))
        elif run.seed in group.by_seed:
            raise CompareError(
                f"{group.by_seed[run.seed].folder} and {run.folder} are the same recipe with the "
                "same seed; name one of them"
            )
        else:
            group.runs.append(run)
    for place, group in enumerate(groups):
        like = next((other for other in groups[:place] if other.label == group.label), None)
        found = difference(like.first.same, group.first.same) if like else None
        if found:
            what, _, value = found
            group.label += f" ({what}: {value if len(value) < 40 else value[:8]})"
            if group.label in [other.label for other in groups[:place]]:
                group.label += f" #{place + 1}"
    return groups


def common_overrides(runs: Sequence[Run]) -> List[str]:
    """The overrides that all runs have."""
    first, *others = [run.overrides for run in runs]
    return [override for override in first if all(override in other for other in others)]


# -- figures ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pooled:
    """A figure over seeds; sd needs two of them, as does the 95 % interval of the mean."""

    n: int
    mean: float
    sd: Optional[float] = None
    interval: Optional[Tuple[float, float]] = None


def pool(values: Sequence[float]) -> Optional[Pooled]:
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


def score_of_run(run: Run, subset: str, beam: str, measure: str) -> Optional[float]:
    """One score, or None where the run lacks it."""
    test = run.tests.get(subset)
    found = test.systems.get(beam, {}).get(measure) if test else None
    return found[0] if found else None


def figure(group: Group, subset: str, beam: str, measure: str) -> Optional[Pooled]:
    """A score of a group, pooled over the runs that have it, or None."""
    values = [score_of_run(run, subset, beam, measure) for run in group.runs]
    return pool([value for value in values if value is not None])


def best_epoch(group: Group) -> Optional[Pooled]:
    """The best epoch's validation BLEU, pooled."""
    return pool([max(run.epochs.values()) for run in group.runs if run.epochs])


def epoch_figures(group: Group) -> Dict[int, Optional[Pooled]]:
    """{epoch: validation BLEU, pooled}"""
    epochs = sorted({epoch for run in group.runs for epoch in run.epochs})
    return {
        epoch: pool([run.epochs[epoch] for run in group.runs if epoch in run.epochs])
        for epoch in epochs
    }


def subsets_of(groups: Sequence[Group]) -> List[str]:
    """The splits that any run has scores of, in order."""
    return list(dict.fromkeys(name for g in groups for run in g.runs for name in run.tests))


# -- pairs -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    """A group against the baseline on one split, second minus first, over the seeds of both.

    Attributes:
        deltas: {(decoding, measure): mean difference}.
        tested: (decoding, measure) that was named beforehand.
        found: the test of that one, and `adjusted` its p-value by Holm's correction.
        reason: why there is no test.
    """

    first: Group
    second: Group
    subset: str
    tested: Tuple[str, str]
    seeds: List[int]
    deltas: Dict[Tuple[str, str], float]
    found: Optional[Difference] = None
    adjusted: Optional[float] = None
    reason: str = ""


def compare_groups(
    first: Group, second: Group, subset: str, tested: Tuple[str, str], samples: int
) -> Pair:
    """The differences of the seeds that both groups have, on the split that both translated."""
    seeds = sorted(set(first.by_seed) & set(second.by_seed))
    pairs = [(first.by_seed[seed], second.by_seed[seed]) for seed in seeds]
    pair = Pair(first, second, subset, tested, seeds, {})
    reasons = [_why_not(*runs, subset) for runs in pairs] or ["no seed in common"]
    pair.reason = next(filter(None, reasons), "")
    if pair.reason:
        return pair
    for beam in BEAMS:
        for measure in MEASURES:
            values = [[score_of_run(run, subset, beam, measure) for run in runs] for runs in pairs]
            known = [two - one for one, two in values if one is not None and two is not None]
            if len(known) == len(pairs):
                pair.deltas[beam, measure] = statistics.fmean(known)
    reference = tuple(read_lines(pairs[0][0].tests[subset].reference))
    one, two = (
        np.stack([_statistics(runs[side], subset, tested, reference) for runs in pairs])
        for side in (0, 1)
    )
    metric, _ = _metric(first.first.target, tested[1])
    pair.found = paired_bootstrap(one, two, score_of(metric), samples=samples)
    return pair


def _why_not(first: Run, second: Run, subset: str) -> str:
    """Why two runs cannot be compared sentence by sentence, or ""."""
    if subset not in first.tests or subset not in second.tests:
        return "no test scores"
    one, two = first.tests[subset], second.tests[subset]
    if one.digest != two.digest:
        return "another test set"
    if not os.path.isfile(one.reference) or sha256(one.reference) != one.digest:
        return f"the reference {one.reference} is gone or was changed"
    return ""


def _metric(target: str, measure: str) -> Tuple[Any, bool]:
    return scoring.metrics(bleu_tokenizer(target)[0])[measure]


def _statistics(
    run: Run, subset: str, tested: Tuple[str, str], reference: Tuple[str, ...]
) -> np.ndarray:
    """[N, C]: what the metric counts in each sentence of a run's output."""
    beam, measure = tested
    path = os.path.join(run.folder, f"gen.{subset}.{beam}.out")
    return _counted(path, reference, run.target, run.subword, run.tokenizer, measure)


@functools.lru_cache(maxsize=64)  # the baseline's enter every pair
def _counted(
    path: str,
    reference: Tuple[str, ...],
    target: str,
    subword: str,
    tokenizer: str,
    measure: str,
) -> np.ndarray:
    metric, on_tokens = _metric(target, measure)
    found = read_hypotheses(path, len(reference), target, subword=subword, tokenizer=tokenizer)
    lines, right = found.detokenized, list(reference)
    if on_tokens:
        split = moses_tokenizer(target)
        lines, right = found.tokens, [split(line) for line in reference]
    return sentence_statistics(metric, lines, right)


def make_pairs(
    groups: Sequence[Group], baseline: Group, tested: Tuple[str, str], samples: int
) -> List[Pair]:
    """Every other group against the baseline, on every split; Holm's correction over all tests."""
    wanted = [
        (group, subset)
        for group in groups
        if group is not baseline
        for subset in subsets_of(groups)
    ]
    pairs = [
        compare_groups(baseline, group, subset, tested, samples)
        for group, subset in tqdm(wanted, desc="differences", unit="pair", leave=False)
    ]
    found = [pair for pair in pairs if pair.found]
    adjusted = holm([pair.found.p_value for pair in found if pair.found])
    for pair, p_value in zip(found, adjusted):
        pair.adjusted = p_value
    return pairs


# -- tables ----------------------------------------------------------------------------------------

SHOWN = [("beam5", "bleu_tok"), ("greedy", "bleu_tok"), ("beam5", "bleu_lc"), ("beam5", "chrf")]


def _text(pooled: Optional[Pooled], interval: bool = False) -> str:
    if pooled is None:
        return "-"
    text = f"{pooled.mean:.2f}" + ("" if pooled.sd is None else f" +- {pooled.sd:.2f}")
    return text + (
        " [{:.2f}, {:.2f}]".format(*pooled.interval) if interval and pooled.interval else ""
    )


def _head(beam: str, measure: str) -> str:
    return SHORT[measure] + (", greedy" if beam == "greedy" else "")


def score_table(groups: Sequence[Group]) -> List[List[str]]:
    """Rows of the first table: the series' figure beside the runs'; a line for each split."""
    subsets = subsets_of(groups) or ["-"]
    heads = [_head(*shown) for shown in SHOWN]
    rows = [["run", "what", "V", "seeds", "series", "split", heads[0] + " [95 %]", *heads[1:]]]
    rows[0].append("valid")
    for group in groups:
        series = "-"
        if group.recipe:
            series = group.recipe.series or "-"
            if group.recipe.series_epochs:
                series = f"{max(group.recipe.series_epochs):.2f} (best epoch)"
        changed = [
            flag for flag in group.first.overrides if flag.startswith(("--sb-", "--k-lang"))
        ]  # "k = 170" would be false
        about = group.first.about + (f" (here {' '.join(changed)})" if changed else "")
        seeds = " ".join(map(str, sorted(group.by_seed)))
        for subset in subsets:
            cells = [
                _text(figure(group, subset, *shown), interval=place == 0)
                for place, shown in enumerate(SHOWN)
            ]
            start = [group.label, about, str(group.first.vocabulary), seeds, series]
            rows.append([*start, subset, *cells, _text(best_epoch(group))])
    return rows


def epoch_table(groups: Sequence[Group]) -> List[List[str]]:
    """Rows of the second table: validation BLEU by epoch, the series' above the runs'."""

    def series(group: Group) -> List[float]:
        return group.recipe.series_epochs if group.recipe else []

    def length(found: Sequence[Tuple[Group, Dict[int, Optional[Pooled]]]]) -> int:
        return max((max([*figures, len(series(group))]) for group, figures in found), default=0)

    found = [(group, epoch_figures(group)) for group in groups]
    if length(found) > 12:  # too wide for a table; --csv has them all
        found = [(group, figures) for group, figures in found if series(group)]
    last = length(found)
    rows = [["run", "", *(f"epoch {epoch}" for epoch in range(1, last + 1))]]
    for group, figures in found:
        told = series(group)
        if told:
            cells = [f"{value:.2f}" for value in told] + ["-"] * (last - len(told))
            rows.append([group.label, "series", *cells])
        if figures:
            cells = [_text(figures.get(epoch)) for epoch in range(1, last + 1)]
            rows.append([group.label, "here", *cells])
    return rows


def pair_table(pairs: Sequence[Pair]) -> List[List[str]]:
    """Rows of the third table: each group against the baseline, in all measures, one tested."""
    columns = [(beam, measure) for beam in BEAMS for measure in MEASURES]
    tested = pairs[0].tested if pairs else columns[0]
    others = [column for column in columns if column != tested]
    rows = [["run", "against", "split", "seeds", f"{_head(*tested)} [95 %]", "p", "p, Holm"]]
    rows[0] += [_head(*column) for column in others]
    for pair in pairs:
        start = [pair.second.label, pair.first.label, pair.subset]
        start.append(" ".join(map(str, pair.seeds)) or "-")
        if pair.found is None:
            rows.append([*start, f"not compared: {pair.reason}", *["-"] * (2 + len(others))])
            continue
        told = "{:+.2f} [{:+.2f}, {:+.2f}]".format(pair.found.delta, *pair.found.interval)
        values = [rounded(pair.deltas.get(column), sign=True) for column in others]
        p_values = [rounded(p, 4) for p in (pair.found.p_value, pair.adjusted)]
        rows.append([*start, told, *p_values, *values])
    return rows


# -- data ------------------------------------------------------------------------------------------


def rows_of(groups: Sequence[Group], pairs: Sequence[Pair] = ()) -> List[Row]:
    """Every figure as a row: each run's, the pooled ones, the epochs', the series', differences."""
    rows: List[Row] = []
    for group in groups:
        for subset in subsets_of([group]):
            for beam in BEAMS:
                for measure in MEASURES:
                    rows += _score_rows(group, subset, beam, measure)
        rows += _epoch_rows(group)
    for pair in pairs:
        rows += _pair_rows(pair)
    return rows


def _common(runs: Sequence[Run]) -> Dict[str, Any]:
    """What every row on these runs has."""
    first = runs[0]
    commits = dict.fromkeys(run.commit for run in runs)
    return dict(
        settings={"V": first.vocabulary + 4, "id": first.id, "loss": first.loss},
        seeds=sorted({run.seed for run in runs}),
        commit=" ".join(filter(None, commits)),
        versions=first.versions,
    )


def _pooled_row(group: Group, runs: Sequence[Run], pooled: Pooled, **more: Any) -> Row:
    low, high = pooled.interval or (None, None)
    common = _common(runs)
    common["settings"].update(more.pop("settings", {}))
    if pooled.sd is not None:
        common["settings"]["sd"] = pooled.sd
    return Row(group.label, value=pooled.mean, low=low, high=high, n=pooled.n, **common, **more)


def _score_rows(group: Group, subset: str, beam: str, measure: str) -> List[Row]:
    found = [run for run in group.runs if score_of_run(run, subset, beam, measure) is not None]
    samples = [[run] for run in found] + ([found] if len(found) > 1 else [])
    rows = []
    for runs in samples:
        values = [score_of_run(run, subset, beam, measure) for run in runs]
        pooled = pool([value for value in values if value is not None])
        signatures = [run.tests[subset].systems[beam][measure][1] for run in runs]
        where = dict(subset=subset, decoding=beam, measure=measure)
        signature = " / ".join(dict.fromkeys(signatures))
        if pooled:
            rows.append(_pooled_row(group, runs, pooled, signature=signature, **where))
    return rows


def _epoch_rows(group: Group) -> List[Row]:
    runs = [run for run in group.runs if run.epochs]
    rows = []
    best = best_epoch(group)
    if best:
        rows.append(_pooled_row(group, runs, best, subset="valid", measure="bleu, best epoch"))
    for epoch, pooled in epoch_figures(group).items():
        own = [run for run in runs if epoch in run.epochs]
        if pooled:
            where = dict(subset="valid", measure="bleu", settings={"epoch": epoch})
            rows.append(_pooled_row(group, own, pooled, **where))
    recipe, settings = group.recipe, _common(group.runs)["settings"]
    for epoch, value in enumerate(recipe.series_epochs if recipe else [], 1):
        told = {**settings, "epoch": epoch}
        rows.append(Row(group.label, "bleu of the series", value, settings=told))
    if recipe and re.fullmatch(r"[\d.]+", recipe.series):
        rows.append(Row(group.label, "bleu of the series", float(recipe.series), settings=settings))
    return rows


def _pair_rows(pair: Pair) -> List[Row]:
    rows = []
    runs = [group.by_seed[seed] for group in (pair.first, pair.second) for seed in pair.seeds]
    for (beam, measure), delta in pair.deltas.items():
        row = Row(
            pair.second.label,
            f"{measure} minus {pair.first.label}",
            delta,
            subset=pair.subset,
            decoding=beam,
            n=len(pair.seeds),
            **_common(runs),
        )
        row.settings = {"V": row.settings["V"]}
        if (beam, measure) == pair.tested and pair.found:
            row.value, row.p = pair.found.delta, pair.found.p_value
            row.low, row.high = pair.found.interval
            row.signature = pair.second.runs[0].tests[pair.subset].systems[beam][measure][1]
            row.settings.update(
                holm_p=pair.adjusted,
                over=pair.found.over,
                samples=pair.found.samples,
                below=pair.found.bounds[1],
                above=pair.found.bounds[0],
            )
        rows.append(row)
    return rows


# -- the command -----------------------------------------------------------------------------------


def notes(groups: Sequence[Group], pairs: Sequence[Pair]) -> List[str]:
    """What the tables do not say by themselves."""
    lines = [
        "series: the figure of the series, for its own data; it was measured once, by its own "
        "scorer.",
        "BLEU tok: on Moses tokens, lower-cased, beam 5 unless greedy. lc: detokenised, "
        "lower-cased. +- is the standard deviation over seeds.",
        "valid: the best epoch's BLEU as fairseq's --eval-bleu finds it (validation set, "
        "detokenised, reference rebuilt from ids).",
    ]
    signatures: Dict[str, Dict[str, None]] = {}
    for run in (run for group in groups for run in group.runs):
        for test in run.tests.values():
            for system in test.systems.values():
                for measure, (_, signature) in system.items():
                    signatures.setdefault(measure, {})[signature] = None
    lines += [
        f"signature of {SHORT[measure]}: {' / '.join(found)}"
        for measure, found in signatures.items()
    ]
    found = next((pair.found for pair in pairs if pair.found), None)
    if found:
        lines.append(
            f"differences: means over the seeds named. Tested: {_head(*pairs[0].tested)}, over "
            f"seeds and sentences (one seed: over sentences), {found.samples} resamples, two-sided."
        )
    shared = common_overrides([run for group in groups for run in group.runs])
    if shared:
        lines.append(f"all runs were made with {' '.join(shared)}")
    for run in (run for group in groups for run in group.runs):
        if run.checkpoint not in (None, run.meant):
            lines.append(
                f"translated with {run.checkpoint}, not with {run.meant} as the recipe says: "
                f"{run.folder}"
            )
    unscored = [run.folder for group in groups for run in group.runs if not run.tests]
    if unscored:
        lines.append(f"no test scores (no raw reference was at hand): {', '.join(unscored)}")
    return lines


def show(groups: Sequence[Group], pairs: Sequence[Pair], markdown: bool = False) -> str:
    """The tables and notes as text."""
    style, bullet = ("github", "* ") if markdown else ("plain", "")
    tables = [score_table(groups), epoch_table(groups), pair_table(pairs)]
    parts = [as_table(rows, style) for rows in tables if len(rows) > 1]
    return "\n\n".join(parts + ["\n".join(bullet + line for line in notes(groups, pairs))])


def find_baseline(groups: Sequence[Group], name: Optional[str]) -> Group:
    """The first group of that label or id; the first of all where none is named. Raises
    CompareError."""
    for group in groups:
        if name in (None, group.label, group.first.id):
            return group
    labels = ", ".join(group.label for group in groups)
    raise CompareError(f"--baseline is {name!r}; it must be one of {labels}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang compare`."""
    parser.epilog = EPILOG
    parser.set_defaults(resumes=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders of klang recipe")
    parser.add_argument(
        "--csv", metavar="FILE", help="write one figure a row to this file; - prints them"
    )
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument(
        "--baseline",
        metavar="ID",
        help="what the others are compared with (default: the first run)",
    )
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="bleu_tok",
        help="what is tested (default: bleu_tok)",
    )
    parser.add_argument(
        "--decoding", choices=tuple(BEAMS), default="beam5", help="of it (default: beam5)"
    )
    parser.add_argument(
        "--samples",
        type=number(int, FEWEST_SAMPLES, 100_000),
        default=1000,
        metavar="N",
        help="resamples of the test (default: 1000)",
    )
    parser.add_argument(
        "--no-pairs", action="store_true", help="leave out the differences, the slow part"
    )


def run(options: argparse.Namespace) -> int:
    """Read the runs and print their tables."""
    groups = group_runs(read_runs(options.runs))
    baseline = find_baseline(groups, options.baseline)
    pairs = []
    if not options.no_pairs:
        tested = (options.decoding, options.measure)
        pairs = make_pairs(groups, baseline, tested, options.samples)
    if options.csv:
        text = as_csv(rows_of(groups, pairs))
        if options.csv == "-":
            sys.stdout.write(text)
            return 0
        with written(options.csv) as stream:
            stream.write(text)
    print(show(groups, pairs, options.markdown))
    return 0
