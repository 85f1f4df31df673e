"""Reads a checkpoint, safely and with a one-line error where there is none."""

import pickle
import re

import torch

from ..compat import allow_checkpoint_globals, strip_legacy_keys
from ..errors import KlangError


class CheckpointError(KlangError):
    """A checkpoint that cannot be read: missing, cut short, or holding objects that are not
    allowed."""


# torch that has no list of safe globals would refuse every Namespace: there the caller must trust
# the file.
_SAFE_LOAD = {"weights_only": True} if hasattr(torch.serialization, "add_safe_globals") else {}


def load_checkpoint(path):
    """A checkpoint as a dict on the CPU, read with weights_only=True (torch >= 2.6), with 0.12.2's
    extra encoder keys stripped.

    Raises CheckpointError, in one line, for a file that is missing, cut short, no checkpoint, or
    unsafe.
    """
    allow_checkpoint_globals()
    try:
        state = torch.load(path, map_location="cpu", **_SAFE_LOAD)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} does not exist") from None
    except pickle.UnpicklingError as error:
        # An unknown operand is no pickle at all; anything else that the safe loader names is an
        # object it will not build.
        refused = [
            line.strip()
            for line in str(error).splitlines()
            if re.search("(?i)unsupported|unrecognized|can only", line)
        ]
        if refused and "operand" not in refused[0]:
            raise CheckpointError(
                f"checkpoint {path} is refused: it holds objects that could run code. {refused[0]}"
            ) from None
        raise CheckpointError(
            f"checkpoint {path} is not a readable checkpoint, or was cut short while written; use "
            "another one"
        ) from None
    except IsADirectoryError:
        raise CheckpointError(f"checkpoint {path} is a folder; name a file in it") from None
    except KeyError:  # of the pickle reader, at bytes that are no pickle
        raise CheckpointError(
            f"checkpoint {path} is not a fairseq checkpoint; use another one"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"checkpoint {path} is cut short or damaged ({reason}); use another one"
        ) from None
    if not isinstance(state, dict) or "model" not in state:
        raise CheckpointError(
            f"checkpoint {path} is not a fairseq checkpoint: it has no 'model' entry"
        )
    state["model"] = strip_legacy_keys(state["model"])
    return state
