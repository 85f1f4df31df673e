"""Autoencoding and learning at inference through fairseq's commands, as a user types them."""

import json
import logging
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel

from fairseq_klang.checkpoints.initialise import initialise_encoder_from
from fairseq_klang.checkpoints.reading import load_checkpoint
from fairseq_klang.errors import UsageError
from helpers.models import SMALL, build
from helpers.running import (
    SPLITS,
    TINY_LSTM,
    TINY_TRANSFORMER,
    USER_DIR,
    run,
    settled,
    spawn,
    train_arguments,
    train_in_two_processes,
)
from helpers.tasks import make_task

TASK = ["--task", "translation_autoencoding"]
CE = ["--criterion", "label_smoothed_cross_entropy"]


def command(data, save_dir, *more, architecture="transformer_dualhead", target=True):
    tiny = TINY_LSTM if architecture.startswith("lstm") else TINY_TRANSFORMER
    arguments = train_arguments(data, save_dir, *TASK, "--arch", architecture, *tiny, *more)
    if not target:
        place = arguments.index("-t")
        del arguments[place : place + 2]
    return arguments


def train(data, save_dir, *more, check=True, **options):
    return run("fairseq_cli.train", *command(data, save_dir, *more, **options), check=check)


def generate(
    data,
    checkpoint,
    *more,
    module="fairseq_cli.generate",
    task=TASK,
    subset="valid",
    check=True,
    **options,
):
    # What is saved when a process ends needs one.
    return (spawn if "--adapt-save" in more else run)(
        module,
        data,
        *("--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--gen-subset", subset),
        *("-s", "de", "-t", "en", *task, "--required-batch-size-multiple", "1"),
        *("--max-len-b", "20", *more),
        check=check,
        **options,
    )


def output(result):
    """The S-, T-, H-, D- and P- lines."""
    return [line for line in result.stdout.splitlines() if re.match("[STHDP]-", line)]


def texts(lines):
    """{sentence: its translation}."""
    return {
        int(i): text
        for i, text in (
            re.match(r"H-(\d+)\t[^\t]*\t(.*)", line).groups() for line in lines if line[0] == "H"
        )
    }


def rows(result, split):
    return [
        json.loads(row)
        for row in re.findall(rf"INFO \| {split} \| (\{{.*\}})", result.stderr + result.stdout)
    ]


def refusal(result):
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def monolingual(joined_data, tmp_path_factory):
    """A folder with the source dictionary and source text only, under the names that
    fairseq-preprocess gives without a target."""
    folder = tmp_path_factory.mktemp("mono")
    text = os.path.dirname(joined_data)
    run(
        "fairseq_cli.preprocess",
        "-s",
        "de",
        "--only-source",
        "--trainpref",
        os.path.join(text, "train"),
        "--validpref",
        os.path.join(text, "valid"),
        "--destdir",
        folder,
        "--srcdict",
        joined_data / "dict.de.txt",
    )
    assert sorted(name for name in os.listdir(folder) if name.startswith("dict")) == ["dict.de.txt"]
    return folder


def test_mixed_training_resumes_to_the_bit_and_logs_both_halves(separate_data, tmp_path):
    """An LSTM on separate dictionaries: the autoencoder has the source's vocabulary."""
    architecture = "lstm_dualhead"
    flags = [
        "--autoencoder",
        "linear",
        "--criterion",
        "restricted_softbleu",
        "--sb-topk",
        "3",
        "--ae-ratio",
        "1",
        "--ae-noise",
        "drop",
    ]
    flags += ["--update-epoch-batch-itr", "True", "--dropout", "0.1"]
    through = train(
        separate_data, tmp_path / "through", "--max-epoch", "2", *flags, architecture=architecture
    )
    train(
        separate_data, tmp_path / "stopped", "--max-epoch", "1", *flags, architecture=architecture
    )
    train(
        separate_data, tmp_path / "stopped", "--max-epoch", "2", *flags, architecture=architecture
    )
    first, second = (
        load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"]
        for name in ("through", "stopped")
    )
    assert all(torch.equal(value, second[name]) for name, value in settled(first).items())
    updates = rows(through, "train_inner")
    kinds = [row.get("ae_loss") is not None for row in updates]
    assert kinds == [bool(i % 2) for i in range(len(updates))]
    valid = rows(through, "valid")[-1]
    assert float(valid["valid_ae_loss"]) > 0 and 0 < float(valid["valid_sb"]) < 1
    # the mean loss of an epoch is that of its translation updates
    translated = [
        float(row["loss"])
        for row, source in zip(updates, kinds)
        if not source and row["epoch"] == 1
    ]
    assert min(translated) <= float(rows(through, "train")[0]["train_loss"]) <= max(translated)
    assert first["autoencoder.output_projection.weight"].size(0) == len(
        Dictionary.load(str(separate_data / "dict.de.txt"))
    )
    adapted = generate(
        separate_data, tmp_path / "through" / "checkpoint_last.pt", "--adapt-steps", "1"
    )
    assert len([line for line in output(adapted) if line.startswith("H-")]) == SPLITS["valid"]


