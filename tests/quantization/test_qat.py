"""Quantised models: every matrix in every mode, agreement of modes and paths, state that stays
ordinary, and refusals."""

import copy
import io
import logging
import os
import re

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_klang.compat import strip_legacy_keys
from fairseq_klang.criterions.restricted_softbleu import (
    RestrictedSoftBleuConfig,
    RestrictedSoftBleuCriterion,
)
from fairseq_klang.errors import UsageError
from fairseq_klang.quantization import qat
from fairseq_klang.quantization.fake_quant import quantize, round_trip
from fairseq_klang.quantization.qat import (
    QatConfig,
    QuantEmbedding,
    Quantizer,
    QuantLinear,
    quantize_model,
)
from helpers.criterions import MODELS, loss_and_gradients, make_sample
from helpers.models import SMALL, batch, build, dictionary, small
from helpers.running import ROOT

TIED = {
    **{name: {} for name in SMALL},
    "transformer_dualhead share_all_embeddings": dict(share_all_embeddings=True),
    "lstm_dualhead share_all_embeddings": dict(share_all_embeddings=True),
}


def quantized(name, **options):
    """A small dual-head model in double precision, so that two ways to one activation do not fall
    on two sides of a rounding."""
    shape = next(shape for shape in sorted(SMALL, key=len, reverse=True) if name.startswith(shape))
    options = dict(SMALL[shape], **TIED.get(name, {}), dropout=0.0, **options)
    if name.startswith("lstm"):
        options.update(encoder_bidirectional=True, encoder_layers=2, decoder_layers=2)
    model, task = build(name.split()[0], qat_bits=8, **options)
    return model.double(), task


def matrices(model):
    """{name: parameter} of every weight matrix, a shared one once."""
    return {
        name: p
        for name, p in strip_legacy_keys(dict(model.named_parameters())).items()
        if p.dim() > 1
    }


class Count:
    """Which parameters go through the quantizer, and how often each is really quantised."""

    def __init__(self, monkeypatch):
        self.used, self.made = set(), {}
        weight, forward, fake_quantize = Quantizer.weight, QuantEmbedding.forward, qat.fake_quantize

        def count_weight(quantizer, parameter):
            self.used.add(id(parameter))
            return weight(quantizer, parameter)

        def count_lookup(module, tokens):
            self.used.add(id(module.weight))
            return forward(module, tokens)

        def count_made(x, *rest):
            self.made[id(x)] = self.made.get(id(x), 0) + 1
            return fake_quantize(x, *rest)

        monkeypatch.setattr(Quantizer, "weight", count_weight)
        monkeypatch.setattr(QuantEmbedding, "forward", count_lookup)
        monkeypatch.setattr(qat, "fake_quantize", count_made)

    def take(self):
        used, made = self.used, self.made
        self.used, self.made = set(), {}
        return used, made


def incremental(model, net_input):
    """Logits [B, T, V] token by token."""
    encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
    previous, state = net_input["prev_output_tokens"], {}
    steps = [
        model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)[0]
        for t in range(previous.size(1))
    ]
    return torch.cat([step[:, -1:] for step in steps], 1)


