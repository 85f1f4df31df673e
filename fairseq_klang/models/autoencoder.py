"""The source's half of a dual-head model: beside translation, it gives the source sentence back
(docs/autoencoding.md)."""

import copy
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel
from torch import nn

from ..errors import UsageError
from ..quantization.qat import quantizer_of
from .heads import DualHeadDecoder, linear_head, own_random_numbers

AUTOENCODERS = ("none", "linear", "decoder")


@dataclass
class AutoencoderConfig(FairseqDataclass):
    """The flag of the architectures, with its legal values in :meth:`check`."""

    autoencoder: ChoiceEnum(AUTOENCODERS) = field(
        default="none",
        metadata={
            "help": (
                "also build what gives the source back: linear, one more output layer on the "
                "decoder, which is then fed the source; decoder, a source-language decoder of its "
                "own"
            )
        },
    )

    @staticmethod
    def check(form: str) -> None:
        """Raise UsageError for another form."""
        if form not in AUTOENCODERS:
            raise UsageError(f"--autoencoder is {form}; legal values are {', '.join(AUTOENCODERS)}")


def add_autoencoder(
    model: nn.Module, args: Any, new_decoder: Callable[[Dictionary, nn.Module], nn.Module]
) -> None:
    """Give `model` the source's half that `args.autoencoder` names, as `model.autoencoder`; with
    `none`, leave it as it is.

    new_decoder: (dictionary, embed_tokens) -> a fairseq decoder of that language.
    Every other tensor keeps its initial value, and torch's random state stays as it was.
    Raises UsageError where the model's sizes do not allow the form.
    """
    # Older hydra gives None for a missing option.
    form = getattr(args, "autoencoder", None) or "none"
    AutoencoderConfig.check(form)
    if form == "none":
        return
    encoder, decoder = model.encoder, model.decoder
    if decoder.max_positions() < encoder.max_positions():
        raise UsageError(
            f"--max-target-positions {decoder.max_positions()} is below --max-source-positions "
            f"{encoder.max_positions()}, but with "
            f"--autoencoder {form} a decoder reads the source too; make it as large"
        )
    given, wanted = encoder.embed_tokens.embedding_dim, decoder.embed_tokens.embedding_dim
    if form == "linear" and given != wanted:
        raise UsageError(
            f"--autoencoder linear feeds the source's embeddings of dimension {given} into a "
            f"decoder that takes {wanted}; make "
            "--encoder-embed-dim and --decoder-embed-dim equal, or use --autoencoder decoder"
        )
    with own_random_numbers("autoencoder"):
        if form == "decoder":
            part = new_decoder(encoder.dictionary, encoder.embed_tokens)
        else:
            part = source_projection(linear_head(decoder).weight.size(1), encoder.embed_tokens)
    model.autoencoder = nn.ModuleDict(
        {"decoder" if form == "decoder" else "output_projection": part}
    )


def source_projection(dim: int, embed_tokens: nn.Module) -> nn.Linear:
    """An output layer [V_source, dim] for the language of the table `embed_tokens`, with which it
    shares nothing."""
    layer = nn.Linear(dim, embed_tokens.num_embeddings, bias=False)
    nn.init.normal_(layer.weight, mean=0, std=dim**-0.5)
    return layer


def source_decoder(model: nn.Module) -> nn.Module:
    """The decoder that gives the source back.

    In the `linear` form it is a view of the translation decoder: the same layers between the
    source's embeddings and the source's output layer. A view holds no tensor of its own; make a new
    one for each use.
    """
    part = model.autoencoder
    if "decoder" in part:
        return part["decoder"]
    view = copy.copy(model.decoder)
    view._modules = view._modules.copy()
    view._modules["embed_tokens"] = model.encoder.embed_tokens
    # fairseq's LSTM calls its output layer fc_out, and has none where it is tied to the embeddings.
    lstm = not hasattr(model.decoder, "output_projection")
    view._modules["fc_out" if lstm else "output_projection"] = part["output_projection"]
    view.share_input_output_embed = False
    view.dictionary = model.encoder.dictionary
    if isinstance(view, DualHeadDecoder):
        view.set_decode_head("ce", view.decode_mix)
    return view


