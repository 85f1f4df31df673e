"""klang recipe: every recipe of recipes.ini prints its commands and trains, and a killed run goes
on."""

import argparse
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis.logs import read_log
from fairseq_klang.analysis.scoring import score
from fairseq_klang.checkpoints.reading import load_checkpoint
from fairseq_klang.experiments import plan as plans
from fairseq_klang.experiments import runner
from fairseq_klang.experiments.plan import Plan, flag_value
from fairseq_klang.experiments.recipes import RecipeError
from fairseq_klang.experiments.runner import Commands
from fairseq_klang.files import LockedError, locked, sha256, write_json
from helpers.recipes import TABLE, error_of, plan_of, tiny
from helpers.running import ROOT, SPLITS, run, toy_pairs

# BLEU in the series, from docs/claims.md; README and strong: the field's figures for IWSLT14 de-en.
SERIES = {
    "A1": "3.76",
    "A2": "3.76",
    "A3": "3.94",
    "A4": "3.50",
    "A5": "0.00",
    "A6": "3.74",
    "A7": "not run",
    "A8p": "3.76",
    "RNN-CE": "3.06",
    "RNN-add": "3.21",
    "A8": [2.80, 3.02, 3.27, 3.45],
    "A9": [3.27, 3.35, 2.75, 2.87],
    "A10": [3.18, 3.31, 3.63, 3.43],
    "A11": [2.93, 2.84, 3.09, 2.92],
    "A12": [3.03, 3.35, 3.24, 3.21],
    "A13": [2.99, 3.17, 3.24, 3.07, 2.89],
    "A14": [2.55, 3.07, 3.24, 3.20, 2.94],
    "A15": [3.28, 3.47, 3.74, 3.77, 3.68],
    "B0": "10.66",
    "B1": "not reported",
    "B2": "8.18",
    "B3": "11.70",
    "README": "34.66",
    "strong": "35.6",
    "m30k": "",
}
EVERY = [(name, TABLE[name].loss) for name in SERIES] + [
    ("README", "softbleu"),
    ("strong", "softbleu"),
    ("B0", "ce"),
]


def flag(of, name, loss=None):
    return flag_value(of.flags(loss or of.loss), name)


