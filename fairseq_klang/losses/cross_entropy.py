"""Cross-entropy of a linear output layer, fused with it: chunks of rows, gradients written at once
(DESIGN 2)."""

from collections import namedtuple

import torch

from ..compat import no_autocast
from .chunked import GradientSums, Logits, accumulation_dtype, compute_dtype, logsumexp_and_softmax

FusedCrossEntropy = namedtuple("FusedCrossEntropy", "weighted loss nll best")
FusedCrossEntropy.__doc__ = """Result of :func:`fused_cross_entropy`, all [N].

weighted: row_weight * loss, the only part that carries gradient; loss: smoothed cross-entropy in
    nats;
nll: without smoothing; best: the highest scoring token, or None.
"""


class _CrossEntropy(torch.autograd.Function):
    """Forward computes the gradients of sum(row_weight * loss) as well, chunk by chunk.

    Backward only scales them when every row has the same upstream gradient, which is the case for a
    sum; any other upstream is folded into the row weights and the chunks are computed once more.
    """

    @staticmethod
    def forward(
        ctx, features, weight, bias, target, row_weight, smoothing, ignore_index, want_best
    ):
        ctx.options = smoothing, ignore_index
        ctx.save_for_backward(features, weight, bias, target, row_weight)
        needed = ctx.needs_input_grad[:3]
        ctx.eager = GradientSums(features, weight, bias, needed) if any(needed) else None
        loss, nll, best = _chunks(
            features,
            weight,
            bias,
            target,
            row_weight,
            smoothing,
            ignore_index,
            ctx.eager,
            want_best,
        )
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
    wide = accumulation_dtype(features.dtype)
    values = features.new_empty(2, n, dtype=wide)
    best = target.new_empty(n if want_best else 0)
    # fairseq spreads epsilon over V - 1 tokens: label_smoothed_nll_loss, DESIGN 1.
    spread = smoothing / (vocab - 1) if smoothing else 0.0
    confidence = 1.0 - smoothing - spread if smoothing else 1.0
    scored = target.ne(ignore_index)
    factor = scored.to(wide) if row_weight is None else scored * row_weight.to(wide)
    with no_autocast(features.device.type):
        # The sum of a row's logits is the product with the sum of the weight's rows: no pass over
        # the logits.
        sums = features.to(wide) @ weight.sum(0, dtype=wide) if smoothing else None
        if sums is not None and bias is not None:
            sums += bias.sum(dtype=wide)
        for rows, logits in Logits(features, weight, bias).chunks():
            index = target[rows, None].clamp(min=0)
            if want_best:
                best[rows] = logits.argmax(1)
            of_target = logits.gather(1, index)[:, 0]
            lse = logsumexp_and_softmax(logits, None if grads is None else factor[rows])
            nll = lse - of_target
            loss = confidence * nll + spread * (vocab * lse - sums[rows]) if smoothing else nll
            # where, not a product: the logits of a padded row may be anything, nan included.
            values[0, rows] = torch.where(scored[rows], loss, torch.zeros_like(loss))
            values[1, rows] = torch.where(scored[rows], nll, torch.zeros_like(nll))
            if grads is not None:
                # d loss / d logits = factor * (softmax - confidence * onehot - spread); the last is
                # one number for all of a row.
                grads.add(rows, logits.scatter_add_(1, index, -confidence * factor[rows, None]))
        if grads is not None and smoothing:
            grads.add_to_all_logits(-spread * factor)
    return values[0], values[1], best


def fused_cross_entropy(
    features,
    weight,
    target,
    *,
    bias=None,
    row_weight=None,
    label_smoothing=0.0,
    ignore_index,
    with_best=False,
):
    """Label-smoothed cross-entropy of `features @ weight.T + bias` without ever holding [N, V]
    (DESIGN 2).

    Values and gradients are those of fairseq's `label_smoothed_cross_entropy`. A gradient that
    differs by row (not the plain sum of `weighted`) is right too, but costs a second pass.

    Args:
        features: [N, d]; weight: [V, d]; target: [N] token ids; bias: [V] or None.
        row_weight: [N] or None, constant factor of each row's loss.
        label_smoothing: epsilon, spread over V - 1 tokens; ignore_index: target id that does not
            count.
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
        *compute_dtype(features, weight, bias),
        target,
        row_weight,
        label_smoothing,
        ignore_index,
        with_best,
    )
    return FusedCrossEntropy(weighted, loss, nll, best if with_best else None)


def linear_cross_entropy(
    features, weight, target, *, bias=None, row_weight=None, label_smoothing=0.0, ignore_index
):
    """(loss [N], nll [N]) of :func:`fused_cross_entropy`: `loss` includes `row_weight` and carries
    the gradient, `nll` neither."""
    result = fused_cross_entropy(
        features,
        weight,
        target,
        bias=bias,
        row_weight=row_weight,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
    )
    return result.weighted, result.nll


def torch_cross_entropy(features, weight, target, *, bias=None, ignore_index, reduction="sum"):
    """Cross-entropy without smoothing or row weights by torch's own chunked kernel (torch >= 2.13).

    Args:
        features: [N, d]; weight: [V, d]; target: [N] token ids; bias: [V] or None; ignore_index:
            target id that does not count.
        reduction: "sum", or "none" for one loss a row (whose gradient costs a second pass).
    Returns:
        The loss in nats, a scalar or [N], in float32 or better.
    Raises:
        AttributeError: an older torch.
    """
    features, weight, bias = compute_dtype(features, weight, bias)
    with no_autocast(features.device.type):
        loss = torch.nn.functional.linear_cross_entropy(
            features,
            weight,
            target,
            linear_bias=bias,
            ignore_index=ignore_index,
            reduction=reduction,
            options=torch.nn.LinearCrossEntropyOptions(),
        )
    return loss.to(accumulation_dtype(loss.dtype))
