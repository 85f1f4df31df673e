"""--init-from: what is copied, what is new, what is left, and which word gets which row."""

import logging
from argparse import Namespace

import pytest
import torch

from fairseq_klang.checkpoints.initialise import (
    copy_matching,
    dictionary_fingerprint,
    initialise_from,
)
from fairseq_klang.compat import strip_legacy_keys
from fairseq_klang.errors import UsageError
from helpers.models import SMALL, build, dictionary

OPTIONS = SMALL["transformer_dualhead"]


def test_one_head_becomes_two_and_both_start_from_it():
    single, dual = (
        build("transformer", **OPTIONS)[0],
        build("transformer_dualhead", seed=1, **OPTIONS)[0],
    )
    report = copy_matching(dual, single.state_dict())
    assert torch.equal(
        dual.decoder.output_projection.weight, single.decoder.output_projection.weight
    )
    assert torch.equal(dual.decoder.sb_projection.weight, single.decoder.output_projection.weight)
    assert not report.new and not report.skipped and not report.resized


def test_two_heads_stay_two():
    first, second = (build("transformer_dualhead", seed=seed, **OPTIONS)[0] for seed in (0, 1))
    copy_matching(second, first.state_dict())
    for name, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


def test_another_size_keeps_the_common_corner_and_the_rest_of_its_own():
    small, large = (
        build("transformer_dualhead", **OPTIONS)[0],
        build("transformer_dualhead", seed=1, **dict(OPTIONS, encoder_ffn_embed_dim=40))[0],
    )
    before = large.encoder.layers[0].fc1.weight.clone()
    report = copy_matching(large, small.state_dict())
    after = large.encoder.layers[0].fc1.weight
    assert torch.equal(after[:24], small.encoder.layers[0].fc1.weight) and torch.equal(
        after[24:], before[24:]
    )
    assert "encoder.layers.0.fc1.weight (24, 16) -> (40, 16)" in report.resized


def test_every_tensor_is_in_exactly_one_list():
    source = build("transformer", **dict(OPTIONS, decoder_layers=1))[0].state_dict()
    source["surprise"] = torch.zeros(1)
    model = build("transformer_dualhead", seed=1, **OPTIONS)[0]
    report = copy_matching(model, source)
    names = [name.split(" ")[0] for fate in report for name in fate]
    assert len(names) == len(set(names)) and set(names) == set(
        strip_legacy_keys(model.state_dict())
    ) | {"surprise"}
    assert report.skipped == ["surprise"] and all(
        "decoder.layers.1." in name for name in report.new
    )


OLD = {"source": dictionary(20), "target": dictionary(15, "v")}
# Other words between and before those of the old dictionaries, in another order, of other sizes.
NEW = {side: dictionary(0) for side in OLD}
for word in ("new0", "w19", "w3", "new1", "w0", "v3", "w7"):
    NEW["source"].add_symbol(word)
for word in [f"x{number}" for number in range(10)] + [f"v{number}" for number in range(14, 3, -1)]:
    NEW["target"].add_symbol(word)


def write_dictionaries(folder, dictionaries):
    folder.mkdir()
    for side, language in (("source", "de"), ("target", "en")):
        dictionaries[side].save(str(folder / f"dict.{language}.txt"))
    return folder


@pytest.fixture
def trained(tmp_path):
    """save(model, **task_state) -> a checkpoint in fairseq's form, its dictionaries in old/."""
    write_dictionaries(tmp_path / "old", OLD)

    def save(model, **task_state):
        task = Namespace(data=str(tmp_path / "old"), source_lang="de", target_lang="en")
        state = {"model": model.state_dict(), "cfg": {"task": task}, "task_state": task_state}
        torch.save(state, tmp_path / "checkpoint.pt")
        return tmp_path / "checkpoint.pt"

    return save


def on(name, dictionaries, seed=0, **options):
    """A small model that speaks `dictionaries`, {"source": ..., "target": ...}."""
    return build(
        name.split()[0],
        seed=seed,
        **dictionaries,
        **{**SMALL[name], "autoencoder": "decoder", **options},
    )[0]


@pytest.mark.parametrize(
    "name, options",
    [
        ("transformer_dualhead", {}),
        ("transformer_dualhead", {"share_decoder_input_output_embed": True}),
        ("transformer_dualhead", {"autoencoder": "linear"}),
        ("lstm_dualhead", {}),
        ("lstm_dualhead", {"autoencoder": "linear", "decoder_out_embed_dim": 12}),
    ],
)
def test_with_other_dictionaries_each_word_keeps_its_row(trained, name, options, caplog):
    old, model = on(name, OLD, **options), on(name, NEW, seed=1, **options)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with caplog.at_level(logging.INFO):
        report = initialise_from(model, trained(old), **NEW)
    given, found = old.state_dict(), model.state_dict()
    lengths = {len(NEW[side]): side for side in NEW}
    # the slow oracle: every tensor with a row a word, word by word
    tables = [key for key, tensor in found.items() if tensor.dim() and len(tensor) in lengths]
    assert len(tables) >= 5
    for key in tables:
        side = lengths[len(found[key])]
        for row, word in enumerate(NEW[side].symbols):
            wanted = (
                given[key][OLD[side].indices[word]]
                if word in OLD[side].indices
                else before[key][row]
            )
            assert torch.equal(found[key][row], wanted), (key, word)
    for key in set(strip_legacy_keys(found)) - set(tables):
        assert torch.equal(found[key], given[key]), key
    assert not report.resized and len(report.matched) == len(tables)
    assert "the source dictionary differs" in caplog.text
    assert "3 of 11 words are new and keep their initial values: new0 new1 v3" in caplog.text


