"""Products of features with a large output matrix, chunk of rows by chunk of rows, so that no
N x V tensor is ever kept (docs/loss.md)."""

import threading
from typing import Any, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..compat import autocast_dtype, no_autocast

# Elements of one chunk of logits, by device: 32M float32 values are 128 MB. Measured on a CPU
# (docs/performance.md): with fewer rows the products read and repack the weight too often, more
# rows gain nothing. A GPU wants larger products.
CHUNK_ELEMENTS = {"cpu": 32 * 1024 * 1024, "cuda": 32 * 1024 * 1024}
CHUNK_MOST_ROWS = {"cpu": 512, "cuda": 4096}
CHUNK_LEAST_ROWS = 16

# Gradients of features, weight and bias, None where not asked for.
Gradients = Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]


def chunk_rows(rows: int, vocab_size: int, device_type: str) -> int:
    """Number of rows whose logits are computed at once, at least 16 where there are as many."""
    kind = device_type if device_type in CHUNK_ELEMENTS else "cuda"
    fitting = CHUNK_ELEMENTS[kind] // vocab_size
    return max(1, min(rows, max(CHUNK_LEAST_ROWS, min(CHUNK_MOST_ROWS[kind], fitting))))


def compute_dtype(
    features: Tensor, weight: Tensor, bias: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """Cast the inputs of a projection the way autocast would, differentiably.

    Custom autograd functions do not see autocast, so the cast happens here, before them.
    """
    dtype = autocast_dtype(features.device.type) or features.dtype
    return features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and softmaxes: float32 for half precision, otherwise the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Logits:
    """The logits of a projection by chunks: features [N, d], weight [V, d], bias [V] or None.

    All chunks use one buffer, which a CPU thread keeps for its next step: memory fresh from the
    system is cleared page by page at first use, which costs as much as several passes over it. One
    user at a time: a chunk is valid until the next.
    """

    _kept = threading.local()

    def __init__(self, features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
        self.features, self.weight, self.bias = features, weight, bias
        self.step = chunk_rows(features.size(0), weight.size(0), features.device.type)
        self.dtype = accumulation_dtype(features.dtype)
        self.buffer = (
            self._take_buffer(self.step * weight.size(0)) if self.dtype == features.dtype else None
        )

    def _take_buffer(self, size: int) -> Tensor:
        shape = self.step, self.weight.size(0)
        if self.features.device.type != "cpu":
            return self.features.new_empty(shape)
        name = str(self.dtype)
        kept = getattr(self._kept, name, None)
        if kept is None or kept.numel() < size:
            kept = self.features.new_empty(size)
            setattr(self._kept, name, kept)
        return kept[:size].view(shape)

    def chunks(self) -> Iterator[Tuple[slice, Tensor]]:
        """Yield (rows, logits [C, V]), float32 or better; the next chunk overwrites the logits."""
        for start in range(0, self.features.size(0), self.step):
            rows = slice(start, start + self.step)
            features = self.features[rows]
            if self.buffer is None:
                product = torch.nn.functional.linear(features, self.weight, self.bias)
                yield rows, product.to(self.dtype)
                continue
            out = self.buffer[: features.size(0)]
            if self.bias is None:
                yield rows, torch.mm(features, self.weight.t(), out=out)
            else:
                yield rows, torch.addmm(self.bias, features, self.weight.t(), out=out)


# logsumexp_and_softmax works on so many elements at a time: its passes find them in a CPU's cache.
_SLICE_ELEMENTS = 2 * 1024 * 1024


def logsumexp_and_softmax(logits: Tensor, factor: Optional[Tensor] = None) -> Tensor:
    """logsumexp [C] of each row of logits [C, V].

    With `factor` [C], the logits are overwritten by softmax * factor. The logsumexp comes from the
    largest logit and its probability, which is at least 1 / V: torch.logsumexp makes several
    passes over memory, torch.softmax one.
    """
    step = logits.size(0)
    if logits.device.type == "cpu":
        step = max(1, _SLICE_ELEMENTS // logits.size(1))
    result = []
    for start in range(0, logits.size(0), step):
        part = logits[start : start + step]
        probabilities = torch.softmax(part, 1)
        result.append(part.amax(1) - torch.log(probabilities.amax(1)))
        if factor is not None:
            torch.mul(probabilities, factor[start : start + step, None], out=part)
    return torch.cat(result)


class GradientSums:
    """Gradients of features, weight and bias, summed over chunks of d loss / d logits.

    The sums are float32 or better, and so are the products of float16 inputs: most probabilities
    lie below what float16 can hold, and the loss scale that lifts fairseq's over that limit is not
    known yet when a forward pass writes its gradients. bfloat16 has the range of float32.
    """

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Optional[Tensor], needed: Sequence[bool]
    ) -> None:
        wide = accumulation_dtype(features.dtype)
        product = wide if features.dtype == torch.float16 else features.dtype
        self.inputs = features.to(product), weight.to(product)
        self.features = torch.empty_like(features, dtype=wide) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None

    def add(self, rows: slice, dlogits: Tensor) -> None:
        """Add the contribution of one chunk, whose d loss / d logits is `dlogits` [C, V]."""
        features, weight = self.inputs
        if self.bias is not None:
            self.bias += dlogits.sum(0)
        if dlogits.dtype == features.dtype:
            if self.features is not None:
                torch.mm(dlogits, weight, out=self.features[rows])
            if self.weight is not None:
                self.weight.addmm_(dlogits.t(), features[rows])
        else:
            dlogits = dlogits.to(features.dtype)
            if self.features is not None:
                self.features[rows] = torch.mm(dlogits, weight).to(self.features.dtype)
            if self.weight is not None:
                self.weight += torch.mm(dlogits.t(), features[rows])

    def add_to_all_logits(self, factor: Tensor) -> None:
        """Add the contribution of a d loss / d logits that is `factor` [N] in each column of a row.

        Costs no pass over logits.
        """
        features, weight = self.inputs
        if self.features is not None:
            self.features += factor[:, None] * weight.sum(0, dtype=factor.dtype)
        if self.weight is not None:
            self.weight += factor @ features.to(factor.dtype)
        if self.bias is not None:
            self.bias += factor.sum()

    def results(self) -> Gradients:
        """The sums, in float32 or better."""
        return self.features, self.weight, self.bias


def cast_gradients(gradients: Gradients, dtype: torch.dtype) -> Gradients:
    """The gradients in the dtype of the inputs, as autograd wants them."""
    features, weight, bias = (None if g is None else g.to(dtype) for g in gradients)
    return features, weight, bias


class _LogSumExp(torch.autograd.Function):
    """log sum_v exp(f W^T + b) of each row; the backward pass computes the logits once more."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        result = features.new_empty(features.size(0), dtype=accumulation_dtype(features.dtype))
        with no_autocast(features.device.type):
            for rows, logits in Logits(features, weight, bias).chunks():
                result[rows] = logsumexp_and_softmax(logits)
        ctx.save_for_backward(features, weight, bias)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Gradients:
        features, weight, bias = ctx.saved_tensors
        grads = GradientSums(features, weight, bias, ctx.needs_input_grad[:3])
        with no_autocast(features.device.type):
            for rows, logits in Logits(features, weight, bias).chunks():
                logsumexp_and_softmax(logits, upstream[rows])
                grads.add(rows, logits)
        return cast_gradients(grads.results(), features.dtype)


def linear_logsumexp(features: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """logsumexp [N] of each row of a projection, in float32 or better.

    Args:
        features: [N, d]; weight: [V, d]; bias: [V] or None.
    """
    return _LogSumExp.apply(*compute_dtype(features, weight, bias))
