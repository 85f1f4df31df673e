"""`restricted_softbleu`: cross-entropy times a differentiable BLEU restricted to the collision set
(DESIGN 1 and 6)."""

import logging
import math
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from omegaconf import II

from ..analysis.scoring import self_test
from ..checks.preflight import check_checkpoint_metric, check_restore_file
from ..collision import K_LANG, collision_size
from ..compat import follow_training, is_training_command
from ..errors import NotFiniteError, UsageError
from ..losses import (
    COUNTS,
    FORMS,
    NGRAMS,
    ce_weight,
    combine,
    fused_cross_entropy,
    restricted_soft_bleu,
    soft_bleu,
    target_masks,
)
from ..models.heads import read_heads

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
                "how cross-entropy and soft BLEU are combined; linear is CE * (1 + alpha * (1 "
                "- SB))"
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
    def check(cfg):
        """Raise UsageError (option, value given, legal values) for a value out of range."""
        interpolate = cfg.sb_form == "interpolate"
        alphas = (
            "between 0 and 1 with --sb-form interpolate" if interpolate else "a number of 0 or more"
        )

        def alpha_is_legal(value):
            return 0 <= value <= (1 if interpolate else math.inf) and math.isfinite(value)

        top = cfg.sb_alpha if cfg.sb_alpha_max is None else cfg.sb_alpha_max
        rules = [
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
            (
                "--ignore-prefix-size",
                cfg.ignore_prefix_size,
                cfg.ignore_prefix_size >= 0,
                "0 or more",
            ),
            (
                "--label-smoothing",
                cfg.label_smoothing,
                0 <= cfg.label_smoothing < 1,
                "at least 0 and below 1",
            ),
        ]
        for option, value, legal, values in rules:
            if not legal:
                raise UsageError(f"{option} is {value}; it must be {values}")


