"""Soft BLEU: against the loops of reference.py, dense against lean, against sacrebleu, and its edge
cases."""

import math

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_klang.losses import restricted_soft_bleu, soft_bleu
from helpers.halves import HALVES
from helpers.reference import reference_soft_bleu

SPECIAL = dict(bos=0, pad=1, eos=2, unk=3)
PAD, EOS, UNK = 1, 2, 3


def make_batch(seed, batch=4, length=7, vocab=19, dim=5, dtype=torch.float64, bias=True):
    """Random features, weight, bias and a padded target that holds unk and repeated tokens."""
    rng = torch.Generator().manual_seed(seed)
    target = torch.randint(3, min(vocab, 9), (batch, length), generator=rng)
    for row in range(batch):
        end = int(torch.randint(0, length, (1,), generator=rng)) if row else length - 1
        target[row, end] = EOS
        target[row, end + 1 :] = PAD
    features = torch.randn(batch, length, dim, generator=rng, dtype=torch.float64).to(dtype)
    weight = (2 * torch.randn(vocab, dim, generator=rng, dtype=torch.float64)).to(dtype)
    offsets = torch.randn(vocab, generator=rng, dtype=torch.float64).to(dtype) if bias else None
    return features, weight, offsets, target


def gradients(function, *inputs, upstream):
    inputs = [None if x is None else x.clone().requires_grad_() for x in inputs]
    score = function(*inputs).score
    score.backward(upstream.to(score.dtype))
    return score.detach(), [None if x is None else x.grad for x in inputs]


def dense(features, weight, bias, target, **options):
    return soft_bleu(
        torch.nn.functional.linear(features, weight, bias), target, **SPECIAL, **options
    )


def lean(features, weight, bias, target, **options):
    return restricted_soft_bleu(features, weight, target, bias=bias, **SPECIAL, **options)


OPTIONS = st.fixed_dictionaries(
    {
        "topk": st.sampled_from([None, 1, 3, 24]),
        "max_order": st.integers(1, 5),
        "ngrams": st.sampled_from(["true", "decay"]),
        "decay": st.sampled_from([0.5, 0.9]),
        "counts": st.sampled_from(["matched", "clipped"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), batch=st.integers(1, 4), length=st.integers(1, 8), options=OPTIONS
)
def test_dense_and_lean_equal_the_loops_in_value_and_gradient(seed, batch, length, options):
    features, weight, bias, target = make_batch(seed, batch, length)
    upstream = torch.linspace(0.3, 2, batch)

    def loops(f, w, b):
        logits = torch.nn.functional.linear(f, w, b)
        return soft_bleu(logits, target, **SPECIAL)._replace(
            score=reference_soft_bleu(logits, target, **SPECIAL, **options)
        )

    expected, expected_gradients = gradients(loops, features, weight, bias, upstream=upstream)
    for function in (dense, lean):
        found, found_gradients = gradients(
            lambda f, w, b: function(f, w, b, target, **options),
            features,
            weight,
            bias,
            upstream=upstream,
        )
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        for a, b in zip(found_gradients, expected_gradients):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("topk", [1, 24, 60, 65])
@pytest.mark.parametrize("counts", ["matched", "clipped"])
def test_lean_equals_dense(dtype, tolerance, bias, topk, counts):
    features, weight, offsets, target = make_batch(
        5, batch=6, length=11, vocab=60, dtype=dtype, bias=bias
    )
    upstream = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, 1.0])
    results = [
        gradients(
            lambda f, w, b: function(f, w, b, target, topk=topk, counts=counts),
            features,
            weight,
            offsets,
            upstream=upstream,
        )
        for function in (dense, lean)
    ]
    torch.testing.assert_close(results[1][0], results[0][0], rtol=tolerance, atol=tolerance)
    for a, b in zip(results[1][1], results[0][1]):
        if a is not None or b is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        a, b = (
            function(features, weight, offsets, target, topk=topk, counts=counts)
            for function in (dense, lean)
        )
    torch.testing.assert_close(a.score, b.score, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        a.precisions, b.precisions, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert torch.equal(a.sizes, b.sizes)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_lean_equals_dense_under_autocast(dtype):
    # One rounding step of the half type on logits of size about 10, times the steepest slope of the
    # score.
    tolerance = 0.05 if dtype == torch.bfloat16 else 0.01
    features, weight, bias, target = make_batch(
        11, batch=3, length=9, vocab=40, dtype=torch.float32
    )
    with torch.autocast("cpu", dtype=dtype):
        results = [
            gradients(
                lambda f, w, b: function(f, w, b, target, topk=5),
                features,
                weight,
                bias,
                upstream=torch.ones(3),
            )
            for function in (dense, lean)
        ]
    assert results[1][0].dtype == torch.float32
    torch.testing.assert_close(results[1][0], results[0][0], rtol=tolerance, atol=tolerance)
    for a, b in zip(results[1][1], results[0][1]):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_half_precision_inputs_are_upcast():
    features, weight, bias, target = make_batch(3, vocab=40, dtype=torch.float32)
    half = [x.to(torch.bfloat16) for x in (features, weight, bias)]
    exact = lean(*(x.double() for x in half), target, topk=5).score
    for function in (dense, lean):
        score = function(*half, target, topk=5).score
        assert score.dtype == torch.float32
        torch.testing.assert_close(score.double(), exact, rtol=0.05, atol=0.01)


def test_gradcheck():
    features, weight, bias, target = make_batch(2, batch=2, length=4, vocab=9)
    inputs = [x.requires_grad_() for x in (features, weight, bias)]
    for topk in (None, 3):
        assert torch.autograd.gradcheck(
            lambda f, w, b: lean(f, w, b, target, topk=topk).score, inputs
        )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(4, 8), min_size=1, max_size=9), st.integers(0, 10**6))
