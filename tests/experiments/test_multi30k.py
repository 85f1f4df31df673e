"""klang study multi30k: both criterions and all seeds, on every test split of the data."""

import os
import re

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.experiments.plan import find_subsets, flag_value
from fairseq_klang.experiments.runner import Commands
from helpers.recipes import error_of
from helpers.running import TINY_TRANSFORMER, binarise, toy_pairs

SPLITS = {"train": 50, "valid": 9, "test": 30}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder as klang prepare multi30k leaves it, with two test splits."""
    folder = tmp_path_factory.mktemp("corpus")
    binarise(
        folder, joined=True, splits={name: SPLITS[name] for name in ("train", "valid", "test")}
    )
    for name in list(os.listdir(folder / "bin")):  # the second test split is the first one again
        if name.startswith("test."):
            os.link(folder / "bin" / name, folder / "bin" / name.replace("test.", "test1."))
    (folder / "raw").mkdir()
    for name in ("test", "test1"):
        lines = [target for _, target in toy_pairs(SPLITS["test"], 2)]
        (folder / "raw" / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture()
def fast(monkeypatch):
    """Commands that leave what fairseq would; ce drops the last word of every third sentence."""
    commands = []

    def execute(_, command, output, log, follow):
        commands.append(command)
        if command[0] == "fairseq-train":
            folder = flag_value(command, "--save-dir")
            os.makedirs(folder)
            torch.save({"model": {}}, os.path.join(folder, "checkpoint_best.pt"))
            with open(flag_value(command, "--log-file"), "w") as stream:
                row = '{"epoch": 1, "valid_bleu": "3.5", "valid_nll_loss": "4", '
                stream.write(row + '"valid_num_updates": "7"}\n')
            return
        drop = "m30k" not in command and "/ce-" in flag_value(command, "--path")
        for number, (_, target) in enumerate(toy_pairs(SPLITS["test"], 2)):
            words = target.split()
            line = " ".join(words[:-1] if drop and number % 3 == 0 else words)
            text = f"H-{number}\t-1.0\t{line}\n"
            output.write(text.encode())
            follow(text)

    monkeypatch.setattr(Commands, "execute", execute)
    return commands


def test_a_whole_study(corpus, tmp_path, fast, capsys):
    out = tmp_path / "out"
    command = ["study", "multi30k", "--data", str(corpus), "--out", str(out), "--seeds", "1", "2"]
    command += ["--lanes", "2", "--device", "cpu", "--max-epoch", "1", *TINY_TRANSFORMER]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "m30k softbleu" in shown and str(out / "multi30k.csv") in shown
    trained = [c for c in fast if c[0] == "fairseq-train"]
    assert sorted((flag_value(c, "--criterion"), flag_value(c, "--seed")) for c in trained) == [
        ("label_smoothed_cross_entropy", "1"), ("label_smoothed_cross_entropy", "2"),
        ("restricted_softbleu", "1"), ("restricted_softbleu", "2"),
    ]  # fmt: skip
    rows = read_rows(out / "multi30k.csv")
    found = [
        row for row in rows if row.measure == "bleu_lc minus m30k ce" and row.decoding == "beam5"
    ]
    assert [(row.subset, row.n, row.seeds) for row in found] == [
        ("test", 2, [1, 2]), ("test1", 2, [1, 2]),
    ]  # fmt: skip
    # the same outputs twice: the two splits agree, and Holm's correction doubles p
    first, second = found
    assert first.value > 1 and (first.value, first.p) == (second.value, second.p)
    assert first.settings["holm_p"] == pytest.approx(min(1, 2 * first.p))
    assert os.path.getsize(out / "report" / "curves.png")
    # finished: nothing is run again
    count = len(fast)
    assert cli.main(command) == 0 and len(fast) == count


def test_the_flags_are_those_of_the_recipe(corpus, tmp_path, fast):
    """The model and training that docs/results/multi30k.md tells of."""
    command = ["study", "multi30k", "--data", str(corpus), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--seeds", "1", "--device", "cpu"]) == 0
    train = next(c for c in fast if c[0] == "fairseq-train")
    wanted = {"--encoder-embed-dim": "128", "--decoder-ffn-embed-dim": "256", "--lr": "0.004"}
    wanted.update({"--encoder-layers": "4", "--decoder-attention-heads": "4", "--dropout": "0.3"})
    wanted.update({"--warmup-updates": "1000", "--max-tokens": "4096", "--max-epoch": "14"})
    wanted.update({"--label-smoothing": "0.1", "--keep-last-epochs": "5", "--log-interval": "20"})
    assert {name: flag_value(train, name) for name in wanted} == wanted
    subsets = [flag_value(c, "--gen-subset") for c in fast if c[0] == "fairseq-generate"]
    assert sorted(subsets) == ["test"] * 4 + ["test1"] * 4


def test_splits_of_a_folder(corpus, tmp_path):
    assert find_subsets(str(corpus)) == find_subsets(str(corpus / "bin")) == ["test", "test1"]
    assert find_subsets(str(tmp_path)) == []


def test_bad_input_is_one_line(corpus, tmp_path, capsys):
    start = ["study", "multi30k", "--out", tmp_path / "out", "--device", "cpu"]
    assert "has no test split" in error_of(capsys, *start, "--data", tmp_path)
    for more, message in (
        (["--seeds", "x"], "invalid whole number"),
        (["--lanes", "0"], "1 or more"),
        (["--nosuch"], "fairseq-train refuses its flags: unrecognized arguments: --nosuch"),
        (["--save-dir", "x"], "--save-dir is set by the recipe"),
    ):
        assert message in error_of(capsys, *start, "--data", corpus, *more)
    assert re.search("required: .*--out", error_of(capsys, "study", "multi30k", "--data", "x"))