def reconstruction_model(model: nn.Module) -> FairseqEncoderDecoderModel:
    """An encoder-decoder of the source language onto itself, which generates reconstructions.

    It shares every tensor with `model`. Raises UsageError for a model without an autoencoder.
    """
    check_source_passes(model, "autoencoding", "reconstruction")
    return FairseqEncoderDecoderModel(model.encoder, source_decoder(model))


def check_source_passes(model: nn.Module, objective: str, option: str) -> None:
    """Raise UsageError unless `model` can learn `objective`, one of
    :data:`fairseq_klang.learning.objectives.OBJECTIVES`, from its source alone."""
    encoder = getattr(model, "encoder", None)
    if encoder is None:
        raise UsageError(
            f"{option}: this model has no encoder (target side only), so it cannot learn from "
            "source text; use an encoder-decoder"
        )
    if not isinstance(model, SourcePasses):
        raise UsageError(
            f"{option}: {type(model).__name__} cannot learn from source text; use --arch "
            "transformer_dualhead or lstm_dualhead"
        )
    if objective == "autoencoding" and not hasattr(model, "autoencoder"):
        raise UsageError(
            f"{option} is autoencoding, but the model was built with --autoencoder none; train it "
            "with --autoencoder linear or decoder, "
            "or choose masked_lm or contrastive"
        )
    width, dim = getattr(encoder, "output_units", None), encoder.embed_tokens.embedding_dim
    if objective == "masked_lm" and width not in (None, dim):
        raise UsageError(
            f"{option} is masked_lm, which compares encoder states of dimension {width} with "
            f"source embeddings of dimension {dim}; "
            "make --encoder-hidden-size and --encoder-embed-dim equal (and leave "
            "--encoder-bidirectional out)"
        )


class SourcePasses:
    """Mixin over a dual-head model: forward passes that read only the source, inside the model's
    own `forward`.

    There, because a wrapper for distributed training sees nothing else.
    """

    def source_pass(
        self, kind: str, src_tokens: torch.Tensor, src_lengths: torch.Tensor, previous: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
        """Features and the output layer to score them with, quantised where the model is:
        (features, weight, bias or None).

        Args:
            kind: `reconstruct`, features [B, S, d] of the source decoder; `encode`, the encoder's
                states [B, S, d], with the source's embeddings as the output layer.
            src_tokens: [B, S], padded on the right, longest sentence first; src_lengths: [B].
            previous: [B, S'] tokens fed to the source decoder; not used by `encode`.
        """
        encoded = self.encoder(src_tokens, src_lengths=src_lengths)
        if kind == "encode":
            states = encoded["encoder_out"][0] if isinstance(encoded, dict) else encoded[0]
            features, head = states.transpose(0, 1), (self.encoder.embed_tokens.weight, None)
        else:
            decoder = source_decoder(self)
            features, _ = decoder.extract_features(previous, encoded)
            head = linear_head(decoder)
        weight, bias = head
        quantizer = quantizer_of(self.decoder)
        if quantizer is not None:
            features, weight = quantizer.rows(features), quantizer.weight(weight)
        return self.touch_all(features), weight, bias

    def touch_all(self, output: torch.Tensor) -> torch.Tensor:
        """`output`, made to depend on every parameter with gradient 0 where several processes train
        together.

        Otherwise a pass that uses one half only would leave DistributedDataParallel waiting for the
        other's gradients.
        """
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not (together and self.training and torch.is_grad_enabled()):
            return output
        # One element of each is enough, and cannot overflow as a sum in half precision could.
        return (
            output
            + sum(p.reshape(-1)[:1].sum() for p in self.parameters() if p.requires_grad).to(
                output.dtype
            )
            * 0
        )
