"""Starting a model from a checkpoint that does not match it tensor for tensor (`--init-from`,
`--init-encoder-from`)."""

import hashlib
import logging
import os
from collections import namedtuple
from collections.abc import Mapping
from typing import Dict, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair

from ..compat import strip_legacy_keys
from ..errors import UsageError
from ..files import Path
from .reading import State, load_checkpoint

logger = logging.getLogger(__name__)

Rows = Tuple[
    torch.Tensor, torch.Tensor
]  # rows of a checkpoint's table and of the model's, both [n]

InitReport = namedtuple("InitReport", "loaded new skipped resized matched")
InitReport.__doc__ = """Names of tensors: `loaded` as they are; `new`, only in the model, which keep
their initial values; `skipped`, only in the checkpoint; `resized`, in both with different shapes,
whose common corner was copied; `matched`, tables whose rows were copied word by word."""

# The tables with a row for each word, by the language of the words.
TABLES = {
    "source": [
        "encoder.embed_tokens.weight",
        "autoencoder.output_projection.weight",
        "autoencoder.decoder.embed_tokens.weight",
        "autoencoder.decoder.output_projection.weight",
        "autoencoder.decoder.fc_out.weight",
        "autoencoder.decoder.fc_out.bias",
    ],
    "target": [
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
        "decoder.fc_out.weight",
        "decoder.fc_out.bias",
        "decoder.sb_projection.weight",
        "decoder.sb_projection.bias",
    ],
}
_LISTED = 50  # words that a log line names


# -- dictionaries ----------------------------------------------------------------------------------


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """A hash of a fairseq dictionary's symbols in their order; counts do not matter."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).hexdigest()


def _settings(state: State) -> Mapping:
    """The task's options in a checkpoint; older ones hold all options together."""
    settings = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    return settings if isinstance(settings, Mapping) else getattr(settings, "__dict__", {})


def _dictionary_file(state: State, side: str, folder: Optional[str]) -> str:
    """Where the dictionary of `side` that a checkpoint was trained with should lie."""
    settings = _settings(state)
    folder = folder or str(settings.get("data") or "").split(os.pathsep)[0]
    language = settings.get(f"{side}_lang")
    if not language and os.path.isdir(folder):  # trained without -s and -t: fairseq infers them
        language = infer_language_pair(folder)[side == "target"]
    file = os.path.join(folder, f"dict.{language}.txt")
    if side == "target" and settings.get("source_only") and not os.path.isfile(file):
        return _dictionary_file(state, "source", folder)  # as the task does
    return file


def trained_dictionary(
    state: State, side: str, own: Dictionary, folder: Optional[str], told: str
) -> Optional[Dictionary]:
    """The dictionary that a checkpoint was trained with, or None where it has the words of `own`.

    Our tasks store its fingerprint in the checkpoint. The words themselves are in the file
    dict.LANG.txt of its data folder.

    Args:
        state: the checkpoint.
        side: `source` or `target`.
        own: the model's dictionary of that side.
        folder: where the file is (--init-dictionaries); None is the data folder that the checkpoint
            names.
        told: the option and checkpoint that errors name.
    Raises:
        UsageError: the file is not there, or is another dictionary than that of the checkpoint.
    """
    stored = (state.get("task_state") or {}).get(f"{side}_dictionary")
    if stored == dictionary_fingerprint(own):
        return None
    file = _dictionary_file(state, side, folder)
    fix = (
        "name the folder with the dictionaries that the checkpoint was trained with as "
        "--init-dictionaries DIR"
    )
    if not os.path.isfile(file):
        raise UsageError(
            f"{told}: its rows cannot be matched with words, for its {side} dictionary "
            f"{file} does not exist; {fix}"
        )
    try:
        found = Dictionary.load(file)
    except Exception as error:  # fairseq raises Exception itself for a wrong encoding
        reason = " ".join(str(error).split())
        raise UsageError(f"{told}: {file} is no dictionary of fairseq ({reason}); {fix}") from None
    if stored and stored != dictionary_fingerprint(found):
        raise UsageError(
            f"{told}: {file} is not the {side} dictionary that the checkpoint was trained with; "
            f"{fix}"
        )
    return None if found.symbols == own.symbols else found


