"""`fused_cross_entropy`: fairseq's label-smoothed cross-entropy, with the output layer fused in to
save memory."""

from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn

from ..compat import HAS_TORCH_LINEAR_CROSS_ENTROPY
from ..errors import UsageError, check_options
from ..losses import fused_cross_entropy, torch_cross_entropy
from ..models.heads import read_heads
from .common import accuracy_counts, label_smoothing_rules

KERNELS = ("klang", "torch")


@dataclass
class FusedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """The flags of `fused_cross_entropy`: fairseq's, and the kernel."""

    ce_kernel: ChoiceEnum(KERNELS) = field(
        default="klang",
        metadata={
            "help": (
                "who computes it: klang, or torch's linear_cross_entropy (torch >= 2.13; no "
                "label smoothing, no accuracy)"
            )
        },
    )

    @staticmethod
    def check(cfg: Any) -> None:
        """Raise UsageError (option, value given, legal values) for values that are out of range or
        do not go together."""
        check_options(label_smoothing_rules(cfg))
        if cfg.ce_kernel == "torch":
            if not HAS_TORCH_LINEAR_CROSS_ENTROPY:
                raise UsageError("--ce-kernel is torch, which needs torch 2.13 or newer; use klang")
            if cfg.label_smoothing:
                raise UsageError(
                    f"--label-smoothing is {cfg.label_smoothing}; with --ce-kernel torch it must "
                    "be 0 (klang has no such limit)"
                )
            if cfg.report_accuracy:
                raise UsageError(
                    "--report-accuracy needs --ce-kernel klang; torch's does not tell the best "
                    "token"
                )


@register_criterion("fused_cross_entropy", dataclass=FusedCrossEntropyConfig)
class FusedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Same loss, gradients and log as `label_smoothed_cross_entropy`, without a tensor of N x V
    elements (N = B * T)."""

    def __init__(self, task: Any, cfg: FusedCrossEntropyConfig) -> None:
        FusedCrossEntropyConfig.check(cfg)
        super().__init__(
            task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        )
        self.kernel = cfg.ce_kernel

    @classmethod
    def build_criterion(
        cls, cfg: FusedCrossEntropyConfig, task: Any
    ) -> "FusedCrossEntropyCriterion":
        """Build from fairseq's configuration."""
        return cls(task, cfg)

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """(loss, sample_size, logging_output); the loss is a sum over tokens, or [B * T, 1] with
        `reduce=False`, as in fairseq.

        Raises UsageError for a model whose output layer is not one linear projection.
        """
        heads = read_heads(model, sample["net_input"])
        if heads is None:
            raise UsageError(
                "--criterion fused_cross_entropy needs a model whose output layer is one linear "
                "projection; use label_smoothed_cross_entropy for this one"
            )
        target = sample["target"][:, self.ignore_prefix_size :]
        rows = (
            heads.features[:, self.ignore_prefix_size :].flatten(0, 1),
            heads.ce.weight,
            target.flatten(),
        )
        options = dict(bias=heads.ce.bias, ignore_index=self.padding_idx)
        if self.kernel == "torch":
            loss = torch_cross_entropy(*rows, **options, reduction="sum" if reduce else "none")
            nll = loss.detach()
        else:
            fused = fused_cross_entropy(
                *rows, **options, label_smoothing=self.eps, with_best=self.report_accuracy
            )
            loss, nll = (
                (fused.weighted.sum(), fused.nll.sum()) if reduce else (fused.weighted, fused.nll)
            )
        if not reduce:
            loss, nll = loss[:, None], nll[:, None]
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        log = {
            "loss": loss.detach(),
            "nll_loss": nll,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            log.update(accuracy_counts(fused.best, target.flatten(), self.padding_idx))
        return loss, sample_size, log
