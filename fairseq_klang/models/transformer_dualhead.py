"""`transformer_dualhead`: fairseq's transformer with a CE head and a soft-BLEU head on the last
decoder state."""

import argparse
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerModel,
    base_architecture,
)
from torch import nn

from ..checks.preflight import check_training
from ..compat import is_training_command, strip_legacy_keys_in_place
from ..errors import UsageError
from ..quantization.qat import QatConfig, quantize_model
from .autoencoder import AutoencoderConfig, SourcePasses, add_autoencoder, source_projection
from .heads import (
    DualHeadDecoder,
    check_joined,
    choose_decode_head,
    decoder_heads,
    own_random_numbers,
    share_inputs,
)


class TransformerDualHeadDecoder(DualHeadDecoder, TransformerDecoderBase):
    """fairseq's transformer decoder with `sb_projection` [V, d] beside `output_projection`."""

    def build_output_projection(
        self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Module
    ) -> None:
        """Build the CE head as fairseq does, then the SB head, always a table of its own."""
        if cfg.adaptive_softmax_cutoff is not None:
            raise UsageError(
                "--adaptive-softmax-cutoff cannot be combined with a dual-head architecture, "
                "whose two heads score every token; leave the cutoff out"
            )
        super().build_output_projection(cfg, dictionary, embed_tokens)
        tied = self.output_projection.weight.size(1)
        if tied != self.output_embed_dim:
            raise UsageError(
                f"--decoder-output-dim is {self.output_embed_dim}, but the output layer shares the "
                f"embeddings of dimension {tied}; "
                "make the two equal, or leave the sharing flag out"
            )
        # As tall as the CE head: --merge-src-tgt-embed makes that one taller than the dictionary
        # passed in.
        rows, dim = self.output_projection.weight.size(0), self.output_embed_dim
        with own_random_numbers("sb_projection"):
            self.sb_projection = nn.Linear(dim, rows, bias=False)
            nn.init.normal_(self.sb_projection.weight, mean=0, std=dim**-0.5)


@register_model("transformer_dualhead")
class TransformerDualHeadModel(SourcePasses, TransformerModel):
    """fairseq's transformer with two output layers.

    With a joined dictionary and none of fairseq's sharing flags, the source and target input
    embeddings are one table and the two heads are tables of their own. Every sharing
    flag keeps its meaning for the CE head.
    """

    @classmethod
    def hub_models(cls) -> Dict[str, str]:
        """No published checkpoints."""
        return {}

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """fairseq's flags of the transformer, --autoencoder, and those of quantisation-aware
        training."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, AutoencoderConfig())
        QatConfig.add_arguments(parser)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> nn.Module:
        """Build the model; raises UsageError where a sharing flag needs a joined dictionary or
        equal dimensions."""
        if is_training_command():
            check_training(args, task)
        check_joined(args, task)
        qat = QatConfig.from_args(args)
        model = super().build_model(args, task)
        cfg = model.cfg
        merged = getattr(
            cfg, "merge_src_tgt_embed", False
        )  # a flag of fairseq's main branch, not of 0.12.2
        flagged = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed or merged
        share_inputs(model, task, bool(flagged or cfg.decoder.embed_path))
        choose_decode_head(model.decoder, args)

        def new_decoder(dictionary: Dictionary, embed_tokens: nn.Module) -> nn.Module:
            projection = source_projection(cfg.decoder.output_dim, embed_tokens)
            return TransformerDecoderBase(
                cfg, dictionary, embed_tokens, cfg.no_cross_attention, output_projection=projection
            )

        add_autoencoder(model, args, new_decoder)
        return quantize_model(model, qat)

    @classmethod
    def build_decoder(
        cls, args: Any, tgt_dict: Dictionary, embed_tokens: nn.Module
    ) -> TransformerDualHeadDecoder:
        """The dual-head decoder in place of fairseq's."""
        cfg = TransformerConfig.from_namespace(args)
        return TransformerDualHeadDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def forward(
        self,
        src_tokens: torch.Tensor,
        src_lengths: torch.Tensor,
        prev_output_tokens: torch.Tensor,
        features_only: bool = False,
        source_pass: Optional[str] = None,
        **kwargs: Any,
    ) -> Tuple[torch.Tensor, Any]:
        """As fairseq's transformer; with `features_only`, extra["heads"] holds (ce, sb) for the
        criterion.

        src_tokens: [B, S]; prev_output_tokens: [B, T]; returns (logits [B, T, V] or features [B, T,
            d], extra).
        With `source_pass`, see :meth:`SourcePasses.source_pass`.
        """
        if source_pass is not None:
            return self.source_pass(source_pass, src_tokens, src_lengths, prev_output_tokens)
        output, extra = super().forward(
            src_tokens, src_lengths, prev_output_tokens, features_only=features_only, **kwargs
        )
        if features_only:
            extra["heads"] = decoder_heads(self.decoder)
        return self.touch_all(output), extra

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        """Accept checkpoints of fairseq 0.12.2, which hold some encoder tensors twice."""
        strip_legacy_keys_in_place(state_dict, self.state_dict())
        super().upgrade_state_dict_named(state_dict, name)


def _size(args: Any, dim: int, ffn: int, heads: int, layers: int) -> None:
    for side in ("encoder", "decoder"):
        for name, value in (
            ("embed_dim", dim),
            ("ffn_embed_dim", ffn),
            ("attention_heads", heads),
            ("layers", layers),
        ):
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))
    base_architecture(args)


@register_model_architecture("transformer_dualhead", "transformer_dualhead")
def transformer_dualhead(args: Any) -> None:
    """fairseq's base transformer: d 512, ffn 2048, 8 heads, 6+6 layers."""
    base_architecture(args)


@register_model_architecture("transformer_dualhead", "transformer_dualhead_b0")
def transformer_dualhead_b0(args: Any) -> None:
    """B0 of the series: d 256, ffn 1024, 4 heads, 3+3 layers."""
    _size(args, 256, 1024, 4, 3)


@register_model_architecture("transformer_dualhead", "transformer_dualhead_b1")
def transformer_dualhead_b1(args: Any) -> None:
    """B1 of the series: d 512, ffn 2048, 8 heads, 3+3 layers."""
    _size(args, 512, 2048, 8, 3)


@register_model_architecture("transformer_dualhead", "transformer_dualhead_b2")
def transformer_dualhead_b2(args: Any) -> None:
    """B2 of the series: d 512, ffn 2048, 8 heads, 6+6 layers."""
    _size(args, 512, 2048, 8, 6)


@register_model_architecture("transformer_dualhead", "transformer_dualhead_b3")
def transformer_dualhead_b3(args: Any) -> None:
    """B3 of the series: d 256, ffn 1024, 4 heads, 6+6 layers."""
    _size(args, 256, 1024, 4, 6)
