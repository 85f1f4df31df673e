"""Fake quantisation: symmetric, one scale a row, gradient straight through; the scheme of the
engine that serves (docs/precision.md)."""

from typing import Any, Callable, Optional, Tuple

import torch

# Below this a row's largest value would make the scale overflow; such a row is quantised on the
# grid of this value.
SMALLEST = 1e-30


def quantize(x: torch.Tensor, bits: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """(levels, scale): whole numbers in x's shape, from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and
    one scale a row.

    x: [..., n], float32 or float64. The scale [..., 1] is (2^(bits-1) - 1) / max |x| of the row;
        the levels are x * scale, rounded half to even. A row of zeros has levels 0; a row with a
        value that is not finite becomes nan.
    """
    largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_()).clamp_(
        min=SMALLEST
    )
    scale = torch.full_like(largest, 2 ** (bits - 1) - 1).div_(
        largest
    )  # number / tensor would round twice
    return torch.mul(x, scale).round_(), scale


def round_trip(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x [..., n] as it is after quantisation: levels / scale. Half precision is computed in float32
    and keeps its dtype."""
    levels, scale = quantize(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, bits)
    return levels.div_(scale).to(x.dtype)


class _FakeQuantize(torch.autograd.Function):
    """round_trip forward; backward hands the gradient through as it is, or itself quantised."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bits: int,
        gradient_bits: Optional[int],
        on_backward: Optional[Callable[[], Any]],
    ) -> torch.Tensor:
        ctx.gradient_bits, ctx.on_backward = gradient_bits, on_backward
        return round_trip(x, bits)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.on_backward is not None:
            ctx.on_backward()
        return (
            (gradient if ctx.gradient_bits is None else round_trip(gradient, ctx.gradient_bits)),
            None,
            None,
            None,
        )


def fake_quantize(
    x: torch.Tensor,
    bits: int,
    gradient_bits: Optional[int] = None,
    on_backward: Optional[Callable[[], Any]] = None,
) -> torch.Tensor:
    """:func:`round_trip` whose gradient goes straight through.

    Args:
        x: [..., n]; each row of n values has its own scale.
        bits: 2 to 8.
        gradient_bits: quantise the gradient too, by the same scheme; None leaves it as it is.
        on_backward: called without arguments when a gradient arrives.
    """
    return _FakeQuantize.apply(x, bits, gradient_bits, on_backward)
