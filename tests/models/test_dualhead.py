"""The dual-head models: sizes, sharing, causality, incremental decoding and the choice of head."""

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.sequence_generator import SequenceGenerator

import fairseq_klang
from fairseq_klang.compat import strip_legacy_keys
from fairseq_klang.errors import UsageError
from fairseq_klang.models.autoencoder import AUTOENCODERS
from fairseq_klang.models.heads import linear_head, read_heads
from helpers.models import SMALL, batch, build, dictionary, small

fairseq_klang.register()

ARCHITECTURES = [name for name in sorted(ARCH_MODEL_REGISTRY) if "dualhead" in name]
# Parameters in millions at V = 8,000 in the series, which leaves the last digit open: it does not
# say whether V counts fairseq's four special tokens, worth up to 0.006 M here.
SIZES = {
    "transformer_dualhead_b0": 11.68,
    "transformer_dualhead_b1": 34.37,
    "transformer_dualhead_b2": 56.43,
    "transformer_dualhead_b3": 17.21,
}


@pytest.mark.parametrize("architecture", sorted(SIZES))
def test_parameter_counts_are_those_of_the_series(architecture):
    # 7,996 words and the 4 special tokens of fairseq: V = 8,000
    model, _ = build(architecture, dictionary(7996))
    # Without the second, untrained copy of the encoder's layers that fairseq 0.12.2 makes.
    count = sum(
        parameter.numel()
        for parameter in strip_legacy_keys(dict(model.named_parameters())).values()
    )
    assert count / 1e6 == pytest.approx(SIZES[architecture], abs=0.0151)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_builds_from_its_defaults(architecture):
    model, task = build(architecture)
    net_input = batch(task.source_dictionary)
    logits, _ = model(**net_input)
    assert logits.shape == (3, 5, len(task.target_dictionary))


@pytest.mark.parametrize("name", SMALL)
def test_heads_are_tables_of_their_own_and_inputs_are_shared(name):
    model, _ = small(name)
    decoder = model.decoder
    ce = linear_head(decoder).weight
    assert model.encoder.embed_tokens is decoder.embed_tokens
    assert len({id(ce), id(decoder.sb_projection.weight), id(decoder.embed_tokens.weight)}) == 3


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "flags, tied, inputs",
    [
        (dict(share_decoder_input_output_embed=True), True, False),
        (dict(share_all_embeddings=True), True, True),
    ],
    ids=["share-decoder-input-output-embed", "share-all-embeddings"],
)
def test_sharing_flags_keep_their_meaning(name, flags, tied, inputs):
    model, _ = small(name, **flags)
    assert (linear_head(model.decoder).weight is model.decoder.embed_tokens.weight) == tied
    assert (model.encoder.embed_tokens is model.decoder.embed_tokens) == inputs
    assert model.decoder.sb_projection.weight is not model.decoder.embed_tokens.weight


# A flag of fairseq's main branch; 0.12.2 has nothing to test.
if "merge_src_tgt_embed" in TransformerConfig.__dataclass_fields__:

    def test_merge_src_tgt_embed():
        model, task = small(
            "transformer_dualhead",
            source=dictionary(20),
            target=dictionary(8, "v"),
            merge_src_tgt_embed=True,
        )
        assert model.encoder.embed_tokens is model.decoder.embed_tokens
        assert (
            model.decoder.sb_projection.weight.size(0)
            == model.decoder.output_projection.weight.size(0)
            == 4 + 20 + 8
        )


@pytest.mark.parametrize("flag", ["share_all_embeddings", "share_decoder_input_output_embed"])
def test_an_output_dimension_that_cannot_share_is_refused(flag):
    with pytest.raises(
        UsageError,
        match=(
            "--decoder-output-dim is 8, but the output layer shares the embeddings of dimension 16"
        ),
    ):
        small("transformer_dualhead", decoder_output_dim=8, **{flag: True})
    model, task = small("transformer_dualhead", decoder_output_dim=8)
    assert model(**batch(task.source_dictionary))[0].shape == (3, 5, 24)


