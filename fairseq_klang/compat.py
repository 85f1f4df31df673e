"""Every bridge over versions of fairseq, torch and Python; no other file asks for a version."""

import argparse
import atexit
import collections
import contextlib
import inspect
import os
import queue
import sys
import threading
import time
import typing
from typing import Any, ContextManager, Dict, Iterable, List, Optional, Sequence

import numpy as np
import torch
from torch import nn

# torch.nn.functional.linear_cross_entropy came with torch 2.13.
HAS_TORCH_LINEAR_CROSS_ENTROPY = hasattr(torch.nn, "LinearCrossEntropyOptions")


# -- torch: autocast -------------------------------------------------------------------------------


def autocast_dtype(device_type: str) -> Optional[torch.dtype]:
    """The dtype that autocast gives matrix products on this type of device; None when it is off."""
    try:
        enabled = torch.is_autocast_enabled(device_type)
    except TypeError:  # torch < 2.4 asks by function name
        enabled = (
            torch.is_autocast_cpu_enabled() if device_type == "cpu" else torch.is_autocast_enabled()
        )
    if not enabled:
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device_type)
    return (
        torch.get_autocast_cpu_dtype() if device_type == "cpu" else torch.get_autocast_gpu_dtype()
    )


def no_autocast(device_type: str) -> ContextManager[Any]:
    """A context in which products keep the dtype of their inputs."""
    if device_type in ("cpu", "cuda"):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


# -- torch >= 2.6: checkpoints load with weights_only=True -----------------------------------------


def _checkpoint_globals() -> List[Any]:
    """The globals that fairseq's checkpoints hold beyond torch's own list: plain data, nothing that
    runs code.

    Which checkpoint needs which: Namespace, any trained from the command line; numpy, those with
    BLEU meters (under both names that numpy 1 and 2 gave its module).
    """
    core = getattr(np, "_core", None) or np.core
    allowed: List[Any] = [argparse.Namespace, np.ndarray, np.dtype]
    allowed += [type(np.dtype(name)) for name in ("int64", "int32", "float64", "float32", "bool")]
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        for function in (core.multiarray._reconstruct, core.multiarray.scalar):
            allowed.append((function, f"{module}.{function.__name__}"))
    return allowed


def _broadcast_globals() -> List[Any]:
    """What a state holds beyond that when several processes resume and rank 0 sends it to them."""
    from fairseq.distributed import utils as distributed_utils
    from omegaconf import DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode

    allowed = [DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata, typing.Any]
    allowed += [collections.defaultdict, dict, list, int]
    allowed.append(distributed_utils._TensorPlaceholder)
    return allowed


def allow_checkpoint_globals() -> None:
    """Let torch's safe loader read fairseq checkpoints; a pickle that would run code stays refused.

    torch before 2.6 loads without the safe mode, and before 2.4 there is no list to extend.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals(_checkpoint_globals())
        if "fairseq" in sys.modules:  # only its processes receive such a state
            torch.serialization.add_safe_globals(_broadcast_globals())


# fairseq 0.12.2 saves a second copy of each encoder layer, for torch's fast path. Newer code cannot
# load it.
_LEGACY_SUFFIXES = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)


def _is_legacy(key: str) -> bool:
    parts = key.split(".")
    return len(parts) == 4 and parts[:2] == ["encoder", "layers"] and parts[3] in _LEGACY_SUFFIXES


def strip_legacy_keys(state_dict: Dict[str, Any]) -> Dict[str, Any]:
    """A model's state dict without the duplicate encoder tensors of fairseq 0.12.2."""
    return {key: value for key, value in state_dict.items() if not _is_legacy(key)}


def strip_legacy_keys_in_place(state_dict: Dict[str, Any], wanted: Iterable[str]) -> None:
    """Drop 0.12.2's duplicate encoder tensors from a state dict, but for the keys that are wanted:
    those of the model at hand."""
    for key in [key for key in state_dict if _is_legacy(key) and key not in wanted]:
        del state_dict[key]


# -- fairseq 0.12.2: a second encoder --------------------------------------------------------------


def without_encoder_fast_path(model: nn.Module) -> None:
    """Make an encoder in evaluation use its weights, in place of the copy that fairseq 0.12.2 made
    when the checkpoint was loaded."""
    module: Any
    for module in model.modules():
        if hasattr(module, "can_use_fastpath"):
            module.can_use_fastpath = False


