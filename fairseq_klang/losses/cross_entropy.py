"""Cross-entropy of a linear output layer, fused with it: chunks of rows, gradients written at once
(docs/loss.md)."""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..compat import no_autocast
from .chunked import (
    GradientSums,
    Logits,
    accumulation_dtype,
    cast_gradients,
    compute_dtype,
    logsumexp_and_softmax,
)


class FusedCrossEntropy(NamedTuple):
    """Result of :func:`fused_cross_entropy`.

    Attributes:
        weighted: [N], row_weight * loss, the only part that carries gradient.
        loss: [N], smoothed cross-entropy in nats.
        nll: [N], cross-entropy without smoothing, in nats.
        best: [N], the highest scoring token, or None.
    """

    weighted: Tensor
    loss: Tensor
    nll: Tensor
    best: Optional[Tensor]


class _CrossEntropy(torch.autograd.Function):
    """Forward computes the gradients of sum(row_weight * loss) as well, chunk by chunk.

    Backward only scales them when every row has the same upstream gradient, which is the case for a
    sum; any other upstream is folded into the row weights and the chunks are computed once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        row_weight: Optional[Tensor],
        smoothing: float,
        ignore_index: int,
        want_best: bool,
        with_gradient: bool,
    ) -> Tuple[Tensor, ...]:
        ctx.options = smoothing, ignore_index
        ctx.save_for_backward(features, weight, bias, target, row_weight)
        needed = ctx.needs_input_grad[:3]
        grads = None
        if with_gradient and any(needed):
            grads = GradientSums(features, weight, bias, needed)
        loss, nll, best = _chunks(
            features, weight, bias, target, row_weight, smoothing, ignore_index, grads, want_best
        )
        ctx.gradients = None if grads is None else grads.results()
        weighted = loss.clone() if row_weight is None else loss * row_weight
        ctx.mark_non_differentiable(loss, nll, best)
        return weighted, loss, nll, best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
        features, weight, bias, target, row_weight = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        uniform = upstream.stride(0) == 0 or upstream.size(0) == 1
        if gradients is not None and uniform and upstream.size(0) > 0:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(upstream[0])
        else:
            grads = GradientSums(features, weight, bias, ctx.needs_input_grad[:3])
            row_weight = upstream if row_weight is None else row_weight * upstream
            smoothing, ignore = ctx.options
            _chunks(features, weight, bias, target, row_weight, smoothing, ignore, grads, False)
            gradients = grads.results()
        return (*cast_gradients(gradients, features.dtype), *[None] * 6)


def _chunks(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    row_weight: Optional[Tensor],
    smoothing: float,
    ignore_index: int,
    grads: Optional[GradientSums],
    want_best: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """One pass over the rows: (loss, nll, best), and gradients into `grads` unless it is None."""
    n, vocab = features.size(0), weight.size(0)
    wide = accumulation_dtype(features.dtype)
    values = features.new_empty(2, n, dtype=wide)
    best = target.new_empty(n if want_best else 0)
    # fairseq spreads epsilon over V - 1 tokens: label_smoothed_nll_loss.
    spread = smoothing / (vocab - 1) if smoothing else 0.0
    confidence = 1.0 - smoothing - spread if smoothing else 1.0
    scored = target.ne(ignore_index)
    factor = scored.to(wide) if row_weight is None else scored * row_weight.to(wide)
    with no_autocast(features.device.type):
        sums = _row_sums(features, weight, bias) if smoothing else None
        for rows, logits in Logits(features, weight, bias).chunks():
            index = target[rows, None].clamp(min=0)
            if want_best:
                best[rows] = logits.argmax(1)
            of_target = logits.gather(1, index)[:, 0]
            lse = logsumexp_and_softmax(logits, None if grads is None else factor[rows])
            nll = loss = lse - of_target
            if sums is not None:
                loss = confidence * nll + spread * (vocab * lse - sums[rows])
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


def _row_sums(features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Sum [N] of each row's logits: a product with the sum of the weight's rows, so no pass over
    the logits."""
    wide = accumulation_dtype(features.dtype)
    sums = features.to(wide) @ weight.sum(0, dtype=wide)
    return sums if bias is None else sums + bias.sum(dtype=wide)


def fused_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor] = None,
    row_weight: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    ignore_index: int,
    with_best: bool = False,
) -> FusedCrossEntropy:
    """Label-smoothed cross-entropy of `features @ weight.T + bias`, without a tensor of [N, V].

    Values and gradients are those of fairseq's `label_smoothed_cross_entropy`. A gradient that
    differs by row (not the plain sum of `weighted`) is right too, but costs a second pass.

    Args:
        features: [N, d]; weight: [V, d]; target: [N] token ids; bias: [V] or None.
        row_weight: [N] or None, constant factor of each row's loss.
        label_smoothing: epsilon, spread over V - 1 tokens.
        ignore_index: target id that does not count.
        with_best: also return the highest scoring token of each row.
    Returns:
        :class:`FusedCrossEntropy`.
    Raises:
        ValueError: epsilon outside [0, 1).
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
    weighted, loss, nll, best = _CrossEntropy.apply(
        *compute_dtype(features, weight, bias),
        target,
        None if row_weight is None else row_weight.detach(),
        label_smoothing,
        ignore_index,
        with_best,
        # A parameter asks for its gradient under no_grad too, and forward itself runs without.
        torch.is_grad_enabled(),
    )
    return FusedCrossEntropy(weighted, loss, nll, best if with_best else None)


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor] = None,
    row_weight: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    ignore_index: int,
) -> Tuple[Tensor, Tensor]:
    """(loss [N], nll [N]) of :func:`fused_cross_entropy`.

    `loss` includes `row_weight` and carries the gradient, `nll` neither.
    """
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


def torch_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor] = None,
    ignore_index: int,
    reduction: str = "sum",
) -> Tensor:
    """Cross-entropy without smoothing or row weights by torch's own chunked kernel (torch >= 2.13).

    Args:
        features: [N, d]; weight: [V, d]; target: [N] token ids; bias: [V] or None.
        ignore_index: target id that does not count.
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
