"""The task: its schedule, its flags, and that its steps are what they say, without a fairseq
command."""

import math
from argparse import Namespace
from fractions import Fraction

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_klang.errors import NotFiniteError, UsageError
from fairseq_klang.models.autoencoder import AUTOENCODERS
from fairseq_klang.tasks.translation_autoencoding import (
    TranslationAutoencodingTask,
    is_source_update,
)
from helpers.models import SMALL, build, dictionary
from helpers.tasks import Backward, criterion_of, make_config, make_task, sample_of


def gradients(model):
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


WORDS = dictionary(20)


def model_of(name="transformer_dualhead", form="decoder", **options):
    return build(name, source=WORDS, autoencoder=form, **dict(SMALL[name], dropout=0.0, **options))[
        0
    ]


@pytest.mark.parametrize("ratio", [0, 0.1, 0.5, 1, 2, 2.5, 7])
def test_the_schedule_keeps_the_ratio_at_every_moment(ratio):
    kinds = [is_source_update(update, ratio) for update in range(1000)]
    share = Fraction(ratio).limit_denominator(1000) / (1 + Fraction(ratio).limit_denominator(1000))
    for count in range(1, 1001):
        assert abs(sum(kinds[:count]) - count * share) < 1
    assert not kinds[0]  # translation first


@pytest.mark.parametrize("criterion", ["restricted_softbleu", "label_smoothed_cross_entropy"])
@pytest.mark.parametrize("form", AUTOENCODERS)
def test_weight_0_is_the_plain_model_to_the_bit(form, criterion):
    results = []
    for other in ("none", form):
        model, task = model_of(form=other, attention_dropout=0.1), make_task(WORDS)
        torch.manual_seed(5)
        loss, size, log = task.train_step(
            sample_of(WORDS), model, criterion_of(task, criterion), Backward(), 0
        )
        results.append((loss, size, gradients(model), log))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
    for name, gradient in results[0][2].items():
        assert (gradient is None and results[1][2][name] is None) or torch.equal(
            gradient, results[1][2][name]
        ), name
    assert all(
        gradient is None
        for name, gradient in results[1][2].items()
        if name.startswith("autoencoder.")
    )
    assert results[0][3].keys() == results[1][3].keys()


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
@pytest.mark.parametrize("form", AUTOENCODERS[1:])
def test_both_kinds_add_up(name, form):
    """--ae-weight 0.5: gradients of the translation step, plus half of those of the step on the
    source."""
    found = {}
    for label, flags, update in (
        ("both", dict(ae_weight=0.5), 0),
        ("translation", {}, 0),
        ("source", dict(source_only=True), 0),
    ):
        model = model_of(name, form).train()
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        task = make_task(WORDS, **flags)
        loss, size, log = task.train_step(
            sample_of(WORDS),
            model,
            criterion_of(task, "label_smoothed_cross_entropy"),
            Backward(),
            update,
        )
        found[label] = (gradients(model), loss, size, log)
    torch.testing.assert_close(found["both"][1], found["translation"][1] + 0.5 * found["source"][1])
    assert found["both"][2] == found["translation"][2] == 15  # target tokens
    assert found["source"][2] == 18  # source tokens, </s> too
    torch.testing.assert_close(found["both"][3]["ae_loss"], found["source"][3]["ae_loss"])
    for key, gradient in found["both"][0].items():
        parts = [found[label][0][key] for label in ("translation", "source")]
        expected = sum(scale * part for scale, part in zip((1, 0.5), parts) if part is not None)
        if gradient is None:
            assert parts == [None, None], key
        else:
            torch.testing.assert_close(gradient, expected, msg=key, rtol=1e-4, atol=1e-5)