# -- fairseq: what a criterion is not told ---------------------------------------------------------


def is_training_command() -> bool:
    """Whether fairseq's training is what calls; fairseq-validate and programs build criterions and
    tasks too."""
    return _called_by("train")


def is_validation_command() -> bool:
    """Whether fairseq-validate is what calls."""
    return _called_by("validate")


def _called_by(command: str) -> bool:
    """Whether `main` of fairseq_cli/COMMAND.py is among the callers.

    All ways to start a command end there: console scripts, `python -m`, fairseq-hydra-train,
    spawned workers, and `main` called in a program. Imported modules do not tell, for a notebook
    may import fairseq_cli.train and not train; nor does `__main__`, which in a spawned worker is
    the program that spawned it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "main":
            folder, name = os.path.split(os.path.realpath(code.co_filename))
            if (os.path.basename(folder), name) == ("fairseq_cli", f"{command}.py"):
                return True
    return False


def follow_training(task: Any, criterion: Any) -> None:
    """Keep `criterion.epoch` and `criterion.num_updates` current, and let the process end in order.

    fairseq tells the task and the model which epoch and update it is, but not the criterion. The
    two methods are wrapped on this task object, not on its class.
    """
    begin_epoch, train_step = task.begin_epoch, task.train_step

    def begin_epoch_and_tell(epoch: int, model: nn.Module) -> Any:
        criterion.epoch = epoch
        return begin_epoch(epoch, model)

    def train_step_and_tell(*args: Any, **kwargs: Any) -> Any:
        # (sample, model, criterion, optimizer, update_num, ...), which fairseq passes by name
        criterion.num_updates = kwargs["update_num"] if "update_num" in kwargs else args[4]
        return train_step(*args, **kwargs)

    task.begin_epoch, task.train_step = begin_epoch_and_tell, train_step_and_tell
    end_loaders_at_exit()


# -- fairseq: command lines ------------------------------------------------------------------------


def resume_flags() -> List[str]:
    """Flags of fairseq-train that make a resumed training see the batches of one that ran through.

    fairseq's main branch needs them; 0.12.2 does so by itself and does not know them.
    """
    from fairseq.dataclass.configs import DatasetConfig

    known = "update_epoch_batch_itr" in DatasetConfig.__dataclass_fields__
    return ["--update-epoch-batch-itr", "True"] if known else []


def train_in_bfloat16(arguments: Sequence[str]) -> None:
    """fairseq-train in bfloat16 on a CPU.

    fairseq's parser takes --bf16 on its command line for a wish to use a TPU, so the setting is
    made after the parser.
    """
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed.utils import call_main
    from fairseq_cli.train import main

    args = options.parse_args_and_arch(options.get_training_parser(), list(arguments))
    config = convert_namespace_to_omegaconf(args)
    config.common.bf16 = True
    call_main(config, main)


# -- fairseq: leaving while batches are being loaded -----------------------------------------------

_LOADERS_END_WITHIN = 10.0  # seconds; longer than any one batch takes to collate


def end_loaders_at_exit() -> None:
    """Let fairseq's loading threads end before Python does, however the process ends.

    They are daemon threads. One that Python kills inside torch's C++ code aborts the process
    (SIGABRT in place of the exit status, after the error message), which happens now and then to a
    training that stops in mid-epoch.
    """
    atexit.unregister(_end_loaders)
    atexit.register(_end_loaders)


def _end_loaders() -> None:
    from fairseq.data.iterators import BackgroundConsumer

    loaders = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]
    for thread in loaders:
        thread._max_len = 0  # it stops after the batch at hand
    deadline = time.monotonic() + _LOADERS_END_WITHIN
    while any(thread.is_alive() for thread in loaders) and time.monotonic() < deadline:
        for thread in loaders:
            with contextlib.suppress(queue.Empty):
                thread._queue.get_nowait()  # it may be waiting for room
            thread.join(0.01)


# -- fairseq: what runs past the modules -----------------------------------------------------------


def call_every_projection(model: nn.Module) -> None:
    """Make attention and encoder layers call their projection modules in every mode.

    Self-attention hands the raw weights to torch in full-sequence mode unless its check of
    dimensions is off. In fairseq 0.12.2 an encoder layer in evaluation runs torch's fast path on
    copies of them.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "skip_embed_dim_check"):
            module.skip_embed_dim_check = True
    without_encoder_fast_path(model)
