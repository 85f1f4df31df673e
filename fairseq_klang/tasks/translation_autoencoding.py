"""`translation_autoencoding`: translation that also learns from the source alone, in training and
while translating."""

import contextlib
import logging
import math
import os
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import register_task
from torch import nn

from ..checkpoints.initialise import initialise_encoder_from
from ..checks.preflight import check_data_folder
from ..errors import NotFiniteError, UsageError, check_options
from ..learning.objectives import OBJECTIVES, strip_padding
from ..models.autoencoder import check_source_passes
from .adapting import AdaptingConfig, AdaptingTask, Sample

logger = logging.getLogger(__name__)

NO_TARGET = "None"  # what fairseq-preprocess --only-source writes for the target in its file names


@dataclass
class TranslationAutoencodingConfig(AdaptingConfig):
    """The flags of learning while translating, and those of training on the source, with their
    legal ranges in :meth:`check`."""

    ae_objective: ChoiceEnum(OBJECTIVES) = field(
        default="autoencoding", metadata={"help": "what training learns from the source alone"}
    )
    ae_ratio: float = field(
        default=0.0,
        metadata={
            "help": (
                "updates on the source alone for each translation update, 0 or more; 0.5 is "
                "one after every second"
            )
        },
    )
    ae_weight: float = field(
        default=0.0,
        metadata={
            "help": (
                "add this times the source's loss to that of every translation update, 0 or more"
            )
        },
    )
    source_only: bool = field(
        default=False,
        metadata={"help": "train on source text alone; the data folder needs no target"},
    )
    init_encoder_from: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "start the encoder from this checkpoint, which must have the same source dictionary"
            )
        },
    )

    @staticmethod
    def learns_source(cfg: Any) -> bool:
        """Whether training learns from the source at all."""
        return bool(cfg.source_only or cfg.ae_ratio or cfg.ae_weight)

    @staticmethod
    def check(cfg: Any) -> None:
        """Raise UsageError (option, value given, legal values) for a value out of range, and for
        options that do not go together."""
        check_options(
            AdaptingConfig.rules(cfg)
            + [
                ("--ae-ratio", cfg.ae_ratio, 0 <= cfg.ae_ratio < math.inf, "a number of 0 or more"),
                (
                    "--ae-weight",
                    cfg.ae_weight,
                    0 <= cfg.ae_weight < math.inf,
                    "a number of 0 or more",
                ),
                (
                    "--ae-weight",
                    cfg.ae_weight,
                    not (cfg.ae_weight and cfg.ae_ratio),
                    "0 where --ae-ratio is given: choose one",
                ),
                (
                    "--source-only",
                    cfg.source_only,
                    not (cfg.source_only and (cfg.ae_ratio or cfg.ae_weight or cfg.eval_bleu)),
                    "left out with --ae-ratio, --ae-weight and --eval-bleu, which need a target",
                ),
                (
                    "--init-encoder-from",
                    cfg.init_encoder_from,
                    not (cfg.init_encoder_from and cfg.init_from),
                    "left out where --init-from is given",
                ),
            ]
        )

    @classmethod
    def check_effect(cls, cfg: Any) -> None:
        """Raise UsageError for an option that was given and that nothing reads."""
        learns, adapts = cls.learns_source(cfg), cfg.adapt_steps > 0
        objectives = [cfg.ae_objective] * learns + [cfg.adapt_objective] * adapts
        training = "without --ae-ratio, --ae-weight or --source-only"
        learning = (
            "unless training (--ae-ratio, --ae-weight, --source-only) or --adapt-steps learns"
        )
        used = {
            "ae_objective": (learns, training),
            "ae_noise": ("autoencoding" in objectives, f"{learning} autoencoding"),
            "ae_noise_rate": (
                cfg.ae_noise != "none" or "masked_lm" in objectives,
                "without --ae-noise or the objective masked_lm",
            ),
            "contrastive_temperature": (
                "contrastive" in objectives,
                f"{learning} contrastive",
            ),
        }
        for name in cls.__dataclass_fields__:
            if name.startswith("adapt_") and name != "adapt_steps":
                used[name] = (adapts, "without --adapt-steps")
        check_options(
            (
                "--" + name.replace("_", "-"),
                getattr(cfg, name),
                has_effect or getattr(cfg, name) == cls.__dataclass_fields__[name].default,
                f"left out {where}: it would have no effect",
            )
            for name, (has_effect, where) in used.items()
        )