def test_one_hot_counts_are_sacrebleus_statistics(reference, seed):
    """On one-hot positions the clipped soft counts are BLEU's: correct n-grams of corpus_bleu on
    the same ids."""
    rng = torch.Generator().manual_seed(seed)
    hypothesis = torch.randint(4, 9, (len(reference),), generator=rng)
    logits = torch.full((1, len(reference) + 1, 9), -1e4, dtype=torch.float64)
    logits[0, :-1].scatter_(1, hypothesis[:, None], 0.0)
    target = torch.tensor([reference + [EOS]])
    result = soft_bleu(logits, target, **SPECIAL, counts="clipped")
    statistics = sacrebleu.corpus_bleu(
        [" ".join(map(str, hypothesis.tolist()))],
        [[" ".join(map(str, reference))]],
        tokenize="none",
        force=True,
    )
    for n in range(1, min(4, len(reference)) + 1):
        soft_count = result.precisions[0, n - 1].item() * (len(reference) - n + 1)
        assert statistics.totals[n - 1] == len(reference) - n + 1
        assert soft_count == pytest.approx(statistics.counts[n - 1], abs=1e-9)


def test_tiny_precisions_keep_their_gradient():
    """P_4 ~ 1e-12 and far below: the float32 gradient equals the float64 one, where a plain product
    would be 0."""
    features, weight, _, target = make_batch(8, batch=2, length=8, vocab=30)
    for function in (dense, lean):
        results = []
        for dtype in (torch.float64, torch.float32):
            f, w = (6 * features).to(dtype), weight.to(dtype)
            results.append(
                gradients(
                    lambda f, w, b: function(f, w, b, target, topk=5),
                    f,
                    w,
                    None,
                    upstream=torch.ones(2),
                )
            )
        precise, single = results
        assert 0 < lean(6 * features, weight, None, target, topk=5).precisions[0, 3] < 1e-12
        assert precise[1][0].abs().max() > 0
        torch.testing.assert_close(single[1][0].double(), precise[1][0], rtol=2e-3, atol=1e-6)


def test_confident_logits_stay_finite_in_single_precision():
    features, weight, bias, target = make_batch(4, batch=3, length=6, vocab=30, dtype=torch.float32)
    for scale in (1e2, 1e4):
        for function in (dense, lean):
            score, grads = gradients(
                lambda f, w, b: function(f, w, b, target, topk=4),
                scale * features,
                weight,
                bias,
                upstream=torch.ones(3),
            )
            assert torch.isfinite(score).all()
            assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("function", [dense, lean], ids=["dense", "lean"])
