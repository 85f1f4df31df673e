"""The criterion: against fairseq's cross-entropy, against the dense path, its schedule, its logs
and its refusals."""

import logging
import math
from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics

from fairseq_klang.criterions.restricted_softbleu import (
    RestrictedSoftBleuConfig,
    RestrictedSoftBleuCriterion,
)
from fairseq_klang.errors import UsageError
from fairseq_klang.losses import FORMS
from helpers.criterions import MODELS, SINGLE, assert_same, loss_and_gradients, make_sample
from helpers.models import SMALL, build


def make(name, double=True, **options):
    """A model of `name` with its criterion; `options` are those of the criterion."""
    model, task = build(name.split()[0], **MODELS[name])
    config = RestrictedSoftBleuConfig(sentence_avg=False, **options)
    criterion = RestrictedSoftBleuCriterion(task, config)
    return (model.double() if double else model), criterion, make_sample(task), task


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", ["linear", "power", "exp", "add", "interpolate"])
def test_alpha_zero_is_fairseqs_cross_entropy(name, smoothing, form):
    model, criterion, sample, task = make(
        name, sb_alpha=0.0, sb_form=form, label_smoothing=smoothing, report_accuracy=True
    )
    plain = LabelSmoothedCrossEntropyCriterion(task, False, smoothing, report_accuracy=True)
    found, expected = (loss_and_gradients(model, c, sample) for c in (criterion, plain))
    # In double precision except fairseq's log-softmax, which is always float32.
    assert_same(found, expected, tolerance=2e-5)
    assert found[2] == expected[2]
    for key in ("ntokens", "nsentences", "sample_size", "n_correct", "total"):
        assert int(found[3][key]) == int(expected[3][key]), key
    assert float(found[3]["nll_loss"]) == pytest.approx(float(expected[3]["nll_loss"]), rel=1e-5)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "counts, ngrams", [("matched", "true"), ("clipped", "true"), ("matched", "decay")]
)
@pytest.mark.parametrize("topk", [3, 0])
def test_lean_equals_plain_autograd(name, form, counts, ngrams, topk):
    """The lean product rule against the same loss written with dense logits and plain autograd."""
    from fairseq_klang.losses import combine, soft_bleu

    alpha = 0.8 if form == "log" else 0.4  # log has no alpha, and refuses another than the default
    model, criterion, sample, _ = make(
        name,
        sb_form=form,
        sb_alpha=alpha,
        sb_counts=counts,
        sb_ngrams=ngrams,
        sb_topk=topk,
        label_smoothing=0.1,
    )
    found = loss_and_gradients(model, criterion, sample)

    def plain(model, sample):
        features, extra = model(**sample["net_input"], features_only=True)
        (ce_head, sb_head), target = extra["heads"], sample["target"]
        log_probs = torch.log_softmax(torch.nn.functional.linear(features, *ce_head), -1)
        vocab, pad = log_probs.size(-1), criterion.padding_idx
        spread = 0.1 / (vocab - 1)
        row = -(1 - 0.1 - spread) * log_probs.gather(2, target[..., None])[
            ..., 0
        ] - spread * log_probs.sum(2)
        ce = (row * target.ne(pad)).sum(1)
        score = soft_bleu(
            torch.nn.functional.linear(features, *sb_head), target, **criterion.soft_bleu_options
        ).score
        return (
            combine(ce, score, target.ne(pad).sum(1), form=form, alpha=alpha, beta=0.5).sum(),
            None,
            None,
        )

    expected = loss_and_gradients(model, plain, sample)
    assert_same(found, expected)
    assert found[1]["decoder.sb_projection.weight"].abs().max() > 0