def is_source_update(update: int, ratio: float) -> bool:
    """Whether `update` (from 0) learns from the source alone, at `ratio` such updates for each
    translation update.

    Spread as evenly as whole updates allow, and a function of the update's number only: workers
    agree, and a resumed run goes on.
    """
    ratio = Fraction(ratio).limit_denominator(10**6)
    share = ratio / (1 + ratio)
    return math.floor((update + 1) * share) > math.floor(update * share)


class _NoMetrics:
    """Stands in for the criterion where an update was none of its own."""

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        pass


@register_task("translation_autoencoding", dataclass=TranslationAutoencodingConfig)
class TranslationAutoencodingTask(AdaptingTask):
    """Translation with any criterion, mixed with learning from the source; and learning while
    translating."""

    def __init__(self, cfg: Any, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        TranslationAutoencodingConfig.check(cfg)
        self.epoch, self.warned = 1, False
        self.training_objective = self.objective(cfg.ae_objective)

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TranslationAutoencodingTask":
        """Load the dictionaries; with --source-only the target's may be missing, and is then the
        source's.

        Raises UsageError.
        """
        if not kwargs.get("from_checkpoint"):
            TranslationAutoencodingConfig.check_effect(cfg)
        if not cfg.source_only:
            try:
                return super().setup_task(cfg, **kwargs)
            except FileNotFoundError as error:
                raise UsageError(
                    f"there is no {error.filename}; name the folder that fairseq-preprocess wrote "
                    "and its languages (-s, -t), and for "
                    "source text alone add --source-only"
                ) from None
        check_data_folder(cfg.data)
        folder = utils.split_paths(cfg.data)[0]
        if cfg.source_lang is None:
            cfg.source_lang, found = data_utils.infer_language_pair(folder)
            cfg.target_lang = cfg.target_lang or found
        cfg.target_lang = cfg.target_lang or NO_TARGET
        paths = [
            os.path.join(folder, f"dict.{language}.txt")
            for language in (cfg.source_lang, cfg.target_lang)
        ]
        if not os.path.isfile(paths[0]):
            raise UsageError(
                f"--source-only: {paths[0]} does not exist; name the language with -s and the "
                "folder that fairseq-preprocess --only-source wrote"
            )
        source = cls.load_dictionary(paths[0])
        target = cls.load_dictionary(paths[1]) if os.path.isfile(paths[1]) else source
        return cls(cfg, source, target)

    @property
    def learns_source(self) -> bool:
        """Whether training learns from the source at all."""
        return TranslationAutoencodingConfig.learns_source(self.cfg)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model, check that it can learn what is asked for, and start its encoder from
        `--init-encoder-from`."""
        model = super().build_model(cfg, from_checkpoint)
        if self.learns_source:
            check_source_passes(model, self.cfg.ae_objective, "--ae-objective")
        if self.cfg.init_encoder_from and not from_checkpoint:
            initialise_encoder_from(
                model,
                self.cfg.init_encoder_from,
                self.source_dictionary,
                self.cfg.init_dictionaries,
            )
        return model

    # -- training ----------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, model: nn.Module) -> None:
        """Noise is drawn anew each epoch."""
        super().begin_epoch(epoch, model)
        self.epoch = epoch

    def train_step(
        self,
        sample: Sample,
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[torch.Tensor, Any, Dict[str, Any]]:
        """fairseq's training step with the criterion, one on the source alone, or both, as the
        flags say."""
        if self.cfg.source_only or is_source_update(update_num, self.cfg.ae_ratio):
            model.train()
            model.set_num_updates(update_num)
            loss, log = self._source_step(
                sample, model, optimizer, update_num, 0.0 if ignore_grad else 1.0
            )
            return self._complete(model, (loss, log["sample_size"], log))
        if not self.cfg.ae_weight:
            return self._complete(
                model,
                super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad),
            )
        # Two backward passes: the gradients of the first stay here until the second has added its
        # own.
        with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
            loss, sample_size, log = super().train_step(
                sample, model, criterion, optimizer, update_num, ignore_grad
            )
        source, source_log = self._source_step(
            sample, model, optimizer, update_num, 0.0 if ignore_grad else self.cfg.ae_weight
        )
        log.update({key: source_log[key] for key in ("ae_loss", "ae_units")})
        return loss + source, sample_size, log

    def _complete(self, model, result):
        """Where halves take turns, give the idle one gradients of zero, as several processes do;
        returns `result`.

        Adam skips a parameter without a gradient, but not one with a gradient of zero: one process
        would learn otherwise.
        """
        if self.cfg.ae_ratio:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return result

    def _source_step(self, sample, model, optimizer, update_num, weight):
        """Forward and backward of `weight` times the source's loss; returns (loss, log)."""
        with torch.autograd.profiler.record_function("forward"):
            with torch.autocast(
                "cuda", enabled=isinstance(optimizer, AMPOptimizer) and torch.cuda.is_available()
            ):
                result = self._source_loss(sample, model, self.training_objective, self.epoch)
        if not torch.isfinite(result.loss):
            raise NotFiniteError(
                f"the {self.cfg.ae_objective} loss is not finite (nan or inf) at update "
                f"{update_num + 1}: nothing was changed by this "
                "batch. Lower --lr, set --clip-norm, or look for a damaged checkpoint or batch"
            )
        loss = result.loss * weight
        with torch.autograd.profiler.record_function("backward"):
            optimizer.backward(loss)
        return loss.detach(), self._source_log(sample, result)

    def _source_loss(self, sample, model, objective, epoch):
        sentences = strip_padding(sample["net_input"]["src_tokens"], self.source_dictionary.pad())
        if objective.name == "contrastive" and len(sentences) < 2 and not self.warned:
            logger.warning(
                "a batch of one sentence: contrastive has nothing to compare and learns nothing "
                "from such batches"
            )
            self.warned = True
        seeds = [(abs(self.cfg.seed), epoch, sentence) for sentence in sample["id"].tolist()]
        return objective(model, objective.prepare(sentences, seeds))

    @staticmethod
    def _source_log(sample, result):
        """Sums and counts, so that outputs of workers and batches add up."""
        return {
            "ae_loss": result.loss.detach(),
            "ae_units": result.units,
            "ntokens": int(sample["net_input"]["src_lengths"].sum()),
            "nsentences": len(sample["id"]),
            "sample_size": result.units,
        }

    def valid_step(
        self, sample: Sample, model: nn.Module, criterion: Any
    ) -> Tuple[torch.Tensor, Any, Dict[str, Any]]:
        """fairseq's validation step, and the source's loss without noise where training learns from
        the source."""
        if not self.learns_source:
            return super().valid_step(sample, model, criterion)
        model.eval()
        with torch.no_grad():
            result = self._source_loss(sample, model, self.training_objective.without_noise(), 0)
        source_log = self._source_log(sample, result)
        if self.cfg.source_only:
            return result.loss, source_log["sample_size"], source_log
        loss, sample_size, log = super().valid_step(sample, model, criterion)
        log.update({key: source_log[key] for key in ("ae_loss", "ae_units")})
        return loss, sample_size, log

    def reduce_metrics(self, logging_outputs: List[Dict[str, Any]], criterion: Any) -> None:
        """The criterion's figures where it was used, and `ae_loss`, the source's loss per unit in
        bits."""
        translated = any("loss" in log for log in logging_outputs)
        super().reduce_metrics(logging_outputs, criterion if translated else _NoMetrics())
        learnt = [log for log in logging_outputs if "ae_units" in log]
        if learnt:
            # Of weight 0 where the batches held nothing to learn, empty sentences for example: left
            # without a loss, fairseq would log -1 and average it in.
            units = sum(log["ae_units"] for log in learnt)
            loss = sum(log["ae_loss"] for log in learnt) / max(units, 1) / math.log(2)
            metrics.log_scalar("ae_loss", loss, units, round=3)
            if not translated:
                # fairseq wants a loss of every update; where translation has one, this one does not
                # enter its mean.
                metrics.log_scalar("loss", loss, units if self.cfg.source_only else 0, round=3)
