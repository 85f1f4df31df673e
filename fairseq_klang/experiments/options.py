"""Options that several commands have: numbers that are checked where they are read, data folders,
seeds and devices."""

import argparse
import shlex
from typing import Any, Callable, List, Optional

from ..errors import KlangError
from .recipes import RecipeError

LARGEST_SEED = 2**32 - 1  # numpy's


def number(
    convert: Callable[[str], Any],
    low: float,
    high: Optional[float] = None,
    *,
    above: bool = False,
) -> Callable[[str], Any]:
    """A `type` for argparse: a number from `low` to `high`; with `above`, `low` itself is none."""

    def read(text: str) -> Any:
        value = convert(text)
        if not (value > low if above else value >= low) or (high is not None and value > high):
            legal = f"above {low}" if above else f"{low} or more"
            if high is not None:
                legal = f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"{text} is no number that can be used: {legal}")
        return value

    read.__name__ = "whole number" if convert is int else "number"  # argparse tells it
    return read


seed_number = number(int, 0, LARGEST_SEED)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """--device and --threads, of what is trained or measured."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where a GPU can be seen"
    )
    parser.add_argument(
        "--threads",
        type=number(int, 1),
        metavar="N",
        help="threads of each command (default: OMP_NUM_THREADS, or what torch takes)",
    )


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """--seeds, of a study."""
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=seed_number,
        default=[1, 2],
        metavar="N",
        help="seeds, a training each (default: 1 2)",
    )


def add_lanes(parser: argparse.ArgumentParser) -> None:
    """--lanes, of a study."""
    parser.add_argument(
        "--lanes",
        type=number(int, 1),
        default=1,
        metavar="N",
        help="trainings beside each other; when one fails, the others stop (default: 1)",
    )


def device_of(given: Optional[str]) -> str:
    """--device, or cuda where a GPU can be seen."""
    if given is None:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    return given


def named_paths(option: str, items: List[str]) -> dict:
    """{name: path} of options given as NAME=PATH. Raises KlangError."""
    pairs = [item.partition("=") for item in items]
    for item, (name, equals, path) in zip(items, pairs):
        if not (name and equals and path):
            raise KlangError(f"{option} is {item!r}; it must be NAME=PATH, such as bpe=data/m30k")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise KlangError(f"{option} gives a name twice; give each name once")
    return {name: path for name, _, path in pairs}


def split_flags(text: str) -> List[str]:
    """The words of --generate-flags. Raises RecipeError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RecipeError(
            f"--generate-flags is {text!r}: {str(error).lower()}; write the flags as for a shell"
        ) from None
