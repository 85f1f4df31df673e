"""`restricted_softbleu`: CE * (1 + alpha * (1 - SB)), with a differentiable BLEU, SB, whose softmax
is restricted to the tokens that collide (docs/loss.md)."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor, nn

from ..analysis.scoring import self_test
from ..checks.preflight import check_checkpoint_metric, check_training
from ..collision import K_LANG, collision_size
from ..compat import follow_training, is_training_command
from ..errors import NotFiniteError, check_options
from ..losses import (
    COUNTS,
    FORMS,
    NGRAMS,
    SoftBleu,
    ce_weight,
    combine,
    fused_cross_entropy,
    restricted_soft_bleu,
    soft_bleu,
    target_masks,
)
from ..models.heads import Heads, read_heads
from .common import accuracy_counts, label_smoothing_rules

logger = logging.getLogger(__name__)


@dataclass
class RestrictedSoftBleuConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """The flags of `restricted_softbleu`, with their legal ranges in :meth:`check`."""

    sb_alpha: float = field(
        default=0.8,
        metadata={"help": "weight of soft BLEU: >= 0, and <= 1 with --sb-form interpolate"},
    )
    sb_alpha_step: float = field(
        default=0.0, metadata={"help": "added to --sb-alpha at the start of each later epoch"}
    )
    sb_alpha_max: Optional[float] = field(
        default=None, metadata={"help": "upper limit of alpha; no limit if not given"}
    )
    sb_form: ChoiceEnum(FORMS) = field(
        default="linear",
        metadata={
            "help": (
                "how cross-entropy and soft BLEU are combined; linear is "
                "CE * (1 + alpha * (1 - SB))"
            )
        },
    )
    sb_beta: float = field(default=0.5, metadata={"help": "exponent of --sb-form power, > 0"})
    k_lang: float = field(
        default=K_LANG,
        metadata={
            "help": "collision constant: the softmax keeps the top k = round(k_lang * V) tokens"
        },
    )
    sb_topk: Optional[int] = field(
        default=None, metadata={"help": "k itself, overrides --k-lang; 0 is the full softmax"}
    )
    sb_ngrams: ChoiceEnum(NGRAMS) = field(
        default="true",
        metadata={"help": "true n-grams, or P_n = P_1 * decay^(n-1) as in the first experiments"},
    )
    sb_decay: float = field(default=0.5, metadata={"help": "decay of --sb-ngrams decay, in (0, 1]"})
    sb_counts: ChoiceEnum(COUNTS) = field(
        default="matched",
        metadata={
            "help": "clipped limits an n-gram's matches to its count in the reference, as BLEU does"
        },
    )
    sb_max_order: int = field(default=4, metadata={"help": "longest n-gram, 1 or more"})
    # Options of other groups that decide whether this criterion is used sensibly; fairseq fills
    # them in.
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")

    @staticmethod
    def check(cfg: Any) -> None:
        """Raise UsageError (option, value given, legal values) for a value that is out of range, or
        that would have no effect beside the others."""
        interpolate, log = cfg.sb_form == "interpolate", cfg.sb_form == "log"
        alphas = (
            "between 0 and 1 with --sb-form interpolate" if interpolate else "a number of 0 or more"
        )

        def alpha_is_legal(value: float) -> bool:
            return 0 <= value <= (1 if interpolate else math.inf) and math.isfinite(value)

        def in_use(option: str, condition: bool, reason: str) -> Tuple[str, Any, bool, str]:
            """Rule: unless the condition holds, the option keeps its default, for the reason."""
            name = option[2:].replace("-", "_")
            value, default = getattr(cfg, name), getattr(RestrictedSoftBleuConfig, name)
            kept = "left out" if default is None else f"left at {default}"
            return option, value, condition or value == default, f"{kept} {reason}"

        top = cfg.sb_alpha if cfg.sb_alpha_max is None else cfg.sb_alpha_max
        check_options(
            [
                ("--sb-alpha", cfg.sb_alpha, alpha_is_legal(cfg.sb_alpha), alphas),
                (
                    "--sb-alpha-max",
                    cfg.sb_alpha_max,
                    alpha_is_legal(top) and top >= cfg.sb_alpha,
                    f"{alphas}, and not below --sb-alpha",
                ),
                (
                    "--sb-alpha-step",
                    cfg.sb_alpha_step,
                    0 <= cfg.sb_alpha_step < math.inf,
                    "a number of 0 or more",
                ),
                (
                    "--sb-alpha-step",
                    cfg.sb_alpha_step,
                    not (interpolate and cfg.sb_alpha_step and cfg.sb_alpha_max is None),
                    "0 with --sb-form interpolate unless --sb-alpha-max is given too",
                ),
                ("--sb-beta", cfg.sb_beta, 0 < cfg.sb_beta < math.inf, "above 0"),
                ("--k-lang", cfg.k_lang, 0 < cfg.k_lang <= 1, "above 0 and at most 1"),
                (
                    "--sb-topk",
                    cfg.sb_topk,
                    cfg.sb_topk is None or cfg.sb_topk >= 0,
                    "0 (full softmax) or more",
                ),
                ("--sb-decay", cfg.sb_decay, 0 < cfg.sb_decay <= 1, "above 0 and at most 1"),
                ("--sb-max-order", cfg.sb_max_order, cfg.sb_max_order >= 1, "1 or more"),
                *label_smoothing_rules(cfg),
                in_use("--sb-alpha", not log, "with --sb-form log, which has no alpha"),
                in_use("--sb-alpha-step", not log, "with --sb-form log, which has no alpha"),
                in_use(
                    "--sb-alpha-max",
                    cfg.sb_alpha_step > 0,
                    "unless --sb-alpha-step is given: without a step alpha stays at --sb-alpha",
                ),
                in_use(
                    "--sb-beta",
                    cfg.sb_form == "power",
                    "unless --sb-form is power, the one form with an exponent",
                ),
                in_use(
                    "--sb-decay",
                    cfg.sb_ngrams == "decay",
                    "unless --sb-ngrams is decay: true n-grams do not decay",
                ),
            ]
        )
        if cfg.sb_topk is not None and cfg.k_lang != K_LANG:
            logger.warning(f"--k-lang {cfg.k_lang} is not used: --sb-topk {cfg.sb_topk} names k")
        if log and cfg.label_smoothing:
            logger.warning(
                f"--label-smoothing {cfg.label_smoothing} is not used: --sb-form log trains no "
                "cross-entropy"
            )


class _Parts(NamedTuple):
    """What the criterion computes of a batch.

    Attributes:
        loss: [B], with gradient.
        nll: sum over the batch, in nats, without gradient.
        best: [B * T], the highest scoring tokens, or None.
        bleu: the soft BLEU.
    """

    loss: Tensor
    nll: Tensor
    best: Optional[Tensor]
    bleu: SoftBleu


@register_criterion("restricted_softbleu", dataclass=RestrictedSoftBleuConfig)
class RestrictedSoftBleuCriterion(FairseqCriterion):
    """Reads the sample, calls the losses, logs sums. Works with dual-head and with single-head
    encoder-decoder models.

    `epoch` and `num_updates` are kept current by :func:`compat.follow_training`.
    """

    warned = False  # of sentences with nothing to score, once a process

    def __init__(self, task: Any, cfg: RestrictedSoftBleuConfig) -> None:
        super().__init__(task)
        RestrictedSoftBleuConfig.check(cfg)
        self.cfg = cfg
        self.epoch, self.num_updates = 1, 0
        self.unchecked: Optional[Tuple[Tensor, int]] = None
        dictionary = task.target_dictionary
        vocab = len(dictionary)
        self.topk = collision_size(vocab, cfg.k_lang) if cfg.sb_topk is None else cfg.sb_topk
        if self.topk > vocab:
            logger.warning(
                f"--sb-topk {self.topk} is above the vocabulary of {vocab}: the full softmax is "
                "used"
            )
        logger.info(
            f"soft BLEU over {'all' if not 0 < self.topk < vocab else self.topk} of {vocab} tokens "
            "and the reference"
        )
        self.special_tokens = {
            name: getattr(dictionary, name)() for name in ("pad", "eos", "unk", "bos")
        }
        self.soft_bleu_options = dict(
            self.special_tokens,
            topk=self.topk,
            max_order=cfg.sb_max_order,
            ngrams=cfg.sb_ngrams,
            decay=cfg.sb_decay,
            counts=cfg.sb_counts,
        )

    @classmethod
    def build_criterion(
        cls, cfg: RestrictedSoftBleuConfig, task: Any
    ) -> "RestrictedSoftBleuCriterion":
        """Build from fairseq's configuration, and test now what would fail hours later."""
        criterion = cls(task, cfg)
        if is_training_command():
            check_checkpoint_metric(cfg.best_checkpoint_metric, cfg.maximize_best_checkpoint_metric)
            check_training(cfg, task)
        if getattr(task.cfg, "eval_bleu", False):
            self_test()
        follow_training(task, criterion)
        return criterion

    @property
    def alpha(self) -> float:
        """alpha(epoch) = min(alpha_max, alpha + alpha_step * (epoch - 1))."""
        alpha = self.cfg.sb_alpha + self.cfg.sb_alpha_step * (self.epoch - 1)
        return alpha if self.cfg.sb_alpha_max is None else min(self.cfg.sb_alpha_max, alpha)

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """(loss, sample_size, logging_output); the loss is summed over sentences, or [B] with
        `reduce=False`.

        Raises NotFiniteError, naming the update, when the loss is not finite.
        """
        target = sample["target"][:, self.cfg.ignore_prefix_size :]
        heads = read_heads(model, sample["net_input"])
        if heads is None:
            parts = self._dense(model, sample["net_input"], target)
        else:
            parts = self._lean(heads, target)
        loss = parts.loss.sum() if reduce else parts.loss
        self._check_finite(loss, model)
        sample_size = target.size(0) if self.cfg.sentence_avg else sample["ntokens"]
        log = self._log(loss, parts, target, sample["ntokens"], sample_size)
        if heads is not None and loss.requires_grad and reduce:
            self._log_gradient_norms(loss, heads, log)
        return loss, sample_size, log

    def _form(self, target: Tensor) -> Dict[str, Any]:
        """The arguments of `combine` and `ce_weight` beside cross-entropy and score."""
        tokens = target.ne(self.padding_idx).sum(1)
        return dict(tokens=tokens, form=self.cfg.sb_form, alpha=self.alpha, beta=self.cfg.sb_beta)

    def _lean(self, heads: Heads, target: Tensor) -> _Parts:
        """From features and the heads' weights: no tensor of N x V elements."""
        features = heads.features[:, self.cfg.ignore_prefix_size :]
        bleu = restricted_soft_bleu(
            features, heads.sb.weight, target, bias=heads.sb.bias, **self.soft_bleu_options
        )
        form = self._form(target)
        fused = fused_cross_entropy(
            features.flatten(0, 1),
            heads.ce.weight,
            target.flatten(),
            bias=heads.ce.bias,
            row_weight=ce_weight(bleu.score, **form).repeat_interleave(target.size(1)),
            label_smoothing=self.cfg.label_smoothing,
            ignore_index=self.padding_idx,
            with_best=self.cfg.report_accuracy,
        )
        # The product rule (docs/loss.md): the cross-entropy's gradient comes from the fused pass,
        # whose rows are weighted by d loss / d ce, and soft BLEU's from the form with the
        # cross-entropy held constant.
        weighted = fused.weighted.view_as(target).sum(1)
        through_score = combine(fused.loss.view_as(target).sum(1), bleu.score, **form)
        loss = weighted + through_score - weighted.detach()
        return _Parts(loss, fused.nll.sum(), fused.best, bleu)

    def _dense(self, model: nn.Module, net_input: Dict[str, Any], target: Tensor) -> _Parts:
        """From the log-probabilities of a model with any output layer, by plain autograd."""
        log_probs = model.get_normalized_probs(model(**net_input), log_probs=True).float()
        log_probs = log_probs[:, self.cfg.ignore_prefix_size :]
        spread = self.cfg.label_smoothing / (log_probs.size(-1) - 1)
        scored = target.ne(self.padding_idx)
        nll = -log_probs.gather(2, target[..., None])[..., 0]
        ce = (1 - self.cfg.label_smoothing - spread) * nll - spread * log_probs.sum(2)
        ce, nll = (torch.where(scored, x, torch.zeros_like(x)).sum(1) for x in (ce, nll))
        best = log_probs.argmax(2).flatten() if self.cfg.report_accuracy else None
        bleu = soft_bleu(log_probs, target, **self.soft_bleu_options)
        loss = combine(ce, bleu.score, **self._form(target))
        return _Parts(loss, nll.detach().sum(), best, bleu)

    def _check_finite(self, loss: Tensor, model: nn.Module) -> None:
        """Stop before the optimiser steps on a loss that is nan or inf, and name the update.

        On a CPU the test is immediate. On an accelerator it would make the step wait, so the flag
        is read at the next forward pass; meanwhile fairseq's own test of the gradient norm has kept
        the optimiser from stepping (it then runs the batch once more, and that is the pass which
        raises here).
        """
        current = torch.isfinite(loss.detach()).all(), self.num_updates
        now = loss.device.type == "cpu" or not model.training
        earlier, self.unchecked = self.unchecked, None if now else current
        for finite, update in filter(None, (earlier, current if now else None)):
            if not finite:
                raise NotFiniteError(
                    f"the loss is not finite (nan or inf) at update {update + 1}: nothing was "
                    "changed by this batch. Lower --lr, set --clip-norm, or look for a damaged "
                    "checkpoint or batch"
                )

    def _log(
        self, loss: Tensor, parts: _Parts, target: Tensor, ntokens: int, sample_size: int
    ) -> Dict[str, Any]:
        """Sums and counts, so that outputs of workers and batches add up; means are taken in
        reduce_metrics."""
        bleu = parts.bleu
        known = ~bleu.precisions.isnan()
        scored, _ = target_masks(target, **self.special_tokens)
        log = {
            "loss": loss.detach().sum(),
            "nll_loss": parts.nll,
            "ntokens": ntokens,
            "nsentences": target.size(0),
            "sample_size": sample_size,
            "sb": bleu.score.detach().sum(),
            "sb_alpha": self.alpha * target.size(0),
            "sb_unmatched": (~known[:, 0]).sum(),
            "sb_candidates": bleu.sizes.sum(),
            "sb_positions": scored.sum(),
        }
        if parts.best is not None:
            log.update(accuracy_counts(parts.best, target.flatten(), self.padding_idx))
        for order, (precision, mask) in enumerate(
            zip(bleu.precisions.unbind(1), known.unbind(1)), 1
        ):
            log[f"sb_p{order}"] = torch.where(mask, precision, torch.zeros_like(precision)).sum()
            log[f"sb_p{order}_sentences"] = mask.sum()
        return log

    @staticmethod
    def _log_gradient_norms(loss: Tensor, heads: Heads, log: Dict[str, Any]) -> None:
        """Add gnorm_ce_head and gnorm_sb_head to `log` during the backward pass.

        Each is the norm of the head's weight gradient for the summed loss of this batch. The heads
        are aliases made for this forward pass, so a head tied to embeddings, or one serving both
        parts, reports this use alone. A frozen head has no norm.
        """
        upstream = {}
        loss.register_hook(lambda gradient: upstream.update(loss_scale=gradient.detach().float()))
        for name, head in (("gnorm_ce_head", heads.ce), ("gnorm_sb_head", heads.sb)):
            if not head.weight.requires_grad:
                continue
            # Present from the start: fairseq sums the keys of all workers, whether or not they ran
            # backward.
            log[name] = torch.zeros((), device=loss.device)

            def record(gradient: Tensor, name: str = name) -> None:
                norm = gradient.detach().float().norm()
                log[name] = torch.where(
                    upstream["loss_scale"] == 0, log[name], norm / upstream["loss_scale"]
                )

            head.weight.register_hook(record)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """Means of what :meth:`forward` summed, over batches and workers."""
        LabelSmoothedCrossEntropyCriterion.reduce_metrics(logging_outputs)

        def total(key: str) -> Any:
            return sum(log.get(key, 0) for log in logging_outputs)

        def log_mean(key: str, count: Any, digits: int) -> None:
            if count > 0:
                metrics.log_scalar(key, total(key) / count, count, round=digits)

        sentences, unmatched = total("nsentences"), int(total("sb_unmatched"))
        if unmatched and not cls.warned:
            cls.warned = True
            logger.warning(
                f"{unmatched} of {int(sentences)} target sentences have no token to score (empty, "
                "or unknown words only): they train cross-entropy alone; sb_unmatched logs their "
                "share. Check the data if that is not meant"
            )
        log_mean("sb", sentences, 4)
        log_mean("sb_unmatched", sentences, 4)
        log_mean("sb_alpha", sentences, 3)
        log_mean("sb_candidates", total("sb_positions"), 1)
        order = 1
        while any(f"sb_p{order}" in log for log in logging_outputs):
            log_mean(f"sb_p{order}", total(f"sb_p{order}_sentences"), 6)
            order += 1
        for key in ("gnorm_ce_head", "gnorm_sb_head"):
            if any(key in log for log in logging_outputs):
                # the SB head's is 1e-8 and less where a full softmax has learnt nothing yet
                log_mean(key, total("sample_size"), 12)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """True: every value is a sum."""
        return True