@pytest.mark.parametrize("head", ["ce", "mix"])
@pytest.mark.parametrize("name", TIED)
def test_every_matrix_is_quantised_in_every_mode_and_the_modes_agree(monkeypatch, name, head):
    model, task = quantized(name)
    net_input = batch(task.source_dictionary)
    names = {id(p): n for n, p in matrices(model).items()}
    count = Count(monkeypatch)

    def seen(mode):
        used, made = count.take()
        needed = (
            names
            if mode == "training" or head == "mix"
            else {key for key in names if "sb_projection" not in names[key]}
        )
        missing = sorted(names[key] for key in needed if key not in used)
        assert not missing, f"{mode}: not quantised: {missing}"
        # however often a matrix is used, it is quantised once
        assert all(times == 1 for key, times in made.items() if key in names), mode

    model.train()
    features, extra = model(**net_input, features_only=True)
    training = torch.nn.functional.linear(model.quantizer.rows(features), *extra["heads"][0])
    seen("training")
    model.eval()
    with torch.no_grad():
        model.decoder.set_decode_head(head, 1.0 - 1e-12)
        full = model(**net_input)[0]
        seen("evaluation")
        model.eval()  # forget the weights kept
        steps = incremental(model, net_input)
        seen("incremental decoding")
    torch.testing.assert_close(
        full.log_softmax(-1).to(steps.dtype), steps.log_softmax(-1), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        training.log_softmax(-1).to(full.dtype), full.log_softmax(-1), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("tied", [{}, dict(share_all_embeddings=True)], ids=["untied", "tied"])
def test_the_transformer_equals_a_float_one_with_quantised_weights_and_inputs(tied):
    """The obvious version: round the weights beforehand, and the input of every Linear in a
    hook."""
    model, task = quantized("transformer_dualhead", **tied)
    plain, _ = build(
        "transformer_dualhead", **dict(SMALL["transformer_dualhead"], dropout=0.0, **tied)
    )
    plain.double().load_state_dict(model.state_dict())
    for _name, parameter in matrices(plain).items():
        parameter.data = round_trip(parameter.data, 8)
    for module in plain.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (round_trip(inputs[0], 8),))
        if hasattr(module, "skip_embed_dim_check"):
            module.skip_embed_dim_check = True
        if hasattr(module, "can_use_fastpath"):
            module.can_use_fastpath = False
    net_input = batch(task.source_dictionary)
    torch.testing.assert_close(model(**net_input)[0], plain(**net_input)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_lstm_equals_torchs_where_nothing_is_rounded(monkeypatch, layers, bidirectional):
    monkeypatch.setattr(Quantizer, "rows", lambda self, x: x)
    monkeypatch.setattr(Quantizer, "weight", lambda self, parameter: parameter)
    torch.manual_seed(0)
    plain = nn.LSTM(5, 4, layers, bidirectional=bidirectional).double()
    ours = copy.deepcopy(plain)
    ours.__class__, ours.__dict__["quantizer"] = qat.QuantLSTM, Quantizer(QatConfig(qat_bits=8))
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    state = tuple(
        torch.randn(layers * (1 + bidirectional), 3, 4, dtype=torch.float64) for _ in range(2)
    )
    for lengths in (None, [6, 4, 1], [2, 6, 3]):
        results = []
        for module in (plain, ours):
            module.zero_grad()
            inputs = (
                x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)
            )
            output, ends = module(inputs, state)
            output = output if lengths is None else pad_packed_sequence(output)[0]
            (output.pow(2).sum() + ends[0].pow(3).sum() + ends[1].sum()).backward()
            results.append([output, *ends, *(p.grad for p in module.parameters())])
        for found, expected in zip(*results):
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours(x)[0], plain(x)[0])


