"""The source's half of the models: what it adds, what it leaves alone, and that it computes what
its form says."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from fairseq.models import FairseqLanguageModel

from fairseq_klang.compat import strip_legacy_keys
from fairseq_klang.errors import UsageError
from fairseq_klang.models.autoencoder import (
    AUTOENCODERS,
    check_source_passes,
    reconstruction_model,
    source_decoder,
)
from fairseq_klang.models.heads import linear_head
from fairseq_klang.quantization.fake_quant import round_trip
from helpers.models import SMALL, batch, build, dictionary, small
from helpers.running import ROOT, settled

FORMS = AUTOENCODERS[1:]
SEPARATE = dict(source=dictionary(20), target=dictionary(11, "v"))


def source_input(task, seed=3):
    """Source tokens, padded on the right, lengths, and what a source decoder is fed."""
    eos, pad = task.source_dictionary.eos(), task.source_dictionary.pad()
    tokens = torch.tensor([[4, 9, 6, 7, 5, eos], [8, 5, 10, eos, pad, pad]])
    previous = torch.tensor([[eos, 4, 9, 6, 7, 5], [eos, 8, 5, 10, pad, pad]])
    return dict(src_tokens=tokens, src_lengths=torch.tensor([6, 4]), prev_output_tokens=previous)


@pytest.mark.parametrize("name", SMALL)
def test_none_adds_nothing_and_the_forms_only_add(name):
    plain = small(name)[0].state_dict()
    assert small(name, autoencoder="none")[0].state_dict().keys() == plain.keys()
    for form in FORMS:
        model, task = small(name, autoencoder=form)
        state = model.state_dict()
        added = set(state) - set(plain)
        assert added and all(key.startswith("autoencoder.") for key in added)
        assert all(torch.equal(state[key], value) for key, value in settled(plain).items())
        net_input = batch(task.source_dictionary)
        assert torch.equal(model(**net_input)[0], small(name)[0](**net_input)[0])
        # torch's random state goes on as without it, so dropout will be the same
        numbers = []
        for options in ({}, {"autoencoder": form}):
            small(name, **options)
            numbers.append(torch.rand(3))
        assert torch.equal(*numbers)


@pytest.mark.parametrize("languages", [{}, SEPARATE], ids=["joined", "separate"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", FORMS)
def test_reconstruction_is_that_of_an_ordinary_model_with_these_weights(name, form, languages):
    """Oracle: a fairseq model from the source language to itself, whose weights are set by name."""
    model, task = small(name, autoencoder=form, **languages)
    oracle, _ = build(
        name.split()[0].replace("_dualhead", ""), source=task.source_dictionary, **SMALL[name]
    )
    state = model.state_dict()
    inner = "autoencoder.decoder." if form == "decoder" else "decoder."
    names = {
        key: key if key.startswith("encoder.") else inner + key[len("decoder.") :]
        for key in oracle.state_dict()
    }
    names["decoder.embed_tokens.weight"] = "encoder.embed_tokens.weight"
    output = next(
        key for key in names if key in ("decoder.output_projection.weight", "decoder.fc_out.weight")
    )
    if form == "linear":
        names[output] = "autoencoder.output_projection.weight"
        names.pop("decoder.fc_out.bias", None)
    expected = {key: state[other] for key, other in names.items()}
    if form == "linear" and output == "decoder.fc_out.weight":
        expected["decoder.fc_out.bias"] = torch.zeros(len(task.source_dictionary))
    oracle.decoder.embed_tokens = copy.deepcopy(oracle.decoder.embed_tokens)
    oracle.load_state_dict(expected)
    net_input = source_input(task)
    features, weight, bias = model(**net_input, source_pass="reconstruct")
    found = torch.nn.functional.linear(features, weight, bias)
    # fairseq's LSTM reads its source padded on the left, the transformer on either side
    left = dict(
        net_input,
        src_tokens=torch.stack([net_input["src_tokens"][0], net_input["src_tokens"][1].roll(2)]),
    )
    wanted, _ = oracle(**left)
    present = net_input["src_tokens"].ne(task.source_dictionary.pad())
    torch.testing.assert_close(found[present], wanted[present], rtol=1e-4, atol=1e-5)
    assert weight.size(0) == len(task.source_dictionary)
    # and generation of reconstructions goes the same way
    logits, _ = reconstruction_model(model)(
        left["src_tokens"], left["src_lengths"], left["prev_output_tokens"]
    )
    torch.testing.assert_close(logits[present], found[present], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_encoder_states_are_those_of_the_encoder_whatever_the_padding(name):
    model, task = small(name)
    net_input = source_input(task)
    states, weight, bias = model(**net_input, source_pass="encode")
    assert (
        states.shape == (2, 6, 16) and weight is model.encoder.embed_tokens.weight and bias is None
    )
    alone = dict(
        src_tokens=net_input["src_tokens"][1:, :4],
        src_lengths=torch.tensor([4]),
        prev_output_tokens=None,
    )
    torch.testing.assert_close(
        model(**alone, source_pass="encode")[0][0], states[1, :4], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
def test_a_view_holds_nothing_of_its_own_and_keeps_the_decoder_as_it_was(name):
    model, _ = small(name, autoencoder="linear", share_decoder_input_output_embed=True)
    before = dict(model.decoder._modules)
    view = source_decoder(model)
    assert model.decoder._modules == before and model.decoder.share_input_output_embed
    assert linear_head(view).weight is model.autoencoder["output_projection"].weight
    own = {id(p) for p in model.parameters()}
    assert all(id(p) in own for p in view.parameters())


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
@pytest.mark.parametrize("form", AUTOENCODERS)
def test_checkpoints_load_back(name, form):
    first, second = (small(name, autoencoder=form, seed=seed)[0] for seed in (0, 1))
    second.load_state_dict(first.state_dict())
    loaded = second.state_dict()
    assert all(
        torch.equal(value, loaded[key])
        for key, value in strip_legacy_keys(settled(first.state_dict())).items()
    )


def test_what_cannot_be_built_or_learnt_is_refused():
    with pytest.raises(
        UsageError, match="--autoencoder is both; legal values are none, linear, decoder"
    ):
        small("transformer_dualhead", autoencoder="both")
    with pytest.raises(UsageError, match="--encoder-embed-dim and --decoder-embed-dim equal"):
        small("transformer_dualhead", autoencoder="linear", decoder_embed_dim=8, **SEPARATE)
    small("transformer_dualhead", autoencoder="decoder", decoder_embed_dim=8, **SEPARATE)
    with pytest.raises(
        UsageError, match="--max-target-positions 10 is below --max-source-positions 20"
    ):
        small(
            "transformer_dualhead",
            autoencoder="linear",
            max_target_positions=10,
            max_source_positions=20,
        )
    with pytest.raises(UsageError, match="built with --autoencoder none; train it with"):
        check_source_passes(small("lstm_dualhead")[0], "autoencoding", "--adapt-objective")
    check_source_passes(small("lstm_dualhead")[0], "masked_lm", "--adapt-objective")
    with pytest.raises(
        UsageError, match="states of dimension 32 with source embeddings of dimension 16"
    ):
        check_source_passes(
            small("lstm_dualhead", encoder_bidirectional=True)[0], "masked_lm", "--ae-objective"
        )
    with pytest.raises(UsageError, match="TransformerModel cannot learn from source text"):
        check_source_passes(
            build("transformer", **SMALL["transformer_dualhead"])[0], "masked_lm", "--ae-objective"
        )
    with pytest.raises(UsageError, match=r"no encoder \(target side only\)"):
        check_source_passes(
            FairseqLanguageModel(small("lstm_dualhead")[0].decoder), "masked_lm", "--ae-objective"
        )


WORKER = """
import os
import sys
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch import distributed
from helpers.models import SMALL, batch, build, dictionary
from helpers.tasks import Backward, criterion_of, make_task, sample_of

