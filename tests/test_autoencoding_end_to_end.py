"""Autoencoding and learning at inference through fairseq's commands, as a user types them."""
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import SPLITS, TINY_LSTM, TINY_TRANSFORMER, USER_DIR, run, train_arguments

from fairseq_klang.compat import load_checkpoint

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


def generate(data, checkpoint, *more, module="fairseq_cli.generate", task=TASK, subset="valid", check=True, **options):
    return run(
        module, data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--gen-subset", subset, "-s", "de", "-t", "en", *task,
        "--required-batch-size-multiple", "1", *more, check=check, **options,
    )


def output(result):
    """The S-, T-, H-, D- and P- lines."""
    return [line for line in result.stdout.splitlines() if re.match("[STHDP]-", line)]


def rows(result, split):
    return [json.loads(row) for row in re.findall(rf"INFO \| {split} \| (\{{.*\}})", result.stderr + result.stdout)]


def refusal(result):
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def trained(joined_data, tmp_path_factory):
    """A checkpoint with a linear autoencoder, and the log of its training."""
    folder = tmp_path_factory.mktemp("trained")
    log = train(joined_data, folder, "--autoencoder", "linear", *CE, "--ae-weight", "0.5", "--max-epoch", "6")
    return folder / "checkpoint_last.pt", log


@pytest.fixture(scope="module")
def monolingual(joined_data, tmp_path_factory):
    """A folder with the source dictionary and source text only, under the names that fairseq-preprocess gives without a target."""
    folder = tmp_path_factory.mktemp("mono")
    text = os.path.dirname(joined_data)
    run(
        "fairseq_cli.preprocess", "-s", "de", "--only-source", "--trainpref", os.path.join(text, "train"), "--validpref",
        os.path.join(text, "valid"), "--destdir", folder, "--srcdict", joined_data / "dict.de.txt",
    )
    assert sorted(name for name in os.listdir(folder) if name.startswith("dict")) == ["dict.de.txt"]
    return folder


@pytest.mark.parametrize("architecture, form", [("transformer_dualhead", "decoder"), ("lstm_dualhead", "linear")])
def test_mixed_training_resumes_to_the_bit_and_logs_both_halves(separate_data, tmp_path, architecture, form):
    """Separate dictionaries too: the autoencoder has the source's vocabulary."""
    flags = ["--autoencoder", form, "--criterion", "restricted_softbleu", "--sb-topk", "3", "--ae-ratio", "1", "--ae-noise", "drop"]
    flags += ["--update-epoch-batch-itr", "True", "--dropout", "0.1"]
    through = train(separate_data, tmp_path / "through", "--max-epoch", "2", *flags, architecture=architecture)
    train(separate_data, tmp_path / "stopped", "--max-epoch", "1", *flags, architecture=architecture)
    train(separate_data, tmp_path / "stopped", "--max-epoch", "2", *flags, architecture=architecture)
    first, second = (load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("through", "stopped"))
    assert all(torch.equal(value, second[name]) for name, value in first.items() if not name.endswith("._float_tensor"))
    updates = rows(through, "train_inner")
    kinds = [row.get("ae_loss") is not None for row in updates]
    assert kinds == [bool(i % 2) for i in range(len(updates))]
    valid = rows(through, "valid")[-1]
    assert float(valid["valid_ae_loss"]) > 0 and 0 < float(valid["valid_sb"]) < 1
    # the mean loss of an epoch is that of its translation updates
    translated = [float(row["loss"]) for row, source in zip(updates, kinds) if not source and row["epoch"] == 1]
    assert min(translated) <= float(rows(through, "train")[0]["train_loss"]) <= max(translated)
    sizes = [len(load_dictionary(separate_data, language)) for language in ("de", "en")]
    head = {"decoder": "autoencoder.decoder.output_projection.weight", "linear": "autoencoder.output_projection.weight"}[form]
    assert sizes[0] != sizes[1] and first[head].size(0) == sizes[0]
    adapted = generate(separate_data, tmp_path / "through" / "checkpoint_last.pt", "--adapt-steps", "1")
    assert len([line for line in output(adapted) if line.startswith("H-")]) == SPLITS["valid"]


def load_dictionary(data, language):
    from fairseq.data import Dictionary

    return Dictionary.load(str(data / f"dict.{language}.txt"))