def test_another_width_keeps_the_common_corner_of_each_words_row(trained):
    old = build("transformer_dualhead", **OLD, **OPTIONS)[0]
    wide = dict(OPTIONS, encoder_embed_dim=20, decoder_embed_dim=20)
    model = build("transformer_dualhead", seed=1, **NEW, **wide)[0]
    before = model.encoder.embed_tokens.weight.clone()
    initialise_from(model, trained(old), **NEW)
    table, row = model.encoder.embed_tokens.weight, NEW["source"].index("w3")
    theirs = old.encoder.embed_tokens.weight[OLD["source"].index("w3")]
    assert torch.equal(table[row, :16], theirs) and torch.equal(table[row, 16:], before[row, 16:])


def test_one_head_of_another_dictionary_becomes_two(trained):
    old = build("transformer", **OLD, **OPTIONS)[0]
    model = build("transformer_dualhead", seed=1, **NEW, **OPTIONS)[0]
    initialise_from(model, trained(old), **NEW)
    row = NEW["target"].index("v9")
    theirs = old.decoder.output_projection.weight[OLD["target"].index("v9")]
    assert torch.equal(model.decoder.output_projection.weight[row], theirs)
    assert torch.equal(model.decoder.sb_projection.weight[row], theirs)


def test_one_dictionary_for_both_languages_takes_the_rows_of_both(trained):
    joined = dictionary(20)
    for word in OLD["target"].symbols:
        joined.add_symbol(word)
    old = build("transformer_dualhead", **OLD, **OPTIONS)[0]
    model = build("transformer_dualhead", source=joined, seed=1, **OPTIONS)[0]
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    initialise_from(model, trained(old), joined, joined)
    table = model.encoder.embed_tokens.weight
    for part, words, word in ((old.encoder, "source", "w7"), (old.decoder, "target", "v7")):
        assert torch.equal(
            table[joined.index(word)], part.embed_tokens.weight[OLD[words].index(word)]
        )


def test_the_same_dictionaries_need_no_file(trained):
    old = build("transformer_dualhead", **OLD, **OPTIONS)[0]
    model = build("transformer_dualhead", seed=1, **OLD, **OPTIONS)[0]
    stored = {f"{side}_dictionary": dictionary_fingerprint(words) for side, words in OLD.items()}
    path = trained(old, **stored)
    for file in (path.parent / "old").iterdir():
        file.unlink()
    report = initialise_from(model, path, **OLD)
    assert not report.matched and torch.equal(
        model.encoder.embed_tokens.weight, old.encoder.embed_tokens.weight
    )
    with pytest.raises(UsageError, match=r"dict.en.txt does not exist; .* --init-dictionaries DIR"):
        initialise_from(model, path, OLD["source"], NEW["target"])


def test_dictionaries_that_are_not_the_checkpoints_are_refused(trained, tmp_path):
    old = build("transformer_dualhead", **OLD, **OPTIONS)[0]
    model = build("transformer_dualhead", seed=1, **NEW, **OPTIONS)[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = dict(OLD, source=dictionary(20, "y"))
    write_dictionaries(tmp_path / "other", other)
    path = trained(old, source_dictionary=dictionary_fingerprint(OLD["source"]))
    with pytest.raises(UsageError, match="is not the source dictionary that the checkpoint was"):
        initialise_from(model, path, **NEW, folder=str(tmp_path / "other"))
    write_dictionaries(tmp_path / "short", dict(OLD, source=dictionary(19)))
    with pytest.raises(UsageError, match="has 24 rows, but its source dictionary has 23 words"):
        initialise_from(model, trained(old), **NEW, folder=str(tmp_path / "short"))
    (tmp_path / "short" / "dict.de.txt").write_text("a b c\n")
    with pytest.raises(UsageError, match="dict.de.txt is no dictionary of fairseq"):
        initialise_from(model, trained(old), **NEW, folder=str(tmp_path / "short"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    initialise_from(model, trained(old), **NEW, folder=str(tmp_path / "old"))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    torch.save({"model": {"conv.weight": torch.zeros(2, 2)}}, tmp_path / "c.pt")
    words = dictionary(20)
    with pytest.raises(UsageError, match="no tensor of that checkpoint fits this model"):
        initialise_from(
            build("transformer_dualhead", **OPTIONS)[0], tmp_path / "c.pt", words, words
        )
