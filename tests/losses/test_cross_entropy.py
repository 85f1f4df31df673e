"""The fused cross-entropy: against fairseq's own label smoothing, in value and gradient."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from fairseq_klang.losses import chunked, fused_cross_entropy, linear_cross_entropy
from helpers.halves import HALVES

PAD = 1
ONE = torch.tensor(1.0)


def make_rows(rows, dtype, vocab=23, dim=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, dim, generator=rng, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocab, dim, generator=rng, dtype=torch.float64).to(dtype)
    bias = torch.randn(vocab, generator=rng, dtype=torch.float64).to(dtype)
    target = torch.randint(0, vocab, (rows,), generator=rng)
    target[::5] = PAD
    return features, weight, bias, target


def fairseq_loss(features, weight, bias, target, row_weight, smoothing):
    """fairseq's label_smoothed_nll_loss, row by row, as the oracle."""
    log_probs = torch.log_softmax(torch.nn.functional.linear(features, weight, bias), -1)
    loss, nll = label_smoothed_nll_loss(
        log_probs, target, smoothing, ignore_index=PAD, reduce=False
    )
    loss = loss.view(-1) if row_weight is None else loss.view(-1) * row_weight
    return loss, nll.view(-1)


def run(function, inputs, upstream):
    inputs = [None if x is None else x.clone().requires_grad_() for x in inputs]
    loss, nll = function(*inputs)
    # A loss scale multiplies the sum, so that every row has one and the same upstream gradient.
    scaled = loss.sum() * upstream if upstream.dim() == 0 else (loss * upstream).sum()
    scaled.backward()
    return [loss.detach(), nll.detach()] + [x.grad for x in inputs if x is not None]


@pytest.mark.parametrize("upstream", ["sum", "scaled", "by row"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "row weights"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 13, 40])
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
def test_equals_fairseq_in_value_and_gradient(
    monkeypatch, dtype, tolerance, rows, bias, weighted, smoothing, upstream
):
    monkeypatch.setattr(
        chunked, "CHUNK_ELEMENTS", {"cpu": 23 * 16}
    )  # chunks of 16 rows, so that 40 rows take three
    features, weight, offsets, target = make_rows(rows, dtype)
    row_weight = torch.linspace(0.5, 2, rows, dtype=dtype) if weighted else None
    factors = {
        "sum": torch.tensor(1.0, dtype=dtype),
        "scaled": torch.tensor(3.5, dtype=dtype),
        "by row": torch.linspace(-1, 2, rows, dtype=dtype),
    }
    inputs = (features, weight, offsets if bias else None)
    expected = run(
        lambda f, w, b: fairseq_loss(f, w, b, target, row_weight, smoothing),
        inputs,
        factors[upstream],
    )
    found = run(
        lambda f, w, b: linear_cross_entropy(
            f, w, target, bias=b, row_weight=row_weight, label_smoothing=smoothing, ignore_index=PAD
        ),
        inputs,
        factors[upstream],
    )
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_scaling_the_sum_uses_the_gradient_of_the_forward_pass(monkeypatch):
    """A sum, scaled or not, must not cost a second pass over the vocabulary; a gradient by row
    must."""
    from fairseq_klang.losses import cross_entropy

    passes = []
    original = cross_entropy._chunks
    monkeypatch.setattr(cross_entropy, "_chunks", lambda *a: passes.append(1) or original(*a))
    features, weight, bias, target = make_rows(13, torch.float64)
    features.requires_grad_()
    (
        3 * linear_cross_entropy(features, weight, target, bias=bias, ignore_index=PAD)[0].sum()
    ).backward()
    assert len(passes) == 1
    (
        linear_cross_entropy(features, weight, target, bias=bias, ignore_index=PAD)[0] ** 2
    ).sum().backward()
    assert len(passes) == 3


