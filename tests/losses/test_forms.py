"""The forms of docs/loss.md: test_vectors.py has values; here gradients, weights, edge cases."""

import pytest
import torch

from fairseq_klang.collision import collision_size, min_bits
from fairseq_klang.losses import FORMS, ce_weight, combine


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_and_the_weight_of_cross_entropy(form):
    ce = torch.tensor([3.0, 10.0, 0.5], dtype=torch.float64, requires_grad=True)
    score = torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([2, 5, 9])
    options = dict(form=form, alpha=0.4, beta=0.3)
    assert torch.autograd.gradcheck(lambda c, s: combine(c, s, tokens, **options), (ce, score))
    loss = combine(ce, score, tokens, **options)
    (expected,) = torch.autograd.grad(loss.sum(), ce)
    torch.testing.assert_close(ce_weight(score, tokens, **options), expected)
    # Linear in ce, which lets the weight be known before the cross-entropy is.
    torch.testing.assert_close(combine(2 * ce, score, tokens, **options) - loss, ce * expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_ends_of_the_score_are_finite(form, value):
    ce = torch.tensor([3.0], requires_grad=True)
    score = torch.tensor([value], requires_grad=True)
    loss = combine(ce, score, torch.tensor([4]), form=form, alpha=0.5, beta=0.5)
    loss.backward()
    assert (
        torch.isfinite(loss).all()
        and torch.isfinite(score.grad).all()
        and torch.isfinite(ce.grad).all()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.1, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("form", ["linear", "power", "exp", "add"])
def test_a_perfect_sentence_costs_its_cross_entropy(form, beta, dtype):
    """Exactly; its rounding, a score just above or below 1, has a finite gradient."""
    step = torch.finfo(dtype).eps
    score = torch.tensor([1.0, 1 + step, 1 - step / 2], dtype=dtype, requires_grad=True)
    ce, tokens = torch.tensor([3.0, 0.7, 5.0], dtype=dtype), torch.tensor([4, 2, 3])
    loss = combine(ce, score, tokens, form=form, alpha=0.5, beta=beta)
    (gradient,) = torch.autograd.grad(loss.sum(), score)
    assert loss[0] == ce[0] and torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    assert ce_weight(score, tokens, form=form, alpha=0.5, beta=beta)[0] == 1


@pytest.mark.parametrize("beta", [0.3, 0.5, 2.0])
def test_power_is_a_power(beta):
    """Down to the smallest x = 1 - score that the score can hold: no floor changes the value."""
    x = torch.tensor([2.0**-53, 1e-12, 1e-4, 0.3, 1.0], dtype=torch.float64)
    ce = torch.full_like(x, 2.0)
    found = combine(ce, 1 - x, torch.ones(5), form="power", alpha=0.5, beta=beta)
    expected = [2 * (1 + 0.5 * (1 - (1 - value)) ** beta) for value in x.tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-15)


def test_unknown_form_lists_the_legal_ones():
    with pytest.raises(
        ValueError,
        match="form is 'product'; legal values are linear, power, exp, add, interpolate, log",
    ):
        combine(torch.ones(1), torch.ones(1), torch.ones(1), form="product", alpha=1)


def test_collision_size_and_bits_are_those_of_the_docs():
    # docs/loss.md: 8,000 -> 24, 32,000 -> 96, 56,652 -> 170. docs/claims.md, C14: 5, 7 and 8 bits.
    assert [collision_size(v) for v in (8000, 32000, 56652)] == [24, 96, 170]
    assert [min_bits(v) for v in (8000, 32000, 56652)] == [5, 7, 8]
    assert collision_size(10) == 1 and min_bits(10) == 1
    for k_lang in (0, 1.5, -0.1):
        with pytest.raises(ValueError, match="k_lang is"):
            collision_size(8000, k_lang)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        min_bits(0)
