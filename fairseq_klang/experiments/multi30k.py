"""`klang study multi30k`: cross-entropy against restricted_softbleu on Multi30k, same small
transformer, same seeds."""

import argparse
import os
from typing import Dict, List, Sequence, Tuple

from ..analysis.curves import write_report
from ..analysis.tables import write_rows
from . import comparing
from .options import add_lanes, add_machine, add_seeds, device_of
from .plan import Data, Plan, find_subsets, read_data
from .recipe import add_data, references_of
from .recipes import Recipe, RecipeError, read_table
from .runner import References, check_flags, run_all

EPILOG = """\
example:
  klang study multi30k --data data/multi30k --out runs/multi30k --seeds 1 2 --lanes 2

Trains recipe m30k with both criterions and every seed, and translates every test split of the data
(test, test1, test2) with beam 5 and greedily. Any further flag goes to fairseq-train. Started
again, it goes on where it stopped. OUT/multi30k.csv gets one figure a row, OUT/report the curves.
"""
LOSSES = ("ce", "softbleu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study multi30k`; what it does not know is meant for fairseq-train."""
    parser.epilog = EPILOG
    parser.set_defaults(takes_flags=True)
    add_data(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of all runs")
    add_seeds(parser)
    add_lanes(parser)
    add_machine(parser)


def data_of(options: argparse.Namespace) -> Tuple[Data, List[str]]:
    """The data folder and the test splits that it has. Raises RecipeError."""
    subsets = find_subsets(options.data)
    if not subsets:
        raise RecipeError(
            f"--data {options.data} has no test split; make it with klang prepare multi30k"
        )
    languages = options.source_lang, options.target_lang
    return read_data(options.data, *languages, options.tokenizer, subsets), subsets


def jobs_of(
    options: argparse.Namespace, recipe: Recipe, variants: Dict[str, Tuple[str, Sequence[str]]]
) -> List[Tuple[Plan, References]]:
    """A job for each seed and variant; variants: {name: (loss, further flags of fairseq-train)}.

    The run folders are OUT/NAME-seedN. fairseq's parsers have read the flags of each variant.
    """
    data, subsets = data_of(options)
    device = device_of(options.device)
    jobs = []
    for seed in options.seeds:
        for name, (loss, flags) in variants.items():
            out = os.path.abspath(os.path.join(options.out, f"{name}-seed{seed}"))
            extra = [*flags, *options.extra]
            plan = Plan(recipe, data, out, loss, seed, device, subsets=subsets, extra=extra)
            jobs.append((plan, references_of(plan)))
    for plan, _ in jobs[: len(variants)]:
        check_flags(plan)
    return jobs


def run(options: argparse.Namespace) -> int:
    """Train, translate, compare; write the rows and the curves."""
    jobs = jobs_of(options, read_table()["m30k"], {loss: (loss, ()) for loss in LOSSES})
    print("\n".join(jobs[-1][0].notes()), flush=True)
    run_all(jobs, options.lanes, options.threads)
    folders = [plan.out for plan, _ in jobs]
    groups = comparing.group_runs(comparing.read_runs(folders))
    pairs = comparing.make_pairs(groups, groups[0], ("beam5", "bleu_lc"), samples=1000)
    path = os.path.join(options.out, "multi30k.csv")
    write_rows(path, comparing.rows_of(groups, pairs))
    print(comparing.show(groups, pairs))
    for written in (path, *write_report(folders, os.path.join(options.out, "report"))):
        print(written)
    return 0