@pytest.mark.parametrize("name", SINGLE)
def test_single_heads_lean_equals_dense(name, monkeypatch):
    model, criterion, sample, _ = make(name, sb_topk=3, label_smoothing=0.1, double=False)
    found = loss_and_gradients(model, criterion, sample)
    monkeypatch.setattr("fairseq_klang.criterions.restricted_softbleu.read_heads", lambda *_: None)
    assert_same(found, loss_and_gradients(model, criterion, sample), tolerance=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_padding_order_and_splitting_change_neither_sum_nor_gradient(name):
    model, criterion, sample, task = make(name, sb_topk=3, label_smoothing=0.1)
    tolerance = 1e-6 if name == "fconv" else 1e-9  # fairseq's log-softmax is float32
    whole = loss_and_gradients(model, criterion, sample)
    pad = task.target_dictionary.pad()

    def rows(index):
        net_input = {key: value[index] for key, value in sample["net_input"].items()}
        target = sample["target"][index]
        return dict(
            net_input=net_input,
            target=target,
            ntokens=int(target.ne(pad).sum()),
            nsentences=len(target),
        )

    assert_same(
        loss_and_gradients(model, criterion, rows(torch.tensor([2, 0, 3, 1]))), whole, tolerance
    )
    wider = rows(torch.arange(4))
    wider["target"] = torch.cat((wider["target"], torch.full((4, 2), pad)), 1)
    wider["net_input"]["prev_output_tokens"] = torch.cat(
        (wider["net_input"]["prev_output_tokens"], torch.full((4, 2), pad)), 1
    )
    assert_same(loss_and_gradients(model, criterion, wider), whole, tolerance)
    parts = [loss_and_gradients(model, criterion, rows(torch.tensor([i]))) for i in range(4)]
    summed = {
        n: None if whole[1][n] is None else sum(part[1][n] for part in parts) for n in whole[1]
    }
    assert_same((sum(part[0] for part in parts), summed), whole, tolerance)
    # The logs are sums too: those of the parts add up to those of the whole.
    for key, value in whole[3].items():
        if not key.startswith("gnorm"):
            assert float(sum(part[3][key] for part in parts)) == pytest.approx(
                float(value), rel=1e-5
            ), key


def test_unreduced_losses_sum_to_the_reduced_one():
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3)
    rows = criterion(model, sample, reduce=False)[0]
    assert rows.shape == (4,)
    torch.testing.assert_close(rows.sum(), criterion(model, sample)[0])


def test_validation_needs_no_gradient_and_gives_the_same_loss():
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3)
    with torch.no_grad():
        loss, _, log = criterion(model, sample)
    torch.testing.assert_close(loss, criterion(model, sample)[0].detach())
    assert "gnorm_sb_head" not in log


def test_ignored_prefix_is_left_out_of_both_parts():
    model, criterion, sample, task = make(
        "transformer_dualhead", sb_alpha=0.0, ignore_prefix_size=2, label_smoothing=0.1
    )
    plain = LabelSmoothedCrossEntropyCriterion(task, False, 0.1, ignore_prefix_size=2)
    assert_same(
        loss_and_gradients(model, criterion, sample), loss_and_gradients(model, plain, sample), 2e-5
    )


def test_gradient_norms_are_those_of_the_heads():
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3)
    _, gradients, _, log = loss_and_gradients(model, criterion, sample)
    for key, name in (("gnorm_ce_head", "output_projection"), ("gnorm_sb_head", "sb_projection")):
        expected = gradients[f"decoder.{name}.weight"].norm().item()
        assert float(log[key]) == pytest.approx(expected, rel=1e-5) and expected > 0
    # A loss scaled for half precision reports the same norms.
    loss, _, log = criterion(model, sample)
    (1024 * loss).backward()
    assert float(log["gnorm_ce_head"]) == pytest.approx(
        gradients["decoder.output_projection.weight"].norm().item(), rel=1e-5
    )


def test_gradient_norms_of_a_single_head_split_by_part():
    """One head, two uses: the two reported norms are those of the loss's two parts, not of their
    sum."""
    model, criterion, sample, _ = make("transformer", sb_topk=3)
    _, _, _, log = loss_and_gradients(model, criterion, sample)
    _, gradients, _, none = loss_and_gradients(
        model, make("transformer", sb_alpha=0.0, sb_topk=3)[1], sample
    )
    assert float(none["gnorm_sb_head"]) == 0
    assert float(none["gnorm_ce_head"]) == pytest.approx(
        gradients["decoder.output_projection.weight"].norm().item(), rel=1e-5
    )
    assert float(log["gnorm_sb_head"]) > 0