def test_the_lstm_rounds_inputs_hidden_states_and_weights():
    """One sentence, word by word, as the formula has it."""
    torch.manual_seed(0)
    lstm, cell = nn.LSTM(5, 4).double(), nn.LSTMCell(5, 4).double()
    for module, cls in ((lstm, qat.QuantLSTM), (cell, qat.QuantLSTMCell)):
        module.__class__, module.__dict__["quantizer"] = cls, Quantizer(QatConfig(qat_bits=4))
    cell.load_state_dict({name[: -len("_l0")]: value for name, value in lstm.state_dict().items()})
    x = torch.randn(6, 1, 5, dtype=torch.float64)
    h = c = torch.zeros(1, 4, dtype=torch.float64)
    state, expected = (h, c), []
    w_ih, w_hh = (round_trip(getattr(lstm, f"weight_{kind}_l0").data, 4) for kind in ("ih", "hh"))
    for step in x:
        gates = (
            round_trip(step, 4) @ w_ih.t()
            + lstm.bias_ih_l0
            + round_trip(h, 4) @ w_hh.t()
            + lstm.bias_hh_l0
        )
        i, f, g, o = gates.split(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = (torch.sigmoid(o) * torch.tanh(c)).detach()
        expected.append(h)
        state = cell(step, state)
        torch.testing.assert_close(state[0], h)
    torch.testing.assert_close(lstm(x)[0], torch.stack(expected))


@pytest.mark.parametrize("gradient_bits", [None, 8])
@pytest.mark.parametrize(
    "name", ["transformer_dualhead", "lstm_dualhead", "transformer_dualhead share_all_embeddings"]
)
def test_the_criterions_lean_path_equals_the_dense_one(monkeypatch, name, gradient_bits):
    """Loss and gradients; with rounded gradients the loss only, since the two sum a head's gradient
    in another order."""
    model, task = quantized(name, qat_gradient_bits=gradient_bits)
    sample = make_sample(task)
    criterion = RestrictedSoftBleuCriterion(
        task,
        RestrictedSoftBleuConfig(sentence_avg=False, sb_topk=3, label_smoothing=0.1, sb_alpha=0.0),
    )
    lean = loss_and_gradients(model, criterion, sample)
    monkeypatch.setattr("fairseq_klang.criterions.restricted_softbleu.read_heads", lambda *_: None)
    dense = loss_and_gradients(model, criterion, sample)
    torch.testing.assert_close(
        lean[0], dense[0], rtol=1e-6, atol=1e-6, check_dtype=False
    )  # fairseq's log-softmax is float32
    if gradient_bits is None:
        for key, gradient in dense[1].items():
            if gradient is not None:
                torch.testing.assert_close(
                    lean[1][key], gradient, rtol=1e-4, atol=1e-5, msg=lambda m: f"{key}: {m}"
                )


def test_both_heads_learn_through_the_quantiser():
    model, task = quantized("transformer_dualhead")
    criterion = RestrictedSoftBleuCriterion(
        task, RestrictedSoftBleuConfig(sentence_avg=False, sb_topk=3)
    )
    _, gradients, _, log = loss_and_gradients(model.train(), criterion, make_sample(task))
    for name in matrices(model):
        assert gradients[name].abs().max() > 0, name
    # the norm of what came through the head alone; straight through, so the table's own gradient
    # where it has one use
    for head, name in (("ce", "output_projection"), ("sb", "sb_projection")):
        torch.testing.assert_close(
            log[f"gnorm_{head}_head"].double(),
            gradients[f"decoder.{name}.weight"].norm(),
            rtol=1e-5,
            atol=0,
        )


def test_quantised_gradients_lie_on_the_grid():
    model, task = quantized("transformer_dualhead", qat_gradient_bits=5)
    sample = make_sample(task)
    model(**sample["net_input"])[0].pow(2).sum().backward()
    for name in (
        "decoder.output_projection.weight",
        "decoder.layers.0.fc1.weight",
        "encoder.layers.0.self_attn.q_proj.weight",
    ):
        gradient = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(round_trip(gradient, 5), gradient)
        assert len(quantize(gradient, 5)[0].unique()) <= 31


# -- state --


@pytest.mark.parametrize("name", SMALL)
def test_names_are_those_of_the_float_model_and_both_load_each_other(name):
    plain, task = small(name)
    trained, _ = small(name, qat_bits=8)
    assert list(plain.state_dict()) == list(trained.state_dict())
    trained.load_state_dict(plain.state_dict())
    net_input = batch(task.source_dictionary)
    assert not torch.equal(trained(**net_input)[0], plain(**net_input)[0])
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.01)
    plain.load_state_dict(
        trained.state_dict()
    )  # off after training: the float model of the same weights
    off, _ = small(name, qat_bits=8, qat_start_update=1)
    off.load_state_dict(trained.state_dict())
    torch.testing.assert_close(off(**net_input)[0], plain(**net_input)[0], rtol=1e-4, atol=1e-5)
    off.set_num_updates(1)
    assert torch.equal(off(**net_input)[0], trained(**net_input)[0])


