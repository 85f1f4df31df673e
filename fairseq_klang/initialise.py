"""Starting a model from a checkpoint that does not match it tensor for tensor (`--init-from`)."""
import logging
from collections import namedtuple

import torch

from .compat import load_checkpoint
from .errors import UsageError

logger = logging.getLogger(__name__)

InitReport = namedtuple("InitReport", "loaded new skipped resized")
InitReport.__doc__ = """Names of tensors: `loaded` as they are; `new`, only in the model, which keep their initial values; `skipped`, only
in the checkpoint; `resized`, in both with different shapes, whose common corner was copied."""


def copy_matching(model, source):
    """Copy what fits of the state dict `source` into `model`; returns :class:`InitReport`.

    The SB head of a dual-head model starts from the checkpoint's output layer where the checkpoint has one head.
    """
    own = model.state_dict()
    source = dict(source)
    for output in ("decoder.output_projection", "decoder.fc_out"):
        for kind in ("weight", "bias"):
            second = f"decoder.sb_projection.{kind}"
            if second in own and second not in source and f"{output}.{kind}" in source:
                source[second] = source[f"{output}.{kind}"]
    report = InitReport([], [], [], [])
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in source:
                report.new.append(name)
            elif source[name].shape == tensor.shape:
                tensor.copy_(source[name])
                report.loaded.append(name)
            elif source[name].dim() == tensor.dim():
                corner = tuple(slice(min(a, b)) for a, b in zip(source[name].shape, tensor.shape))
                tensor[corner] = source[name][corner].to(tensor.dtype)
                report.resized.append(f"{name} {tuple(source[name].shape)} -> {tuple(tensor.shape)}")
            else:
                report.skipped.append(name)
    report.skipped.extend(name for name in source if name not in own)
    return report


def initialise_from(model, path):
    """Start `model` from the checkpoint at `path` and log every tensor's fate.

    Raises CheckpointError for an unreadable file, and UsageError where no tensor fits.
    """
    report = copy_matching(model, load_checkpoint(path)["model"])
    for fate, names in report._asdict().items():
        for name in names:
            logger.info(f"--init-from: {fate} {name}")
    if not report.loaded and not report.resized:
        raise UsageError(f"--init-from {path}: no tensor of that checkpoint fits this model; name a checkpoint of a similar one")
    counts = ", ".join(f"{len(names)} {fate}" for fate, names in report._asdict().items())
    logger.info(f"--init-from {path}: {counts}; optimiser, schedule, epoch and best metric start afresh")
    return report
