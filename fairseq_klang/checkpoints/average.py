"""Average the weights of several checkpoints of one model into one checkpoint."""

import os
import re

import torch
from tqdm import tqdm

from ..errors import KlangError
from ..files import written
from .reading import load_checkpoint
from .saving import write_checkpoint


class AverageError(KlangError):
    """Checkpoints that cannot be averaged."""


def find_last(folder, *, epochs=None, updates=None):
    """Paths of the last `epochs` files checkpointN.pt, or the last `updates` files
    checkpoint_E_U.pt, oldest first.

    Raises AverageError where the folder holds fewer.
    """
    if (epochs is None) == (updates is None):
        raise AverageError("give one of --last-epochs N and --last-updates N with --dir")
    count = updates if epochs is None else epochs
    pattern, what, switch = (
        (r"checkpoint_\d+_(\d+)\.pt", "checkpoint_EPOCH_UPDATE.pt", "--save-interval-updates")
        if epochs is None
        else (
            r"checkpoint(\d+)\.pt",
            "checkpointEPOCH.pt",
            "--save-interval without --no-epoch-checkpoints",
        )
    )
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


def average(paths, load=load_checkpoint):
    """The checkpoint whose weights are the mean of those in `paths`; all else is taken from the
    last one.

    Sums in float64 and returns each weight in its own dtype. Integer tensors (counters) are taken
    from the last. The optimiser's state is dropped, since it belongs to none of the averaged
    weights. Tied weights stay tied. Raises AverageError where names or shapes differ or a weight is
    not finite, CheckpointError for an unreadable file.
    """
    paths = [str(path) for path in paths]
    if not paths:
        raise AverageError(
            "no checkpoint to average; give --inputs, or --dir with --last-epochs or --last-updates"
        )
    real = [os.path.realpath(path) for path in paths]
    if len(set(real)) < len(real):
        raise AverageError("the same checkpoint is given twice in --inputs; each may count once")
    sums, state = {}, None
    for path in tqdm(paths, desc="average", unit=" checkpoints", disable=len(paths) < 2):
        state = load(path)
        weights = state["model"]
        if not sums:
            first, sums = (
                path,
                {
                    name: value.double()
                    for name, value in weights.items()
                    if value.is_floating_point()
                },
            )
            shapes = {name: tuple(value.shape) for name, value in weights.items()}
        else:
            _check_same(first, shapes, path, weights)
            for name in sums:
                sums[name] += weights[name].double()
        for name in sums:
            if not torch.isfinite(weights[name]).all():
                raise AverageError(
                    f"{path}: {name} holds a value that is not finite; leave this checkpoint out"
                )

    averaged, tied = {}, {}
    for name, value in state["model"].items():
        if name not in sums:
            averaged[name] = value
            continue
        mean = (sums.pop(name) / len(paths)).to(value.dtype)
        # one tensor under several names is saved once, and the exporters recognise it
        other = tied.setdefault((value.data_ptr(), tuple(value.shape), value.stride()), mean)
        averaged[name] = other if torch.equal(other, mean) else mean
    state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    state["model"] = averaged
    state["averaged_from"] = [os.path.basename(path) for path in paths]
    return state


def _check_same(first, shapes, path, weights):
    """Raise AverageError, naming up to three weights, unless both checkpoints hold the same names
    and shapes."""
    found = {name: tuple(value.shape) for name, value in weights.items()}
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


def average_to_file(paths, output, load=load_checkpoint):
    """Average `paths` into the file `output`, which appears only when it is complete. Raises as
    `average` does."""
    output = str(output)
    if os.path.realpath(output) in [os.path.realpath(str(path)) for path in paths]:
        raise AverageError(f"--output {output} is one of the inputs; choose another name")
    with written(output, "wb") as stream:  # first, so that a place that cannot be written is told
        write_checkpoint(average(paths, load), stream)