def test_an_fp16_checkpoint_starts_quantised_training():
    model, task = small("transformer_dualhead", qat_bits=8)
    half = {name: tensor.half() for name, tensor in model.state_dict().items()}
    model.load_state_dict(half)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    logits = model(**batch(task.source_dictionary))[0]
    assert logits.isfinite().all()
    model.train()(**batch(task.source_dictionary))[0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_an_activation_outlier_stays_finite():
    """A layer whose input holds 1e6: that value is kept, the rest of its token is lost, other
    tokens do not notice."""
    layer = nn.Linear(8, 4)
    plain = copy.deepcopy(layer)
    layer.__class__, layer.__dict__["quantizer"] = QuantLinear, Quantizer(QatConfig(qat_bits=8))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    before = layer(x)
    x[0, 1, 5] = 1e6
    after = layer(x)
    assert after.isfinite().all()
    others = torch.ones(2, 3, dtype=torch.bool)
    others[0, 1] = False
    assert torch.equal(before[others], after[others])
    torch.testing.assert_close(
        after[0, 1], plain(x)[0, 1], rtol=0.02, atol=1e4
    )  # an 8-bit weight times 1e6


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
def test_a_weight_that_changed_is_quantised_anew(name):
    """Training steps as fairseq takes them: the optimiser writes to .data, which leaves no trace in
    the tensor's version."""
    model, task = quantized(name)
    sample = make_sample(task)
    layer = (
        model.decoder.sb_projection if name.startswith("lstm") else model.decoder.output_projection
    )
    layer = getattr(model.decoder, "fc_out", layer)

    def logits():
        return model(**sample["net_input"])[0]

    def oracle():
        other, _ = quantized(name)
        other.load_state_dict(model.state_dict())
        return other.train(model.training)(**sample["net_input"])[0]

    model.train()
    for update in range(2):
        model.set_num_updates(update)
        for _ in range(2):  # --update-freq 2: gradients of two batches add up
            before = (
                torch.zeros_like(layer.weight)
                if layer.weight.grad is None
                else layer.weight.grad.clone()
            )
            logits().pow(2).sum().backward()
            assert not torch.equal(layer.weight.grad, before)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-1e-3)
        torch.testing.assert_close(logits(), oracle())
        with torch.no_grad():
            torch.testing.assert_close(logits(), oracle())
    model.eval()
    with torch.no_grad():
        first = logits()
        torch.testing.assert_close(first, oracle())
        layer.weight.mul_(2)  # without a change of mode: noticed by its version
        torch.testing.assert_close(logits(), oracle())


def test_copies_and_pickles_are_models_of_their_own():
    model, task = quantized("transformer_dualhead")
    net_input = batch(task.source_dictionary)
    model.train()
    output = model(**net_input)[0]  # quantised weights with a graph are at hand
    other = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(model, stream)
    assert (
        other.quantizer is not model.quantizer
        and other.decoder.layers[0].fc1.quantizer is other.quantizer
    )
    assert other.decoder.quantizer is other.quantizer
    torch.testing.assert_close(other(**net_input)[0], output)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    assert not torch.allclose(other(**net_input)[0], model(**net_input)[0])
    torch.testing.assert_close(model(**net_input)[0], output)


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
def test_beam_search_scores_are_those_of_a_full_pass(name):
    model, task = quantized(name)
    net_input = batch(task.source_dictionary)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=6)
    for row, beams in enumerate(generator.generate([model], {"net_input": net_input})):
        tokens = beams[0]["tokens"]
        previous = torch.cat((torch.tensor([task.target_dictionary.eos()]), tokens[:-1]))[None]
        output = model(
            net_input["src_tokens"][row : row + 1],
            net_input["src_lengths"][row : row + 1],
            previous,
        )
        expected = model.get_normalized_probs(output, log_probs=True)[0].gather(1, tokens[:, None])[
            :, 0
        ]
        torch.testing.assert_close(
            beams[0]["positional_scores"], expected.float(), rtol=1e-5, atol=1e-5
        )