def dry(capsys, *arguments):
    """The lines that a dry run prints."""
    assert cli.main(["recipe", *map(str, arguments), "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys, *arguments):
    """The one line with which klang recipe refuses its arguments."""
    return error_of(capsys, "recipe", *arguments)


# -- the table -------------------------------------------------------------------------------------


def test_the_table_has_every_experiment_with_the_figures_of_the_series():
    assert {name: it.series_epochs or it.series for name, it in TABLE.items()} == SERIES
    for name, it in TABLE.items():
        if it.series_epochs:
            assert it.epochs == len(it.series_epochs) and it.seed == 42, name


def test_the_settings_are_those_of_the_series():
    # docs/claims.md. A series: batch 64, 5 epochs. Sweep: linear, alpha 0.5, decay. B
    # (transformer): batch 128, 5 epochs.
    assert [TABLE[name].epochs for name in ("A1", "A2", "A3", "A6", "RNN-CE", "B0", "B3")] == [
        5,
        10,
        5,
        5,
        5,
        5,
        5,
    ]
    for name, it in TABLE.items():
        if name[0] in "AR" and name != "README":
            assert (
                flag(it, "--batch-size") == "64"
                and flag(it, "--encoder-embed-dim") == flag(it, "--decoder-embed-dim") == "256"
            )
            assert flag(it, "--decoder-hidden-size") == ("512" if name == "A3" else "256")
            assert flag(it, "--arch") == (
                "lstm_dualhead" if name[:2] == "A8" or len(name) == 3 or name == "A9" else "lstm"
            )
            assert flag(it, "--decoder-attention") == ("0" if name.startswith("RNN") else "1")
        if name.startswith("B"):
            assert (
                flag(it, "--batch-size") == "128"
                and flag(it, "--arch") == f"transformer_dualhead_{name.lower()}"
            )
    losses = {
        name: [
            flag(TABLE[name], f"--sb-{part}")
            for part in ("form", "alpha", "beta", "topk", "ngrams")
        ]
        for name in ("A4", "A5", "A6", "A7", "A9", "A10", "A11", "A12", "A13", "A14", "A15", "B0")
    }
    assert losses == {
        "A4": ["interpolate", "0.5", None, "0", "decay"],
        "A5": ["log", None, None, "0", "decay"],
        "A6": ["add", "0.5", None, "0", "decay"],
        "A7": ["add", "0.1", None, "0", "decay"],
        "A9": ["linear", "0.5", None, "50", "decay"],
        "A10": ["linear", "0.5", None, "170", "decay"],
        "A11": ["linear", "0.5", None, "500", "decay"],
        "A12": ["linear", "0.5", None, "0", "decay"],
        "A13": ["power", "0.5", "0.5", "170", "decay"],
        "A14": ["power", "0.3", "0.3", "170", "decay"],
        "A15": ["linear", "0.8", None, "170", "decay"],
        "B0": ["linear", "0.8", None, None, "true"],
    }
    for name in ("A1", "A2", "A3", "A8", "RNN-CE", "README", "strong"):
        assert flag(TABLE[name], "--criterion") == "label_smoothed_cross_entropy"
    assert TABLE["strong"].average == 10 and TABLE["README"].average == 0


def test_the_iwslt_model_has_the_sizes_of_transformer_iwslt_de_en():
    from fairseq.models import ARCH_CONFIG_REGISTRY

    theirs = argparse.Namespace()
    ARCH_CONFIG_REGISTRY["transformer_iwslt_de_en"](theirs)
    for side in ("encoder", "decoder"):
        for size in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers"):
            assert int(flag(TABLE["README"], f"--{side}-{size.replace('_', '-')}")) == getattr(
                theirs, f"{side}_{size}"
            )


def test_list(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["recipe", "--list"])
    assert not end.value.code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(TABLE)
    assert "3.18 3.31 3.63 3.43" in next(line for line in lines if line.startswith("A10 "))


# -- the commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name, loss", EVERY)
def test_a_dry_run_prints_the_full_commands_and_writes_nothing(
    joined_data, tmp_path, capsys, name, loss
):
    out = tmp_path / "run"
    lines = dry(
        capsys,
        name,
        "--data",
        joined_data,
        "--out",
        out,
        "--device",
        "cpu",
        "--seed",
        7,
        "--loss",
        loss,
        "--lr",
        "0.5",
    )
    commands = {}
    for line in lines:
        words = shlex.split(line)
        commands.setdefault(" ".join(words[:2]) if words[0] == "klang" else words[0], words)
    train, generate = commands["fairseq-train"], commands["fairseq-generate"]
    assert train[1] == str(joined_data) and train[-2:] == [
        "--lr",
        "0.5",
    ]  # what is appended comes last, and so counts
    wanted = {
        "--save-dir": str(out / "checkpoints"),
        "--seed": "7",
        "-s": "de",
        "-t": "en",
        "--max-epoch": str(TABLE[name].epochs),
        "--required-batch-size-multiple": "1",
        "--update-epoch-batch-itr": "True",
        "--best-checkpoint-metric": "bleu",
    }
    assert {word: flag_value(train, word) for word in wanted} == wanted
    assert {"--cpu", "--eval-bleu", "--maximize-best-checkpoint-metric"} <= set(train)
    assert flag_value(generate, "--required-batch-size-multiple") == "1"
    assert [
        flag_value(shlex.split(line), "--beam")
        for line in lines
        if line.startswith("fairseq-generate")
    ] == ["5", "1"]
    assert ("klang average" in commands) == (name == "strong")
    assert not out.exists()


def test_run_sh_is_the_same_as_the_runner(joined_data, capsys):
    arguments = ["A8'", "--data", str(joined_data), "--device", "cuda", "--dry-run"]
    shown = subprocess.run(
        ["bash", os.path.join(ROOT, "examples", "iwslt14", "run.sh"), *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=dict(
            os.environ, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        ),
        cwd=os.getcwd(),
    ).stdout
    assert cli.main(["recipe", *arguments]) == 0
    assert shown == capsys.readouterr().out
    assert "A8p-first-seed42" in shown and "--cpu" not in shown


def test_gpus_share_the_recipes_batch(joined_data, capsys):
    train = shlex.split(
        dry(capsys, "A1", "--data", joined_data, "--device", "cuda", "--gpus", 4)[0]
    )
    assert flag_value(train, "--batch-size") == "16"  # 64 / 4
    assert flag_value(train, "--distributed-world-size") == "4" and "--cpu" not in train
    assert "--gpus 3 does not divide the recipe's --batch-size 64" in refused(
        capsys, "A1", "--data", joined_data, "--device", "cuda", "--gpus", 3
    )
    assert "goes with --device cuda" in refused(
        capsys, "A1", "--data", joined_data, "--device", "cpu", "--gpus", 2
    )


@pytest.mark.slow
def test_what_cannot_be_used_is_refused_in_one_line(joined_data, tmp_path, capsys):
    assert "there is no recipe 'A99'; the recipes are A1, A2" in refused(
        capsys, "A99", "--data", joined_data
    )
    assert "arguments are required: --data" in refused(capsys, "A1")
    assert "is no folder" in refused(capsys, "A1", "--data", tmp_path / "nowhere")
    assert "no train.SOURCE-TARGET.LANG.idx" in refused(capsys, "A1", "--data", tmp_path)
    assert "lacks test9.de-en.de.bin" in refused(
        capsys, "A1", "--data", joined_data, "--subset", "test9"
    )
    assert "--loss is 'log'; it must be one of ce, softbleu, sweep" in refused(
        capsys, "A10", "--data", joined_data, "--loss", "log"
    )
    assert "--save-dir is set by the recipe; use --out" in refused(
        capsys, "A1", "--data", joined_data, "--save-dir=x"
    )
    assert "use --loss" in refused(
        capsys, "A1", "--data", joined_data, "--criterion", "cross_entropy"
    )
    assert "another --out" in refused(capsys, "A1", "--data", joined_data, "--reset-optimizer")
    assert "--no-save is set by the recipe" in refused(
        capsys, "A1", "--data", joined_data, "--no-save"
    )
    assert "--ref nowhere.en does not exist" in refused(
        capsys, "A1", "--data", joined_data, "--ref", "nowhere.en"
    )
    assert '--generate-flags is "\'": no closing quotation' in refused(
        capsys, "A1", "--data", joined_data, "--generate-flags", "'"
    )
    assert "--device is cuda, but no GPU can be seen; use --device cpu" in error_of_run(
        capsys, "A1", "--data", str(joined_data), "--device", "cuda"
    )
    # fairseq's own parsers read the flags before anything is made, in a dry run too.
    command = ["B0", "--data", joined_data, "--device", "cpu", "--out", tmp_path / "new"]
    for more in ([], ["--dry-run"]):
        assert "fairseq-train refuses its flags: argument --lr: expected one argument" in refused(
            capsys, *command, *more, "--lr"
        )
        assert "fairseq-train refuses its flags: unrecognized arguments: --nosuch 3" in refused(
            capsys, *command, *more, "--nosuch", "3"
        )
        assert "fairseq-generate refuses its flags: unrecognized arguments: --nosuch" in refused(
            capsys, *command, *more, "--generate-flags=--nosuch"
        )
    assert "--k-lang: k_lang is 7.0; it must be above 0" in refused(
        capsys, *command, "--dry-run", "--k-lang", "7"
    )
    assert not (tmp_path / "new").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    command = ["A1", "--data", joined_data, "--device", "cpu"]
    assert "it is no run folder" in refused(capsys, *command, "--out", tmp_path / "other")
    assert "is a file" in refused(capsys, *command, "--out", tmp_path / "other" / "thesis.tex")
    # A command that fails: its own last line, and where the rest is.
    command = [*map(str, command), "--out", str(tmp_path / "run")]
    line = error_of_run(capsys, *command, "--finetune-from-model", "nowhere.pt")
    assert re.search(
        r"fairseq-train ended with status 1: .*nowhere.pt.* \(all of it: .*train.out\)$", line
    )


def test_a_folder_in_which_nothing_was_trained_starts_anew(joined_data, tmp_path, capsys):
    mistyped, mended = (
        plan_of(joined_data, tmp_path / "run", "A1", "ce", "--lr", lr) for lr in ("9", "0.1")
    )
    os.makedirs(mistyped.out)
    runner.open_folder(mistyped, {})
    (tmp_path / "run" / "train.log").write_text("of the mistyped one")
    write_json(str(tmp_path / "run" / "trained"), {})
    os.makedirs(mended.checkpoints)
    settings = runner.open_folder(mended, {})
    assert (
        "(--lr: 9; now 0.1), but nothing was trained in it: it starts anew"
        in capsys.readouterr().out
    )
    assert settings["key"] == mended.key() and len(settings["starts"]) == 1
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoints", "settings.json"]
    (tmp_path / "run" / "checkpoints" / "checkpoint_last.pt").write_text("")
    with pytest.raises(
        RecipeError, match="--lr: 0.1; now 9.*; choose another --out, or delete that folder"
    ):
        runner.open_folder(mistyped, {})


def test_notes_tell_where_data_and_k_are_not_the_series(joined_data, separate_data, tmp_path):
    def notes(data, name, *extra, loss=None):
        it = TABLE[name]
        folder = plans.read_data(str(data))
        return Plan(it, folder, str(tmp_path), loss or it.loss, 1, extra=list(extra)).notes()

    vocab = {lang: plans.read_data(str(separate_data)).vocabulary[lang] for lang in ("de", "en")}
    joined = plans.read_data(str(joined_data)).vocabulary["en"]
    size = joined + 4  # the special symbols
    data = f"data: a joined dictionary of {joined} entries; the recipe's: "
    assert notes(joined_data, "A8") == [data + "words, V = 56,652"]
    # 0.003 * 128 is less than one token, as is 50 / 56,652 of them: one is kept
    assert notes(joined_data, "B0") == [
        data + "BPE 8K, joined",
        f"soft BLEU over k = 1 of {size} tokens (k_lang)",
    ]
    assert notes(separate_data, "B0", loss="ce") == [
        f"data: separate dictionaries of {vocab['de']} and {vocab['en']} entries; the recipe's: "
        "BPE 8K, joined",
        "note: the dictionaries are separate, which is not what the recipe is made for",
    ]
    assert (
        notes(joined_data, "README")[1]
        == "note: the dictionaries are joined, which is not what the recipe is made for"
    )
    assert notes(joined_data, "A9")[1:] == [
        f"soft BLEU over k = 50 of {size} tokens (--sb-topk)",
        "note: k is the series', for V = 56,652; append --sb-topk 1 to keep k / V",
    ]
    assert notes(joined_data, "A9", "--sb-topk", "3")[1:] == [
        f"soft BLEU over k = 3 of {size} tokens (--sb-topk)"
    ]
    assert notes(joined_data, "A12")[1:] == [f"soft BLEU over all of {size} tokens (--sb-topk)"]
    assert (
        notes(joined_data, "A9", "--sb-topk", "5000")[-1]
        == f"note: --sb-topk 5000 is above the vocabulary of {size}: the full softmax is used"
    )


def test_data_folders_of_others(joined_data, separate_data, tmp_path):
    data = plans.read_data(str(joined_data))
    assert (data.source, data.target, data.joined, data.subword, data.tokenizer) == (
        "de",
        "en",
        True,
        "bpe",
        "moses",
    )
    assert plans.find_reference(data, "test") is None
    assert not plans.read_data(str(separate_data)).joined
    # A folder as klang prepare writes it: named by its root, with its text beside bin/.
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "test.en").write_text("text\n")
    (tmp_path / "prepare.json").write_text(json.dumps({"options": {"tokenizer": "none"}}))
    (tmp_path / "bin").mkdir()
    for name in data.files:
        os.link(os.path.join(joined_data, name), tmp_path / "bin" / name)
    data = plans.read_data(str(tmp_path))
    assert data.folder == str(tmp_path / "bin") and data.tokenizer == "none"
    assert plans.find_reference(data, "test") == str(tmp_path / "raw" / "test.en")
    dictionary = tmp_path / "bin" / "dict.en.txt"
    text = dictionary.read_text()
    dictionary.unlink()
    dictionary.write_text("\u2581the 9\n" + text, encoding="utf-8")
    assert plans.read_data(str(tmp_path)).subword == "sentencepiece"
    # Two pairs in one folder must be told apart.
    os.link(
        os.path.join(joined_data, "train.de-en.de.idx"), tmp_path / "bin" / "train.en-de.de.idx"
    )
    with pytest.raises(plans.RecipeError, match="has de-en, en-de; .*-s and -t"):
        plans.read_data(str(tmp_path))
    assert plans.read_data(str(tmp_path), "de").target == "en"


# -- training --------------------------------------------------------------------------------------


def train_here(command, caplog):
    """fairseq-train in this process, which saves the start of one for each recipe."""
    from fairseq import checkpoint_utils, options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli.train import main

    vars(checkpoint_utils.save_checkpoint).pop(
        "best", None
    )  # fairseq keeps it for the life of a process
    os.makedirs(flag_value(command, "--save-dir"))
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command[1:])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small products only wait for one another
    try:
        with caplog.at_level(logging.INFO):
            main(convert_namespace_to_omegaconf(args))
    finally:
        torch.set_num_threads(threads)


def weights(path):
    """A checkpoint's tensors, without the buffer that fairseq 0.12.2 saves and never sets."""
    return {
        key: value
        for key, value in load_checkpoint(path)["model"].items()
        if not key.endswith("_float_tensor")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name, loss", EVERY)
def test_every_recipe_trains(joined_data, separate_data, tmp_path, caplog, name, loss):
    data = separate_data if name == "README" else joined_data
    plan = plan_of(
        data, tmp_path, name, loss, "--max-update", "2", "--log-interval", "1", "--batch-size", "64"
    )
    train_here(plan.train(), caplog)
    rows = read_log(tmp_path / "train.log")
    assert [row.update for row in rows if row.split == "train_inner" and row.metric == "loss"] == [
        1,
        2,
    ]
    assert (
        sum(row.value for row in rows if row.split == "train_inner" and row.metric == "bsz") <= 128
    )
    (bleu,) = [row.value for row in rows if row.split == "valid" and row.metric == "bleu"]
    assert 0 <= bleu < 10
    assert any(row.metric == "sb" for row in rows) == (loss != "ce")
    state = load_checkpoint(plan.checkpoints + "/checkpoint_best.pt")
    assert ("decoder.sb_projection.weight" in state["model"]) == (
        flag(TABLE[name], "--arch") != "lstm"
    )


@pytest.mark.parametrize("name, arch", [("A8", "lstm"), ("README", "transformer_iwslt_de_en")])
def test_cross_entropy_on_two_heads_is_cross_entropy_on_one(
    separate_data, tmp_path, caplog, name, arch
):
    """So A8 is also a baseline of models with one head, and README trains fairseq's own model."""
    states = []
    for folder, more in ((tmp_path / "two", []), (tmp_path / "one", ["--arch", arch])):
        plan = plan_of(separate_data, folder, name, "ce", "--max-update", "2", *more)
        train_here(plan.train(), caplog)
        states.append(weights(plan.checkpoints + "/checkpoint_last.pt"))
    two, one = states
    assert sorted(set(two) - set(one)) == [
        key for key in ("decoder.sb_projection.bias", "decoder.sb_projection.weight") if key in two
    ]
    for key in set(one) & set(two):
        assert torch.equal(one[key], two[key]), key


# -- a whole run -----------------------------------------------------------------------------------


def start(*arguments):
    """The runner as a process of its own, with as many threads as conftest.run: another number adds
    up in another order."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairseq_klang.cli", "recipe", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        cwd=ROOT,
    )


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_like_one_that_was_not(
    joined_data, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "run"
    extra = [
        *tiny("B0"),
        "--batch-size",
        "16",
        "--max-epoch",
        "5",
        "--lr",
        "0.003",
        "--warmup-updates",
        "10",
    ]
    command = [
        "B0",
        "--data",
        joined_data,
        "--out",
        out,
        "--device",
        "cpu",
        "--generate-flags",
        "--max-len-b 10",
        *extra,
    ]
    log = out / "train.out"
    process = start(*command)
    while process.poll() is None and not (
        log.exists() and "begin training epoch 2" in log.read_text(errors="replace")
    ):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    process.kill()  # SIGKILL, to the runner alone
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not (out / "trained").exists() and (out / "checkpoints" / "checkpoint_last.pt").exists()

    again = start(*command)
    output, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "no scores of test: there is no raw reference" in output  # ids and dictionaries only
    assert "Loaded checkpoint" in log.read_text()
    scores = json.loads((out / "scores.json").read_text())
    assert [epoch["epoch"] for epoch in scores["epochs"]] == list(range(1, 6)) and scores[
        "tests"
    ] == {}
    assert os.path.getsize(out / "report" / "curves.png")
    settings = json.loads((out / "settings.json").read_text())
    assert (
        len(settings["starts"]) == 2
        and settings["starts"][0]["versions"]["torch"] == torch.__version__
    )
    assert settings["key"]["data"]["dict.en.txt"] == sha256(joined_data / "dict.en.txt")

    # Straight through, with the command that the run folder names.
    words = shlex.split(settings["commands"][0])
    straight = tmp_path / "straight"
    words[words.index("--save-dir") + 1] = str(straight)
    words[words.index("--log-file") + 1] = str(tmp_path / "train.log")
    run("fairseq_cli.train", *words[1:])
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        one, two = (folder / name for folder in (out / "checkpoints", straight))
        assert (
            load_checkpoint(one)["extra_state"]["best"]
            == load_checkpoint(two)["extra_state"]["best"]
        )
        one, two = weights(one), weights(two)
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), key

    # The reference comes later: nothing is trained or translated again.
    reference = tmp_path / "test.en"
    reference.write_text("".join(target + "\n" for _, target in toy_pairs(SPLITS["test"], 2)))
    command = list(map(str, command))
    assert cli.main(["recipe", *command, "--ref", str(reference)]) == 0
    said = capsys.readouterr().out
    assert said.count("already done") == 3 and "in the series: 10.66" in said
    found = json.loads((out / "scores.json").read_text())["tests"]["test"]
    expected = score(str(reference), [str(out / "gen.test.beam5.out")]).systems[0]
    assert found["systems"]["beam5"]["bleu_tok"] == {
        "score": expected.bleu_tok.score,
        "signature": expected.bleu_tok.signature,
    }
    assert found["systems"]["greedy"]["sentences"] == SPLITS["test"]

    # Other settings do not go into this folder, and two runs do not go into one.
    assert "was made with other settings (--lr: 0.003; now 0.004)" in error_of_run(
        capsys, *command, "--lr", "0.004"
    )
    assert "was made with other settings (loss: softbleu; now ce)" in error_of_run(
        capsys, *command, "--loss", "ce"
    )
    plan = plan_of(joined_data, out, "B0", "softbleu")
    monkeypatch.setattr(runner, "locked", lambda folder, patience: locked(folder))
    with locked(out), pytest.raises(LockedError, match="is in use by another process"):
        runner.run(plan, {})


def error_of_run(capsys, *arguments):
    assert cli.main(["recipe", *list(arguments)]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_training_that_ends_inside_an_epoch_is_translated(
    joined_data, tmp_path, caplog, capsys, monkeypatch
):
    """No epoch to average and, without validation, no best one: the last checkpoint it is, and the
    run is complete."""

    def execute(_, command, output, log, follow):
        if command[0] == "fairseq-train":
            train_here(command, caplog)
            return
        assert flag_value(command, "--path") == str(
            tmp_path / "run" / "checkpoints" / "checkpoint_last.pt"
        )
        lines = [
            f"H-{number}\t-1.0\t{target}\n"
            for number, (_, target) in enumerate(toy_pairs(SPLITS["test"], 2))
        ]
        output.writelines(line.encode() for line in lines)
        for line in lines:
            follow(line)

    monkeypatch.setattr(Commands, "execute", execute)
    reference = tmp_path / "test.en"
    reference.write_text("".join(target + "\n" for _, target in toy_pairs(SPLITS["test"], 2)))
    command = [
        "strong",
        "--data",
        joined_data,
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
        "--ref",
        reference,
    ]
    command = [
        *map(str, command),
        *tiny("strong"),
        "--batch-size",
        "16",
        "--max-update",
        "2",
        "--disable-validation",
    ]
    assert cli.main(["recipe", *command]) == 0
    output = capsys.readouterr().out
    assert (
        "no epoch was trained to its end: checkpoint_last.pt translates in place of average.pt"
        in output
    )
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert (scores["checkpoint"], scores["averaged_epochs"], scores["epochs"]) == (
        "checkpoint_last.pt",
        None,
        [],
    )
    assert cli.main(["compare", str(tmp_path / "run"), "--no-pairs"]) == 0
    assert (
        "translated with checkpoint_last.pt, not with average.pt as the recipe says: "
        f"{tmp_path / 'run'}" in capsys.readouterr().out
    )
    # With all translated, the checkpoints may go.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert (
        cli.main(["recipe", *command]) == 0 and capsys.readouterr().out.count("already done") == 3
    )
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == scores


def test_training_without_a_checkpoint_is_not_done(joined_data, tmp_path, monkeypatch):
    plan = plan_of(joined_data, tmp_path, "A1", "ce")
    monkeypatch.setattr(Commands, "execute", lambda *arguments: None)
    for _ in range(2):
        with pytest.raises(
            RecipeError,
            match="training ended without a checkpoint in .*; leave out the flag",
        ):
            runner.train(plan, Commands())
    assert not (tmp_path / "trained").exists()
    write_json(str(tmp_path / "trained"), {})  # its checkpoints are gone since
    with pytest.raises(RecipeError, match="training ended without a checkpoint"):
        runner.train(plan, Commands())


def test_averaging_takes_what_there_is_and_says_so(joined_data, tmp_path, capsys):
    plan = plan_of(joined_data, tmp_path, "strong", "ce")
    os.makedirs(plan.checkpoints)
    for epoch in (1, 2, 3):
        torch.save(
            {"model": {"weight": torch.full((2,), float(epoch))}},
            f"{plan.checkpoints}/checkpoint{epoch}.pt",
        )
    assert runner.average(plan) == 3
    assert (
        "average: 3 epochs, for no more were trained; the recipe asks for 10"
        in capsys.readouterr().out
    )
    assert load_checkpoint(plan.translating)["model"]["weight"].tolist() == [2.0, 2.0]
    assert runner.saved(plan) == plan.translating
    assert runner.average(plan_of(joined_data, tmp_path, "README", "ce")) is None
    none = plan_of(joined_data, tmp_path / "none", "strong", "ce")
    os.makedirs(none.checkpoints)
    assert (
        runner.average(none) is None and runner.saved(none) is None and not capsys.readouterr().out
    )
    for name in ("checkpoint_1_5.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        open(os.path.join(none.checkpoints, name), "w").close()
        assert os.path.basename(runner.saved(none)) == name
