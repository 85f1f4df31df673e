"""Writes checkpoints, whole or not at all."""

from typing import IO

import torch

from ..files import Path, written
from .reading import State, load_checkpoint


def write_checkpoint(state: State, stream: IO[bytes]) -> None:
    """Write `state` as torch.save does, through a stream that `files.written` opened.

    Raises OSError, which `written` turns into an OutputError that names the file.
    """
    try:
        torch.save(state, stream)
    except RuntimeError as error:
        # torch's writer closes its archive after an error, and that fails too: the first one says
        # why.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise OSError(str(error).splitlines()[0]) from None


def save_adapted(model: torch.nn.Module, trained: Path, path: Path) -> None:
    """Write `model`'s weights to `path` as a checkpoint like the one at `trained`, which it was
    loaded from.

    The optimiser's state of the training is left out, since it belongs to other weights. Raises
    CheckpointError and OutputError.
    """
    state = load_checkpoint(trained)
    state.pop("last_optimizer_state", None)
    state["model"] = model.state_dict()
    with written(path, "wb") as stream:
        write_checkpoint(state, stream)
