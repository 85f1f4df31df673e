"""What the criterions share: the rules of fairseq's own flags, and the counts of accuracy."""

from typing import Any, Dict, List, Tuple

from torch import Tensor


def label_smoothing_rules(cfg: Any) -> List[Tuple[str, Any, bool, str]]:
    """Rules for `errors.check_options` on fairseq's flags of label-smoothed cross-entropy."""
    return [
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


def accuracy_counts(best: Tensor, target: Tensor, pad: int) -> Dict[str, Tensor]:
    """The log entries of --report-accuracy, as fairseq names them.

    Args:
        best: [N], the highest scoring token of each row; target: [N] token ids; pad: padding id.
    """
    counted = target.ne(pad)
    return {"n_correct": (best.eq(target) & counted).sum(), "total": counted.sum()}