@pytest.mark.parametrize("frozen", ["output_projection", "sb_projection", "both", "decoder"])
def test_a_frozen_head_trains_the_rest_and_has_no_norm(frozen):
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3)
    expected = loss_and_gradients(model, criterion, sample)
    heads = ["output_projection", "sb_projection"]
    names = {"both": heads, "decoder": heads}.get(frozen, [frozen])
    for module in [getattr(model.decoder, name) for name in names] + (
        [model.decoder] if frozen == "decoder" else []
    ):
        module.requires_grad_(False)
    found = loss_and_gradients(model, criterion, sample)
    assert found[0] == expected[0]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and expected[1][name] is not None:
            torch.testing.assert_close(found[1][name], expected[1][name])
        elif not parameter.requires_grad:
            assert found[1][name] is None
    norms = {"gnorm_ce_head": "output_projection", "gnorm_sb_head": "sb_projection"}
    for key, name in norms.items():
        assert (key in found[3]) == (name not in names)
    with metrics.aggregate():
        criterion.reduce_metrics([found[3]])


@pytest.mark.parametrize("scale", [1, 1024])
def test_the_vocabulary_of_the_cross_entropy_head_is_passed_once_a_step(monkeypatch, scale):
    """Backward uses the gradients that forward wrote, also under a loss scale."""
    from fairseq_klang.losses import cross_entropy

    passes = []
    original = cross_entropy._chunks
    monkeypatch.setattr(cross_entropy, "_chunks", lambda *a: passes.append(1) or original(*a))
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3)
    (scale * criterion(model, sample)[0]).backward()
    assert len(passes) == 1


def test_everything_of_the_docs_is_logged():
    model, criterion, sample, _ = make("transformer_dualhead", sb_topk=3, sb_alpha=0.7)
    logs = [loss_and_gradients(model, criterion, sample)[3] for _ in range(2)]
    with metrics.aggregate() as meters:
        criterion.reduce_metrics(logs)
    values = meters.get_smoothed_values()
    expected = "loss nll_loss ppl sb sb_p1 sb_p2 sb_p3 sb_p4 sb_alpha sb_candidates".split()
    assert {*expected, "gnorm_ce_head", "gnorm_sb_head"} <= set(values)
    assert criterion.logging_outputs_can_be_summed()
    from fairseq_klang.losses import restricted_soft_bleu

    features, extra = model(**sample["net_input"], features_only=True)
    bleu = restricted_soft_bleu(
        features, extra["heads"][1].weight, sample["target"], **criterion.soft_bleu_options
    )
    assert values["sb"] == pytest.approx(bleu.score.mean().item(), abs=1e-4)
    assert values["sb_candidates"] == pytest.approx(
        bleu.sizes[bleu.sizes > 0].double().mean().item(), abs=0.05
    )
    assert values["sb_p3"] == pytest.approx(bleu.precisions[:, 2].nanmean().item(), abs=1e-6)
    assert values["sb_alpha"] == 0.7


def test_alpha_follows_the_epoch_that_fairseq_announces():
    model, task = build("transformer_dualhead", **SMALL["transformer_dualhead"])
    task.cfg.eval_bleu = False
    config = RestrictedSoftBleuConfig(sb_alpha=0.2, sb_alpha_step=0.1, sb_alpha_max=0.45)
    criterion = RestrictedSoftBleuCriterion.build_criterion(config, task)
    # docs/loss.md: alpha(epoch) = min(alpha_max, alpha + alpha_step * (epoch - 1))
    for epoch, alpha in ((1, 0.2), (2, 0.3), (3, 0.4), (4, 0.45), (9, 0.45)):
        task.begin_epoch(epoch, model)
        assert criterion.alpha == pytest.approx(alpha)


