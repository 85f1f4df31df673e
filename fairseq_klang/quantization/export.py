"""`klang export`: a trained checkpoint as a CTranslate2 model, checked against fairseq before it
takes its name (docs/precision.md)."""

import argparse
import collections
import dataclasses
import glob
import os
import shutil
import tempfile
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from tqdm import tqdm

from .. import register
from ..checkpoints.initialise import dictionary_fingerprint
from ..checkpoints.reading import load_checkpoint
from ..compat import strip_legacy_keys
from ..errors import KlangError
from ..files import Path, filled_folder, read_lines, sha256, write_json, written
from .translate import MAX_LENGTH, RECORD, Translator, import_ctranslate2, preprocessing

TYPES = ("float32", "int8")
SAME = 1e-4  # log-probabilities of one token that count as equal, and as a tie of two tokens


class ExportError(KlangError):
    """A checkpoint that cannot be exported, or whose export does not translate as fairseq does."""


@dataclasses.dataclass
class Check:
    """What the self-check found. Log-probabilities are of tokens, in nats; shares are of
    sentences."""

    sentences: int  # checked
    tokens: int  # of fairseq's greedy translations, </s> included
    float_identical: float  # share translated token for token alike in float32
    float_ties: int  # sentences that differ from a place on where two tokens score alike
    float_logprob: float  # largest difference of a token's log-probability in float32
    int8_identical: Optional[float] = None  # share translated alike in int8
    # mean log-probability in int8, less that of the model as trained
    int8_logprob: Optional[float] = None
    example: Tuple[
        Any, ...
    ] = ()  # one sentence, its translation by fairseq, and that of the exported model

    def record(self) -> Dict[str, Any]:
        """The figures, as a dict, without the example: no text of the data goes into the served
        folder."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if name != "example"
        }

    def __str__(self) -> str:
        text = (
            f"float32: {self.float_identical:.1%} of {self.sentences} sentences token-identical to "
            "fairseq's greedy output"
            + (f" ({self.float_ties} part at a tie)" if self.float_ties else "")
            + f", log-probabilities of {self.tokens} tokens within {self.float_logprob:.1e}"
        )
        if self.int8_identical is not None:
            text += (
                f"\nint8: {self.int8_identical:.1%} identical to the model as trained, mean "
                f"log-probability of a token {self.int8_logprob:+.4f}"
            )
        # The check compares two models that read the same dictionaries: whether these are the right
        # ones only a reader sees.
        return text + "".join(
            f"\n{name}: {line}"
            for name, line in zip(("for example", "by fairseq ", "exported   "), self.example)
        )


# -- reading the checkpoint ------------------------------------------------------------------------


def load_model(path: Path, data: Path, **overrides: Any) -> Tuple[Any, Any]:
    """(model, task) of a checkpoint in evaluation mode, its dictionaries from the folder `data`;
    raises ExportError."""
    register()
    from fairseq import checkpoint_utils

    if not os.path.isdir(data):
        raise ExportError(
            f"--data {data} {'is no folder' if os.path.exists(data) else 'does not exist'}; name "
            "the folder that fairseq-train read"
        )
    if not glob.glob(os.path.join(glob.escape(os.fspath(data)), "dict.*.txt")):
        inner = os.path.join(data, "bin")
        raise ExportError(
            f"--data {data} holds no dict.*.txt; name the folder that fairseq-train read"
            + (f", {inner}" if os.path.isdir(inner) else "")
        )
    load_checkpoint(path)  # the one-line errors
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path), dict(overrides, data=str(data)))
        state["model"] = strip_legacy_keys(state["model"])
        models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    except KlangError:
        raise
    except Exception as error:  # fairseq checks nothing: what lacks a part fails in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ExportError(
            f"{path} cannot be loaded with the dictionaries in {data} ({reason}); name a "
            "checkpoint of fairseq-train, and the folder that it read"
        ) from None
    trained_with = (state.get("task_state") or {}).get(
        "source_dictionary"
    )  # translation_autoencoding keeps it
    if trained_with and trained_with != dictionary_fingerprint(task.source_dictionary):
        raise ExportError(
            f"{path} was trained with another source dictionary than that in {data}; name the "
            "folder that fairseq-train read"
        )
    return models[0].float().eval(), task


def unsupported(model: Any) -> List[str]:
    """The options of a fairseq transformer that CTranslate2 has nothing for, or would leave out
    without a word; it names others itself."""
    cfg = model.cfg
    given = {
        "--merge-src-tgt-embed": getattr(cfg, "merge_src_tgt_embed", False),
        "--no-decoder-final-norm": cfg.no_decoder_final_norm and cfg.decoder.normalize_before,
        "--decoder-output-dim": model.decoder.project_out_dim is not None,
        "--no-cross-attention": cfg.no_cross_attention,
        "--cross-self-attention": cfg.cross_self_attention,
        "--quant-noise-pq": cfg.quant_noise.pq
        > 0,  # in evaluation too the embeddings go through a matrix of its own
        "--quant-noise-scalar": cfg.quant_noise.scalar
        > 0,  # in evaluation everything is rounded by a scheme of its own
        "--adaptive-softmax-cutoff": cfg.adaptive_softmax_cutoff is not None,
    }
    return [option for option, value in given.items() if value]


def plain_arguments(model: Any, task: Any) -> argparse.Namespace:
    """The namespace of fairseq's `transformer` with the model's sizes, which is what CTranslate2's
    converter reads."""
    args = argparse.Namespace(
        arch="transformer",
        task="translation",
        source_lang=task.cfg.source_lang,
        target_lang=task.cfg.target_lang,
    )
    for field in dataclasses.fields(model.cfg):
        value = getattr(model.cfg, field.name)
        if field.name == "_name":  # the architecture that it was
            continue
        if dataclasses.is_dataclass(value):
            for part in dataclasses.fields(value):
                setattr(args, f"{field.name}_{part.name}", getattr(value, part.name))
        else:
            setattr(args, field.name, value)
    args.max_source_positions, args.max_target_positions = (
        model.encoder.max_source_positions,
        model.decoder.max_target_positions,
    )
    return args


def plain_transformer(
    model: Any, task: Any
) -> Tuple[argparse.Namespace, Dict[str, torch.Tensor], List[str]]:
    """(args, weights, dropped): what is left for fairseq's `transformer` once second heads and
    source decoders are gone.

    Raises ExportError for a model that is not one, with what to do instead.
    """
    from fairseq.models.transformer import TransformerModel, TransformerModelBase

    name = type(model).__name__
    elsewhere = "translate with fairseq-generate or fairseq-interactive"
    if not isinstance(model, TransformerModelBase):
        raise ExportError(
            f"CTranslate2 serves transformers; this checkpoint is {name}: {elsewhere}, or train a "
            "transformer_dualhead"
        )
    head = getattr(model.decoder, "decode_head", "ce")
    if head != "ce":
        raise ExportError(
            f"this checkpoint generates with --decode-head {head}, and CTranslate2 serves the ce "
            f"head alone: {elsewhere}, or train with --decode-head ce"
        )
    options = unsupported(model)
    if options:
        raise ExportError(
            f"CTranslate2 has no {' and no '.join(options)}, which this checkpoint was trained "
            f"with: {elsewhere}, or train without"
        )
    args = plain_arguments(model, task)
    wanted = TransformerModel.build_model(argparse.Namespace(**vars(args)), task).state_dict()
    wanted, found = strip_legacy_keys(wanted), strip_legacy_keys(model.state_dict())
    dropped = sorted(set(found) - set(wanted))
    # Second heads and source decoders stand beside the layers; what stands inside them takes part
    # in translation.
    strange = sorted(set(wanted) - set(found)) + [
        key for key in dropped if ".layers." in key and key.startswith(("encoder.", "decoder."))
    ]
    strange += [key for key in wanted if key in found and wanted[key].shape != found[key].shape]
    if strange:
        raise ExportError(
            f"{name} has layers that CTranslate2 does not know ({', '.join(strange[:3])}): "
            f"{elsewhere}, or train without experts"
        )
    return args, {key: found[key] for key in wanted}, dropped


# -- converting ------------------------------------------------------------------------------------


def convert(
    args: argparse.Namespace, weights: Mapping[str, torch.Tensor], data: Path, out: str, kind: str
) -> None:
    """Make the CTranslate2 model of type `kind` all that the folder `out` holds; raises ExportError
    with the converter's reason."""
    from ctranslate2.converters import FairseqConverter

    # Older converters upgrade checkpoints that have no history.
    history = [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}]
    state = {
        "args": args,
        "model": weights,
        "optimizer_history": history,
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    # Beside the model: the place for temporary files is often small.
    with tempfile.TemporaryDirectory(prefix=".klang-export-", dir=os.path.dirname(out)) as folder:
        path = os.path.join(folder, "transformer.pt")
        with written(path, "wb") as stream:
            torch.save(state, stream)
        converter = FairseqConverter(
            path, str(data), source_lang=args.source_lang, target_lang=args.target_lang
        )
        try:
            converter.convert(out, quantization=None if kind == "float32" else kind, force=True)
        except (ValueError, NotImplementedError, AttributeError, KeyError, RuntimeError) as error:
            raise ExportError(
                f"CTranslate2 cannot convert this model: {' '.join(str(error).split())}; translate "
                "with fairseq-generate"
            ) from None


def summary(names: Iterable[str]) -> str:
    """Names of weights by where they belong, with counts: "decoder.sb_projection (1),
    source_decoder (34)"."""
    places = (name.split(".") for name in names)
    counts = collections.Counter(
        ".".join(parts[: 2 if parts[0] in ("encoder", "decoder") else 1]) for parts in places
    )
    return ", ".join(f"{place} ({count})" for place, count in sorted(counts.items()))


def sentences_of(task: Any, subset: str, count: int) -> List[List[str]]:
    """The first `count` source sentences of a binarised split, as lists of tokens; raises
    ExportError if it is not there."""
    try:
        task.load_dataset(subset)
    except FileNotFoundError:
        raise ExportError(
            f"the data folder has no split {subset!r} to check the export with; name another with "
            "--check-subset, or give --check FILE"
        ) from None
    source, symbols = task.dataset(subset).src, task.source_dictionary
    return [
        [symbols[token] for token in source[i].tolist() if token != symbols.eos()]
        for i in range(min(count, len(source)))
    ]


# -- the self-check --------------------------------------------------------------------------------


def greedy(
    model: Any,
    task: Any,
    sentences: Sequence[List[str]],
    batch: int = 25,
    name: str = "fairseq",
) -> List[Tuple[List[str], List[float]]]:
    """fairseq's greedy translations: [(tokens without </s>, log-probability of each token, </s>
    included)]."""
    from fairseq.sequence_generator import SequenceGenerator

    source, target = task.source_dictionary, task.target_dictionary
    generator = SequenceGenerator([model], target, beam_size=1, max_len_a=0, max_len_b=MAX_LENGTH)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    found: List[Any] = [None] * len(sentences)
    for start in tqdm(range(0, len(order), batch), desc=f"check with {name}", unit=" batches"):
        rows = order[start : start + batch]
        ids = [
            torch.tensor([source.index(token) for token in sentences[i]] + [source.eos()])
            for i in rows
        ]
        lengths = torch.tensor([len(row) for row in ids])
        tokens = torch.full((len(rows), int(lengths.max())), source.pad())
        for row, sentence in zip(tokens, ids):
            row[len(row) - len(sentence) :] = sentence  # fairseq pads the source on the left
        net_input = {"src_tokens": tokens, "src_lengths": lengths}
        for i, beams in zip(rows, generator.generate([model], {"net_input": net_input})):
            words = [target[token] for token in beams[0]["tokens"].tolist()]
            found[i] = words[:-1], beams[0]["positional_scores"].tolist()
    return found


def _compare(
    translator: Translator,
    sentences: List[List[str]],
    expected: Sequence[Tuple[List[str], List[float]]],
) -> Tuple[float, int, float, float, List[str]]:
    """(share identical, ties, largest and mean difference of a token's log-probability, first
    output) of a CTranslate2 model."""
    outputs = translator.translate_tokens(sentences, beam=1)
    scores = translator.score_tokens(sentences, [tokens for tokens, _ in expected])
    differences = [
        a - b for row, (_, expected_row) in zip(scores, expected) for a, b in zip(row, expected_row)
    ]
    identical, ties = 0, 0
    for sentence, output, score, (tokens, _) in zip(sentences, outputs, scores, expected):
        if output == tokens:
            identical += 1
            continue
        # The first place where they differ: after it both go on from different texts.
        place = next(i for i in range(len(tokens) + 1) if output[: i + 1] != tokens[: i + 1])
        other = translator.score_tokens([sentence], [output])[0]
        ties += abs(other[place] - score[place]) < SAME
    return (
        identical / len(sentences),
        ties,
        max(map(abs, differences)),
        sum(differences) / len(differences),
        outputs[0],
    )


def _checked_float(
    translator: Translator, model: Any, task: Any, sentences: List[List[str]]
) -> Check:
    """A :class:`Check` of the float32 model; raises ExportError unless it translates as `model`
    does."""
    expected = greedy(model, task, sentences)
    identical, ties, largest, _, output = _compare(translator, sentences, expected)
    check = Check(
        len(sentences), sum(len(scores) for _, scores in expected), identical, ties, largest
    )
    check.example = sentences[0], expected[0][0], output
    if largest > SAME or round(identical * len(sentences)) + ties < len(sentences):
        raise ExportError(
            "the exported model does not translate as fairseq does, so nothing was written. "
            f"{check}. Please report it with the model's flags; "
            "meanwhile translate with fairseq-generate"
        )
    return check


def export(
    checkpoint: Path,
    data: Path,
    out: Path,
    *,
    kind: str = "int8",
    subset: str = "valid",
    count: int = 200,
    text: Optional[str] = None,
) -> Tuple[Check, List[str]]:
    """Export `checkpoint` to the new folder `out`; returns (:class:`Check`, names of the weights
    left out).

    The folder holds model, vocabulary, what `klang translate` needs, and klang.json; it takes its
    name only when the self-check has passed.

    Args:
        data: the folder fairseq-train read (dictionaries; and prepare.json beside it, where klang
            prepare made it).
        kind: one of TYPES.
        subset, count: sentences of the self-check.
        text: a file of raw source sentences for it instead.
    Raises:
        ExportError: a checkpoint, data or options that cannot be exported. OutputError: `out`
            exists or cannot be written.
    """
    if kind not in TYPES:
        raise ExportError(f"--type is {kind!r}; it must be one of {', '.join(TYPES)}")
    if not 1 <= count <= 1_000_000:
        raise ExportError(f"--check-sentences is {count}; it must be 1 to 1,000,000")
    out = os.path.abspath(os.fspath(out))
    if os.path.lexists(out):
        raise ExportError(f"--out {out} exists; choose another folder, or remove it")
    import_ctranslate2()
    plain, task = load_model(
        checkpoint, data, qat_bits=None, qat_gradient_bits=None, qat_start_update=0
    )
    args, weights, dropped = plain_transformer(plain, task)
    trained = plain
    if kind == "int8":
        trained, _ = load_model(checkpoint, data)
        bits = getattr(getattr(trained, "quantizer", None), "bits", 8)
        if bits != 8:
            raise ExportError(
                f"this checkpoint was trained with --qat-bits {bits}, and CTranslate2 has 8 bits "
                "alone: translate with fairseq-generate, which "
                "computes as in training, or export its float weights with --type float32"
            )
    options, files = preprocessing(data)
    record = {
        "checkpoint": os.path.basename(str(checkpoint)),
        "type": kind,
        "source_lang": args.source_lang,
        "target_lang": args.target_lang,
        # </s> takes a position too
        "max_source_tokens": int(plain.max_positions()[0]) - 1,
        "max_target_tokens": int(plain.max_positions()[1]) - 1,
        "prepare": options,
    }
    with filled_folder(out) as folder:
        convert(args, weights, data, folder, "float32")
        _copy(files, folder)
        translator = Translator(folder, compute_type="float32", record=record)
        sentences = (
            [translator.encode(line) for line in read_lines(text)]
            if text
            else sentences_of(task, subset, count)
        )
        sentences = [
            tokens for tokens in sentences[:count] if 0 < len(tokens) <= record["max_source_tokens"]
        ]
        if not sentences:
            raise ExportError(
                f"{text or subset} holds no sentence to check the export with; give others"
            )
        check = _checked_float(translator, plain, task, sentences)
        if kind == "int8":
            convert(args, weights, data, folder, "int8")
            _copy(files, folder)
            expected = greedy(trained, task, sentences, name="the model as trained")
            check.int8_identical, _, _, check.int8_logprob, output = _compare(
                Translator(folder, record=record), sentences, expected
            )
            check.example = sentences[0], expected[0][0], output
        check.example = tuple(translator.decode(tokens) for tokens in check.example)
        digests = {name: sha256(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}
        record.update(check=check.record(), files=digests)
        write_json(os.path.join(folder, RECORD), record)
    return check, dropped


def _copy(files: Mapping[str, str], folder: str) -> None:
    for name, path in files.items():
        shutil.copyfile(path, os.path.join(folder, name))