def test_source_only_training_and_an_encoder_started_from_it(
    joined_data, separate_data, monolingual, tmp_path, caplog
):
    forgotten = train(monolingual, tmp_path / "mono", "--autoencoder", "decoder", *CE, check=False)
    assert "for source text alone add --source-only" in refusal(forgotten)
    mono = train(
        monolingual,
        tmp_path / "mono",
        "--autoencoder",
        "decoder",
        *CE,
        "--source-only",
        "--ae-noise",
        "mask",
        "--max-epoch",
        "2",
        target=False,
    )
    losses = [float(row["valid_loss"]) for row in rows(mono, "valid")]
    assert (
        losses[1] < losses[0]
        and rows(mono, "valid")[0]["valid_ae_loss"] == rows(mono, "valid")[0]["valid_loss"]
    )
    assert (
        sum(float(row["bsz"]) for row in rows(mono, "train_inner") if row["epoch"] == 1)
        == SPLITS["train"]
    )
    pretrained = tmp_path / "mono" / "checkpoint_last.pt"
    # update 0 with a learning rate of 0: what is saved is what was loaded
    started = train(
        joined_data,
        tmp_path / "new",
        *CE,
        "--init-encoder-from",
        pretrained,
        "--max-update",
        "1",
        "--lr",
        "0",
        "--seed",
        "2",
    )
    log = started.stderr + started.stdout
    for fate in (
        "loaded encoder.layers.0.fc1.weight",
        "new decoder.layers.0.fc1.weight",
        "skipped autoencoder.decoder.layers.0.fc1.weight",
    ):
        assert f"--init-encoder-from: {fate}" in log
    given, found = (
        load_checkpoint(path)["model"]
        for path in (pretrained, tmp_path / "new" / "checkpoint_last.pt")
    )
    loaded = re.findall(r"--init-encoder-from: loaded (\S+)", log)
    assert set(loaded) >= {name for name in given if name.startswith("encoder.")}
    for name in settled(dict.fromkeys(loaded)):
        assert torch.equal(
            found[name], given["encoder.embed_tokens.weight" if "embed_tokens" in name else name]
        ), name
    assert not torch.equal(
        found["decoder.layers.0.fc1.weight"], given["decoder.layers.0.fc1.weight"]
    )
    words = Dictionary.load(str(joined_data / "dict.de.txt"))
    deeper = build(
        "transformer_dualhead",
        source=words,
        **dict(
            SMALL["transformer_dualhead"],
            encoder_embed_dim=16,
            encoder_ffn_embed_dim=32,
            encoder_layers=2,
        ),
    )[0]
    with caplog.at_level(logging.WARNING):
        initialise_encoder_from(deeper, pretrained, words)
    assert re.search(
        r"16 of the encoder's \d+ tensors are not in that checkpoint and start from random values, "
        r"encoder.layers.1",
        caplog.text,
    )
    model = build("transformer_dualhead", **SMALL["transformer_dualhead"])[0]
    with pytest.raises(
        UsageError,
        match="its source dictionary differs from this data's; binarise both with one dictionary",
    ):
        initialise_encoder_from(
            model, pretrained, Dictionary.load(str(separate_data / "dict.de.txt"))
        )
    with pytest.raises(
        UsageError,
        match=(
            r"embed_tokens.weight is \(\d+, 16\) there and \(24, 16\) here; use the same encoder "
            r"flags"
        ),
    ):
        initialise_encoder_from(
            model, pretrained, Dictionary.load(str(joined_data / "dict.de.txt"))
        )
    # without the hash, the dictionary in the folder that the checkpoint names; without that, a
    # refusal
    state = load_checkpoint(pretrained)
    state["task_state"] = {}
    torch.save(state, tmp_path / "plain.pt")
    with pytest.raises(UsageError, match="use the same encoder flags"):
        initialise_encoder_from(
            model, tmp_path / "plain.pt", Dictionary.load(str(joined_data / "dict.de.txt"))
        )
    state["cfg"]["task"].update(data=str(joined_data), source_lang=None)  # trained without -s
    torch.save(state, tmp_path / "plain.pt")
    with pytest.raises(UsageError, match="use the same encoder flags"):
        initialise_encoder_from(
            model, tmp_path / "plain.pt", Dictionary.load(str(joined_data / "dict.de.txt"))
        )
    state["cfg"]["task"]["data"] = "/nowhere"
    torch.save(state, tmp_path / "plain.pt")
    with pytest.raises(
        UsageError, match="its source dictionary /nowhere/.* does not exist; name the folder"
    ):
        initialise_encoder_from(
            model, tmp_path / "plain.pt", Dictionary.load(str(joined_data / "dict.de.txt"))
        )


