"""Average the weights of several checkpoints of one model into one checkpoint."""

import os
import re
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from tqdm import tqdm

from ..errors import KlangError
from ..files import Path, written
from .reading import State, load_checkpoint
from .saving import write_checkpoint

Loader = Callable[[Path], State]


class AverageError(KlangError):
    """Checkpoints that cannot be averaged."""


def find_last(
    folder: Path, *, epochs: Optional[int] = None, updates: Optional[int] = None
) -> List[str]:
    """Paths of the last `epochs` files checkpointN.pt, or the last `updates` files
    checkpoint_E_U.pt, oldest first.

    Raises AverageError where the folder holds fewer.
    """
    if epochs is not None and updates is None:
        count, pattern, what = epochs, r"checkpoint(\d+)\.pt", "checkpointEPOCH.pt"
        switch = "--save-interval without --no-epoch-checkpoints"
    elif updates is not None and epochs is None:
        count, pattern = updates, r"checkpoint_\d+_(\d+)\.pt"
        what, switch = "checkpoint_EPOCH_UPDATE.pt", "--save-interval-updates"
    else:
        raise AverageError("give one of --last-epochs N and --last-updates N with --dir")
    if count < 1:
        raise AverageError(f"the number of checkpoints to average is {count}; it must be 1 or more")
    if not os.path.isdir(folder):
        raise AverageError(f"--dir {folder} is no folder")
    found = sorted(
        (int(match.group(1)), name)
        for name in os.listdir(folder)
        for match in [re.fullmatch(pattern, name)]
        if match
    )
    if len(found) < count:
        raise AverageError(
            f"{folder} has {len(found)} files named {what}, not {count}; train with {switch}, or "
            "ask for fewer"
        )
    return [os.path.join(folder, name) for _, name in found[-count:]]


def average(paths: Sequence[Path], load: Loader = load_checkpoint) -> State:
    """The checkpoint whose weights are the mean of those in `paths`; all else is taken from the
    last one.

    Sums in float64 and returns each weight in its own dtype. Integer tensors (counters) are taken
    from the last. The optimiser's state is dropped, since it belongs to none of the averaged
    weights. Tied weights stay tied. Raises AverageError where names or shapes differ or a weight is
    not finite, CheckpointError for an unreadable file.
    """
    names = [str(path) for path in paths]
    if not names:
        raise AverageError(
            "no checkpoint to average; give --inputs, or --dir with --last-epochs or --last-updates"
        )
    real = [os.path.realpath(path) for path in names]
    if len(set(real)) < len(real):
        raise AverageError("the same checkpoint is given twice in --inputs; each may count once")
    first, state = names[0], load(names[0])
    shapes = _shapes(state["model"])
    sums: Dict[str, torch.Tensor] = {}
    for path in tqdm(names, desc="average", unit=" checkpoints", disable=len(names) < 2):
        state = state if path == first else load(path)
        weights = state["model"]
        _check_same(first, shapes, path, weights)
        for name, value in weights.items():
            if not value.is_floating_point():
                continue
            if not torch.isfinite(value).all():
                raise AverageError(
                    f"{path}: {name} holds a value that is not finite; leave this checkpoint out"
                )
            sums[name] = sums[name] + value.double() if name in sums else value.double()

    averaged: Dict[str, torch.Tensor] = {}
    tied: Dict[Any, torch.Tensor] = {}
    for name, value in state["model"].items():
        if name not in sums:
            averaged[name] = value
            continue
        mean = (sums.pop(name) / len(names)).to(value.dtype)
        # one tensor under several names is saved once, and the exporters recognise it
        other = tied.setdefault((value.data_ptr(), tuple(value.shape), value.stride()), mean)
        averaged[name] = other if torch.equal(other, mean) else mean
    state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    state["model"] = averaged
    state["averaged_from"] = [os.path.basename(path) for path in names]
    return state


def _shapes(weights: State) -> Dict[str, str]:
    """{name: what has to be the same in every checkpoint that is averaged}."""
    return {
        name: str(tuple(value.shape)) + ("" if value.is_floating_point() else " of whole numbers")
        for name, value in weights.items()
    }


def _check_same(first: str, shapes: Dict[str, str], path: str, weights: State) -> None:
    """Raise AverageError, naming up to three weights, unless both checkpoints hold the same names
    and shapes."""
    found = _shapes(weights)
    differing = sorted(
        name for name in set(shapes) | set(found) if shapes.get(name) != found.get(name)
    )
    if differing:
        named = "; ".join(
            f"{name} {shapes.get(name, 'missing')} / {found.get(name, 'missing')}"
            for name in differing[:3]
        )
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise AverageError(f"{first} and {path} are not of one model: {named}{more}")


def average_to_file(paths: Sequence[Path], output: Path, load: Loader = load_checkpoint) -> None:
    """Average `paths` into the file `output`, which appears only when it is complete. Raises as
    `average` does."""
    output = str(output)
    if os.path.realpath(output) in [os.path.realpath(str(path)) for path in paths]:
        raise AverageError(f"--output {output} is one of the inputs; choose another name")
    with written(output, "wb") as stream:  # first, so that a place that cannot be written is told
        write_checkpoint(average(paths, load), stream)
