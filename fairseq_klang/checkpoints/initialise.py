"""Starting a model from a checkpoint that does not match it tensor for tensor (`--init-from`,
`--init-encoder-from`)."""

import hashlib
import logging
import os
from collections import namedtuple

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair

from ..compat import strip_legacy_keys
from ..errors import UsageError
from .reading import load_checkpoint

logger = logging.getLogger(__name__)

InitReport = namedtuple("InitReport", "loaded new skipped resized")
InitReport.__doc__ = """Names of tensors: `loaded` as they are; `new`, only in the model, which keep
their initial values; `skipped`, only in the checkpoint; `resized`, in both with different shapes,
whose common corner was copied."""


def copy_matching(model, source):
    """Copy what fits of the state dict `source` into `model`; returns :class:`InitReport`.

    The SB head of a dual-head model starts from the checkpoint's output layer where the checkpoint
    has one head.
    """
    own = strip_legacy_keys(model.state_dict())
    source = strip_legacy_keys(source)
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
                report.resized.append(
                    f"{name} {tuple(source[name].shape)} -> {tuple(tensor.shape)}"
                )
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
        raise UsageError(
            f"--init-from {path}: no tensor of that checkpoint fits this model; name a checkpoint "
            "of a similar one"
        )
    counts = ", ".join(f"{len(names)} {fate}" for fate, names in report._asdict().items())
    logger.info(
        f"--init-from {path}: {counts}; optimiser, schedule, epoch and best metric start afresh"
    )
    return report


def dictionary_fingerprint(dictionary):
    """A hash of a fairseq dictionary's symbols in their order; counts do not matter."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).hexdigest()


def _source_fingerprint(state, path):
    """The fingerprint of the source dictionary a checkpoint was trained with.

    The task translation_autoencoding stores it; for other checkpoints it is that of the data folder
    they name. Raises UsageError where neither is at hand.
    """
    stored = (state.get("task_state") or {}).get("source_dictionary")
    if stored:
        return stored
    task = (state.get("cfg") or {}).get("task") or {}
    task = task if hasattr(task, "get") else vars(task)
    folder, language = str(task.get("data") or "").split(os.pathsep)[0], task.get("source_lang")
    if not language and os.path.isdir(
        folder
    ):  # trained without -s: fairseq infers it, and so do we
        language = infer_language_pair(folder)[0]
    file = os.path.join(folder, f"dict.{language}.txt")
    if not os.path.isfile(file):
        raise UsageError(
            f"--init-encoder-from {path}: the checkpoint does not say which dictionary it was "
            "trained with, and the data folder it names, "
            f"{folder or '(none)'}, has "
            f"{f'no dict.{language}.txt' if language else 'no binarised text'}; name one that was "
            "trained with --task translation_autoencoding"
        )
    return dictionary_fingerprint(Dictionary.load(file))


def initialise_encoder_from(model, path, dictionary):
    """Start `model`'s encoder from the checkpoint at `path` and log every tensor as loaded, new or
    skipped.

    dictionary: the model's source dictionary, which must be the checkpoint's.
    Raises CheckpointError for an unreadable file, and UsageError where the dictionary or a tensor's
    shape differs, or the checkpoint has no encoder.
    """
    state = load_checkpoint(path)
    own, source = strip_legacy_keys(model.state_dict()), state["model"]
    given = {name: tensor for name, tensor in source.items() if name.startswith("encoder.")}
    if not given:
        raise UsageError(f"--init-encoder-from {path}: that checkpoint has no encoder")
    if _source_fingerprint(state, path) != dictionary_fingerprint(dictionary):
        raise UsageError(
            f"--init-encoder-from {path}: its source dictionary differs from this data's; binarise "
            "both with one dictionary "
            "(fairseq-preprocess --srcdict)"
        )
    for name, tensor in given.items():
        if name in own and own[name].shape != tensor.shape:
            raise UsageError(
                f"--init-encoder-from {path}: {name} is {tuple(tensor.shape)} there and "
                f"{tuple(own[name].shape)} here; use the same encoder flags"
            )
    report = InitReport([], [], [], [])
    with torch.no_grad():
        for name in given:
            if name in own:
                own[name].copy_(given[name])
    # A table that the decoder shares with the encoder is loaded under both its names.
    filled = {own[name].data_ptr() for name in given if name in own and own[name].numel()}
    for name, tensor in own.items():
        (report.loaded if name in given or tensor.data_ptr() in filled else report.new).append(name)
    report.skipped.extend(name for name in source if name not in report.loaded)
    for fate in ("loaded", "new", "skipped"):
        for name in getattr(report, fate):
            logger.info(f"--init-encoder-from: {fate} {name}")
    counts = ", ".join(
        f"{len(getattr(report, fate))} {fate}" for fate in ("loaded", "new", "skipped")
    )
    logger.info(f"--init-encoder-from {path}: {counts}")
    random = [name for name in report.new if name.startswith("encoder.")]
    if random:
        logger.warning(
            f"--init-encoder-from {path}: {len(random)} of the encoder's "
            f"{sum(name.startswith('encoder.') for name in own)} tensors are not in that "
            f"checkpoint and start from random values, {random[0]} for one; use the same "
            "architecture and encoder flags to load all"
        )
    return report
