"""Products of features with a large output matrix, in chunks of rows, so that no N x V tensor is
ever kept (DESIGN 2)."""

import threading

import torch

from ..compat import autocast_dtype, no_autocast

# Elements of one chunk of logits, by device: 32M float32 values are 128 MB. Measured on a CPU
# (docs/performance.md): with fewer rows the products read and repack the weight too often, more
# rows gain nothing. A GPU wants larger products.
CHUNK_ELEMENTS = {"cpu": 32 * 1024 * 1024, "cuda": 32 * 1024 * 1024}
CHUNK_MOST_ROWS = {"cpu": 512, "cuda": 4096}
CHUNK_LEAST_ROWS = 16


def chunk_rows(rows, vocab_size, device_type):
    """Number of rows whose logits are computed at once, at least 16 where there are as many."""
    kind = device_type if device_type in CHUNK_ELEMENTS else "cuda"
    fitting = CHUNK_ELEMENTS[kind] // vocab_size
    return max(1, min(rows, max(CHUNK_LEAST_ROWS, min(CHUNK_MOST_ROWS[kind], fitting))))


def compute_dtype(features, weight, bias):
    """Cast the inputs of a projection the way autocast would, differentiably.

    Custom autograd functions do not see autocast, so the cast happens here, before them.
    """
    dtype = autocast_dtype(features.device.type) or features.dtype
    return features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def accumulation_dtype(dtype):
    """float32 for half precision, the dtype itself otherwise: sums and softmaxes are never half
    precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Logits:
    """The logits of a projection, chunk of rows by chunk of rows: features [N, d], weight [V, d],
    bias [V] or None.

    All chunks use one buffer, which a CPU thread keeps for its next step: memory fresh from the
    system is cleared page by page at first use, which costs as much as several passes over it. One
    user at a time: a chunk is valid until the next.
    """

    _kept = threading.local()

    def __init__(self, features, weight, bias):
        self.features, self.weight, self.bias = features, weight, bias
        self.step = chunk_rows(features.size(0), weight.size(0), features.device.type)
        self.dtype = accumulation_dtype(features.dtype)
        self.buffer = (
            self._take_buffer(self.step * weight.size(0)) if self.dtype == features.dtype else None
        )

    def _take_buffer(self, size):
        shape = self.step, self.weight.size(0)
        if self.features.device.type != "cpu":
            return self.features.new_empty(shape)
        kept = self._kept.__dict__.get(self.dtype)
        if kept is None or kept.numel() < size:
            kept = self._kept.__dict__[self.dtype] = self.features.new_empty(size)
        return kept[:size].view(shape)

    def chunks(self):
        """Yield (slice of rows, logits [C, V] in float32 or better, which the next chunk
        overwrites)."""
        for start in range(0, self.features.size(0), self.step):
            rows = slice(start, start + self.step)
            features = self.features[rows]
            if self.buffer is None:
                yield (
                    rows,
                    torch.nn.functional.linear(features, self.weight, self.bias).to(self.dtype),
                )
                continue
            out = self.buffer[: features.size(0)]
            if self.bias is None:
                yield rows, torch.mm(features, self.weight.t(), out=out)
            else:
                yield rows, torch.addmm(self.bias, features, self.weight.t(), out=out)


# logsumexp_and_softmax works on so many elements at a time: its passes find them in a CPU's cache.
_SLICE_ELEMENTS = 2 * 1024 * 1024


def logsumexp_and_softmax(logits, factor=None):
    """logsumexp [C] of each row of logits [C, V]; with `factor` [C], the logits are overwritten by
    softmax * factor.

    The logsumexp comes from the largest logit and its probability, which is at least 1 / V;
    torch.logsumexp makes several passes over memory, its softmax one.
    """
    step = (
        max(1, _SLICE_ELEMENTS // logits.size(1)) if logits.device.type == "cpu" else logits.size(0)
    )
    result = []
    for start in range(0, logits.size(0), step):
        part = logits[start : start + step]
        probabilities = torch.softmax(part, 1)
        result.append(part.amax(1) - torch.log(probabilities.amax(1)))
        if factor is not None:
            torch.mul(probabilities, factor[start : start + step, None], out=part)
    return torch.cat(result)


class _LogSumExp(torch.autograd.Function):
    """log sum_v exp(f W^T + b) for each row; the backward pass recomputes the logits chunk by
    chunk."""

    @staticmethod
    def forward(ctx, features, weight, bias):
        result = features.new_empty(features.size(0), dtype=accumulation_dtype(features.dtype))
        with no_autocast(features.device.type):
            for rows, logits in Logits(features, weight, bias).chunks():
                result[rows] = logsumexp_and_softmax(logits)
        ctx.save_for_backward(features, weight, bias)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        features, weight, bias = ctx.saved_tensors
        grads = GradientSums(features, weight, bias, ctx.needs_input_grad[:3])
        with no_autocast(features.device.type):
            for rows, logits in Logits(features, weight, bias).chunks():
                logsumexp_and_softmax(logits, upstream[rows])
                grads.add(rows, logits)
        return grads.results()


class GradientSums:
    """Gradients of features, weight and bias, accumulated from chunks of d loss / d logits."""

    def __init__(self, features, weight, bias, needed):
        self.source, self.weight_source = features, weight
        dtype = accumulation_dtype(features.dtype)
        self.features = torch.empty_like(features) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=dtype) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=dtype) if bias is not None and needed[2] else None
        self.dtype = features.dtype

    def add(self, rows, dlogits):
        """Add the contribution of one chunk; `dlogits` [C, V] is d loss / d logits of those
        rows."""
        if self.bias is not None:
            self.bias += dlogits.sum(0)
        dlogits = dlogits.to(self.dtype)
        if self.features is not None:
            torch.mm(dlogits, self.weight_source, out=self.features[rows])
        if self.weight is not None:
            if self.weight.dtype == self.dtype:
                self.weight.addmm_(dlogits.t(), self.source[rows])
            else:
                self.weight += torch.mm(dlogits.t(), self.source[rows])

    def add_to_all_logits(self, factor):
        """Add the contribution of a d loss / d logits that is `factor` [N] in every column of a
        row; costs no pass over logits."""
        wide = factor.dtype
        if self.features is not None:
            self.features += (factor[:, None] * self.weight_source.sum(0, dtype=wide)).to(
                self.dtype
            )
        if self.weight is not None:
            self.weight += factor @ self.source.to(wide)
        if self.bias is not None:
            self.bias += factor.sum()

    def results(self):
        """(d features, d weight, d bias) in the inputs' dtype, None where not asked for."""
        return tuple(
            None if g is None else g.to(self.dtype) for g in (self.features, self.weight, self.bias)
        )


def linear_logsumexp(features, weight, bias=None):
    """Row-wise logsumexp of a projection: features [N, d], weight [V, d], bias [V] or None -> [N],
    float32 or better."""
    return _LogSumExp.apply(*compute_dtype(features, weight, bias))