# -- any architecture, and refusals --


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_fairseqs_own_models(name, caplog):
    model, task = build(name, **MODELS[name])
    net_input = batch(task.source_dictionary)
    before = model(**net_input)[0]
    keys = list(model.state_dict())
    with caplog.at_level(logging.WARNING):
        assert quantize_model(model, QatConfig(qat_bits=8)) is model
    assert "leaves these matrices in float" not in caplog.text
    after = model(**net_input)[0]
    assert not torch.equal(before, after) and (before - after).abs().max() < 0.3
    assert list(model.state_dict()) == keys
    assert (
        quantize_model(build(name, **MODELS[name])[0], QatConfig()).state_dict().keys()
        == model.state_dict().keys()
    )


def test_the_example_of_the_documentation():
    with open(os.path.join(ROOT, "docs", "precision.md"), encoding="utf-8") as stream:
        code = re.search(r"```python\n(.*?)```", stream.read(), re.S).group(1)
    exec(code, {"__name__": "example"})
    model, task = build("lstm_qat", **MODELS["lstm"], qat_bits=8)
    plain, _ = build("lstm", **MODELS["lstm"])
    net_input = batch(task.source_dictionary)
    assert model.quantizer.bits == 8 and not torch.equal(
        model(**net_input)[0], plain(**net_input)[0]
    )
    assert not hasattr(build("lstm_qat", **MODELS["lstm"])[0], "quantizer")


@pytest.mark.parametrize("bits", [4, 8, None])
def test_a_model_is_quantised_once(bits):
    model, _ = build("transformer", **MODELS["transformer"])
    quantize_model(model, QatConfig(qat_bits=8))
    with pytest.raises(UsageError, match="quantised with 8 bits already; build it anew"):
        quantize_model(model, QatConfig(qat_bits=bits))
    assert model.quantizer.bits == model.decoder.layers[0].fc1.quantizer.bits == 8


def test_what_is_left_in_float_is_named(caplog):
    model, _ = build("fconv", **MODELS["fconv"])
    with caplog.at_level(logging.WARNING):
        quantize_model(model, QatConfig(qat_bits=8))
    assert "encoder.convolutions.0" in caplog.text and "embed_positions" not in caplog.text


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(qat_bits=1), "--qat-bits is 1; it must be a whole number from 2 to 8"),
        (dict(qat_bits=9), "--qat-bits is 9; it must be"),
        (dict(qat_bits=8, qat_gradient_bits=16), "--qat-gradient-bits is 16; it must be"),
        (dict(qat_bits=8, qat_start_update=-1), "--qat-start-update is -1; it must be 0 or more"),
        (
            dict(qat_start_update=10),
            "--qat-start-update is 10, but without --qat-bits nothing is quantised",
        ),
        (dict(qat_gradient_bits=8), "--qat-gradient-bits is 8, but without --qat-bits"),
    ],
)
@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
def test_bad_options_are_one_line(name, options, message):
    with pytest.raises(UsageError, match=message):
        small(name, **options)


def test_output_layers_past_their_modules_are_refused():
    model, _ = build("lstm", **dict(MODELS["lstm"], share_decoder_input_output_embed=True))
    with pytest.raises(UsageError, match="use lstm_dualhead"):
        quantize_model(model, QatConfig(qat_bits=8))
    model, _ = build("transformer", **MODELS["transformer"], adaptive_softmax_cutoff="8,16")
    with pytest.raises(UsageError, match="--adaptive-softmax-cutoff"):
        quantize_model(model, QatConfig(qat_bits=8))
    separate, _ = quantized(
        "transformer_dualhead", source=dictionary(20), target=dictionary(11, "v")
    )
    assert isinstance(separate.decoder.sb_projection, QuantLinear)