def match_rows(old: Dictionary, new: Dictionary) -> Rows:
    """The rows of the words that both dictionaries have, as numbered in each."""
    common = [symbol for symbol in new.symbols if symbol in old.indices]
    return (
        torch.tensor([old.indices[symbol] for symbol in common]),
        torch.tensor([new.indices[symbol] for symbol in common]),
    )


# -- copying ---------------------------------------------------------------------------------------


def _fill_second_head(own: State, source: State) -> None:
    """Let the SB head of a dual-head model start from the only output layer of a checkpoint."""
    for output in ("decoder.output_projection", "decoder.fc_out"):
        for kind in ("weight", "bias"):
            second = f"decoder.sb_projection.{kind}"
            if second in own and second not in source and f"{output}.{kind}" in source:
                source[second] = source[f"{output}.{kind}"]


def copy_matching(
    model: torch.nn.Module, source: State, rows: Optional[Dict[str, Rows]] = None
) -> InitReport:
    """Copy what fits of the state dict `source` into `model`; returns :class:`InitReport`.

    The SB head of a dual-head model starts from the checkpoint's output layer where the checkpoint
    has one head.
    rows: for the tables whose rows are other words in `source` than in `model`, which row goes
        where. Rows that nothing goes to keep their initial values.
    """
    own = strip_legacy_keys(model.state_dict())
    source = strip_legacy_keys(source)
    _fill_second_head(own, source)
    report = InitReport([], [], [], [], [])
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in source:
                report.new.append(name)
            elif source[name].dim() != tensor.dim():
                report.skipped.append(name)
            elif rows and name in rows:
                theirs, ours = rows[name]
                width = tuple(
                    slice(min(a, b)) for a, b in zip(source[name].shape[1:], tensor.shape[1:])
                )
                tensor[(ours, *width)] = source[name][(theirs, *width)].to(tensor)
                report.matched.append(f"{name} ({len(ours)} of {len(tensor)} rows)")
            elif source[name].shape == tensor.shape:
                tensor.copy_(source[name])
                report.loaded.append(name)
            else:
                corner = tuple(slice(min(a, b)) for a, b in zip(source[name].shape, tensor.shape))
                tensor[corner] = source[name][corner].to(tensor)
                report.resized.append(
                    f"{name} {tuple(source[name].shape)} -> {tuple(tensor.shape)}"
                )
    report.skipped.extend(name for name in source if name not in own)
    return report


def _rows(
    own: State, state: State, dictionaries: Dict[str, Dictionary], folder: Optional[str], told: str
) -> Dict[str, Rows]:
    """`rows` of :func:`copy_matching` for the tables of both sides; logs the words that are new."""
    given, rows = dict(state["model"]), {}
    _fill_second_head(own, given)
    for side, new in dictionaries.items():
        tables = [name for name in TABLES[side] if name in own and name in given]
        old = trained_dictionary(state, side, new, folder, told) if tables else None
        if old is None:
            continue
        for name in tables:
            for what, table, words in (
                ("the checkpoint's", given[name], len(old)),
                ("the model's", own[name], len(new)),
            ):
                if len(table) != words:
                    raise UsageError(
                        f"{told}: {what} {name} has {len(table)} rows, but its {side} dictionary "
                        f"has {words} words; name the dictionaries of the checkpoint with "
                        "--init-dictionaries DIR, and leave --merge-src-tgt-embed out, with which "
                        "a row stands for a word of each language"
                    )
            rows[name] = match_rows(old, new)
        unknown = [symbol for symbol in new.symbols if symbol not in old.indices]
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        logger.info(
            f"{told}: the {side} dictionary differs. Rows are copied word by word; "
            f"{len(unknown)} of {len(new)} words are new and keep their initial values"
            + (f": {' '.join(unknown[:_LISTED])}{more}" if unknown else "")
        )
    return rows


