"""`lstm_dualhead`: fairseq's LSTM encoder-decoder, with or without attention, and the same two
heads."""

import argparse
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.lstm import Linear, LSTMDecoder, LSTMModel, base_architecture
from torch import nn

from ..checks.preflight import check_training
from ..compat import is_training_command
from ..errors import UsageError
from ..quantization.qat import QatConfig, quantize_model
from .autoencoder import AutoencoderConfig, SourcePasses, add_autoencoder
from .heads import (
    DualHeadDecoder,
    check_joined,
    choose_decode_head,
    decoder_heads,
    linear_head,
    own_random_numbers,
    share_inputs,
)


class LSTMDualHeadDecoder(DualHeadDecoder, LSTMDecoder):
    """fairseq's LSTM decoder with `sb_projection` beside its output layer."""


@register_model("lstm_dualhead")
class LSTMDualHeadModel(SourcePasses, LSTMModel):
    """fairseq's LSTM model with two output layers; `--decoder-attention 0` builds it without
    attention."""

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """fairseq's flags of the LSTM, --autoencoder, and those of quantisation-aware training."""
        LSTMModel.add_args(parser)
        gen_parser_from_dataclass(parser, AutoencoderConfig())
        QatConfig.add_arguments(parser)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> nn.Module:
        """Build the model; raises UsageError for separate dictionaries under
        --share-all-embeddings."""
        if is_training_command():
            check_training(args, task)
        check_joined(args, task)
        qat = QatConfig.from_args(args)
        model = super().build_model(args, task)
        decoder = model.decoder
        if decoder.adaptive_softmax is not None:
            raise UsageError(
                "lstm_dualhead cannot be trained with --criterion adaptive_loss: its two heads "
                "score every token"
            )
        flagged = args.share_all_embeddings or args.share_decoder_input_output_embed
        share_inputs(model, task, bool(flagged or args.decoder_embed_path))
        # fairseq builds the decoder inside its own build_model; it becomes ours here, with all that
        # it holds.
        decoder.__class__ = LSTMDualHeadDecoder
        ce = linear_head(decoder)
        with own_random_numbers("sb_projection"):
            decoder.sb_projection = Linear(
                ce.weight.size(1), ce.weight.size(0), bias=ce.bias is not None
            )
        choose_decode_head(decoder, args)

        def new_decoder(dictionary: Dictionary, embed_tokens: nn.Module) -> nn.Module:
            return LSTMDecoder(
                dictionary,
                args.encoder_embed_dim,
                args.decoder_hidden_size,
                args.decoder_out_embed_dim,
                args.decoder_layers,
                args.decoder_dropout_in,
                args.decoder_dropout_out,
                utils.eval_bool(args.decoder_attention),
                model.encoder.output_units,
                embed_tokens,
                max_target_positions=decoder.max_target_positions,
            )

        add_autoencoder(model, args, new_decoder)
        return quantize_model(model, qat)

    def forward(
        self,
        src_tokens: torch.Tensor,
        src_lengths: torch.Tensor,
        prev_output_tokens: torch.Tensor,
        incremental_state: Optional[Dict[str, Any]] = None,
        features_only: bool = False,
        source_pass: Optional[str] = None,
    ) -> Tuple[torch.Tensor, Any]:
        """As fairseq's LSTM; with `features_only`, (features [B, T, d], {"heads": (ce, sb), "attn":
        scores}).

        src_tokens: [B, S]; prev_output_tokens: [B, T]. With `source_pass`, see
            :meth:`SourcePasses.source_pass`.
        """
        if source_pass is not None:
            return self.source_pass(source_pass, src_tokens, src_lengths, prev_output_tokens)
        if not features_only:
            output, attention = super().forward(
                src_tokens, src_lengths, prev_output_tokens, incremental_state
            )
            return self.touch_all(output), attention
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        features, attention = self.decoder.extract_features(
            prev_output_tokens, encoder_out, incremental_state
        )
        return self.touch_all(features), {"heads": decoder_heads(self.decoder), "attn": attention}


@register_model_architecture("lstm_dualhead", "lstm_dualhead")
def lstm_dualhead(args: Any) -> None:
    """The A series (docs/claims.md): one layer, E = H = 256."""
    # fairseq's LSTM ignores the cutoff without its adaptive criterion; a flag that does nothing is
    # refused instead.
    if not hasattr(args, "_name") and getattr(args, "adaptive_softmax_cutoff", None):
        raise UsageError(
            "--adaptive-softmax-cutoff cannot be combined with a dual-head architecture, whose two "
            "heads score every token; "
            "leave the cutoff out"
        )
    for name in (
        "encoder_embed_dim",
        "decoder_embed_dim",
        "decoder_hidden_size",
        "decoder_out_embed_dim",
    ):
        setattr(args, name, getattr(args, name, 256))
    base_architecture(args)
