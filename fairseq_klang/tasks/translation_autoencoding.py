"""`translation_autoencoding`: translation that also learns from the source alone, in training and
while translating (DESIGN 3 and 4)."""

import atexit
import contextlib
import logging
import math
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Optional

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import register_task
from fairseq.tasks.translation import load_langpair_dataset
from omegaconf import II

from ..checkpoints.initialise import dictionary_fingerprint, initialise_encoder_from
from ..compat import is_training_command, is_validation_command
from ..errors import KlangError, NotFiniteError, UsageError
from ..learning.adaptation import PARAMETERS, RESETS, Adapter, Replay, save_adapted
from ..learning.noise import NOISES
from ..learning.objectives import OBJECTIVES, SourceObjective, strip_padding
from ..models.autoencoder import check_source_passes
from .translation_dualhead import TranslationDualHeadConfig, TranslationDualHeadTask

logger = logging.getLogger(__name__)

NO_TARGET = "None"  # what fairseq-preprocess --only-source writes for the target in its file names


@dataclass
class TranslationAutoencodingConfig(TranslationDualHeadConfig):
    """The flags of translation_dualhead, and those of learning from the source, with their legal
    ranges in :meth:`check`."""

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
    ae_noise: ChoiceEnum(NOISES) = field(
        default="none",
        metadata={"help": "noise on the input of autoencoding, seeded by epoch and sentence"},
    )
    ae_noise_rate: float = field(
        default=0.15,
        metadata={
            "help": (
                "probability that a word is masked, dropped or swapped; between 0 and 1, 0 and "
                "1 excluded"
            )
        },
    )
    contrastive_temperature: float = field(
        default=0.05, metadata={"help": "temperature of the contrastive objective, above 0"}
    )
    init_encoder_from: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "start the encoder from this checkpoint, which must have the same source dictionary"
            )
        },
    )
    adapt_steps: int = field(
        default=0,
        metadata={
            "help": (
                "in fairseq-generate and -interactive, steps on the source before it is translated"
            )
        },
    )
    adapt_lr: float = field(
        default=1e-4, metadata={"help": "learning rate of these steps (Adam), above 0"}
    )
    adapt_objective: ChoiceEnum(OBJECTIVES) = field(
        default="autoencoding", metadata={"help": "what these steps learn"}
    )
    adapt_parameters: ChoiceEnum(PARAMETERS) = field(
        default="encoder",
        metadata={"help": "what these steps change: the encoder's own weights, or all weights"},
    )
    adapt_reset: ChoiceEnum(RESETS) = field(
        default="sentence",
        metadata={
            "help": (
                "sentence: each one starts from the checkpoint; never: go on learning, batch "
                "by batch"
            )
        },
    )
    adapt_patience: int = field(
        default=3,
        metadata={
            "help": (
                "take the steps back when the objective rises this many times in a row; 0 "
                "never does. Always taken back: steps after which it is higher than before"
            )
        },
    )
    adapt_replay: float = field(
        default=0.0,
        metadata={
            "help": (
                "translation steps on --adapt-replay-data for each step on the source, 0 or more"
            )
        },
    )
    adapt_replay_data: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "folder of fairseq-preprocess whose training split is replayed; same dictionaries"
            )
        },
    )
    adapt_save: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "with --adapt-reset never, write the adapted model to this checkpoint at the end"
            )
        },
    )
    # Options of other groups; fairseq fills them in.
    seed: int = II("common.seed")
    path: Optional[str] = II("common_eval.path")

    @staticmethod
    def check(cfg):
        """Raise UsageError (option, value given, legal values) for a value out of range, and
        options that do not go together."""
        adapting = cfg.adapt_steps > 0
        objective = cfg.adapt_objective if adapting else cfg.ae_objective
        rules = [
            ("--ae-ratio", cfg.ae_ratio, 0 <= cfg.ae_ratio < math.inf, "a number of 0 or more"),
            ("--ae-weight", cfg.ae_weight, 0 <= cfg.ae_weight < math.inf, "a number of 0 or more"),
            (
                "--ae-weight",
                cfg.ae_weight,
                not (cfg.ae_weight and cfg.ae_ratio),
                "0 where --ae-ratio is given: choose one",
            ),
            (
                "--ae-noise-rate",
                cfg.ae_noise_rate,
                0 < cfg.ae_noise_rate < 1,
                "above 0 and below 1",
            ),
            (
                "--contrastive-temperature",
                cfg.contrastive_temperature,
                0 < cfg.contrastive_temperature < math.inf,
                "above 0",
            ),
            ("--adapt-steps", cfg.adapt_steps, cfg.adapt_steps >= 0, "0 or more"),
            (
                "--adapt-steps",
                cfg.adapt_steps,
                not (adapting and (is_training_command() or is_validation_command())),
                "0 in training and validation: it is for fairseq-generate and fairseq-interactive",
            ),
            ("--adapt-lr", cfg.adapt_lr, 0 < cfg.adapt_lr < math.inf, "above 0"),
            ("--adapt-patience", cfg.adapt_patience, cfg.adapt_patience >= 0, "0 (never) or more"),
            (
                "--adapt-replay",
                cfg.adapt_replay,
                0 <= cfg.adapt_replay < math.inf,
                "a number of 0 or more",
            ),
            (
                "--adapt-replay",
                cfg.adapt_replay,
                bool(cfg.adapt_replay) == bool(cfg.adapt_replay_data),
                "above 0 where --adapt-replay-data is given, and 0 where it is not",
            ),
            (
                "--adapt-save",
                cfg.adapt_save,
                not cfg.adapt_save or (adapting and cfg.adapt_reset == "never"),
                "left out unless --adapt-steps is above 0 and --adapt-reset is never: otherwise "
                "nothing learnt is left",
            ),
            (
                "--adapt-objective",
                cfg.adapt_objective,
                not (
                    adapting
                    and cfg.adapt_objective == "contrastive"
                    and cfg.adapt_reset == "sentence"
                ),
                "autoencoding or masked_lm with --adapt-reset sentence: contrastive learns from "
                "the other sentences of a batch",
            ),
            (
                "--source-only",
                cfg.source_only,
                not (cfg.source_only and (cfg.ae_ratio or cfg.ae_weight or cfg.eval_bleu)),
                "left out with --ae-ratio, --ae-weight and --eval-bleu, which need a target",
            ),
            (
                "--ae-noise",
                cfg.ae_noise,
                cfg.ae_noise == "none" or objective == "autoencoding",
                "none unless the objective is autoencoding",
            ),
            (
                "--init-encoder-from",
                cfg.init_encoder_from,
                not (cfg.init_encoder_from and cfg.init_from),
                "left out where --init-from is given",
            ),
        ]
        for option, value, legal, values in rules:
            if not legal:
                raise UsageError(f"{option} is {value}; it must be {values}")


