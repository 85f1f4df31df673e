"""`klang recipe`: train, translate and score one experiment of recipes.ini, in one run folder."""

import argparse
import os
import sys
from typing import Any, List, Sequence

from .options import add_machine, device_of, number, seed_number, split_flags
from .plan import Plan, find_reference, read_data
from .recipes import RecipeError, find_recipe, list_recipes, read_table
from .runner import Commands, References, check_flags, summary
from .runner import run as run_plan

EPILOG = """\
examples:
  klang recipe A10 --data DATA                        train, translate (beam 5 and greedy), score
  klang recipe A10 --data DATA --seed 2 --device cuda       another seed, on a GPU
  klang recipe README --data DATA --loss softbleu     another criterion, all else the same
  klang recipe B0 --data DATA --max-epoch 2           any further flag goes to fairseq-train and
                                                      overrides the recipe's
  klang recipe A8 --data DATA --keep-last-epochs -1   keep the checkpoints of all epochs
  klang recipe A10 --data DATA --dry-run              print the commands
  klang recipe --list                                 the recipes

Killed at any point and started again with the same command, a run goes on where it stopped: what is
complete is kept, and fairseq resumes from its last checkpoint, bit for bit. That is the end of the
last epoch, unless --save-interval-updates N is appended.
"""


class _List(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(list_recipes(read_table()))
        parser.exit()


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options on the data folder, of every command that trains."""
    parser.add_argument(
        "--data",
        metavar="DIR",
        required=True,
        help="what klang prepare or fairseq-preprocess wrote",
    )
    for short, name in (("-s", "--source-lang"), ("-t", "--target-lang")):
        parser.add_argument(short, name, metavar="LANG", help="default: found in the data folder")
    parser.add_argument(
        "--tokenizer",
        choices=("moses", "none"),
        help="moses: the text is Moses tokens (default: as klang prepare says, or moses)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang recipe`; what it does not know is meant for fairseq-train."""
    parser.epilog = EPILOG
    parser.usage = "klang recipe ID --data DIR [options] [flags of fairseq-train]"
    parser.set_defaults(takes_flags=True)
    parser.add_argument(
        "id", metavar="ID", help="a recipe, such as A10 (--list shows them); comes first"
    )
    parser.add_argument(
        "--list", action=_List, nargs=0, help="list the recipes with the series' figures, and end"
    )
    add_data(parser)
    parser.add_argument(
        "--ref",
        metavar="FILE",
        help="raw reference of the test set (default: raw/ of a folder made by klang prepare)",
    )
    parser.add_argument(
        "--subset",
        nargs="+",
        default=["test"],
        metavar="NAME",
        help="splits to translate (default: test)",
    )
    parser.add_argument("--loss", metavar="NAME", help="ce or softbleu (default: the recipe's own)")
    parser.add_argument("--seed", type=seed_number, metavar="N", help="default: the recipe's")
    add_machine(parser)
    parser.add_argument(
        "--gpus",
        type=number(int, 1),
        default=1,
        metavar="N",
        help="GPUs that share each batch of the recipe (default: 1)",
    )
    parser.add_argument("--out", metavar="DIR", help="run folder (default: runs/ID-LOSS-seedN)")
    parser.add_argument(
        "--generate-flags",
        default="",
        metavar="'FLAGS'",
        help=(
            "further flags of fairseq-generate, in one argument, joined by =: "
            "--generate-flags='--lenpen 0.8'"
        ),
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and end")


def make_plan(options: argparse.Namespace, extra: Sequence[str]) -> Plan:
    """The plan of parsed options. Raises RecipeError."""
    recipe = find_recipe(read_table(), options.id)
    subsets: List[str] = list(dict.fromkeys(options.subset))
    data = read_data(
        options.data, options.source_lang, options.target_lang, options.tokenizer, subsets
    )
    loss = options.loss or recipe.loss
    seed = recipe.seed if options.seed is None else options.seed
    out = os.path.abspath(options.out or os.path.join("runs", f"{recipe.id}-{loss}-seed{seed}"))
    flags = split_flags(options.generate_flags)
    device = device_of(options.device)
    return Plan(recipe, data, out, loss, seed, device, options.gpus, subsets, list(extra), flags)


def references_of(plan: Plan, given: str = "") -> References:
    """The raw reference of each split; `given` is --ref. Raises RecipeError."""
    if given and not os.path.isfile(given):
        raise RecipeError(f"--ref {given} does not exist")
    if given and len(plan.subsets) > 1:
        raise RecipeError("--ref is the reference of one split; give --subset one name")
    return {subset: given or find_reference(plan.data, subset) for subset in plan.subsets}


def run(options: argparse.Namespace) -> int:
    """Plan and run one recipe, or only print its commands."""
    plan = make_plan(options, options.extra)
    references = references_of(plan, options.ref or "")
    check_flags(plan)
    if options.dry_run:
        print("\n".join(plan.commands(references)))
        print("\n".join(plan.notes()), file=sys.stderr)
        return 0
    print(f"{plan.name} ({plan.recipe.about}), {plan.device}: {plan.out}")
    print("\n".join(plan.notes()), flush=True)
    print(summary(plan, run_plan(plan, references, Commands(options.threads))))
    return 0
