"""Learning from the source while translating: the flags --adapt-*, and the base class of the task
`translation_autoencoding` that follows them."""

import atexit
import contextlib
import logging
import math
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.translation import load_langpair_dataset
from omegaconf import II
from torch import nn

from ..checkpoints.initialise import dictionary_fingerprint
from ..checkpoints.saving import save_adapted
from ..compat import is_training_command, is_validation_command
from ..errors import KlangError, Rule, UsageError
from ..learning.adaptation import PARAMETERS, RESETS, Adapter
from ..learning.noise import NOISES
from ..learning.objectives import OBJECTIVES, SourceObjective, strip_padding
from ..losses import fused_cross_entropy
from ..models.autoencoder import check_source_passes
from ..models.heads import read_heads
from .translation_dualhead import TranslationDualHeadConfig, TranslationDualHeadTask

logger = logging.getLogger(__name__)

Sample = Dict[str, Any]  # a batch as fairseq collates it

REPLAY_SENTENCES = 16  # of one translation step on replay data


@dataclass
class AdaptingConfig(TranslationDualHeadConfig):
    """The flags of translation_dualhead, those of the objectives, and those of learning while
    translating; the legal ranges are in :meth:`rules`."""

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
    def rules(cfg: Any) -> List[Rule]:
        """[(option, value given, whether it is legal, legal values)]."""
        adapting = cfg.adapt_steps > 0
        return [
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
        ]


class Replay:
    """Translation steps on parallel data, between those on the source.

    dataset: a fairseq LanguagePairDataset with targets; pad: the target's padding id.
    """

    def __init__(self, dataset: Any, pad: int) -> None:
        self.dataset, self.pad = dataset, pad

    def loss(self, model: nn.Module, seed: Sequence[int], device: torch.device) -> torch.Tensor:
        """Cross-entropy per token of REPLAY_SENTENCES pairs, which `seed` (a sequence) draws."""
        chosen = np.random.default_rng(list(seed)).integers(
            len(self.dataset), size=REPLAY_SENTENCES
        )
        sample = self.dataset.collater([self.dataset[int(i)] for i in chosen])
        net_input = {name: value.to(device) for name, value in sample["net_input"].items()}
        target = sample["target"].to(device).flatten()
        heads = read_heads(model, net_input)
        result = fused_cross_entropy(
            heads.features.flatten(0, 1),
            heads.ce.weight,
            target,
            bias=heads.ce.bias,
            ignore_index=self.pad,
        )
        return result.weighted.sum() / sample["ntokens"]


def _row(sample: Sample, row: int, sentence: torch.Tensor, pad: int) -> Sample:
    """The batch of one that holds the sentence of `row` without padding; pad: the target's."""

    def cut(part: Dict[str, Any]) -> Dict[str, Any]:
        return {
            name: value[row : row + 1] if torch.is_tensor(value) and value.dim() else value
            for name, value in part.items()
        }

    alone = cut({name: value for name, value in sample.items() if name != "net_input"})
    alone["net_input"] = dict(
        cut(sample["net_input"]),
        src_tokens=sentence[None].to(sample["net_input"]["src_tokens"].device),
    )
    if alone.get("target") is not None:  # for --score-reference
        there = alone["target"][0].ne(pad)  # the decoder's input is padded at the same places
        alone["target"] = alone["target"][:, there]
        previous = alone["net_input"].get("prev_output_tokens")
        if previous is not None:
            alone["net_input"]["prev_output_tokens"] = previous[:, there]
    return alone


class AdaptingTask(TranslationDualHeadTask):
    """Learns from each source before it is translated, where --adapt-steps asks for it."""

    def __init__(self, cfg: Any, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.adapt_steps, self.adapters = cfg.adapt_steps, []

    def objective(self, name: str) -> SourceObjective:
        """The objective `name`, one of OBJECTIVES, as the flags describe it."""
        noise = self.cfg.ae_noise if name == "autoencoding" else "none"
        return SourceObjective(
            name,
            self.source_dictionary,
            noise,
            self.cfg.ae_noise_rate,
            self.cfg.contrastive_temperature,
        )

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """fairseq's model. A generator that is built with it, for --eval-bleu, learns nothing: the
        weights are not loaded yet."""
        steps, self.adapt_steps = self.adapt_steps, 0
        try:
            return super().build_model(cfg, from_checkpoint)
        finally:
            self.adapt_steps = steps

    def build_generator(
        self, models: Sequence[nn.Module], args: Any, *more: Any, **kwargs: Any
    ) -> Any:
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
        """Write the adapted model when Python ends, after an interrupt too.

        fairseq's commands do not tell a task that they end. Raises UsageError for a place where the
        model could not be written.
        """
        path, trained = self.cfg.adapt_save, utils.split_paths(self.cfg.path or "")
        if len(models) > 1 or len(trained) != 1:
            raise UsageError("--adapt-save writes one model; name one checkpoint with --path")
        if os.path.isdir(path):
            raise UsageError(f"--adapt-save {path} is a folder; name a file in it")
        real = os.path.realpath(path)
        special = os.path.exists(real) and not os.path.isfile(real)  # such as a named pipe
        place = real if special else os.path.dirname(real)
        if not os.access(place, os.W_OK):
            raise UsageError(
                f"--adapt-save {path}: {place} does not exist or cannot be written; name another "
                "place"
            )
        if real == os.path.realpath(trained[0]):
            raise UsageError(
                f"--adapt-save {path} is the checkpoint of --path, whose optimiser would be lost; "
                "name another file"
            )

        def save() -> None:
            try:
                save_adapted(models[0], trained[0], path)
                logger.info(f"--adapt-save: the adapted model is in {path}")
            except KlangError as error:
                logger.error(f"--adapt-save {error}")
                sys.stdout.flush()
                logging.shutdown()
                os._exit(1)  # what an exit handler raises does not change the exit status

        atexit.register(save)
        if threading.current_thread() is threading.main_thread():
            # The default of SIGTERM ends without exit handlers.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def _adapter(self, model, replay):
        cfg = self.cfg
        return Adapter(
            model,
            self.objective(cfg.adapt_objective),
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

    def inference_step(
        self,
        generator: Any,
        models: Sequence[nn.Module],
        sample: Sample,
        prefix_tokens: Optional[torch.Tensor] = None,
        constraints: Optional[torch.Tensor] = None,
    ) -> List[List[Dict[str, torch.Tensor]]]:
        """Translate a batch; with --adapt-steps, learn from its source first.

        With --adapt-reset sentence each sentence is learnt and translated alone and without
        padding, so that neither order nor batch size can change a translation.
        """

        def translate(part: Sample, rows: slice) -> List[List[Dict[str, torch.Tensor]]]:
            prefixes, limits = (
                None if extra is None else extra[rows] for extra in (prefix_tokens, constraints)
            )
            return super(AdaptingTask, self).inference_step(
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