@pytest.mark.parametrize("name", SMALL)
def test_separate_dictionaries(name):
    source, target = dictionary(20), dictionary(11, "v")
    model, _ = small(name, source=source, target=target)
    assert model.encoder.embed_tokens is not model.decoder.embed_tokens
    assert model.decoder.sb_projection.weight.size(0) == len(target)
    with pytest.raises(UsageError, match="--share-all-embeddings needs a joined dictionary"):
        small(name, source=source, target=target, share_all_embeddings=True)


PLAIN = {"transformer_dualhead": "transformer", "lstm_dualhead": "lstm"}


@pytest.mark.parametrize("form", AUTOENCODERS)
@pytest.mark.parametrize("name", PLAIN)
def test_a_model_starts_and_goes_on_as_fairseqs_of_the_same_seed(name, form):
    """Its initial values, and the random numbers that training or sampling draws next."""
    languages = dict(source=dictionary(20), target=dictionary(15, "v"), **SMALL[name])
    plain = build(PLAIN[name], seed=3, **languages)[0]
    drawn = torch.rand(5)
    ours = build(name, seed=3, autoencoder=form, **languages)[0]
    assert torch.equal(torch.rand(5), drawn)
    values = ours.state_dict()
    for key, value in plain.state_dict().items():
        if not key.endswith("._float_tensor"):  # which fairseq 0.12.2 saves uninitialised
            assert torch.equal(values[key], value), key


@pytest.mark.parametrize("name", PLAIN)
def test_the_parts_of_our_own_depend_on_the_seed_and_differ(name):
    def heads(seed):
        model = build(name, seed=seed, autoencoder="linear", **SMALL[name])[0]
        return model.decoder.sb_projection.weight, model.autoencoder["output_projection"].weight

    second, source = heads(3)
    assert torch.equal(second, heads(3)[0]) and torch.equal(source, heads(3)[1])
    assert not torch.equal(second, heads(4)[0]) and not torch.equal(source, heads(4)[1])
    for one, other in ((second, source), (second, heads(4)[0]), (source, heads(4)[1])):
        # Equal numbers that were only scaled would be no independent start.
        correlation = torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]
        assert abs(correlation) < 0.2  # 4 standard errors of 384 pairs


def test_adaptive_softmax_is_refused():
    with pytest.raises(UsageError, match="--adaptive-softmax-cutoff cannot be combined"):
        small("transformer_dualhead", adaptive_softmax_cutoff="5,10")
    with pytest.raises(UsageError, match="--adaptive-softmax-cutoff cannot be combined"):
        small("lstm_dualhead", adaptive_softmax_cutoff="5,10")
    model, task = build(
        "transformer", **SMALL["transformer_dualhead"], adaptive_softmax_cutoff="5,10"
    )
    with pytest.raises(UsageError, match="--adaptive-softmax-cutoff cannot be combined"):
        read_heads(model, batch(task.source_dictionary))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("head", ["ce", "sb", "mix"])
