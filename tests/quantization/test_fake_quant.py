"""Fake quantisation against whole-number arithmetic, its gradient, and rows of every awkward
kind."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_klang.quantization.fake_quant import fake_quantize, quantize, round_trip


def reference(row, bits):
    """(whole numbers, scale) of one row in plain Python, as CTranslate2 does it; round() is
    half to even."""
    largest = max(abs(value) for value in row)
    scale = (2 ** (bits - 1) - 1) / largest if largest else 1.0
    return [round(value * scale) for value in row], scale


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 70), st.integers(0, 10**6))
def test_levels_are_those_of_plain_python(bits, rows, width, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    levels, scale = quantize(x, bits)
    for row, found, found_scale in zip(x.tolist(), levels.tolist(), scale.tolist()):
        expected, expected_scale = reference(row, bits)
        assert found == expected
        assert found_scale[0] == pytest.approx(expected_scale, rel=1e-14)
        assert (
            max(map(abs, found)) == 2 ** (bits - 1) - 1
        )  # the largest value is at the end of the grid


@pytest.mark.parametrize("shape", [(7, 64, 33), (5, 512, 8), (1, 1, 1), (32, 1000, 16)])
def test_a_linear_layer_equals_the_integer_computation(shape):
    """int8 x int8 -> int32, rescaled, in numpy, against a float product of fake-quantised matrices:
    to 1e-5."""
    n, width, out = shape
    rng = torch.Generator().manual_seed(width)
    x, w = torch.randn(n, width, generator=rng) * 3, torch.randn(out, width, generator=rng)

    def integers(matrix):
        scale = 127 / np.abs(matrix).max(1, keepdims=True)
        return np.rint(matrix * scale).astype(np.int8), scale

    (qx, sx), (qw, sw) = integers(x.numpy()), integers(w.numpy())
    product = qx.astype(np.int32) @ qw.astype(np.int32).T
    expected = torch.from_numpy(product / (sx * sw.T))
    found = torch.nn.functional.linear(fake_quantize(x, 8), fake_quantize(w, 8))
    torch.testing.assert_close(
        found, expected.float(), rtol=1e-5, atol=1e-5 * float(expected.abs().max())
    )


def test_whole_numbers_are_those_that_ctranslate2_stores():
    """Its converter's own int8 weights and scales."""
    from ctranslate2.specs import common_spec

    weight = torch.randn(20, 37, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    spec = common_spec.LinearSpec()
    spec.weight = weight.numpy().copy()  # the converter quantises it in place
    spec.validate()
    spec.optimize(quantization="int8")
    stored, scale = (np.asarray(getattr(spec, name).numpy()) for name in ("weight", "weight_scale"))
    levels, found_scale = quantize(weight, 8)
    assert stored.dtype == np.int8 and (levels.numpy() == stored).all()
    rows = [row for row in range(20) if row != 3]
    assert (found_scale[rows, 0].numpy() == scale[rows]).all()


def test_ties_go_to_the_even_number():
    levels, scale = quantize(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]]), 8)
    assert scale.item() == 1 and levels.tolist() == [[127, 0, 2, 2, 0, -2, 126]]


def test_rows_do_not_touch_each_other_and_awkward_ones_are_defined():
    tiny = 1e-38
    x = torch.tensor(
        [[0.0, 0, 0], [1e6, 1, -1], [math.inf, 1, 0], [math.nan, 1, 2], [tiny, -tiny, 0], [1, 2, 3]]
    )
    found = round_trip(x, 8)
    assert found[0].tolist() == [0, 0, 0]  # all-zero row
    # An outlier of 1e6 keeps its value and takes the whole grid: the rest of the row is below half
    # a step of it.
    assert found[1, 0] == pytest.approx(1e6) and found[1, 1:].tolist() == [0, 0]
    assert (
        found[2].isnan().all() and found[3].isnan().all()
    )  # not finite stays not finite, for the criterion to see
    assert found[4].abs().max() <= tiny  # no overflow of the scale
    expected, scale = reference([1.0, 2.0, 3.0], 8)
    torch.testing.assert_close(found[5], torch.tensor(expected) / scale)
    assert round_trip(torch.empty(0, 4), 8).shape == (0, 4)


@pytest.mark.parametrize("bits", range(2, 9))
def test_error_is_at_most_half_a_step(bits):
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(bits), dtype=torch.float64)
    step = x.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((round_trip(x, bits) - x).abs() <= step / 2 * (1 + 1e-12)).all()
    assert len(set(quantize(x, bits)[0].flatten().tolist())) <= 2**bits - 1


def test_quantised_twice_is_quantised_once():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        round_trip(round_trip(x, 8), 8), round_trip(x, 8), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x = (torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    found = round_trip(x, 8)
    assert found.dtype == dtype
    assert torch.equal(found, round_trip(x.float(), 8).to(dtype))


def test_the_gradient_goes_straight_through():
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 9, dtype=torch.float64)
    seen = []
    result = fake_quantize(x, 3, None, lambda: seen.append(1))
    assert torch.equal(result, round_trip(x.detach(), 3)) and not seen
    result.backward(upstream)
    assert torch.equal(x.grad, upstream) and seen == [1]
    x.grad = None
    fake_quantize(x, 3, 4).backward(upstream)
    assert torch.equal(x.grad, round_trip(upstream, 4))