def initialise_from(
    model: torch.nn.Module,
    path: Path,
    source: Dictionary,
    target: Dictionary,
    folder: Optional[str] = None,
) -> InitReport:
    """Start `model` from the checkpoint at `path` and log every tensor's fate.

    Where the checkpoint was trained with other dictionaries, the rows of embeddings and output
    layers are copied word by word.

    Args:
        source, target: the model's dictionaries.
        folder: where the checkpoint's own are; None is the data folder that it names.
    Raises:
        CheckpointError: an unreadable file.
        UsageError: no tensor fits, or the checkpoint's dictionaries are needed and not there.
    """
    state, told = load_checkpoint(path), f"--init-from {path}"
    own = strip_legacy_keys(model.state_dict())
    rows = _rows(own, state, {"source": source, "target": target}, folder, told)
    report = copy_matching(model, state["model"], rows)
    for fate, names in report._asdict().items():
        for name in names:
            logger.info(f"--init-from: {fate} {name}")
    if not report.loaded and not report.resized and not report.matched:
        raise UsageError(
            f"{told}: no tensor of that checkpoint fits this model; name a checkpoint of a similar "
            "one"
        )
    counts = ", ".join(f"{len(names)} {fate}" for fate, names in report._asdict().items())
    logger.info(f"{told}: {counts}; optimiser, schedule, epoch and best metric start afresh")
    return report


def initialise_encoder_from(
    model: torch.nn.Module, path: Path, dictionary: Dictionary, folder: Optional[str] = None
) -> InitReport:
    """Start `model`'s encoder from the checkpoint at `path` and log every tensor as loaded, new or
    skipped.

    dictionary: the model's source dictionary, which must be the checkpoint's; folder: as in
        :func:`initialise_from`.
    Raises CheckpointError for an unreadable file, and UsageError where the dictionary or a tensor's
    shape differs, or the checkpoint has no encoder.
    """
    state, told = load_checkpoint(path), f"--init-encoder-from {path}"
    own, source = strip_legacy_keys(model.state_dict()), state["model"]
    given = {name: tensor for name, tensor in source.items() if name.startswith("encoder.")}
    if not given:
        raise UsageError(f"{told}: that checkpoint has no encoder")
    stored = (state.get("task_state") or {}).get("source_dictionary")
    if (
        stored != dictionary_fingerprint(dictionary)
        if stored
        else trained_dictionary(state, "source", dictionary, folder, told)
    ):
        raise UsageError(
            f"{told}: its source dictionary differs from this data's; binarise both with one "
            "dictionary (fairseq-preprocess --srcdict), or use --init-from, which goes word by word"
        )
    for name, tensor in given.items():
        if name in own and own[name].shape != tensor.shape:
            raise UsageError(
                f"{told}: {name} is {tuple(tensor.shape)} there and {tuple(own[name].shape)} here; "
                "use the same encoder flags"
            )
    report = InitReport([], [], [], [], [])
    with torch.no_grad():
        for name in given:
            if name in own:
                own[name].copy_(given[name])
    # A table that the decoder shares with the encoder is loaded under both its names.
    filled = {own[name].data_ptr() for name in given if name in own and own[name].numel()}
    for name, tensor in own.items():
        (report.loaded if name in given or tensor.data_ptr() in filled else report.new).append(name)
    report.skipped.extend(name for name in source if name not in report.loaded)
    fates = {fate: getattr(report, fate) for fate in ("loaded", "new", "skipped")}
    for fate, names in fates.items():
        for name in names:
            logger.info(f"--init-encoder-from: {fate} {name}")
    logger.info(f"{told}: {', '.join(f'{len(names)} {fate}' for fate, names in fates.items())}")
    random = [name for name in report.new if name.startswith("encoder.")]
    if random:
        logger.warning(
            f"{told}: {len(random)} of the encoder's "
            f"{sum(name.startswith('encoder.') for name in own)} tensors are not in that "
            f"checkpoint and start from random values, {random[0]} for one; use the same "
            "architecture and encoder flags to load all"
        )
    return report
