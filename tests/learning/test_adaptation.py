"""Learning at inference: what it changes, and that it can be undone to the bit."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from fairseq.data import LanguagePairDataset

from fairseq_klang.errors import UsageError
from fairseq_klang.learning.adaptation import Adapter, adaptable_parameters, sentence_seed
from fairseq_klang.learning.objectives import SourceObjective
from fairseq_klang.tasks.adapting import Replay
from helpers.models import SMALL, build, dictionary
from helpers.running import settled

WORDS, OTHER = dictionary(20), dictionary(11, "v")
SENTENCES = [
    torch.tensor(line + [WORDS.eos()]) for line in ([5, 6, 7], [8, 9, 10, 11, 12, 13], [14, 15])
]


def model_of(name="transformer_dualhead", target=None, **options):
    """A model as fairseq-generate holds it: prepared for inference, after which fairseq forbids
    model.train()."""
    model = build(
        name, source=WORDS, target=target, autoencoder="decoder", **dict(SMALL[name], **options)
    )[0]
    model.make_generation_fast_()
    return model


def adapter_of(model, objective="autoencoding", **options):
    settings = dict(steps=3, lr=0.01, parameters="all")
    return Adapter(model, SourceObjective(objective, WORDS), **dict(settings, **options))


def fingerprint(model):
    return {
        "state": {name: value.clone() for name, value in settled(model.state_dict()).items()},
        "modes": [module.training for module in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "gradients": [p.grad is None for p in model.parameters()],
        "random": torch.get_rng_state(),
    }


def assert_same(first, second):
    for key in ("modes", "flags", "gradients"):
        assert first[key] == second[key], key
    assert torch.equal(first["random"], second["random"])
    assert first["state"].keys() == second["state"].keys()
    assert all(torch.equal(value, second["state"][name]) for name, value in first["state"].items())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("parameters", ["encoder", "all"])
@pytest.mark.parametrize("objective", ["autoencoding", "masked_lm"])
def test_everything_is_restored_to_the_bit(name, parameters, objective):
    model = build(name.split()[0], source=WORDS, autoencoder="decoder", **SMALL[name])[0]
    model.make_generation_fast_()
    model.decoder.train()  # a mode of its own, which must come back
    next(model.encoder.parameters()).requires_grad_(False)
    adapter = adapter_of(model, objective, parameters=parameters)
    before = fingerprint(model)
    for sentence in SENTENCES:
        with adapter.adapted([sentence]) as report:
            assert (
                report.stopped is None and len(report.losses) == 3 and report.after < report.before
            )
            changed = {
                key
                for key, value in settled(model.state_dict()).items()
                if not torch.equal(value, before["state"][key])
            }
            assert changed
        assert_same(before, fingerprint(model))
        assert not adapter.optimizer.state_dict()["state"]


def test_everything_is_restored_after_an_error_or_an_interrupt():
    model = model_of()
    adapter, before = adapter_of(model), fingerprint(model)
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            with adapter.adapted([SENTENCES[0]]):
                raise error
        assert_same(before, fingerprint(model))

    class Broken(SourceObjective):
        def __call__(self, *_):
            raise RuntimeError("out of memory")

    adapter.objective = Broken("autoencoding", WORDS)
    with pytest.raises(RuntimeError, match="out of memory"):
        with adapter.adapted([SENTENCES[0]]):
            pass
    assert_same(before, fingerprint(model))


def test_what_a_sentence_teaches_depends_on_the_sentence_alone():
    def taught(order):
        model = model_of()
        adapter, found = adapter_of(model), {}
        for i in order:
            torch.rand(i + 1)  # whatever the random state
            with adapter.adapted([SENTENCES[i]]):
                found[i] = (
                    {name: value.clone() for name, value in settled(model.state_dict()).items()},
                    torch.rand(2),
                )
        return found

    first, second = taught([0, 1, 2]), taught([2, 0, 1])
    for i in range(3):
        assert all(torch.equal(value, second[i][0][name]) for name, value in first[i][0].items())
        assert torch.equal(first[i][1], second[i][1])
    assert len({sentence_seed([sentence]) for sentence in SENTENCES}) == 3


@pytest.mark.parametrize("target", [None, OTHER], ids=["joined", "separate"])
def test_encoder_means_the_encoders_own_weights(target):
    model = model_of(target=target)
    chosen = {id(p) for p in adaptable_parameters(model, "encoder")}
    names = {name for name, p in model.named_parameters() if id(p) in chosen}
    assert names and all(name.startswith("encoder.") for name in names)
    # A table that the decoder reads too stands still with the decoder.
    assert ("encoder.embed_tokens.weight" in names) == (target is not None)
    adapter, before = adapter_of(model, parameters="encoder"), fingerprint(model)["state"]
    adapter.learn(SENTENCES)
    after = model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all(
        name.startswith("encoder.") or name == "autoencoder.decoder.embed_tokens.weight"
        for name in changed
    )


def test_never_goes_on_from_what_was_learnt():
    model = model_of(dropout=0.0)
    adapter = adapter_of(model)
    first, second = adapter.learn(SENTENCES), adapter.learn(SENTENCES)
    assert first.before == pytest.approx(first.losses[0], abs=1e-5)  # neither dropout nor noise
    assert first.before > first.after == second.before > second.after
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    "lr, patience, reason",
    [
        (1e20, 0, "the objective is (nan|inf)"),
        (3.0, 2, "the objective has risen 2 times in a row"),
        (3.0, 0, "the objective rose from .* to "),
    ],
)
def test_steps_that_go_wrong_are_taken_back(lr, patience, reason):
    model = model_of(dropout=0.0)
    good = adapter_of(model)
    good.learn(SENTENCES[:1])
    before, optimizer = fingerprint(model), copy.deepcopy(good.optimizer.state_dict())
    for group in good.optimizer.param_groups:
        group["lr"] = lr
    good.steps, good.patience = 12, patience
    report = good.learn(SENTENCES[1:])
    assert re.match(reason, report.stopped)
    assert_same(before, fingerprint(model))
    for key, state in optimizer["state"].items():
        assert all(
            torch.equal(value, good.optimizer.state_dict()["state"][key][name])
            for name, value in state.items()
            if torch.is_tensor(value)
        )
    if patience:
        assert report.losses[-1] > report.losses[-2] > report.losses[-3] and report.after is None
    elif lr > 3:
        assert not math.isfinite(report.losses[-1])
    else:
        assert report.after > report.before and len(report.losses) == 12


def test_a_rise_is_measured_without_noise():
    """What the noise of a step costs is no reason to take it back."""
    model = model_of(dropout=0.0)
    objective = SourceObjective("autoencoding", WORDS, noise="mask", rate=0.9)
    report = Adapter(model, objective, steps=1, lr=1e-3, parameters="all").learn(SENTENCES)
    clean = Adapter(model, objective.without_noise(), steps=1, lr=1e-3, parameters="all")
    assert report.losses[0] != pytest.approx(report.before, abs=1e-4)
    assert report.after == pytest.approx(clean.learn(SENTENCES).before, abs=1e-6)


def test_an_encoder_without_weights_of_its_own_is_refused():
    model = model_of(encoder_layers=0, share_all_embeddings=True)
    with pytest.raises(
        UsageError, match="--adapt-parameters is encoder, but this encoder has no weights"
    ):
        adapter_of(model, parameters="encoder")


def pairs():
    source = [torch.tensor([5 + i, 6 + i, WORDS.eos()]) for i in range(6)]
    target = [torch.tensor([6 + i, 5 + i, 7, WORDS.eos()]) for i in range(6)]
    return LanguagePairDataset(source, [3] * 6, WORDS, target, [4] * 6, WORDS)


class Counted(Replay):
    """Replay that keeps the seeds of the steps taken."""

    def __init__(self):
        super().__init__(pairs(), WORDS.pad())
        self.taken = []

    def loss(self, model, seed, device):
        self.taken.append(seed)
        return super().loss(model, seed, device)


@pytest.mark.parametrize("ratio, expected", [(0, 0), (0.5, 2), (1, 4), (2.5, 10)])
def test_replay_steps_come_at_their_ratio_and_change_the_decoder(ratio, expected):
    model, replay = model_of(), Counted()
    adapter, taken = adapter_of(model, steps=4, replay=replay, ratio=ratio), replay.taken
    before = fingerprint(model)
    with adapter.adapted(SENTENCES):
        assert len(taken) == len(set(taken)) == expected
        assert torch.equal(
            before["state"]["decoder.output_projection.weight"],
            model.decoder.output_projection.weight,
        ) == (not ratio)
    assert_same(before, fingerprint(model))


def test_replay_steps_that_are_due_are_kept_for_the_next_batch():
    replay = Counted()
    adapter = adapter_of(model_of(), steps=1, lr=1e-4, patience=0, replay=replay, ratio=0.5)
    after = []
    for _ in range(5):
        assert adapter.learn(SENTENCES).stopped is None
        after.append(len(replay.taken))
    assert after == [0, 1, 1, 2, 2]


def test_replay_is_the_cross_entropy_of_translation():
    model, replay = model_of(), Replay(pairs(), WORDS.pad())
    chosen = np.random.default_rng([1, 2]).integers(6, size=16)
    sample = replay.dataset.collater([replay.dataset[int(i)] for i in chosen])
    expected = torch.nn.functional.cross_entropy(
        model(**sample["net_input"])[0].flatten(0, 1), sample["target"].flatten()
    )
    torch.testing.assert_close(replay.loss(model, (1, 2), "cpu"), expected)


def test_half_precision_is_refused():
    with pytest.raises(UsageError, match="--adapt-steps cannot be combined with --fp16"):
        adapter_of(model_of().half())