def test_source_only_training_and_an_encoder_started_from_it(joined_data, separate_data, monolingual, tmp_path):
    mono = train(
        monolingual, tmp_path / "mono", "--autoencoder", "decoder", *CE, "--source-only", "--ae-noise", "mask", "--max-epoch", "2", target=False
    )
    losses = [float(row["valid_loss"]) for row in rows(mono, "valid")]
    assert losses[1] < losses[0] and rows(mono, "valid")[0]["valid_ae_loss"] == rows(mono, "valid")[0]["valid_loss"]
    assert sum(float(row["bsz"]) for row in rows(mono, "train_inner") if row["epoch"] == 1) == SPLITS["train"]
    pretrained = tmp_path / "mono" / "checkpoint_last.pt"
    # update 0 with a learning rate of 0: what is saved is what was loaded
    started = train(joined_data, tmp_path / "new", *CE, "--init-encoder-from", pretrained, "--max-update", "1", "--lr", "0")
    log = started.stderr + started.stdout
    for fate in ("loaded encoder.layers.0.fc1.weight", "new decoder.layers.0.fc1.weight", "skipped autoencoder.decoder.layers.0.fc1.weight"):
        assert f"--init-encoder-from: {fate}" in log
    given, found = (load_checkpoint(path)["model"] for path in (pretrained, tmp_path / "new" / "checkpoint_last.pt"))
    loaded = re.findall(r"--init-encoder-from: loaded (\S+)", log)
    assert set(loaded) >= {name for name in given if name.startswith("encoder.")}
    for name in loaded:
        assert torch.equal(found[name], given["encoder.embed_tokens.weight" if "embed_tokens" in name else name]), name
    assert not torch.equal(found["decoder.layers.0.fc1.weight"], given["decoder.layers.0.fc1.weight"])
    other = train(separate_data, tmp_path / "x", *CE, "--init-encoder-from", pretrained, check=False)
    assert "its source dictionary differs from this data's; binarise both with one dictionary" in refusal(other)
    larger = train(joined_data, tmp_path / "x", *CE, "--init-encoder-from", pretrained, "--encoder-ffn-embed-dim", "64", check=False)
    assert "is (32, 16) there and (64, 16) here; use the same encoder flags" in refusal(larger)
    nothing = train(tmp_path / "mono", tmp_path / "x", *CE, "--source-only", target=False, check=False)
    assert "holds no dictionary" in refusal(nothing) or "does not exist" in refusal(nothing)


def test_no_steps_is_the_plain_task_byte_for_byte(joined_data, trained):
    checkpoint, log = trained
    assert float(rows(log, "train")[0]["train_ae_loss"]) > float(rows(log, "train")[-1]["train_ae_loss"])
    plain = output(generate(joined_data, checkpoint, task=[]))
    assert plain and output(generate(joined_data, checkpoint, "--adapt-steps", "0")) == plain


@pytest.mark.parametrize("objective", ["autoencoding", "masked_lm"])
def test_with_reset_neither_order_nor_batch_size_changes_a_translation(joined_data, trained, objective):
    checkpoint, _ = trained
    flags = ["--adapt-steps", "3", "--adapt-lr", "0.01", "--adapt-parameters", "all", "--adapt-objective", objective]
    large, single = (sorted(output(generate(joined_data, checkpoint, *flags, *size))) for size in ([], ["--batch-size", "1"]))
    assert large == single != sorted(output(generate(joined_data, checkpoint)))
    with open(os.path.join(os.path.dirname(joined_data), "valid.de")) as stream:
        lines = stream.read().split("\n")[:-1]

    def interactive(order):
        text = "".join(lines[i] + "\n" for i in order)
        result = generate(
            joined_data, checkpoint, *flags, "--buffer-size", "9", "--batch-size", "4", module="fairseq_cli.interactive", stdin=text
        )
        return {order[int(i)]: text for i, text in re.findall(r"^H-(\d+)\t(.*)$", result.stdout, re.M)}

    forwards, backwards = interactive(range(len(lines))), interactive(range(len(lines))[::-1])
    assert forwards == backwards and len(forwards) == len(lines)
    assert forwards == {int(i): text for i, text in (re.match(r"H-(\d+)\t(.*)", line).groups() for line in large if line[0] == "H")}