def test_causality(name, head):
    """Changing target token t leaves every score before t as it was."""
    model, task = small(name)
    model.decoder.set_decode_head(head, 0.3)
    net_input = batch(task.source_dictionary)
    before, _ = model(**net_input)
    for position in range(1, 5):
        changed = dict(net_input, prev_output_tokens=net_input["prev_output_tokens"].clone())
        changed["prev_output_tokens"][:, position] = (
            4 + (changed["prev_output_tokens"][:, position] - 3) % 20
        )
        after, _ = model(**changed)
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.allclose(before[:, position], after[:, position])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("head", ["ce", "sb", "mix"])
@pytest.mark.parametrize("beam", [1, 5])
def test_incremental_scores_equal_full_ones(name, head, beam):
    """Each hypothesis' token scores from beam search are the log-probabilities of one full forward
    pass."""
    model, task = small(name)
    model.decoder.set_decode_head(head, 0.3)
    # Larger weights than at the start make the distribution sharp, so that a mistake would show.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    net_input = batch(task.source_dictionary)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, max_len_b=8)
    hypotheses = generator.generate([model], {"net_input": net_input})
    eos = task.target_dictionary.eos()
    for row, beams in enumerate(hypotheses):
        assert len(beams) == beam
        for hypothesis in beams:
            tokens = hypothesis["tokens"]
            previous = torch.cat((torch.tensor([eos]), tokens[:-1]))[None]
            output = model(
                net_input["src_tokens"][row : row + 1],
                net_input["src_lengths"][row : row + 1],
                previous,
            )
            expected = model.get_normalized_probs(output, log_probs=True)[0].gather(
                1, tokens[:, None]
            )[:, 0]
            # The search keeps running sums in float32 and returns their differences.
            rounding = 4 * torch.finfo(torch.float32).eps * expected.detach().abs().sum().item()
            torch.testing.assert_close(
                hypothesis["positional_scores"], expected, rtol=1e-4, atol=1e-5 + rounding
            )


def test_mix_lies_between_the_heads_and_training_always_uses_ce():
    model, task = small("transformer_dualhead")
    net_input = batch(task.source_dictionary)
    scores = {}
    for head in ("ce", "sb", "mix"):
        model.decoder.set_decode_head(head, 0.25)
        scores[head] = torch.log_softmax(model(**net_input)[0], -1)
    expected = torch.log_softmax(0.25 * scores["ce"] + 0.75 * scores["sb"], -1)
    torch.testing.assert_close(scores["mix"], expected)
    model.train()
    model.decoder.dropout_module.p = 0.0
    features, extra = model(**net_input, features_only=True)
    ce, sb = extra["heads"]
    model.decoder.set_decode_head("sb", 0.5)
    torch.testing.assert_close(
        model.decoder.output_layer(features), torch.nn.functional.linear(features, ce.weight)
    )
    for head, mix, message in (
        ("both", 0.5, "legal values are ce, sb, mix"),
        ("mix", 1.5, "--decode-mix is 1.5"),
    ):
        with pytest.raises(UsageError, match=message):
            model.decoder.set_decode_head(head, mix)


@pytest.mark.parametrize("name", SMALL)
def test_features_and_heads_give_the_logits(name):
    model, task = small(name)
    net_input = batch(task.source_dictionary)
    logits, _ = model(**net_input)
    heads = read_heads(model, net_input)
    torch.testing.assert_close(torch.nn.functional.linear(heads.features, *heads.ce), logits)
    model.decoder.set_decode_head("sb", 0.5)
    torch.testing.assert_close(
        torch.nn.functional.linear(heads.features, *heads.sb), model(**net_input)[0]
    )


def test_a_changed_output_layer_is_not_taken_for_a_linear_one():
    """A subclass that computes its scores another way goes the dense path."""
    model, task = build("transformer", **SMALL["transformer_dualhead"])

    class Tempered(type(model.decoder)):
        def output_layer(self, features):
            return super().output_layer(features) / 2

    assert linear_head(model.decoder) is not None
    model.decoder.__class__ = Tempered
    assert linear_head(model.decoder) is None
    assert read_heads(model, batch(task.source_dictionary)) is None


def test_checkpoints_of_0_12_2_load():
    """Its duplicate encoder tensors are dropped on load, other unknown tensors still are an
    error."""
    model, _ = small("transformer_dualhead")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["encoder.layers.0.in_proj_weight"] = torch.zeros(48, 16)
    state["encoder.layers.1.fc2_bias"] = torch.zeros(16)
    model.load_state_dict(dict(state), strict=True)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(dict(state, surprise=torch.zeros(1)), strict=True)
