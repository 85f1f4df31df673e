"""Reads a checkpoint, safely and with a one-line error where there is none."""

import pickle
import re
import warnings
from collections.abc import Mapping
from typing import Any, Dict

import torch

from ..compat import allow_checkpoint_globals, strip_legacy_keys
from ..errors import KlangError
from ..files import Path

State = Dict[str, Any]  # a checkpoint, or its "model", tensors by name


class CheckpointError(KlangError):
    """A checkpoint that cannot be read: missing, cut short, or holding objects that are not
    allowed."""


# torch that has no list of safe globals would refuse every Namespace: there the caller must trust
# the file.
_SAFE_LOAD = {"weights_only": True} if hasattr(torch.serialization, "add_safe_globals") else {}


def load_checkpoint(path: Path) -> State:
    """A checkpoint as a dict on the CPU, its "model" a dict of tensors by name.

    It is read with weights_only=True (torch >= 2.6), and 0.12.2's extra encoder tensors are left
    out. Raises CheckpointError, in one line, for a file that is missing, cut short, damaged, no
    checkpoint, or unsafe.
    """
    allow_checkpoint_globals()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that are refused anyway
            state = torch.load(path, map_location="cpu", **_SAFE_LOAD)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} does not exist") from None
    except Exception as error:  # damaged bytes make torch and pickle raise nearly anything
        raise CheckpointError(f"checkpoint {path} {_complaint(error)}") from None
    for name in ("model", "cfg", "extra_state", "task_state"):
        if not isinstance(state, Mapping) or name not in state:
            if name == "model":
                raise CheckpointError(
                    f"checkpoint {path} is not a fairseq checkpoint: it has no 'model' entry"
                )
        elif not isinstance(state[name], Mapping) and (name == "model" or state[name] is not None):
            raise CheckpointError(
                f"checkpoint {path} is not a fairseq checkpoint: its {name!r} is of type "
                f"{type(state[name]).__name__}"
            )
    state = dict(state)
    for name, tensor in state["model"].items():
        if not isinstance(name, str) or not torch.is_tensor(tensor):
            raise CheckpointError(
                f"checkpoint {path} is not a fairseq checkpoint: 'model' holds {str(name)!r} of "
                f"type {type(tensor).__name__} in place of a tensor"
            )
    state["model"] = strip_legacy_keys(state["model"])
    return state


def _complaint(error: Exception) -> str:
    """What an error of torch.load says about the file, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}; name another file"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, pickle.UnpicklingError):
        # An unknown operand is no pickle at all; anything else that the safe loader names is an
        # object it will not build.
        refused = [
            line for line in lines if re.search("(?i)unsupported|unrecognized|can only", line)
        ]
        if refused and "operand" not in refused[0]:
            return f"is refused: it holds objects that could run code. {_shown(refused[0])}"
    reason = _shown(lines[0]) if lines else type(error).__name__
    return f"is cut short, damaged, or no checkpoint ({reason}); use another one"


def _shown(text: str) -> str:
    """The start of a message, with what a terminal would act on escaped: it may quote the file."""
    text = text if len(text) <= 300 else f"{text[:300]}..."
    return text.encode("unicode_escape").decode("ascii")
