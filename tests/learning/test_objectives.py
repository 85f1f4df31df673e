"""The objectives without a target: how a batch is made, and the loss against plain torch."""

import pytest
import torch
from fairseq.data.data_utils import collate_tokens

from fairseq_klang.learning.objectives import (
    OBJECTIVES,
    SourceObjective,
    mean_states,
    strip_padding,
)
from helpers.models import SMALL, build, dictionary

WORDS = dictionary(20)
EOS, PAD, UNK = WORDS.eos(), WORDS.pad(), WORDS.unk()
SENTENCES = [torch.tensor(line + [EOS]) for line in ([5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15])]
SEEDS = [(1, 1, i) for i in range(4)]


def model_of(name="transformer_dualhead", form="decoder"):
    return build(name, source=WORDS, autoencoder=form, **SMALL[name])[0]


def test_a_batch_is_what_fairseq_would_make_of_source_and_target():
    batch = SourceObjective("autoencoding", WORDS).prepare(SENTENCES, SEEDS)
    order = [2, 0, 3, 1]
    assert batch.src_lengths.tolist() == [6, 4, 3, 2]
    for found in (batch.src_tokens, batch.target):
        assert torch.equal(found, collate_tokens([SENTENCES[i] for i in order], PAD, EOS))
    assert torch.equal(
        batch.previous,
        collate_tokens([SENTENCES[i] for i in order], PAD, EOS, move_eos_to_beginning=True),
    )
    left = collate_tokens(SENTENCES, PAD, EOS, left_pad=True)
    assert all(torch.equal(a, b) for a, b in zip(strip_padding(left, PAD), SENTENCES))


@pytest.mark.parametrize("noise", ["mask", "drop", "swap"])
def test_noise_changes_the_input_alone(noise):
    batch = SourceObjective("autoencoding", WORDS, noise, 0.5).prepare(SENTENCES, SEEDS)
    assert sorted(map(tuple, batch.target.tolist())) == sorted(
        map(tuple, collate_tokens(SENTENCES, PAD, EOS).tolist())
    )
    assert batch.src_tokens.tolist() != batch.target.tolist()
    assert (batch.src_lengths[:-1] >= batch.src_lengths[1:]).all()
    for row, length in zip(batch.src_tokens, batch.src_lengths):
        assert (
            row[length - 1] == EOS and (row[length:] == PAD).all() and (row[:length] != PAD).all()
        )


def test_masked_words_are_the_only_target():
    batch = SourceObjective("masked_lm", WORDS, rate=0.3).prepare(SENTENCES, SEEDS)
    masked = batch.target.ne(PAD)
    assert (
        masked.any(1).all()
        and (batch.src_tokens[masked] == UNK).all()
        and (batch.target[masked] != EOS).all()
    )
    whole = torch.where(masked, batch.target, batch.src_tokens)
    assert sorted(map(tuple, whole.tolist())) == sorted(
        map(tuple, collate_tokens(SENTENCES, PAD, EOS).tolist())
    )


@pytest.mark.parametrize("name", ["transformer_dualhead", "lstm_dualhead"])
@pytest.mark.parametrize("objective", ["autoencoding", "masked_lm"])
def test_the_loss_is_cross_entropy_and_a_batch_is_the_sum_of_its_sentences(name, objective):
    learn, model = SourceObjective(objective, WORDS, rate=0.3), model_of(name)
    batch = learn.prepare(SENTENCES, SEEDS)
    whole = learn(model, batch)
    kind = "reconstruct" if objective == "autoencoding" else "encode"
    features, weight, bias = model(
        batch.src_tokens, batch.src_lengths, batch.previous, source_pass=kind
    )
    logits = torch.nn.functional.linear(features, weight, bias)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(whole.loss, expected)
    parameters = [p for p in model.parameters()]
    for found, wanted in zip(
        *(
            torch.autograd.grad(loss, parameters, allow_unused=True)
            for loss in (whole.loss, expected)
        )
    ):
        assert (found is None) == (wanted is None)
        if found is not None:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    parts = [
        learn(model, learn.prepare([sentence], [seed])) for sentence, seed in zip(SENTENCES, SEEDS)
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss, rtol=1e-4, atol=1e-5)
    assert sum(int(part.units) for part in parts) == int(whole.units)


def test_contrastive_compares_two_dropout_views():
    learn, model = SourceObjective("contrastive", WORDS, temperature=0.5), model_of()
    batch = learn.prepare(SENTENCES, SEEDS)
    calm = learn(model, batch)  # no dropout: each sentence equals itself
    states, _, _ = model(batch.src_tokens, batch.src_lengths, None, source_pass="encode")
    vectors = mean_states(states, batch.src_tokens.ne(PAD))
    torch.testing.assert_close(vectors[3], states[3, :2].mean(0))
    cosine = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1) / 0.5
    torch.testing.assert_close(
        calm.loss, torch.nn.functional.cross_entropy(cosine, torch.arange(4), reduction="sum")
    )
    assert int(calm.units) == 4
    model.train()
    losses = {float(learn(model, batch).loss.detach()) for _ in range(3)}
    assert len(losses) == 3


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_can_be_learnt(objective):
    """Forty steps of Adam make it smaller, by a lot."""
    learn, model = SourceObjective(objective, WORDS, rate=0.3), model_of()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(40):
        result = learn(model, learn.prepare(SENTENCES, SEEDS))
        losses.append(float(result.loss.detach() / result.units))
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_leaves_its_device_once(name, monkeypatch):
    """Each copy makes an accelerator wait: one for the batch, and none for each sentence."""
    copies, cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(1) or cpu(self))
    padded = torch.full((3, 9), PAD)
    for row, sentence in zip(padded, SENTENCES):
        row[-len(sentence) :] = sentence
    SourceObjective(name, WORDS).prepare(strip_padding(padded, PAD), SEEDS)
    assert len(copies) == 1