rank, port = int(sys.argv[1]), sys.argv[2]
address = "tcp://127.0.0.1:" + port
distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
words = dictionary(20)
for name, form, flags in [
    ("transformer_dualhead", "linear", dict(ae_ratio=1.0)),
    ("transformer_dualhead", "decoder", dict(ae_weight=0.5)),
    ("transformer_dualhead", "none", dict(ae_ratio=1.0, ae_objective="masked_lm")),
    ("lstm_dualhead", "decoder", dict(ae_ratio=1.0)),
    ("lstm_dualhead", "none", dict(ae_ratio=1.0, ae_objective="contrastive")),
]:
    model, _ = build(name, source=words, autoencoder=form, dropout=0.0, **SMALL[name])
    # as fairseq wraps it
    wrapped = ModuleProxyWrapper(torch.nn.parallel.DistributedDataParallel(model))
    task = make_task(words, **flags)
    # leaves the second head without a gradient; restricted_softbleu does not
    other = "label_smoothed_cross_entropy"
    criterion = criterion_of(task, "restricted_softbleu" if form == "linear" else other)
    for update in range(4):
        wrapped.zero_grad()
        sample = sample_of(words, seed=2 * update + rank)
        task.train_step(sample, wrapped, criterion, Backward(), update)
        for key, parameter in model.named_parameters():
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            both = [torch.empty_like(mine) for _ in range(2)]
            distributed.all_gather(both, mine)
            assert torch.equal(*both), (name, form, update, key)
distributed.barrier()
distributed.destroy_process_group()
print("done", flush=True)
os._exit(0)  # all is compared; gloo's threads now and then abort a Python that ends
"""


@pytest.mark.slow
def test_unused_halves_do_not_stop_pytorchs_ddp():
    """The default back end of fairseq, in two processes on CPUs: every step kind, several steps,
    the same gradients on both.

    Without find_unused_parameters torch raises at the second step when a parameter took no part in
    the first.
    """
    port = str(21000 + os.getpid() % 20000)
    paths = os.pathsep.join(
        [ROOT] + [os.path.join(ROOT, "tests", part) for part in ("", "models", "losses", "tasks")]
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), port],
            env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=paths),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        for rank in (0, 1)
    ]
    for worker, (output, errors) in [
        (worker, worker.communicate(timeout=200)) for worker in workers
    ]:
        assert worker.returncode == 0 and "done" in output, errors[-3000:]


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["reconstruct", "encode"])
def test_under_quantisation_a_source_pass_is_quantised(name, form, kind):
    model, task = small(name, autoencoder=form, qat_bits=4)
    net_input = source_input(task)
    features, weight, _ = model.source_pass(
        kind, net_input["src_tokens"], net_input["src_lengths"], net_input["prev_output_tokens"]
    )
    assert torch.equal(round_trip(features, 4), features)  # what is on the grid stays as it is
    raw = (
        model.encoder.embed_tokens.weight
        if kind == "encode"
        else linear_head(source_decoder(model)).weight
    )
    assert torch.equal(weight, round_trip(raw, 4)) and not torch.equal(weight, raw)