def is_source_update(update, ratio):
    """Whether `update` (from 0) learns from the source alone, at `ratio` such updates for each
    translation update.

    Spread as evenly as whole updates allow, and a function of the update's number only: workers
    agree, and a resumed run goes on.
    """
    ratio = Fraction(ratio).limit_denominator(10**6)
    share = ratio / (1 + ratio)
    return math.floor((update + 1) * share) > math.floor(update * share)


def _row(sample, row, sentence, pad):
    """The batch of one that holds the sentence of `row` without padding; pad: the target's."""

    def cut(part):
        return {
            name: value[row : row + 1] if torch.is_tensor(value) and value.dim() else value
            for name, value in part.items()
        }

    alone = cut({name: value for name, value in sample.items() if name != "net_input"})
    alone["net_input"] = dict(cut(sample["net_input"]), src_tokens=sentence[None])
    if (
        alone.get("target") is not None
    ):  # for --score-reference; the decoder's input is padded where the target is
        there = alone["target"][0].ne(pad)
        alone["target"] = alone["target"][:, there]
        if alone["net_input"].get("prev_output_tokens") is not None:
            alone["net_input"]["prev_output_tokens"] = alone["net_input"]["prev_output_tokens"][
                :, there
            ]
    return alone


class _NoMetrics:
    """Stands in for the criterion where an update was none of its own."""

    @staticmethod
    def reduce_metrics(logging_outputs):
        pass


