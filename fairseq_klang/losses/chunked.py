"""Products of features with a large output matrix, in chunks of rows, so that no N x V tensor is ever kept (DESIGN 2)."""
import torch

from ..compat import autocast_dtype, no_autocast

# Logits of one chunk are kept at or below this many elements: 8M float32 values are 32 MB, a size that stays
# in a CPU's last-level cache region or costs little next to the model on a GPU.
CHUNK_ELEMENTS = 8 * 1024 * 1024


def chunk_rows(rows, vocab_size):
    """Number of rows whose logits are computed at once, between 16 and 512."""
    return max(1, min(rows, max(16, min(512, CHUNK_ELEMENTS // vocab_size))))


def compute_dtype(features, weight, bias):
    """Cast the inputs of a projection the way autocast would, differentiably.

    Custom autograd functions do not see autocast, so the cast happens here, before them.
    """
    dtype = autocast_dtype(features.device.type) or features.dtype
    return features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def accumulation_dtype(dtype):
    """float32 for half precision, the dtype itself otherwise: sums and softmaxes are never half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def logits_of(features, weight, bias):
    """[C, d] x [V, d] -> [C, V], upcast to float32 or better."""
    logits = torch.nn.functional.linear(features, weight, bias)
    return logits.to(accumulation_dtype(logits.dtype))


class _LogSumExp(torch.autograd.Function):
    """log sum_v exp(f W^T + b) for each row; the backward pass recomputes the logits chunk by chunk."""

    @staticmethod
    def forward(ctx, features, weight, bias):
        with no_autocast(features.device.type):
            step = chunk_rows(features.size(0), weight.size(0))
            parts = [torch.logsumexp(logits_of(f, weight, bias), 1) for f in features.split(step)]
            result = torch.cat(parts) if parts else features.new_zeros(0)
        ctx.save_for_backward(features, weight, bias, result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        features, weight, bias, result = ctx.saved_tensors
        grads = GradientSums(features, weight, bias, ctx.needs_input_grad[:3])
        with no_autocast(features.device.type):
            step = chunk_rows(features.size(0), weight.size(0))
            for start in range(0, features.size(0), step):
                rows = slice(start, start + step)
                probabilities = logits_of(features[rows], weight, bias).sub_(result[rows, None]).exp_()
                grads.add(rows, probabilities.mul_(upstream[rows, None]))
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
        """Add the contribution of one chunk; `dlogits` [C, V] is d loss / d logits of those rows."""
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

    def results(self):
        """(d features, d weight, d bias) in the inputs' dtype, None where not asked for."""
        return tuple(None if g is None else g.to(self.dtype) for g in (self.features, self.weight, self.bias))


def linear_logsumexp(features, weight, bias=None):
    """Row-wise logsumexp of a projection: features [N, d], weight [V, d], bias [V] or None -> [N], float32 or better."""
    return _LogSumExp.apply(*compute_dtype(features, weight, bias))
