"""What both dual-head models share: the second head, the choice of head in generation, and how a
criterion reads heads."""

import contextlib
import inspect
import zlib
from collections import namedtuple
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase
from torch import nn

from ..errors import UsageError
from ..quantization.qat import QuantLinear, quantizer_of

DECODE_HEADS = ("ce", "sb", "mix")

Head = namedtuple("Head", "weight bias")
Head.__doc__ = "One output layer: weight [V, d] and bias [V] or None."

Heads = namedtuple("Heads", "features ce sb extra")
Heads.__doc__ = """What a criterion needs: features [B, T, d], the two :class:`Head`s (the same one
on a single-head model), and the extra output of the forward pass."""


@contextlib.contextmanager
def own_random_numbers(part: str) -> Iterator[None]:
    """Draw the initial values of a part that fairseq's model lacks, inside the block.

    They depend on the run's seed and the part's name. The random state is left as it was, so that a
    model with the part trains and samples as one without it does.
    """
    with torch.random.fork_rng(devices=[]):  # models are built on the CPU
        generator = torch.default_generator
        generator.manual_seed((generator.initial_seed() + zlib.crc32(part.encode())) % 2**63)
        yield


class DualHeadDecoder:
    """Mixin over a fairseq decoder: `sb_projection` beside its own output layer.

    The decoder's own output layer is the CE head, so tools that know fairseq's decoder see nothing
    new.
    """

    decode_head, decode_mix = "ce", 0.5

    def set_decode_head(self, head: str, mix: float) -> None:
        """Choose the head that generates; raises UsageError outside ce, sb, mix or a weight outside
        [0, 1]."""
        if head not in DECODE_HEADS:
            raise UsageError(
                f"--decode-head is {head!r}; legal values are {', '.join(DECODE_HEADS)}"
            )
        if not 0 <= mix <= 1:
            raise UsageError(f"--decode-mix is {mix}; it must be between 0 and 1")
        self.decode_head, self.decode_mix = head, mix

    def output_layer(self, features: torch.Tensor) -> torch.Tensor:
        """[B, T, d] -> scores [B, T, V] of the chosen head; in training always the CE head.

        `mix` returns mix * log p_ce + (1 - mix) * log p_sb, which fairseq's search then normalises.
        """
        if self.training or self.decode_head == "ce":
            return self._ce_scores(features)
        sb = self.sb_projection(features)
        if self.decode_head == "sb":
            return sb
        return self.decode_mix * _log_softmax(self._ce_scores(features)) + (
            1 - self.decode_mix
        ) * _log_softmax(sb)

    def _ce_scores(self, features):
        quantizer = quantizer_of(self)
        if quantizer is None:
            return super().output_layer(features)
        return quantizer.linear(
            features, *linear_head(self)
        )  # fairseq's LSTM uses tied embeddings past their module


def choose_decode_head(decoder: nn.Module, options: Any) -> None:
    """Set the head that generates from `options.decode_head` and `.decode_mix`; what is missing or
    None stays as it is.

    Raises UsageError for a value out of range, and for another head than ce on a decoder that has
    one.
    """
    head, mix = getattr(options, "decode_head", None), getattr(options, "decode_mix", None)
    if isinstance(decoder, DualHeadDecoder):
        decoder.set_decode_head(
            decoder.decode_head if head is None else head,
            decoder.decode_mix if mix is None else mix,
        )
    elif head not in (None, "ce"):
        raise UsageError(
            f"--decode-head is {head}, but this model has one head; the legal value is ce"
        )


def check_joined(args: Any, task: Any) -> None:
    """Raise UsageError where --share-all-embeddings meets separate dictionaries."""
    if (
        getattr(args, "share_all_embeddings", False)
        and task.source_dictionary != task.target_dictionary
    ):
        raise UsageError(
            "--share-all-embeddings needs a joined dictionary, but the source and target "
            "dictionaries in the data folder "
            "differ; run fairseq-preprocess with --joined-dictionary, or leave the flag out"
        )


def share_inputs(model: nn.Module, task: Any, decided: bool) -> None:
    """Give source and target one input table where the dictionary is joined, unless a flag has
    `decided` otherwise."""
    encoder, decoder = model.encoder, model.decoder
    same_size = encoder.embed_tokens.weight.shape == decoder.embed_tokens.weight.shape
    if not decided and same_size and task.source_dictionary == task.target_dictionary:
        decoder.embed_tokens = encoder.embed_tokens