@register_task("translation_autoencoding", dataclass=TranslationAutoencodingConfig)
class TranslationAutoencodingTask(TranslationDualHeadTask):
    """Translation with any criterion, mixed with learning from the source; and learning while
    translating."""

    def __init__(self, cfg, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        TranslationAutoencodingConfig.check(cfg)
        self.epoch, self.warned = 1, False
        self.adapt_steps, self.adapters = cfg.adapt_steps, []
        self.training_objective = self._objective(cfg.ae_objective)
        # Goes into checkpoints, so that --init-encoder-from can tell another dictionary.
        self.state.merge_state_dict({"source_dictionary": dictionary_fingerprint(src_dict)})

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        """Load the dictionaries; with --source-only the target's may be missing, and is then the
        source's.

        Raises UsageError.
        """
        TranslationAutoencodingConfig.check(cfg)
        if not cfg.source_only:
            try:
                return super().setup_task(cfg, **kwargs)
            except FileNotFoundError as error:
                raise UsageError(
                    f"there is no {error.filename}; name the folder that fairseq-preprocess wrote "
                    "and its languages (-s, -t), and for "
                    "source text alone add --source-only"
                ) from None
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

    def _objective(self, name):
        noise = self.cfg.ae_noise if name == "autoencoding" else "none"
        return SourceObjective(
            name,
            self.source_dictionary,
            noise,
            self.cfg.ae_noise_rate,
            self.cfg.contrastive_temperature,
        )

    @property
    def learns_source(self):
        """Whether training learns from the source at all."""
        return bool(self.cfg.source_only or self.cfg.ae_ratio or self.cfg.ae_weight)

    def build_model(self, cfg, from_checkpoint=False):
        """Build the model, check that it can learn what is asked for, and start its encoder from
        `--init-encoder-from`."""
        # fairseq builds a generator here for --eval-bleu, before the weights are loaded; nothing
        # may adapt that model.
        steps, self.adapt_steps = self.adapt_steps, 0
        try:
            model = super().build_model(cfg, from_checkpoint)
        finally:
            self.adapt_steps = steps
        if self.learns_source:
            check_source_passes(model, self.cfg.ae_objective, "--ae-objective")
        if self.cfg.init_encoder_from and not from_checkpoint:
            initialise_encoder_from(model, self.cfg.init_encoder_from, self.source_dictionary)
        return model

    # -- training ----------------------------------------------------------------------------------

    def begin_epoch(self, epoch, model):
        """Noise is drawn anew each epoch."""
        super().begin_epoch(epoch, model)
        self.epoch = epoch

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
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

    def valid_step(self, sample, model, criterion):
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

    def reduce_metrics(self, logging_outputs, criterion):
        """The criterion's figures where it was used, and `ae_loss`, the source's loss per unit in
        bits."""
        translated = any("loss" in log for log in logging_outputs)
        super().reduce_metrics(logging_outputs, criterion if translated else _NoMetrics())
        units = sum(log.get("ae_units", 0) for log in logging_outputs)
        if units:
            loss = sum(log.get("ae_loss", 0) for log in logging_outputs) / units / math.log(2)
            metrics.log_scalar("ae_loss", loss, units, round=3)
            if not translated:
                # fairseq wants a loss of every update; where translation has one, this one does not
                # enter its mean.
                metrics.log_scalar("loss", loss, units if self.cfg.source_only else 0, round=3)

    # -- translating -------------------------------------------------------------------------------

    def build_generator(self, models, args, *more, **kwargs):
        """fairseq's generator; prepares the models to learn where --adapt-steps asks for it.

        Raises UsageError for models that cannot.
        """
        if self.adapt_steps:
            for model in models:
                check_source_passes(model, self.cfg.adapt_objective, "--adapt-objective")
            replay = self._load_replay() if self.cfg.adapt_replay else None
            self.adapters = [self._adapter(model, replay) for model in models]
            if self.cfg.adapt_save:
                self._save_at_exit(models)
        return super().build_generator(models, args, *more, **kwargs)

    def _save_at_exit(self, models):
        """fairseq's commands end without a word to the task, so Python's own end is used; it comes
        after an interrupt too.

        Raises UsageError where the model could not be written.
        """
        path, trained = self.cfg.adapt_save, utils.split_paths(self.cfg.path or "")
        if len(models) > 1 or len(trained) != 1:
            raise UsageError("--adapt-save writes one model; name one checkpoint with --path")
        folder = os.path.dirname(os.path.abspath(path))
        if not os.access(folder, os.W_OK):
            raise UsageError(
                f"--adapt-save {path}: the folder {folder} does not exist or cannot be written; "
                "name another one"
            )
        if os.path.isdir(path):
            raise UsageError(f"--adapt-save {path} is a folder; name a file in it")
        if os.path.realpath(path) == os.path.realpath(trained[0]):
            raise UsageError(
                f"--adapt-save {path} is the checkpoint of --path, whose optimiser would be lost; "
                "name another file"
            )

        def save():
            try:
                save_adapted(models[0], trained[0], path)
                logger.info(f"--adapt-save: the adapted model is in {path}")
            except KlangError as error:
                logger.error(str(error))
                sys.stdout.flush()
                logging.shutdown()
                os._exit(1)  # what an exit handler raises does not change the exit status

        atexit.register(save)
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
            )  # its default ends without exit handlers

    def _adapter(self, model, replay):
        cfg = self.cfg
        return Adapter(
            model,
            self._objective(cfg.adapt_objective),
            steps=cfg.adapt_steps,
            lr=cfg.adapt_lr,
            parameters=cfg.adapt_parameters,
            patience=cfg.adapt_patience,
            seed=cfg.seed,
            replay=replay,
            ratio=cfg.adapt_replay,
        )

    def _load_replay(self):
        folder, cfg = self.cfg.adapt_replay_data, self.cfg
        for language, own in (
            (cfg.source_lang, self.source_dictionary),
            (cfg.target_lang, self.target_dictionary),
        ):
            path = os.path.join(folder, f"dict.{language}.txt")
            if not os.path.isfile(path):
                raise UsageError(
                    f"--adapt-replay-data {folder} holds no dict.{language}.txt; name the folder "
                    "that fairseq-preprocess wrote"
                )
            if dictionary_fingerprint(self.load_dictionary(path)) != dictionary_fingerprint(own):
                raise UsageError(
                    f"--adapt-replay-data {folder}: its dictionary dict.{language}.txt differs "
                    "from the model's; binarise it with "
                    "fairseq-preprocess --srcdict and --tgtdict"
                )
        try:
            dataset = load_langpair_dataset(
                folder,
                "train",
                cfg.source_lang,
                self.source_dictionary,
                cfg.target_lang,
                self.target_dictionary,
                combine=False,
                dataset_impl=cfg.dataset_impl,
                upsample_primary=1,
                left_pad_source=cfg.left_pad_source,
                left_pad_target=cfg.left_pad_target,
                max_source_positions=cfg.max_source_positions,
                max_target_positions=cfg.max_target_positions,
                truncate_source=True,
            )
        except FileNotFoundError:
            dataset = None
        if dataset is None or dataset.tgt is None or not len(dataset):
            raise UsageError(
                f"--adapt-replay-data {folder} holds no training pairs "
                f"{cfg.source_lang}-{cfg.target_lang}"
            )
        return Replay(dataset, self.target_dictionary.pad())

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Translate a batch; with --adapt-steps, learn from its source first.

        With --adapt-reset sentence each sentence is learnt and translated alone and without
        padding, so that neither order nor batch size can change a translation.
        """

        def translate(part, rows):
            prefixes, limits = (
                None if extra is None else extra[rows] for extra in (prefix_tokens, constraints)
            )
            return super(TranslationAutoencodingTask, self).inference_step(
                generator, models, part, prefixes, limits
            )

        if not self.adapters:
            return translate(sample, slice(None))
        sentences = strip_padding(sample["net_input"]["src_tokens"], self.source_dictionary.pad())
        if self.cfg.adapt_reset == "never":
            self._learn(sentences)
            return translate(sample, slice(None))
        translations = []
        for row, sentence in enumerate(sentences):
            alone = _row(sample, row, sentence, self.target_dictionary.pad())
            with contextlib.ExitStack() as stack:
                if self._has_words(sentence):
                    for adapter in self.adapters:
                        self._report(stack.enter_context(adapter.adapted([sentence])))
                translations += translate(alone, slice(row, row + 1))
        return translations

    def _learn(self, sentences):
        sentences = [sentence for sentence in sentences if self._has_words(sentence)]
        if self.cfg.adapt_objective == "contrastive" and len(sentences) < 2:
            logger.warning(
                "a batch of fewer than two sentences: contrastive has nothing to compare, "
                "translated without learning"
            )
        elif sentences:
            for adapter in self.adapters:
                self._report(adapter.learn(sentences))

    def _has_words(self, sentence):
        if (sentence != self.source_dictionary.eos()).any():
            return True
        logger.warning(
            "a source sentence is empty: there is nothing to learn from it, translated without "
            "learning"
        )
        return False

    @staticmethod
    def _report(report):
        if report.stopped:
            logger.warning(
                f"{report.stopped}: the steps on this source were taken back; lower --adapt-lr or "
                "--adapt-steps"
            )
