"""The candidates K_t of a position, from features: the top k, and the softmax restricted to them
(docs/loss.md)."""

import math
import warnings
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..compat import no_autocast
from .chunked import Logits, accumulation_dtype, compute_dtype

# The one sparse product below is built from a sorted index; torch would announce its beta state on
# every run.
warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")


class CandidateLogits(NamedTuple):
    """Logits of the candidates of each position.

    Attributes:
        top: [B, T, k], the k largest logits.
        indices: [B, T, k], their token ids (no gradient).
        reference: [B, T, R], the logits of the sentence's R reference tokens.
    """

    top: Tensor
    indices: Tensor
    reference: Tensor


# largest() compares maxima of blocks of so many values, unless a row has fewer than _FEW blocks for
# each of the k: then the detour costs more than it saves.
_BLOCKS = 8
_FEW = 16


def largest(values: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    """The k largest of each row and their columns, in no order: values [C, V] -> ([C, k], [C, k]).

    torch's topk on a CPU takes about 10 ns for every value it sees, ten times the cost of computing
    it. The k largest values lie in the k blocks of largest maxima, and maxima of strided blocks are
    nearly free; so those blocks are found first, by the same means, and topk sees a few times k
    values only. On a GPU topk is the faster way.
    """
    width = values.size(1) // _BLOCKS
    if values.device.type != "cpu" or width * _BLOCKS < _FEW * k:
        return values.topk(k, 1, sorted=False)
    blocks = values[:, : width * _BLOCKS].unflatten(1, (_BLOCKS, width))
    _, chosen = largest(blocks.amax(1), k)
    columns = (chosen[:, None, :] + width * torch.arange(_BLOCKS)[:, None]).flatten(1)
    rest = torch.arange(width * _BLOCKS, values.size(1)).expand(values.size(0), -1)
    columns = torch.cat((columns, rest), 1)
    top, place = values.gather(1, columns).topk(k, 1, sorted=False)
    return top, columns.gather(1, place)


class _CandidateLogits(torch.autograd.Function):
    """Logits of a few columns a row, found in one chunked pass; only those columns get gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        references: Tensor,
        k: int,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        batch, length, dim = features.shape
        flat = features.reshape(-1, dim)
        dtype = accumulation_dtype(features.dtype)
        top = features.new_empty(flat.size(0), k, dtype=dtype)
        indices = references.new_empty(flat.size(0), k)
        with no_autocast(features.device.type):
            if k:
                for rows, logits in Logits(flat, weight, bias).chunks():
                    top[rows], indices[rows] = largest(logits, k)
            of_reference = torch.bmm(features, weight[references].transpose(1, 2)).to(dtype)
            if bias is not None:
                of_reference += bias[references][:, None]
        ctx.save_for_backward(features, weight, bias, references, indices)
        ctx.mark_non_differentiable(indices)
        return top.view(batch, length, k), indices.view(batch, length, k), of_reference

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, dtop: Tensor, _: Any, dreference: Tensor
    ) -> Tuple[Optional[Tensor], ...]:
        features, weight, bias, references, indices = ctx.saved_tensors
        k, vocab = indices.size(1), weight.size(0)
        dtype = accumulation_dtype(features.dtype)
        flat = features.reshape(-1, features.size(2)).to(dtype)
        dtop, table = dtop.reshape(indices.shape), weight.to(dtype)
        dfeatures = dweight = dbias = None
        with no_autocast(features.device.type):
            if ctx.needs_input_grad[0]:
                dfeatures = torch.bmm(dreference, table[references]).view_as(flat)
                if k:
                    dfeatures += torch.nn.functional.embedding_bag(
                        indices, table, mode="sum", per_sample_weights=dtop
                    )
                dfeatures = dfeatures.view_as(features).to(features.dtype)
            if ctx.needs_input_grad[1]:
                dweight = (
                    _scatter_rows(dtop, indices, flat, vocab) if k else torch.zeros_like(table)
                )
                by_sentence = torch.bmm(dreference.transpose(1, 2), flat.view_as(features))
                dweight.index_add_(0, references.flatten(), by_sentence.flatten(0, 1))
                dweight = dweight.to(weight.dtype)
            if bias is not None and ctx.needs_input_grad[2]:
                dbias = torch.zeros(vocab, dtype=dtype, device=bias.device)
                dbias.index_add_(0, references.flatten(), dreference.sum(1).flatten())
                dbias.index_add_(0, indices.flatten(), dtop.flatten())
                dbias = dbias.to(bias.dtype)
        return dfeatures, dweight, dbias, None, None


def _scatter_rows(values: Tensor, indices: Tensor, features: Tensor, vocab: int) -> Tensor:
    """The sum [V, d] that holds, for each token v, values[n, j] * features[n] of every (n, j) with
    indices[n, j] = v.

    The transposed product of a sparse [N, V] matrix, as a CSR product: on a CPU several times
    faster than index_add of N * k rows, and without a tensor of [N, k, d].

    Args:
        values, indices: [N, k]; features: [N, d]; vocab: V.
    """
    rows, k = indices.shape
    order = torch.argsort(indices.flatten())
    starts = torch.zeros(vocab + 1, dtype=torch.long, device=indices.device)
    starts[1:] = torch.bincount(indices.flatten(), minlength=vocab).cumsum(0)
    matrix = torch.sparse_csr_tensor(
        starts, torch.div(order, k, rounding_mode="floor"), values.flatten()[order], (vocab, rows)
    )
    return matrix @ features


def candidate_logits(
    features: Tensor,
    weight: Tensor,
    references: Tensor,
    *,
    bias: Optional[Tensor] = None,
    topk: int,
) -> CandidateLogits:
    """Logits of each position's top-k tokens and of its sentence's reference tokens.

    Args:
        features: [B, T, d]; weight: [V, d]; bias: [V] or None.
        references: [B, R] token ids.
        topk: k, may be 0.
    Returns:
        :class:`CandidateLogits`, in float32 or better.
    """
    return CandidateLogits(
        *_CandidateLogits.apply(*compute_dtype(features, weight, bias), references, topk)
    )


def restricted_log_probs(
    candidates: CandidateLogits, target: Tensor, matchable: Tensor, vocab_size: int
) -> Tuple[Tensor, Tensor]:
    """log p_SB of the reference tokens, normalised over K_t, and |K_t|.

    Args:
        candidates: :class:`CandidateLogits` whose R reference tokens are the T of the target.
        target: [B, T] token ids; matchable: [B, T], which of them may match.
    Returns:
        log_probs [B, T, T] (position, reference token) and sizes [B, T].
    """
    batch, length = target.shape
    # A table [B, V] of the sentence's reference tokens tells which of the top k are counted
    # already; the column past the vocabulary takes the tokens that do not match.
    in_reference = torch.zeros(batch, vocab_size + 1, dtype=torch.bool, device=target.device)
    in_reference.scatter_(1, target.masked_fill(~matchable, vocab_size), True)
    repeated = in_reference.gather(1, candidates.indices.flatten(1)).view_as(candidates.indices)
    earlier = (target[:, :, None].eq(target[:, None, :]) & matchable[:, None, :]).tril(-1).any(2)
    distinct = (matchable & ~earlier)[:, None, :].expand(-1, length, -1)
    columns = torch.cat(
        (
            candidates.top.masked_fill(repeated, -math.inf),
            candidates.reference.masked_fill(~distinct, -math.inf),
        ),
        2,
    )
    sizes = (~repeated).sum(2) + distinct.sum(2)
    return candidates.reference - torch.logsumexp(columns, 2)[..., None], sizes