def test_the_ratio_alternates_and_a_dummy_batch_has_no_gradient():
    model, task = model_of(), make_task(WORDS, ae_ratio=1.0)
    criterion = criterion_of(task, "label_smoothed_cross_entropy")
    logs = [
        task.train_step(sample_of(WORDS), model, criterion, Backward(), update)[2]
        for update in range(4)
    ]
    assert ["loss" in log for log in logs] == [True, False, True, False]
    assert ["ae_loss" in log for log in logs] == [False, True, False, True]
    for update in (0, 1):
        model.zero_grad()
        task.train_step(sample_of(WORDS), model, criterion, Backward(), update, ignore_grad=True)
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_noise_is_seeded_by_epoch_and_sentence():
    model, task = model_of(), make_task(WORDS, source_only=True, ae_noise="drop", ae_noise_rate=0.5)
    criterion, losses = criterion_of(task, "label_smoothed_cross_entropy"), []
    for epoch in (1, 2, 1):
        task.begin_epoch(epoch, model)
        losses.append(float(task.train_step(sample_of(WORDS), model, criterion, Backward(), 0)[0]))
    assert losses[0] == losses[2] != losses[1]
    # in whatever batch a sentence comes
    whole = sample_of(WORDS)
    part = {
        "id": whole["id"][1:2],
        "net_input": {name: value[1:2] for name, value in whole["net_input"].items()},
    }
    rest = {
        "id": whole["id"][[0, 2]],
        "net_input": {name: value[[0, 2]] for name, value in whole["net_input"].items()},
    }
    parts = [
        float(task.train_step(piece, model, criterion, Backward(), 0)[0]) for piece in (part, rest)
    ]
    assert sum(parts) == pytest.approx(losses[0], rel=1e-5)


def test_a_loss_that_is_not_finite_names_the_update():
    model, task = model_of(), make_task(WORDS, source_only=True)
    with torch.no_grad():
        model.encoder.embed_tokens.weight.fill_(math.nan)
    with pytest.raises(NotFiniteError, match="autoencoding loss is not finite .* at update 8"):
        task.train_step(sample_of(WORDS), model, None, Backward(), 7)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(ae_ratio=-1.0), "--ae-ratio is -1.0; it must be a number of 0 or more"),
        (dict(ae_ratio=math.inf), "--ae-ratio is inf"),
        (dict(ae_weight=-0.5), "--ae-weight is -0.5"),
        (
            dict(ae_weight=1.0, ae_ratio=1.0),
            "--ae-weight is 1.0; it must be 0 where --ae-ratio is given",
        ),
        (dict(ae_noise_rate=1.0), "--ae-noise-rate is 1.0; it must be above 0 and below 1"),
        (dict(contrastive_temperature=0.0), "--contrastive-temperature is 0.0; it must be above 0"),
        (dict(adapt_steps=-1), "--adapt-steps is -1; it must be 0 or more"),
        (dict(adapt_lr=0.0), "--adapt-lr is 0.0; it must be above 0"),
        (dict(adapt_patience=-1), "--adapt-patience is -1"),
        (
            dict(adapt_replay=-1.0, adapt_replay_data="x"),
            "--adapt-replay is -1.0; it must be a number of 0 or more",
        ),
        (
            dict(adapt_replay=1.0),
            "--adapt-replay is 1.0; it must be above 0 where --adapt-replay-data is given, and 0",
        ),
        (dict(adapt_replay_data="x"), "--adapt-replay is 0.0; it must be above 0 where"),
        (dict(adapt_save="x", adapt_steps=1), "--adapt-save is x; it must be left out unless"),
        (
            dict(adapt_steps=1, adapt_objective="contrastive"),
            "--adapt-objective is contrastive; it must be autoencoding or masked_lm",
        ),
        (
            dict(source_only=True, ae_ratio=1.0),
            "--source-only is True; it must be left out with --ae-ratio",
        ),
        (dict(source_only=True, eval_bleu=True), "--source-only is True"),
        (
            dict(init_from="a", init_encoder_from="b"),
            "--init-encoder-from is b; it must be left out where --init-from",
        ),
    ],
)
def test_flags_out_of_range_are_refused(flags, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        make_task(WORDS, **flags)


UNLESS = r"left out unless training \(--ae-ratio, --ae-weight, --source-only\) or --adapt-steps"


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            dict(ae_objective="masked_lm"),
            "--ae-objective is masked_lm; it must be left out without --ae-ratio, --ae-weight or",
        ),
        (dict(ae_noise="mask"), f"--ae-noise is mask; it must be {UNLESS} learns autoencoding"),
        (dict(ae_noise="mask", ae_objective="masked_lm", ae_ratio=1.0), "--ae-noise is mask"),
        (dict(ae_noise="mask", adapt_steps=1, adapt_objective="masked_lm"), "--ae-noise is mask"),
        (
            dict(ae_noise_rate=0.2, ae_ratio=1.0),
            "--ae-noise-rate is 0.2; it must be left out without --ae-noise or the objective",
        ),
        (
            dict(contrastive_temperature=0.1, ae_ratio=1.0),
            f"--contrastive-temperature is 0.1; it must be {UNLESS} learns contrastive",
        ),
        (
            dict(adapt_lr=0.1),
            "--adapt-lr is 0.1; it must be left out without --adapt-steps: it would have no effect",
        ),
        (dict(adapt_reset="never"), "--adapt-reset is never; it must be left out without"),
        (dict(adapt_patience=0), "--adapt-patience is 0; it must be left out without"),
    ],
)
def test_flags_without_effect_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        TranslationAutoencodingTask.setup_task(make_config(data="nowhere", **flags))


