"""The losses as pure functions of tensors (docs/loss.md); imports no fairseq."""

from .contrastive import contrastive_loss
from .cross_entropy import (
    FusedCrossEntropy,
    fused_cross_entropy,
    linear_cross_entropy,
    torch_cross_entropy,
)
from .forms import FORMS, ce_weight, combine
from .soft_bleu import (
    COUNTS,
    NGRAMS,
    SoftBleu,
    resolve_topk,
    restricted_soft_bleu,
    soft_bleu,
    target_masks,
)

__all__ = [
    "COUNTS",
    "FORMS",
    "NGRAMS",
    "FusedCrossEntropy",
    "SoftBleu",
    "ce_weight",
    "combine",
    "contrastive_loss",
    "fused_cross_entropy",
    "linear_cross_entropy",
    "resolve_topk",
    "restricted_soft_bleu",
    "soft_bleu",
    "target_masks",
    "torch_cross_entropy",
]