def test_sentences_with_nothing_to_match(function):
    features, weight, bias, _ = make_batch(6, batch=3, length=3)
    target = torch.tensor([[EOS, PAD, PAD], [UNK, UNK, EOS], [5, UNK, EOS]])
    score, grads = gradients(
        lambda f, w, b: function(f, w, b, target, topk=3),
        features,
        weight,
        bias,
        upstream=torch.ones(3),
    )
    result = function(features, weight, bias, target, topk=3)
    assert score[:2].tolist() == [0, 0] and score[2] > 0
    assert grads[0][:2].abs().max() == 0 and grads[0][2].abs().max() > 0
    assert torch.isnan(result.precisions[:2]).all()
    # 5 unk: one unigram matches, no bigram can, and the denominator still counts both positions.
    assert torch.isnan(result.precisions[2]).tolist() == [False, True, True, True]
    assert result.sizes[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", [dense, lean], ids=["dense", "lean"])
def test_padding_order_and_splitting_do_not_matter(function):
    features, weight, bias, target = make_batch(9, batch=5, length=6)
    whole = function(features, weight, bias, target, topk=4).score
    padded = function(
        torch.cat((features, torch.full((5, 3, features.size(2)), 7.0, dtype=torch.float64)), 1),
        weight,
        bias,
        torch.cat((target, torch.full((5, 3), PAD)), 1),
        topk=4,
    ).score
    order = torch.tensor([3, 0, 4, 2, 1])
    reordered = function(features[order], weight, bias, target[order], topk=4).score
    single = torch.cat(
        [
            function(features[i : i + 1], weight, bias, target[i : i + 1], topk=4).score
            for i in range(5)
        ]
    )
    for other in (padded, reordered[order.argsort()], single):
        torch.testing.assert_close(other, whole, rtol=1e-12, atol=1e-14)


def test_decay_saturates_where_the_docs_say():
    """A perfect hypothesis scores 0.5 ** 1.5 = 0.354 under `decay`, and 1 under `true`."""
    target = torch.tensor([[4, 5, 6, 7, 8, EOS]])
    logits = torch.full((1, 6, 9), -1e4, dtype=torch.float64).scatter_(2, target[..., None], 0.0)
    assert soft_bleu(logits, target, **SPECIAL, ngrams="decay").score.item() == pytest.approx(
        0.5**1.5, abs=1e-9
    )
    assert soft_bleu(logits, target, **SPECIAL).score.item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("counts", ["matched", "clipped"])
def test_copying_the_previous_token_scores_almost_as_high_as_a_perfect_output(counts):
    """A position may match any n-gram of the reference, also one that it was given: docs/loss.md,
    "What can be gamed".

    A head that repeats its input y_(t-1) has T - n of its T - n + 1 n-grams in the reference, so SB
    = ((T - 4) / T) ** (1/4).
    """
    words = 12
    target = torch.tensor([list(range(4, 4 + words)) + [EOS]])
    previous = torch.cat((torch.tensor([[EOS]]), target[:, :-1]), 1)
    logits = torch.full((1, words + 1, 20), -1e4, dtype=torch.float64).scatter_(
        2, previous[..., None], 0.0
    )
    score = soft_bleu(logits, target, **SPECIAL, topk=1, counts=counts).score.item()
    # The first position was given </s> and spreads its mass over the reference, which adds a
    # little.
    assert score == pytest.approx(((words - 4) / words) ** 0.25, rel=0.01)


def test_candidates_are_a_constant_for_the_gradient_and_contain_the_reference():
    features, weight, bias, target = make_batch(1, vocab=50)
    result = lean(features, weight, bias, target, topk=2)
    scored = (target != PAD) & (target != EOS)
    distinct = torch.tensor(
        [len({v for v in row if v not in (PAD, EOS, UNK)}) for row in target.tolist()]
    )
    sizes = result.sizes
    assert torch.equal(sizes > 0, scored)
    assert (sizes[scored] >= 2).all() and (sizes <= distinct[:, None] + 2).all()
    assert (sizes.max(1).values >= distinct).all()


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(topk=-1), "topk is -1; it must be 0 or more"),
        (dict(max_order=0), "max_order is 0; it must be at least 1"),
        (dict(ngrams="some"), "ngrams is 'some'; legal values are true, decay"),
        (dict(counts="all"), "counts is 'all'; legal values are matched, clipped"),
        (dict(decay=0.0), "decay is 0.0; it must be above 0"),
        (dict(decay=math.nan), "decay is nan; it must be above 0"),
    ],
)
@pytest.mark.parametrize("function", [dense, lean], ids=["dense", "lean"])
def test_options_out_of_range(function, options, message):
    features, weight, bias, target = make_batch(1)
    with pytest.raises(ValueError, match=message):
        function(features, weight, bias, target, **options)


@pytest.mark.parametrize("function", [dense, lean], ids=["dense", "lean"])
@pytest.mark.parametrize("ngrams", ["true", "decay"])
def test_a_target_without_positions_scores_zero(function, ngrams):
    features, weight, bias, _ = make_batch(2)
    target = torch.zeros(4, 0, dtype=torch.long)
    score, grads = gradients(
        lambda f, w, b: function(f, w, b, target, topk=3, ngrams=ngrams),
        features[:, :0],
        weight,
        bias,
        upstream=torch.ones(4),
    )
    assert score.tolist() == [0] * 4
    assert all(g is None or not g.any() for g in grads)
