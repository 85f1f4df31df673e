"""The fused plain criterion: fairseq's label_smoothed_cross_entropy in value, gradient, log and
reduction; its kernel switch."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from fairseq_klang.compat import HAS_TORCH_LINEAR_CROSS_ENTROPY
from fairseq_klang.criterions.fused_cross_entropy import (
    FusedCrossEntropyConfig,
    FusedCrossEntropyCriterion,
)
from fairseq_klang.errors import UsageError
from fairseq_klang.losses import chunked
from helpers.criterions import MODELS, assert_same, loss_and_gradients, make_sample
from helpers.models import SMALL, build

LINEAR = [name for name in MODELS if name != "fconv"]


def make(name, sentence_avg=False, double=True, **options):
    """Model, our criterion, fairseq's with the same options, and a batch."""
    model, task = build(name.split()[0], **MODELS[name])
    ours = FusedCrossEntropyCriterion.build_criterion(
        FusedCrossEntropyConfig(sentence_avg=sentence_avg, **options), task
    )
    options.pop("ce_kernel", None)
    theirs = LabelSmoothedCrossEntropyCriterion(
        task, sentence_avg, **dict({"label_smoothing": 0.0}, **options)
    )
    return (model.double() if double else model), ours, theirs, make_sample(task)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "more",
    [{}, {"ignore_prefix_size": 2}, {"sentence_avg": True}],
    ids=["plain", "prefix", "sentence_avg"],
)
def test_it_is_fairseqs_criterion(monkeypatch, name, smoothing, more):
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", {"cpu": 16 * 16})  # several chunks
    model, ours, theirs, sample = make(
        name, label_smoothing=smoothing, report_accuracy=True, **more
    )
    found, expected = (loss_and_gradients(model, criterion, sample) for criterion in (ours, theirs))
    # In double precision except fairseq's log-softmax, which is always float32.
    assert_same(found, expected, tolerance=2e-5)
    assert found[2] == expected[2] and set(found[3]) == set(expected[3])
    for key in ("ntokens", "nsentences", "sample_size", "n_correct", "total"):
        assert int(found[3][key]) == int(expected[3][key]), key
    for key in ("loss", "nll_loss"):
        assert float(found[3][key]) == pytest.approx(float(expected[3][key]), rel=1e-5), key


@pytest.mark.parametrize("name", SMALL)
def test_unreduced_and_without_gradient(name):
    model, ours, theirs, sample = make(name, label_smoothing=0.1)
    with torch.no_grad():
        found, expected = (
            criterion(model, sample, reduce=False)[0] for criterion in (ours, theirs)
        )
    assert found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-5, atol=1e-5)


def test_accumulated_over_two_batches_like_one_larger_sum():
    """--update-freq 2: the gradient of two batches is the sum of their gradients."""
    model, ours, _, sample = make("transformer_dualhead", label_smoothing=0.1)
    single = loss_and_gradients(model, ours, sample)[1]
    model.zero_grad()
    for _ in range(2):
        ours(model, sample)[0].backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, 2 * single[name])


def test_models_that_do_not_predict_each_token_from_those_before_are_refused():
    from fairseq.models import FairseqLanguageModel

    model, ours, _, sample = make("transformer_dualhead")

    class NonAutoregressive(type(model)):
        def forward(self, src_tokens, src_lengths, prev_output_tokens, tgt_tokens, **kwargs):
            raise AssertionError("past the check")

    for other in (
        FairseqLanguageModel(model.decoder),
        NonAutoregressive(model.args, model.encoder, model.decoder),
    ):
        with pytest.raises(
            UsageError, match="encoder-decoder models that predict each token from those before it"
        ):
            ours(other, sample)


def test_a_model_without_a_linear_output_layer_is_refused():
    model, ours, _, sample = make("fconv")
    with pytest.raises(UsageError, match="use label_smoothed_cross_entropy"):
        ours(model, sample)


@pytest.mark.parametrize("option", [{"label_smoothing": 1.0}, {"label_smoothing": -0.1}])
def test_values_out_of_range_are_refused(option):
    with pytest.raises(UsageError, match="--label-smoothing"):
        make("transformer", **option)


if HAS_TORCH_LINEAR_CROSS_ENTROPY:

    @pytest.mark.parametrize("name", LINEAR)
    def test_torchs_kernel_is_the_same_loss(name):
        model, ours, theirs, sample = make(name, double=False, ce_kernel="torch")
        assert_same(
            *(loss_and_gradients(model, criterion, sample) for criterion in (ours, theirs)),
            tolerance=2e-5,
        )
        with torch.no_grad():
            found, expected = (
                criterion(model, sample, reduce=False)[0] for criterion in (ours, theirs)
            )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        "option, message",
        [({"label_smoothing": 0.1}, "must be 0"), ({"report_accuracy": True}, "--report-accuracy")],
    )
    def test_torchs_kernel_refuses_what_it_cannot_do(option, message):
        with pytest.raises(UsageError, match=message):
            make("transformer", ce_kernel="torch", **option)

else:

    def test_torchs_kernel_is_refused_by_an_older_torch():
        with pytest.raises(UsageError, match="torch 2.13"):
            make("transformer", ce_kernel="torch")
