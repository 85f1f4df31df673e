"""Soft BLEU (docs/loss.md): from logits, the readable reference, and from features, the lean path
that training takes."""

import math
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .candidates import candidate_logits, restricted_log_probs
from .chunked import accumulation_dtype, linear_logsumexp

NGRAMS = ("true", "decay")
COUNTS = ("matched", "clipped")


class SoftBleu(NamedTuple):
    """Soft BLEU of a batch.

    Attributes:
        score: [B], the geometric mean of the precisions; 0 for a sentence with nothing to match.
        precisions: [B, max_order], P_n; nan where an order is left out.
        sizes: [B, T], |K_t|, the number of candidates of a position; 0 where it is not scored.
    """

    score: Tensor
    precisions: Tensor
    sizes: Tensor


def _check_options(max_order: int, ngrams: str, decay: float, counts: str) -> None:
    if max_order < 1:
        raise ValueError(f"max_order is {max_order}; it must be at least 1")
    if ngrams not in NGRAMS:
        raise ValueError(f"ngrams is {ngrams!r}; legal values are {', '.join(NGRAMS)}")
    if counts not in COUNTS:
        raise ValueError(f"counts is {counts!r}; legal values are {', '.join(COUNTS)}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}; it must be above 0 and at most 1")


def resolve_topk(topk: Optional[int], vocab_size: int) -> Optional[int]:
    """Number of top candidates, or None for the full softmax (topk None, 0, or at least V).

    Raises ValueError for a negative number.
    """
    if topk is not None and topk < 0:
        raise ValueError(f"topk is {topk}; it must be 0 or more (0 is the full softmax)")
    return None if not topk or topk >= vocab_size else topk


def target_masks(
    target: Tensor, *, pad: int, eos: int, unk: int, bos: int
) -> Tuple[Tensor, Tensor]:
    """(scored, matchable) of a target [B, T], boolean [B, T].

    `scored`: the positions before `</s>`; `matchable`: the reference tokens that can match.
    """
    scored = target.ne(pad) & target.ne(eos)
    return scored, scored & target.ne(unk) & target.ne(bos)


def soft_bleu(
    logits: Tensor,
    target: Tensor,
    *,
    pad: int,
    eos: int,
    unk: int,
    bos: int,
    topk: Optional[int] = None,
    max_order: int = 4,
    ngrams: str = "true",
    decay: float = 0.5,
    counts: str = "matched",
) -> SoftBleu:
    """Soft BLEU from logits by plain autograd: the readable reference.

    Args:
        logits: [B, T, V] of the SB head; half precision is upcast to float32.
        target: [B, T] token ids, padded with `pad`.
        pad, eos, unk, bos: ids of the special tokens.
        topk: k; None, 0 or >= V is the full softmax.
        max_order: N at most.
        ngrams, decay, counts: the options of docs/loss.md.
    Returns:
        :class:`SoftBleu`.
    Raises:
        ValueError: an option out of range.
    """
    _check_options(max_order, ngrams, decay, counts)
    scored, matchable = target_masks(target, pad=pad, eos=eos, unk=unk, bos=bos)
    logits = logits.to(accumulation_dtype(logits.dtype))
    vocab = logits.size(-1)
    k = resolve_topk(topk, vocab)
    if k is None:
        sizes = scored * vocab
    else:
        references = torch.zeros(target.size(0), vocab, dtype=torch.bool, device=target.device)
        references.scatter_(1, target.masked_fill(~matchable, pad), True)
        # pad stood in for the tokens that do not match; it is a candidate only where the top k
        # choose it.
        references[:, pad] = False
        keep = torch.zeros_like(logits, dtype=torch.bool)
        keep.scatter_(2, logits.detach().topk(k, -1).indices, True)
        keep |= references[:, None]
        sizes = keep.sum(-1) * scored
        logits = logits.masked_fill(~keep, -math.inf)
    log_probs = torch.log_softmax(logits, -1)
    of_reference = log_probs.gather(
        2, target.masked_fill(~matchable, pad)[:, None].expand(-1, target.size(1), -1)
    )
    return _score(of_reference, target, scored, matchable, sizes, max_order, ngrams, decay, counts)


def restricted_soft_bleu(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor] = None,
    pad: int,
    eos: int,
    unk: int,
    bos: int,
    topk: Optional[int] = None,
    max_order: int = 4,
    ngrams: str = "true",
    decay: float = 0.5,
    counts: str = "matched",
) -> SoftBleu:
    """Soft BLEU from decoder features: values and gradients of :func:`soft_bleu`, without a tensor
    of N x V elements.

    Costs 2NVd flops to find the candidates and O(N k d) for the rest; the full softmax costs 8NVd.

    Args:
        features: [B, T, d]; weight: [V, d] and bias: [V] or None of the SB head.
        The rest: as in :func:`soft_bleu`.
    Returns:
        :class:`SoftBleu`.
    Raises:
        ValueError: an option out of range.
    """
    _check_options(max_order, ngrams, decay, counts)
    scored, matchable = target_masks(target, pad=pad, eos=eos, unk=unk, bos=bos)
    k = resolve_topk(topk, weight.size(0))
    candidates = candidate_logits(
        features, weight, target.masked_fill(~matchable, pad), bias=bias, topk=k or 0
    )
    if k is None:
        normaliser = linear_logsumexp(features.flatten(0, 1), weight, bias).view_as(target)
        log_probs, sizes = candidates.reference - normaliser[..., None], scored * weight.size(0)
    else:
        log_probs, sizes = restricted_log_probs(candidates, target, matchable, weight.size(0))
        sizes = sizes * scored
    return _score(log_probs, target, scored, matchable, sizes, max_order, ngrams, decay, counts)


