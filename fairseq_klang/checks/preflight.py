"""What can be known to go wrong before training starts, told in one line before an hour is lost."""

import functools
import logging
import os
from typing import Any

from fairseq.tasks.translation import TranslationTask

from ..analysis.tokens import bleu_tokenizer
from ..checkpoints.whole import is_cut_short
from ..errors import UsageError

logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=None)
def _warn_once(text: str) -> None:
    """Warn of what both a model and a criterion look at."""
    logger.warning(text)


def check_checkpoint_metric(metric: str, maximize: bool) -> None:
    """Warn when checkpoints are chosen by a loss, which gets worse as BLEU improves, or BLEU is
    minimised."""
    if metric in ("loss", "nll_loss", "ppl"):
        logger.warning(
            f"--best-checkpoint-metric is {metric}, but under a BLEU loss nll gets worse as BLEU "
            "improves: choose by BLEU "
            "with --eval-bleu --best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
        )
    elif metric in ("bleu", "sb") and not maximize:
        logger.warning(
            f"--best-checkpoint-metric is {metric} without --maximize-best-checkpoint-metric: the "
            "worst is kept"
        )


def check_restore_file(save_dir: str, restore_file: str) -> None:
    """Raise UsageError where the checkpoint that training would resume from was cut short."""
    path = restore_file if os.path.isabs(restore_file) else os.path.join(save_dir, restore_file)
    if not os.path.exists(path):
        path = restore_file
    if os.path.isfile(path) and is_cut_short(path):
        raise UsageError(
            f"checkpoint {path} was cut short while written: nothing was changed. Resume from "
            "another one with --restore-file, or move it away to start afresh"
        )


def check_data_folder(data: str) -> None:
    """Raise UsageError where the first of the data folders is not there or holds no dictionary."""
    folder = str(data).split(os.pathsep)[0]
    if not os.path.isdir(folder):
        raise UsageError(
            f"data folder {folder} does not exist; make it with klang prepare or fairseq-preprocess"
        )
    if not any(name.startswith("dict.") for name in os.listdir(folder)):
        raise UsageError(
            f"data folder {folder} holds no dictionary (dict.LANG.txt); name the folder that "
            "fairseq-preprocess wrote (klang prepare calls it bin)"
        )


def check_bleu(task: Any, metric: str) -> None:
    """Look at how a training measures BLEU in validation.

    Warns of a target language that --eval-bleu cannot measure. Raises UsageError where checkpoints
    are chosen by a BLEU that is not measured: fairseq ends with a KeyError after the first epoch.
    """
    if not isinstance(task, TranslationTask):
        return  # it may measure BLEU in a way of its own
    if metric == "bleu" and not task.cfg.eval_bleu:
        raise UsageError(
            "--best-checkpoint-metric is bleu, but no BLEU is measured; add --eval-bleu, or choose "
            "by loss"
        )
    language = task.cfg.target_lang
    if task.cfg.eval_bleu and language and bleu_tokenizer(language)[0] != "13a":
        _warn_once(
            f"--eval-bleu takes what stands between spaces for words, so its BLEU says little of "
            f"{language} text and is often 0. Choose checkpoints by loss, and score with "
            "fairseq-generate and klang score, which takes the tokenizer of the language"
        )


def check_training(options: Any, task: Any) -> None:
    """The checks of every training, whichever of our parts it uses.

    options: what has fairseq's options of checkpoints, a namespace or a criterion's configuration;
        those of fairseq-hydra-train's models have none, and are left alone.
    Raises UsageError.
    """
    if not hasattr(options, "restore_file"):
        return
    check_bleu(task, options.best_checkpoint_metric)
    check_restore_file(options.save_dir, options.restore_file)
