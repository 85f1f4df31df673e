"""Cross-entropy of a linear output layer, fused with it: chunks of rows, gradients written at once (DESIGN 2)."""
from collections import namedtuple

import torch

from ..compat import no_autocast
from .chunked import GradientSums, accumulation_dtype, chunk_rows, compute_dtype, logits_of

FusedCrossEntropy = namedtuple("FusedCrossEntropy", "weighted loss nll best")
FusedCrossEntropy.__doc__ = """Result of :func:`fused_cross_entropy`, all [N].

weighted: row_weight * loss, the only part that carries gradient; loss: smoothed cross-entropy in nats;
nll: without smoothing; best: the highest scoring token, or None.
"""


class _CrossEntropy(torch.autograd.Function):
    """Forward computes the gradients of sum(row_weight * loss) as well, chunk by chunk.

    Backward only scales them when every row has the same upstream gradient, which is the case for a sum; any
    other upstream is folded into the row weights and the chunks are computed once more.
    """

    @staticmethod
    def forward(ctx, features, weight, bias, target, row_weight, smoothing, ignore_index, want_best):
        ctx.options = smoothing, ignore_index
        ctx.save_for_backward(features, weight, bias, target, row_weight)
        needed = ctx.needs_input_grad[:3]
        ctx.eager = GradientSums(features, weight, bias, needed) if any(needed) else None
        loss, nll, best = _chunks(features, weight, bias, target, row_weight, smoothing, ignore_index, ctx.eager, want_best)
        weighted = loss.clone() if row_weight is None else loss * row_weight
        ctx.mark_non_differentiable(loss, nll, best)
        return weighted, loss, nll, best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream, *_):
        features, weight, bias, target, row_weight = ctx.saved_tensors
        grads, ctx.eager = ctx.eager, None
        uniform = upstream.stride(0) == 0 or upstream.size(0) == 1
        if grads is not None and uniform and upstream.size(0) > 0:
            scale = upstream[0]
            for gradient in (grads.features, grads.weight, grads.bias):
                if gradient is not None:
                    gradient.mul_(scale)
        else:
            grads = GradientSums(features, weight, bias, ctx.needs_input_grad[:3])
            row_weight = upstream if row_weight is None else row_weight * upstream
            _chunks(features, weight, bias, target, row_weight, *ctx.options, grads, False)
        return (*grads.results(), None, None, None, None, None)


def _chunks(features, weight, bias, target, row_weight, smoothing, ignore_index, grads, want_best):
    """One pass over the rows: per-row values, and gradients into `grads` unless it is None."""
    n, vocab = features.size(0), weight.size(0)
    values = features.new_empty(2, n, dtype=accumulation_dtype(features.dtype))
    best = target.new_empty(n if want_best else 0)
    # fairseq spreads epsilon over V - 1 tokens: label_smoothed_nll_loss, DESIGN 1.
    spread = smoothing / (vocab - 1) if smoothing else 0.0
    confidence = 1.0 - smoothing - spread if smoothing else 1.0
    scored = target.ne(ignore_index)
    with no_autocast(features.device.type):
        step = chunk_rows(n, vocab)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            index = target[rows, None].clamp(min=0)
            logits = logits_of(features[rows], weight, bias)
            if want_best:
                best[rows] = logits.argmax(1)
            lse = torch.logsumexp(logits, 1)
            nll = lse - logits.gather(1, index)[:, 0]
            loss = confidence * nll + spread * (vocab * lse - logits.sum(1)) if smoothing else nll
            # where, not a product: the logits of a padded row may be anything, nan included.
            values[0, rows] = torch.where(scored[rows], loss, torch.zeros_like(loss))
            values[1, rows] = torch.where(scored[rows], nll, torch.zeros_like(nll))
            if grads is not None:
                factor = scored[rows].to(logits.dtype)
                if row_weight is not None:
                    factor = factor * row_weight[rows]
                # d loss / d logits = softmax - confidence * onehot - spread
                dlogits = logits.sub_(lse[:, None]).exp_()
                if smoothing:
                    dlogits.sub_(spread)
                dlogits.scatter_add_(1, index, torch.full_like(index, -confidence, dtype=dlogits.dtype))
                grads.add(rows, dlogits.mul_(factor[:, None]))
    return values[0], values[1], best


def fused_cross_entropy(
    features, weight, target, *, bias=None, row_weight=None, label_smoothing=0.0, ignore_index, with_best=False
):
    """Label-smoothed cross-entropy of `features @ weight.T + bias` without ever holding [N, V] (DESIGN 2).

    Values and gradients are those of fairseq's `label_smoothed_cross_entropy`. A gradient that differs by row (not
    the plain sum of `weighted`) is right too, but costs a second pass.

    Args:
        features: [N, d]; weight: [V, d]; target: [N] token ids; bias: [V] or None.
        row_weight: [N] or None, constant factor of each row's loss.
        label_smoothing: epsilon, spread over V - 1 tokens; ignore_index: target id that does not count.
        with_best: also return the highest scoring token of each row.
    Returns:
        :class:`FusedCrossEntropy`.
    Raises:
        ValueError: epsilon outside [0, 1).
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
    row_weight = None if row_weight is None else row_weight.detach()
    weighted, loss, nll, best = _CrossEntropy.apply(
        *compute_dtype(features, weight, bias), target, row_weight, label_smoothing, ignore_index, with_best
    )
    return FusedCrossEntropy(weighted, loss, nll, best if with_best else None)


def linear_cross_entropy(features, weight, target, *, bias=None, row_weight=None, label_smoothing=0.0, ignore_index):
    """(loss [N], nll [N]) of :func:`fused_cross_entropy`: `loss` includes `row_weight` and carries the gradient, `nll` neither."""
    result = fused_cross_entropy(
        features, weight, target, bias=bias, row_weight=row_weight, label_smoothing=label_smoothing, ignore_index=ignore_index
    )
    return result.weighted, result.nll