def test_backward_twice_gives_twice_the_gradient():
    features, weight, bias, target = make_rows(13, torch.float64)
    features.requires_grad_()
    loss = linear_cross_entropy(features, weight, target, bias=bias, ignore_index=PAD)[0].sum()
    loss.backward(retain_graph=True)
    once = features.grad.clone()
    loss.backward()
    torch.testing.assert_close(features.grad, 2 * once)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast_and_half_inputs(dtype):
    features, weight, bias, target = make_rows(40, torch.float32)
    inputs = (features, weight, bias)

    def ours(f, w, b):
        return linear_cross_entropy(f, w, target, bias=b, label_smoothing=0.1, ignore_index=PAD)

    expected = run(lambda f, w, b: fairseq_loss(f, w, b, target, None, 0.1), inputs, ONE)
    with torch.autocast("cpu", dtype=dtype):
        found = run(ours, inputs, ONE)
    half = run(ours, [x.to(dtype) for x in inputs], ONE)
    # Half precision keeps 8 (bf16) or 11 (fp16) bits, over sums of 40 terms of size about 1.
    tolerance = 0.15 if dtype == torch.bfloat16 else 0.03
    for result in (found, half):
        assert result[0].dtype == torch.float32
        for a, b in zip(result, expected):
            torch.testing.assert_close(a.float(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("autocast", [False, True], ids=["half weights", "autocast"])
@pytest.mark.parametrize("scale", [2.0**7, 2.0**14])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_under_a_loss_scale_are_as_exact_as_fairseqs(dtype, scale, autocast, smoothing):
    """The probabilities of most tokens lie below what fp16 can hold; a loss scale lifts fairseq's
    gradient over that, so ours must not be rounded before the scale is known.

    The oracle is the same gradient in float64, from the same rounded inputs.
    """
    rng = torch.Generator().manual_seed(3)
    rows, vocab, dim = 24, 4000, 8
    # Multiples of 1/2: their products, the logits, are exact in half precision too.
    features, weight = (
        torch.randint(-4, 5, (size, dim), generator=rng) / 2.0 for size in (rows, vocab)
    )
    target = torch.randint(4, vocab, (rows,), generator=rng)

    def ours(f, w):
        return linear_cross_entropy(f, w, target, label_smoothing=smoothing, ignore_index=PAD)

    def theirs(f, w):
        logits = torch.nn.functional.linear(f, w)
        logs = torch.log_softmax(logits, -1, dtype=torch.promote_types(f.dtype, torch.float32))
        return [
            x.view(-1)
            for x in label_smoothed_nll_loss(
                logs, target, smoothing, ignore_index=PAD, reduce=False
            )
        ]

    exact = run(theirs, (features.double(), weight.double()), torch.tensor(scale))[2:]
    errors = []
    for function in (ours, theirs):
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            inputs = (features, weight) if autocast else (features.to(dtype), weight.to(dtype))
            found = run(function, inputs, torch.tensor(scale))[2:]
        # Error of each row of the gradient, by that row's own size.
        errors.append(
            [((a - b).norm(dim=1) / b.norm(dim=1)).max().item() for a, b in zip(found, exact)]
        )
    for found, expected in zip(*errors):
        assert found <= max(1.5 * expected, 2 * torch.finfo(dtype).eps)


def test_gradcheck():
    features, weight, bias, target = make_rows(4, torch.float64, vocab=7, dim=3)
    inputs = [x.requires_grad_() for x in (features, weight, bias)]
    row_weight = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda f, w, b: linear_cross_entropy(
            f, w, target, bias=b, row_weight=row_weight, label_smoothing=0.1, ignore_index=PAD
        )[0],
        inputs,
    )


def test_no_grad_and_best_token():
    features, weight, bias, target = make_rows(13, torch.float64)
    with torch.no_grad():
        result = fused_cross_entropy(
            features, weight, target, bias=bias, ignore_index=PAD, with_best=True
        )
    assert torch.equal(result.best, torch.nn.functional.linear(features, weight, bias).argmax(1))
    assert not result.weighted.requires_grad


def test_ignored_rows_may_hold_anything():
    features, weight, bias, target = make_rows(6, torch.float64)
    target[2] = PAD
    features[2] = float("nan")
    loss, _ = linear_cross_entropy(features, weight, target, bias=bias, ignore_index=PAD)
    assert loss[2] == 0 and torch.isfinite(loss).all()


def test_label_smoothing_out_of_range():
    features, weight, bias, target = make_rows(6, torch.float64)
    with pytest.raises(
        ValueError, match="label_smoothing is 1.5; it must be at least 0 and below 1"
    ):
        linear_cross_entropy(features, weight, target, label_smoothing=1.5, ignore_index=PAD)