@pytest.fixture(scope="module")
def plain(joined_data, trained):
    """The plain task's output for the checkpoint."""
    return output(generate(joined_data, trained[0], task=[]))


def test_no_steps_is_the_plain_task_byte_for_byte(joined_data, trained, plain):
    checkpoint, log = trained
    assert float(rows(log, "train")[0]["train_ae_loss"]) > float(
        rows(log, "train")[-1]["train_ae_loss"]
    )
    assert plain and output(generate(joined_data, checkpoint, "--adapt-steps", "0")) == plain


@pytest.mark.slow
def test_with_reset_neither_order_nor_batch_size_changes_a_translation(joined_data, trained, plain):
    checkpoint, _ = trained
    flags = [
        "--adapt-steps",
        "3",
        "--adapt-lr",
        "0.01",
        "--adapt-parameters",
        "all",
        "--ae-noise",
        "swap",
    ]
    large, single = (
        sorted(output(generate(joined_data, checkpoint, *flags, *size)))
        for size in ([], ["--batch-size", "1"])
    )
    assert large == single != sorted(plain)
    scored = [
        sorted(output(generate(joined_data, checkpoint, *flags, "--score-reference", *size)))
        for size in ([], ["--batch-size", "1"])
    ]
    assert scored[0] == scored[1] and len(scored[0]) == len(large)
    with open(os.path.join(os.path.dirname(joined_data), "valid.de")) as stream:
        lines = [""] + stream.read().split("\n")[:-1]

    result = generate(
        joined_data,
        checkpoint,
        *flags,
        "--buffer-size",
        "9",
        "--batch-size",
        "4",
        module="fairseq_cli.interactive",
        stdin="".join(line + "\n" for line in lines[::-1]),
    )
    backwards = {
        len(lines) - 2 - int(i): text
        for i, text in re.findall(r"^H-(\d+)\t(.*)$", result.stdout, re.M)
    }
    # the empty line is named, and translated too
    assert (result.stdout + result.stderr).count(
        "a source sentence is empty: there is nothing to learn from it"
    ) == 1
    assert backwards.pop(-1)
    assert backwards == {
        int(i): text
        for i, text in (
            re.match(r"H-(\d+)\t(.*)", line).groups() for line in large if line[0] == "H"
        )
    }


@pytest.mark.slow
def test_going_on_learning_with_replay_is_saved_as_a_checkpoint(
    joined_data, trained, plain, tmp_path
):
    checkpoint, _ = trained
    before = checkpoint.read_bytes()
    flags = [
        "--adapt-steps",
        "2",
        "--adapt-lr",
        "0.01",
        "--adapt-parameters",
        "all",
        "--adapt-reset",
        "never",
        "--batch-size",
        "5",
    ]
    flags += [
        "--adapt-replay",
        "1",
        "--adapt-replay-data",
        joined_data,
        "--adapt-save",
        tmp_path / "adapted.pt",
    ]
    generate(joined_data, checkpoint, *flags)
    assert os.listdir(tmp_path) == ["adapted.pt"] and checkpoint.read_bytes() == before
    old, new = (
        load_checkpoint(checkpoint)["model"],
        load_checkpoint(tmp_path / "adapted.pt")["model"],
    )
    assert old.keys() == new.keys() and not torch.equal(
        old["decoder.layers.0.fc1.weight"], new["decoder.layers.0.fc1.weight"]
    )
    # it translates without the flags and under the plain task, and differently
    adapted = output(generate(joined_data, tmp_path / "adapted.pt", task=[]))
    assert adapted != plain and len(adapted) == len(plain)
    # a learning rate far too large: each batch's steps are taken back, and the weights are those of
    # the checkpoint
    flags[flags.index("--adapt-lr") + 1] = "1e20"
    spoilt = generate(joined_data, checkpoint, *flags)
    assert (
        "the steps on this source were taken back; lower --adapt-lr"
        in spoilt.stdout + spoilt.stderr
    )
    again = load_checkpoint(tmp_path / "adapted.pt")["model"]
    assert all(torch.equal(value, again[name]) for name, value in settled(old).items())