def _log_softmax(logits):
    return torch.log_softmax(logits, -1, dtype=torch.float32)


def _alias(head, decoder):
    """Views of a head's tensors, so that a hook on them sees the gradient of this use alone;
    quantised where the model is."""
    quantizer = quantizer_of(decoder)
    weight = head.weight if quantizer is None else quantizer.weight(head.weight)
    return Head(weight.view_as(weight), None if head.bias is None else head.bias.view_as(head.bias))


def linear_head(decoder: nn.Module) -> Optional[Head]:
    """The CE :class:`Head` of a fairseq decoder, or None where its output layer is not one linear
    projection."""
    if getattr(decoder, "adaptive_softmax", None) is not None:
        return None
    known = (
        TransformerDecoderBase.output_layer,
        LSTMDecoder.output_layer,
        DualHeadDecoder.output_layer,
    )
    if getattr(type(decoder), "output_layer", None) not in known:
        return None
    layer = getattr(decoder, "output_projection", None) or getattr(decoder, "fc_out", None)
    if layer is None and getattr(decoder, "share_input_output_embed", False):
        return Head(decoder.embed_tokens.weight, None)
    if isinstance(layer, nn.Linear) and type(layer).forward in (
        nn.Linear.forward,
        QuantLinear.forward,
    ):
        return Head(layer.weight, layer.bias)
    return None


def decoder_heads(decoder: nn.Module) -> Tuple[Head, Head]:
    """Aliases (ce, sb) of a dual-head decoder's heads, to be returned from the model's forward.

    They leave through the wrapped forward because DistributedDataParallel's search for unused
    parameters looks only at what that returns.
    """
    return _alias(linear_head(decoder), decoder), _alias(
        Head(decoder.sb_projection.weight, decoder.sb_projection.bias), decoder
    )


def read_heads(model: nn.Module, net_input: Dict[str, torch.Tensor]) -> Optional[Heads]:
    """Run `model` up to its features, or return None for one whose output layer is not a linear
    projection.

    Args:
        model: a fairseq encoder-decoder model, possibly wrapped for distributed training.
        net_input: the sample's network input.
    Returns:
        :class:`Heads` or None.
    Raises:
        UsageError: a model with an adaptive softmax, which has no logits over the vocabulary, or
            one that is no encoder-decoder scoring each token given those before it.
    """
    inner = _unwrapped(model)
    decoder = getattr(inner, "decoder", None)
    parameters = inspect.signature(inner.forward).parameters
    needed = {
        name
        for name, it in parameters.items()
        if it.default is it.empty and it.kind is it.POSITIONAL_OR_KEYWORD
    }
    if not hasattr(inner, "encoder") or not needed <= {
        "src_tokens",
        "src_lengths",
        "prev_output_tokens",
    }:
        raise UsageError(
            "this criterion is for encoder-decoder models that predict each token from those "
            f"before it, which {type(inner).__name__} is not; "
            "use one of fairseq's criterions for it"
        )
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise UsageError(
            "--adaptive-softmax-cutoff cannot be combined with this criterion, which needs one "
            "score for every token; "
            "leave the cutoff out"
        )
    head = linear_head(decoder)
    if head is None:
        return None
    if isinstance(decoder, DualHeadDecoder):
        features, extra = model(**net_input, features_only=True)
        ce, sb = extra.pop("heads")
    else:
        (features, ce, sb), extra = _forward_to_features(model, decoder, head, net_input)
    quantizer = quantizer_of(decoder)
    return Heads(features if quantizer is None else quantizer.rows(features), ce, sb, extra)


def _unwrapped(model):
    while hasattr(model, "module"):
        model = model.module
    return model


def _forward_to_features(model, decoder, head, net_input):
    """((features, head, head), extra) of a model with one head, by its own forward.

    That forward may be the one of a wrapper such as DistributedDataParallel, which prepares its
    exchange of gradients there and looks for unused parameters in what it returns. So the decoder's
    output layer hands out the features and the head for this one call.
    """
    decoder.output_layer = lambda features: (
        features,
        _alias(head, decoder),
        _alias(head, decoder),
    )
    try:
        return model(**net_input)
    finally:
        del decoder.output_layer