def test_going_on_learning_with_replay_is_saved_as_a_checkpoint(joined_data, trained, tmp_path):
    checkpoint, _ = trained
    before = checkpoint.read_bytes()
    flags = ["--adapt-steps", "2", "--adapt-lr", "0.01", "--adapt-parameters", "all", "--adapt-reset", "never", "--batch-size", "5"]
    flags += ["--adapt-replay", "1", "--adapt-replay-data", joined_data, "--adapt-save", tmp_path / "adapted.pt"]
    generate(joined_data, checkpoint, *flags)
    assert os.listdir(tmp_path) == ["adapted.pt"] and checkpoint.read_bytes() == before
    old, new = load_checkpoint(checkpoint)["model"], load_checkpoint(tmp_path / "adapted.pt")["model"]
    assert old.keys() == new.keys() and not torch.equal(old["decoder.layers.0.fc1.weight"], new["decoder.layers.0.fc1.weight"])
    # it translates, without the flags and under the plain task, and differently
    adapted = output(generate(joined_data, tmp_path / "adapted.pt", task=[]))
    assert adapted != output(generate(joined_data, checkpoint, task=[])) and len(adapted) % SPLITS["valid"] == 0
    # a learning rate far too large: each batch's steps are taken back, and the weights are those of the checkpoint
    flags[flags.index("--adapt-lr") + 1] = "1e20"
    spoilt = generate(joined_data, checkpoint, *flags)
    assert "the steps on this source were taken back; lower --adapt-lr" in spoilt.stdout + spoilt.stderr
    again = load_checkpoint(tmp_path / "adapted.pt")["model"]
    assert all(torch.equal(value, again[name]) for name, value in old.items())


def test_empty_lines_in_interactive_are_named_and_translated(joined_data, trained):
    result = generate(joined_data, trained[0], "--adapt-steps", "2", module="fairseq_cli.interactive", stdin="au bv\n\ncw\n")
    assert re.findall(r"^H-(\d+)", result.stdout, re.M) == ["0", "1", "2"]
    assert (result.stdout + result.stderr).count("a source sentence is empty: there is nothing to learn from it") == 1


def test_bad_input_gets_one_line(joined_data, separate_data, trained, tmp_path):
    checkpoint, _ = trained
    adapt = ["--adapt-steps", "1"]
    assert "--adapt-steps is -1; it must be 0 or more" in refusal(generate(joined_data, checkpoint, "--adapt-steps", "-1", check=False))
    other = ["--adapt-replay", "1", "--adapt-replay-data", separate_data]
    assert "its dictionary dict.de.txt differs from the model's" in refusal(generate(joined_data, checkpoint, *adapt, *other, check=False))
    other[-1] = tmp_path
    assert "holds no dict.de.txt" in refusal(generate(joined_data, checkpoint, *adapt, *other, check=False))
    assert "left out unless" in refusal(generate(joined_data, checkpoint, *adapt, "--adapt-save", "x.pt", check=False))
    half = generate(joined_data, checkpoint, *adapt, "--fp16", check=False)
    assert "--adapt-steps cannot be combined with --fp16" in refusal(half)
    assert "--adapt-steps is 1; it must be 0 in training" in refusal(train(joined_data, tmp_path / "a", *CE, *adapt, check=False))
    lacking = refusal(train(joined_data, tmp_path / "a", *CE, "--ae-ratio", "1", check=False))
    assert "the model was built with --autoencoder none; train it with --autoencoder linear or decoder" in lacking
    language_model = train_arguments(
        joined_data, tmp_path / "lm", "--task", "translation_autoencoding", "--arch", "transformer_lm", *TINY_TRANSFORMER[8:],
        "--criterion", "cross_entropy", "--ae-ratio", "1", "--tokens-per-sample", "50",
    )
    target_only = run("fairseq_cli.train", *[a for a in language_model if a not in ("--tokens-per-sample", "50")], check=False)
    assert "this model has no encoder (target side only)" in refusal(target_only)


def test_two_processes_equal_one(joined_data, tmp_path):
    """legacy_ddp over gloo with halves that take turns; same losses as one process with --update-freq 2."""
    common = ["--autoencoder", "decoder", *CE, "--ae-ratio", "1", "--ae-noise", "mask", "--dropout", "0", "--max-update", "4"]
    common += ["--max-tokens", "100"]
    single = train(joined_data, tmp_path / "one", *common, "--update-freq", "2")
    port = 41000 + os.getpid() % 20000
    arguments = command(
        joined_data, tmp_path / "two", *common, "--distributed-world-size", "2", "--distributed-init-method", f"tcp://127.0.0.1:{port}",
        "--distributed-no-spawn", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp",
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "fairseq_cli.train", *map(str, arguments), "--distributed-rank", str(rank)],
            env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
        )
        for rank in (0, 1)
    ]
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    found = [json.loads(row) for row in re.findall(r"INFO \| train_inner \| (\{.*\})", outputs[0])]
    expected = rows(single, "train_inner")
    assert len(found) == 4
    for key in ("loss", "ae_loss", "gnorm"):
        assert [row.get(key) for row in found] == [row.get(key) for row in expected], key