@register_criterion("restricted_softbleu", dataclass=RestrictedSoftBleuConfig)
class RestrictedSoftBleuCriterion(FairseqCriterion):
    """Reads the sample, calls the losses, logs sums. Works with dual-head and with single-head
    encoder-decoder models.

    `epoch` and `num_updates` are kept current by :func:`compat.follow_training`.
    """

    warned = False  # of sentences with nothing to score, once a process

    def __init__(self, task, cfg):
        super().__init__(task)
        RestrictedSoftBleuConfig.check(cfg)
        self.cfg = cfg
        self.epoch, self.num_updates = 1, 0
        self.not_finite = None
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
    def build_criterion(cls, cfg, task):
        """Build from fairseq's configuration, after testing what would otherwise fail hours
        later."""
        criterion = cls(task, cfg)
        if is_training_command():
            check_checkpoint_metric(cfg.best_checkpoint_metric, cfg.maximize_best_checkpoint_metric)
            check_restore_file(cfg.save_dir, cfg.restore_file)
        if getattr(task.cfg, "eval_bleu", False):
            self_test()
        follow_training(task, criterion)
        return criterion

    @property
    def alpha(self):
        """alpha(epoch) = min(alpha_max, alpha + alpha_step * (epoch - 1)) of DESIGN 1."""
        alpha = self.cfg.sb_alpha + self.cfg.sb_alpha_step * (self.epoch - 1)
        return alpha if self.cfg.sb_alpha_max is None else min(self.cfg.sb_alpha_max, alpha)

    def forward(self, model, sample, reduce=True):
        """(loss, sample_size, logging_output); the loss is summed over sentences, or [B] with
        `reduce=False`.

        Raises NotFiniteError, naming the update, when the loss is not finite.
        """
        prefix = self.cfg.ignore_prefix_size
        target = sample["target"][:, prefix:]
        form = dict(form=self.cfg.sb_form, alpha=self.alpha, beta=self.cfg.sb_beta)
        tokens = target.ne(self.padding_idx).sum(1)
        heads = read_heads(model, sample["net_input"])
        if heads is None:
            ce, nll, best, bleu = self._dense(model, sample, target, prefix)
            loss = combine(ce, bleu.score, tokens, **form)
        else:
            features = heads.features[:, prefix:]
            bleu = restricted_soft_bleu(
                features, heads.sb.weight, target, bias=heads.sb.bias, **self.soft_bleu_options
            )
            fused = fused_cross_entropy(
                features.flatten(0, 1),
                heads.ce.weight,
                target.flatten(),
                bias=heads.ce.bias,
                row_weight=ce_weight(bleu.score, tokens, **form).repeat_interleave(target.size(1)),
                label_smoothing=self.cfg.label_smoothing,
                ignore_index=self.padding_idx,
                with_best=self.cfg.report_accuracy,
            )
            ce, nll, best = fused.loss.view_as(target).sum(1), fused.nll, fused.best
            weighted = fused.weighted.sum() if reduce else fused.weighted.view_as(target).sum(1)
            # The product rule (DESIGN 2): the cross-entropy's gradient comes from the fused pass,
            # whose rows are weighted by d loss / d ce, and soft BLEU's from the form with the
            # cross-entropy held constant.
            through_score = combine(ce, bleu.score, tokens, **form)
            loss = weighted + (through_score.sum() if reduce else through_score) - weighted.detach()
        loss = loss.sum() if reduce else loss
        self._check_finite(loss, model)
        sample_size = target.size(0) if self.cfg.sentence_avg else sample["ntokens"]
        scored, _ = target_masks(target, **self.special_tokens)
        log = self._log(loss, nll, target, bleu, scored, sample, sample_size)
        log["sb_alpha"] = self.alpha * target.size(0)
        if best is not None:
            counted = target.flatten().ne(self.padding_idx)
            log["n_correct"] = (best.eq(target.flatten()) & counted).sum()
            log["total"] = counted.sum()
        if heads is not None and loss.requires_grad and reduce:
            self._log_gradient_norms(loss, heads, log)
        return loss, sample_size, log

    def _dense(self, model, sample, target, prefix):
        """Both parts from the model's log-probabilities, by plain autograd, for output layers of
        any kind."""
        net_output = model(**sample["net_input"])
        log_probs = model.get_normalized_probs(net_output, log_probs=True).float()[:, prefix:]
        vocab = log_probs.size(-1)
        spread = self.cfg.label_smoothing / (vocab - 1)
        scored = target.ne(self.padding_idx)
        nll = -log_probs.gather(2, target[..., None])[..., 0]
        loss = (1 - self.cfg.label_smoothing - spread) * nll - spread * log_probs.sum(2)
        ce = torch.where(scored, loss, torch.zeros_like(loss)).sum(1)
        nll = torch.where(scored, nll, torch.zeros_like(nll)).detach()
        best = log_probs.argmax(2).flatten() if self.cfg.report_accuracy else None
        return ce, nll, best, soft_bleu(log_probs, target, **self.soft_bleu_options)

    def _check_finite(self, loss, model):
        """Stop before the optimiser steps on a loss that is nan or inf, and name the update.

        On a CPU the test is immediate. On an accelerator it would make the step wait, so the flag
        is read at the next forward pass; meanwhile fairseq's own test of the gradient norm has kept
        the optimiser from stepping (it then runs the batch once more, and that is the pass which
        raises here).
        """
        finite = torch.isfinite(loss.detach()).all()
        now = loss.device.type == "cpu" or not model.training
        for flag, update in (
            (self.not_finite or (None, 0)),
            (finite if now else None, self.num_updates),
        ):
            if flag is not None and not flag:
                self.not_finite = None
                raise NotFiniteError(
                    f"the loss is not finite (nan or inf) at update {update + 1}: nothing was "
                    "changed by this batch. "
                    "Lower --lr, set --clip-norm, or look for a damaged checkpoint or batch"
                )
        self.not_finite = None if now else (finite, self.num_updates)

    @staticmethod
    def _log(loss, nll, target, bleu, scored, sample, sample_size):
        """Sums and counts, so that outputs of workers and batches add up; means are taken in
        reduce_metrics."""
        known = ~bleu.precisions.isnan()
        log = {
            "loss": loss.detach().sum(),
            "nll_loss": nll.detach().sum(),
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
            "sb": bleu.score.detach().sum(),
            "sb_unmatched": (~known[:, 0]).sum(),
            "sb_candidates": bleu.sizes.sum(),
            "sb_positions": scored.sum(),
        }
        for order, (precision, mask) in enumerate(
            zip(bleu.precisions.unbind(1), known.unbind(1)), 1
        ):
            log[f"sb_p{order}"] = torch.where(mask, precision, torch.zeros_like(precision)).sum()
            log[f"sb_p{order}_sentences"] = mask.sum()
        return log

    @staticmethod
    def _log_gradient_norms(loss, heads, log):
        """Add gnorm_ce_head and gnorm_sb_head to `log` during the backward pass.

        Each is the norm of the head's weight gradient for the summed loss of this batch. The heads
        are aliases made for this forward pass, so a head tied to embeddings, or one serving both
        parts, reports this use alone.
        """
        upstream = {}
        loss.register_hook(lambda gradient: upstream.update(loss_scale=gradient.detach().float()))
        for name, head in (("gnorm_ce_head", heads.ce), ("gnorm_sb_head", heads.sb)):
            # Present from the start: fairseq sums the keys of all workers, whether or not they ran
            # backward.
            log[name] = torch.zeros((), device=loss.device)

            def record(gradient, name=name):
                norm = gradient.detach().float().norm()
                log[name] = torch.where(
                    upstream["loss_scale"] == 0, log[name], norm / upstream["loss_scale"]
                )

            head.weight.register_hook(record)

    @classmethod
    def reduce_metrics(cls, logging_outputs):
        """Means of what :meth:`forward` summed, over batches and workers."""
        LabelSmoothedCrossEntropyCriterion.reduce_metrics(logging_outputs)

        def total(key):
            return sum(log.get(key, 0) for log in logging_outputs)

        def log_mean(key, count, digits):
            if count > 0:
                metrics.log_scalar(key, total(key) / count, count, round=digits)

        sentences, unmatched = total("nsentences"), int(total("sb_unmatched"))
        if unmatched and not cls.warned:
            cls.warned = True
            logger.warning(
                f"{unmatched} of {int(sentences)} target sentences have no token to score (empty, "
                "or unknown words only): they train "
                "cross-entropy alone; sb_unmatched logs their share. Check the data if that is not "
                "meant"
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
                log_mean(key, total("sample_size"), 6)

    @staticmethod
    def logging_outputs_can_be_summed():
        """True: every value is a sum."""
        return True