def _score(
    log_probs: Tensor,
    target: Tensor,
    scored: Tensor,
    matchable: Tensor,
    sizes: Tensor,
    max_order: int,
    ngrams: str,
    decay: float,
    counts: str,
) -> SoftBleu:
    """From log p_SB(y_s | t) [B, T, T] (position t, reference token s) to :class:`SoftBleu`."""
    lengths = scored.sum(1)
    # An unmatchable column may hold anything, -inf included, which would turn masked gradients into
    # nan.
    usable = scored[:, :, None] & matchable[:, None, :]
    log_probs = torch.where(usable, log_probs, torch.zeros_like(log_probs))
    log_p, included = _log_precisions(
        log_probs, target, scored, matchable, max_order if ngrams == "true" else 1, counts
    )
    if ngrams == "decay":
        orders = torch.arange(max_order, dtype=log_p.dtype, device=log_p.device)
        log_p = log_p + math.log(decay) * orders
        included = included & (lengths[:, None] > orders)
    # log P_n of an order left out is replaced before any arithmetic, so that it brings no nan into
    # the gradient.
    log_p = torch.where(included, log_p, torch.zeros_like(log_p))
    count = included.sum(1)
    score = torch.where(
        count > 0, torch.exp(log_p.sum(1) / count.clamp(min=1)), torch.zeros_like(log_p[:, 0])
    )
    precisions = log_p.new_full((target.size(0), max_order), math.nan)
    precisions[:, : log_p.size(1)] = torch.where(
        included, log_p.detach().exp(), precisions[:, : log_p.size(1)]
    )
    return SoftBleu(score, precisions, sizes)


def _log_precisions(
    log_probs: Tensor,
    target: Tensor,
    scored: Tensor,
    matchable: Tensor,
    max_order: int,
    counts: str,
) -> Tuple[Tensor, Tensor]:
    """(log P_n, whether order n counts) of true n-grams, both [B, N], N = min(max_order, T).

    An n-gram of the reference that starts at s, against the positions from t on, has the
    log-probability sum_j log_probs[t + j, s + j]: each order adds one shifted diagonal to the order
    before.
    """
    lengths = scored.sum(1)
    total, windows, grams = log_probs, scored, matchable
    same_token = target[:, :, None].eq(target[:, None, :]) & matchable[:, :, None]
    same = same_token
    log_precisions, included = [], []
    for n in range(1, max(1, min(max_order, target.size(1))) + 1):
        if n > 1:
            total = total[:, :-1, :-1] + log_probs[:, n - 1 :, n - 1 :]
            windows = windows[:, :-1] & scored[:, n - 1 :]
            grams = grams[:, :-1] & matchable[:, n - 1 :]
            same = same[:, :-1, :-1] & same_token[:, n - 1 :, n - 1 :]
        # ref_n is a set: of equal n-grams only the first counts.
        first = grams & ~same.tril(-1).any(2)
        log_matches = _log_matches(total, windows, first, same, counts)
        denominators = (lengths - n + 1).clamp(min=1)
        log_precisions.append(log_matches - torch.log(denominators.to(log_matches.dtype)))
        included.append(first.any(1))
    return torch.stack(log_precisions, 1), torch.stack(included, 1)


def _log_matches(
    total: Tensor, windows: Tensor, first: Tensor, same: Tensor, counts: str
) -> Tensor:
    """log of the soft matches of one order, [B].

    Args:
        total: [B, S, S], log-probability of the n-gram at s in the window at t.
        windows: [B, S], whether the window is scored.
        first: [B, S], whether the n-gram can match and is the first of its kind.
        same: [B, S, S], whether the n-grams at two places are equal.
        counts: "matched" or "clipped".
    """
    kept = windows[:, :, None] & first[:, None, :]
    if counts == "matched":
        return _masked_logsumexp(total.flatten(1), kept.flatten(1))
    log_counts = _masked_logsumexp(total.transpose(1, 2), kept.transpose(1, 2))
    in_reference = torch.log(same.sum(2).clamp(min=1).to(total.dtype))
    return _masked_logsumexp(torch.minimum(log_counts, in_reference), first)


def _masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """logsumexp over the last dimension where `mask`; 0 with no gradient where nothing is left."""
    some = mask.any(-1, keepdim=True)
    values = values.masked_fill(~mask, -math.inf)
    values = torch.where(some, values, torch.zeros_like(values))
    result = torch.logsumexp(values, -1)
    return torch.where(some[..., 0], result, torch.zeros_like(result))