@pytest.mark.parametrize(
    "flags",
    [
        dict(ae_weight=1.0, ae_noise="mask", ae_noise_rate=0.2),
        dict(ae_ratio=1.0, ae_objective="masked_lm", ae_noise_rate=0.2),
        dict(ae_ratio=1.0, ae_objective="contrastive", contrastive_temperature=0.1),
        dict(adapt_steps=2, ae_noise="drop", ae_noise_rate=0.2, adapt_lr=0.1, adapt_patience=0),
        dict(adapt_steps=2, adapt_objective="masked_lm", ae_noise_rate=0.2),
    ],
)
def test_flags_with_effect_are_read(flags, separate_data):
    TranslationAutoencodingTask.setup_task(make_config(data=str(separate_data), **flags))


def test_a_checkpoint_trained_with_an_idle_flag_is_still_read(separate_data):
    config = make_config(data=str(separate_data), ae_noise_rate=0.2)
    TranslationAutoencodingTask.setup_task(config, from_checkpoint=True)


@pytest.mark.parametrize("name, head", [("transformer_dualhead", "sb"), ("transformer", None)])
def test_a_mix_without_the_head_mix_is_refused(name, head):
    args = Namespace(arch=name, _name=name, criterion="", **SMALL["transformer_dualhead"])
    ARCH_CONFIG_REGISTRY[name](args)
    task = make_task(WORDS, decode_mix=0.3, decode_head=head)
    with pytest.raises(UsageError, match="--decode-mix is 0.3, .* add --decode-head mix"):
        task.build_model(args)
    if name == "transformer_dualhead":
        model = make_task(WORDS, decode_mix=0.3, decode_head="mix").build_model(args)
        assert (model.decoder.decode_head, model.decoder.decode_mix) == ("mix", 0.3)


def test_a_model_that_cannot_learn_is_refused_before_training():
    for flags in (dict(ae_ratio=1.0), dict(ae_weight=1.0), dict(source_only=True)):
        task = make_task(WORDS, **flags)
        args = Namespace(
            arch="transformer_dualhead",
            _name="transformer_dualhead",
            criterion="",
            **SMALL["transformer_dualhead"],
        )
        ARCH_CONFIG_REGISTRY["transformer_dualhead"](args)
        with pytest.raises(
            UsageError,
            match="--ae-objective is autoencoding, but the model was built with --autoencoder none",
        ):
            task.build_model(args)


@pytest.mark.parametrize("objective", ["masked_lm", "contrastive"])
def test_batches_that_hold_nothing_to_learn_do_not_enter_the_mean(objective):
    flags = dict(ae_objective=objective, source_only=True)
    task, model = make_task(WORDS, **flags), model_of(form="none")
    full = sample_of(WORDS)
    eos = torch.full((1, 1), WORDS.eos())
    idle = {
        "id": torch.tensor([7]),
        "net_input": {"src_tokens": eos, "src_lengths": torch.tensor([1])},
    }
    logs = [task.valid_step(sample, model, None)[2] for sample in (full, idle)]

    def mean(logs):
        with metrics.aggregate(new_root=True) as found:
            for log in logs:  # fairseq reduces the outputs of each batch by themselves
                task.reduce_metrics([log], None)
        return found.get_smoothed_values()

    for name in ("loss", "ae_loss"):
        assert mean(logs)[name] == mean(logs[:1])[name] > 0
    assert "loss" in mean(logs[1:])  # or fairseq would make it -1
