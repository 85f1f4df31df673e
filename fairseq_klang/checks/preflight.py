"""What can be known to go wrong before training starts, told in one line before an hour is lost."""

import logging
import os
import tempfile

from ..checkpoints.whole import is_cut_short
from ..errors import UsageError

logger = logging.getLogger(__name__)


def check_checkpoint_metric(metric, maximize):
    """Warn when checkpoints are chosen by a loss, which gets worse as BLEU improves (DESIGN 7), or
    BLEU is minimised."""
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


def check_restore_file(save_dir, restore_file):
    """Raise UsageError where the checkpoint that training would resume from was cut short.

    Looks only at the archive's directory, which is written last.
    """
    path = restore_file if os.path.isabs(restore_file) else os.path.join(save_dir, restore_file)
    if not os.path.exists(path):
        path = restore_file
    if not os.path.isfile(path):
        return
    if is_cut_short(path):
        raise UsageError(
            f"checkpoint {path} was cut short while written: nothing was changed. Resume from "
            "another one with "
            "--restore-file, or move it away to start afresh"
        )


def check_arguments(args):
    """Check the data folder and the save folder of a fairseq-train command line that names one of
    our architectures.

    `args` is fairseq's parsed namespace; a namespace that comes from a checkpoint (it has `_name`)
    is left alone, for there the folders are those of another time and machine.
    Raises UsageError.
    """
    if hasattr(args, "_name") or not getattr(args, "data", None) or not hasattr(args, "save_dir"):
        return
    folder = str(args.data).split(os.pathsep)[0]
    if not os.path.isdir(folder):
        raise UsageError(
            f"data folder {folder} does not exist; make it with klang prepare or fairseq-preprocess"
        )
    if not any(name.startswith("dict.") for name in os.listdir(folder)):
        raise UsageError(
            f"data folder {folder} holds no dictionary (dict.LANG.txt); name the folder that "
            "fairseq-preprocess wrote "
            "(klang prepare calls it bin)"
        )
    try:
        os.makedirs(args.save_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=args.save_dir) as stream:
            stream.write(b"0")
    except OSError as error:
        raise UsageError(
            f"--save-dir {args.save_dir} cannot be written ({error.strerror}); name a folder that "
            "can, or free its permissions"
        ) from None
    check_restore_file(args.save_dir, getattr(args, "restore_file", "checkpoint_last.pt"))