def test_a_loss_that_is_not_finite_names_the_update_and_stops_before_the_optimiser():
    model, criterion, sample, task = make("transformer_dualhead")
    task.cfg.eval_bleu = False
    criterion = RestrictedSoftBleuCriterion.build_criterion(
        RestrictedSoftBleuConfig(sentence_avg=False), task
    )
    with torch.no_grad():
        model.decoder.sb_projection.weight[5] = math.nan
    optimizer = Namespace(backward=lambda loss: pytest.fail("the backward pass ran"))
    with pytest.raises(FloatingPointError, match=r"not finite \(nan or inf\) at update 42"):
        task.train_step(
            sample=sample, model=model, criterion=criterion, optimizer=optimizer, update_num=41
        )


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("head", ["output_projection", "sb_projection"])
def test_nan_and_inf_logits_of_either_head_are_noticed(head, value):
    model, criterion, sample, _ = make("transformer_dualhead")
    with torch.no_grad():
        getattr(model.decoder, head).weight[5] = value
    with pytest.raises(FloatingPointError, match="not finite"):
        criterion(model, sample)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(sb_alpha=-0.1), "--sb-alpha is -0.1; it must be a number of 0 or more"),
        (dict(sb_alpha=math.nan), "--sb-alpha is nan"),
        (
            dict(sb_alpha=1.2, sb_form="interpolate"),
            "--sb-alpha is 1.2; it must be between 0 and 1 with --sb-form interpolate",
        ),
        (dict(sb_alpha_max=0.5), "--sb-alpha-max is 0.5; it must be .* not below --sb-alpha"),
        (dict(sb_alpha_step=-1.0), "--sb-alpha-step is -1.0"),
        (
            dict(sb_alpha=0.5, sb_alpha_step=0.1, sb_form="interpolate"),
            "--sb-alpha-step is 0.1; it must be 0 with",
        ),
        (dict(k_lang=0.0), "--k-lang is 0.0; it must be above 0 and at most 1"),
        (dict(k_lang=1.5), "--k-lang is 1.5"),
        (dict(sb_topk=-3), "--sb-topk is -3"),
        (dict(sb_beta=0.0), "--sb-beta is 0.0"),
        (dict(sb_decay=0.0), "--sb-decay is 0.0"),
        (dict(sb_max_order=0), "--sb-max-order is 0"),
        (dict(label_smoothing=1.0), "--label-smoothing is 1.0"),
        # Values without effect.
        (
            dict(sb_alpha_max=1.5),
            "--sb-alpha-max is 1.5; it must be left out unless --sb-alpha-step is given",
        ),
        (dict(sb_beta=0.3), "--sb-beta is 0.3; it must be left at 0.5 unless --sb-form is power"),
        (
            dict(sb_decay=0.9),
            "--sb-decay is 0.9; it must be left at 0.5 unless --sb-ngrams is decay",
        ),
        (
            dict(sb_form="log", sb_alpha=0.5),
            "--sb-alpha is 0.5; it must be left at 0.8 with --sb-form log",
        ),
        (
            dict(sb_form="log", sb_alpha_step=0.1),
            "--sb-alpha-step is 0.1; it must be left at 0.0 with --sb-form log",
        ),
    ],
)
def test_options_out_of_range(options, message):
    _, task = build("transformer_dualhead", **SMALL["transformer_dualhead"])
    with pytest.raises(UsageError, match=message):
        RestrictedSoftBleuCriterion(task, RestrictedSoftBleuConfig(**options))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(k_lang=0.01, sb_topk=3), "--k-lang 0.01 is not used: --sb-topk 3 names k"),
        (dict(sb_form="log", label_smoothing=0.1), "--label-smoothing 0.1 is not used"),
    ],
)
def test_what_a_recipe_brings_along_without_effect_is_told(caplog, options, message):
    with caplog.at_level(logging.WARNING):
        make("transformer_dualhead", **options)
    assert message in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        make("transformer_dualhead", sb_topk=3, label_smoothing=0.1)
    assert "is not used" not in caplog.text


def test_topk_above_the_vocabulary_runs_as_the_full_softmax_and_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        model, criterion, sample, _ = make("transformer_dualhead", sb_topk=1000)
    assert "--sb-topk 1000 is above the vocabulary of 24: the full softmax is used" in caplog.text
    full = make("transformer_dualhead", sb_topk=0)[1]
    assert torch.equal(criterion(model, sample)[0], full(model, sample)[0])


def test_sentences_with_nothing_to_score_are_counted_told_and_harmless(caplog, monkeypatch):
    model, criterion, sample, task = make("transformer_dualhead", label_smoothing=0.1)
    eos, unk, pad = (getattr(task.target_dictionary, name)() for name in ("eos", "unk", "pad"))
    sample["target"][1] = torch.tensor([eos] + [pad] * 5)  # an empty target
    sample["target"][2] = torch.tensor([unk, unk, eos] + [pad] * 3)  # no scorable token
    loss, gradients, _, log = loss_and_gradients(model, criterion, sample)
    assert int(log["sb_unmatched"]) == 2
    monkeypatch.setattr(RestrictedSoftBleuCriterion, "warned", False)
    with caplog.at_level(logging.WARNING), metrics.aggregate():
        criterion.reduce_metrics([log])
        criterion.reduce_metrics([log])
    assert caplog.text.count("2 of 4 target sentences have no token to score") == 1
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in gradients.values() if g is not None)