def test_bad_input_gets_one_line(joined_data, separate_data, trained, tmp_path):
    replay = ["--adapt-steps", "1", "--adapt-replay", "1", "--adapt-replay-data", separate_data]
    assert "its dictionary dict.de.txt differs from the model's" in refusal(
        generate(joined_data, trained[0], *replay, check=False)
    )
    assert "--adapt-steps is 1; it must be 0 in training" in refusal(
        train(joined_data, tmp_path / "a", *CE, *replay[:2], check=False)
    )
    validate = [
        joined_data,
        "--user-dir",
        USER_DIR,
        "--cpu",
        "--path",
        trained[0],
        *TASK,
        "--max-tokens",
        "300",
        "--eval-bleu",
        *replay[:2],
    ]
    assert "it must be 0 in training and validation" in refusal(
        run("fairseq_cli.validate", *validate, check=False)
    )


def test_a_generator_for_bleu_in_validation_adapts_nothing(joined_data, trained, plain):
    """fairseq builds one before the weights are loaded; what an Adapter put back from there would
    be the initial ones."""
    flags = ["--eval-bleu", "--eval-bleu-detok", "space"]
    learnt = output(
        generate(joined_data, trained[0], *flags, "--adapt-steps", "1", "--adapt-lr", "1e-12")
    )
    assert texts(learnt) == texts(plain)


@pytest.mark.slow
def test_what_was_learnt_is_saved_when_the_command_is_told_to_end(joined_data, trained, tmp_path):
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.interactive",
        joined_data,
        "--user-dir",
        USER_DIR,
        "--cpu",
        "--path",
        trained[0],
        *TASK,
    ]
    command += ["--adapt-steps", "1", "--adapt-reset", "never", "--adapt-save", tmp_path / "x.pt"]
    process = subprocess.Popen(
        [*map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    process.stdin.write("ax bu\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("D-0"):
            break
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "model" in load_checkpoint(
        tmp_path / "x.pt"
    )


@pytest.mark.slow
def test_a_model_that_cannot_be_saved_is_an_error(joined_data, trained):
    flags = ["--adapt-steps", "1", "--adapt-reset", "never", "--adapt-save", "/dev/full"]
    result = generate(joined_data, trained[0], *flags, check=False)
    assert result.returncode == 1 and output(result)
    assert re.search("--adapt-save /dev/full cannot be written", result.stdout + result.stderr)


def test_what_cannot_adapt_is_refused_when_the_generator_is_built(joined_data, tmp_path):
    words = Dictionary.load(str(joined_data / "dict.de.txt"))

    def refuse(message, *models, **flags):
        with pytest.raises(UsageError, match=message):
            make_task(words, adapt_steps=1, **flags).build_generator(models, None)

    model = build(
        "transformer_dualhead", source=words, autoencoder="linear", **SMALL["transformer_dualhead"]
    )[0]
    refuse("holds no dict.de.txt", model, adapt_replay=1.0, adapt_replay_data=str(tmp_path))
    for language in ("de", "en"):
        words.save(str(tmp_path / f"dict.{language}.txt"))
    refuse(
        "holds no training pairs de-en", model, adapt_replay=1.0, adapt_replay_data=str(tmp_path)
    )
    refuse(
        "no does not exist or cannot be written; name another place",
        model,
        adapt_reset="never",
        adapt_save=str(tmp_path / "no" / "x.pt"),
        path="a.pt",
    )
    refuse(
        "is a folder; name a file in it",
        model,
        adapt_reset="never",
        adapt_save=str(tmp_path),
        path="a.pt",
    )
    refuse(
        "is the checkpoint of --path",
        model,
        adapt_reset="never",
        adapt_save=str(tmp_path / "a.pt"),
        path=str(tmp_path / "." / "a.pt"),
    )
    refuse(
        "--adapt-save writes one model",
        model,
        model,
        adapt_reset="never",
        adapt_save=str(tmp_path / "x.pt"),
        path="a.pt:b.pt",
    )
    refuse(
        "built with --autoencoder none",
        build("transformer_dualhead", source=words, **SMALL["transformer_dualhead"])[0],
    )
    refuse("target side only", FairseqLanguageModel(model.decoder))


@pytest.mark.slow
def test_two_processes_equal_one(joined_data, tmp_path):
    """legacy_ddp over gloo with halves that take turns; same losses as one process with
    --update-freq 2."""
    common = [
        "--autoencoder",
        "decoder",
        *CE,
        "--ae-ratio",
        "1",
        "--ae-noise",
        "mask",
        "--dropout",
        "0",
        "--max-update",
        "4",
    ]
    common += ["--max-tokens", "100"]
    single = train(joined_data, tmp_path / "one", *common, "--update-freq", "2")
    found = train_in_two_processes(command(joined_data, tmp_path / "two", *common))
    expected = rows(single, "train_inner")
    assert len(found) == 4
    for key in ("loss", "ae_loss", "gnorm"):
        assert [row.get(key) for row in found] == [row.get(key) for row in expected], key
