"""The forms of DESIGN 1: values are in test_vectors.py; here gradients, weights and edge cases."""

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


def test_unknown_form_lists_the_legal_ones():
    with pytest.raises(
        ValueError,
        match="form is 'product'; legal values are linear, power, exp, add, interpolate, log",
    ):
        combine(torch.ones(1), torch.ones(1), torch.ones(1), form="product", alpha=1)


def test_collision_size_and_bits_are_designs():
    # DESIGN 1: 8,000 -> 24, 32,000 -> 96, 56,652 -> 170; DESIGN 4: 8K -> 5, 32K -> 7, 56K -> 8
    # bits.
    assert [collision_size(v) for v in (8000, 32000, 56652)] == [24, 96, 170]
    assert [min_bits(v) for v in (8000, 32000, 56652)] == [5, 7, 8]
    assert collision_size(10) == 1 and min_bits(10) == 1
    for k_lang in (0, 1.5, -0.1):
        with pytest.raises(ValueError, match="k_lang is"):
            collision_size(8000, k_lang)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        min_bits(0)
