"""The verdicts and sizes of scripts/study_precision.py, and the help of both precision scripts."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from helpers.running import ROOT


def script(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, "scripts", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


study, benchmark = script("study_precision"), script("benchmark_precision")


def row(setting, delta, low, high, bleu=30.0):
    return dict(
        vocabulary="bpe",
        V=8000,
        min_bits=5,
        setting=setting,
        bits=0,
        bleu=bleu + delta,
        delta=delta,
        low=low - 0.01,
        high=high + 0.01,
        lower=low,
        upper=high,
    )


# 0.5 % of 30 is 0.15
KEPT, LOST, UNSURE = (0.1, -0.1, 0.3), (-3.0, -3.5, -2.5), (-0.1, -0.4, 0.2)


@pytest.mark.parametrize(
    "eight, five, four, first, second",
    [
        (KEPT, KEPT, LOST, "supported", "supported"),
        (LOST, LOST, LOST, "refuted", "refuted"),
        (UNSURE, KEPT, KEPT, "undecided", "refuted"),
        (KEPT, UNSURE, LOST, "supported", "undecided"),
        (KEPT, KEPT, UNSURE, "supported", "undecided"),
    ],
)
def test_verdicts(eight, five, four, first, second):
    rows = [row("fp32", 0.0, 0.0, 0.0)] + [
        row(f"qat{bits}", *values) for bits, values in ((8, eight), (5, five), (4, four))
    ]
    one, two = study.verdicts(rows)
    assert f"INT8 training loses less than 0.5 % of BLEU: {first}" in one
    assert f"5 bits suffice and 4 do not: {second}" in two


def test_sizes(tmp_path):
    table = torch.randn(10, 4)
    model = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table.clone(),
        "decoder.output_projection.weight": torch.randn(10, 4),
        "decoder.sb_projection.weight": torch.randn(10, 4),
        "bias": torch.zeros(3),
    }
    torch.save({"model": model}, tmp_path / "checkpoint.pt")
    # two tables of 40 values and 10 rows, and 3 values that stay float
    assert study.size_in_bits(tmp_path / "checkpoint.pt", 32) == (10, (80 + 3) * 4)
    assert study.size_in_bits(tmp_path / "checkpoint.pt", 16) == (10, (80 + 3) * 2)
    assert study.size_in_bits(tmp_path / "checkpoint.pt", 8) == (10, 80 + 20 * 4 + 3 * 4)
    assert study.size_in_bits(tmp_path / "checkpoint.pt", 2) == (10, 20 + 20 * 4 + 3 * 4)


@pytest.mark.parametrize("name", ["study_precision", "benchmark_precision"])
def test_help_and_bad_input(name):
    def call(*arguments):
        return subprocess.run(
            [sys.executable, os.path.join(ROOT, "scripts", f"{name}.py"), *arguments],
            capture_output=True,
            text=True,
        )

    result = call("--help")
    assert result.returncode == 0 and f"python scripts/{name}.py" in result.stdout
    result = call("--data", "nowhere", "--out", "x")
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_the_benchmark_refuses_before_it_measures(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.pt").write_text("")
    for arguments, message in (
        (["step", tmp_path, "--rounds", 0], "--rounds is 0; it must be 1 or more"),
        (["step", tmp_path, "--max-tokens", -1], "--max-tokens is -1; it must be 1 or more"),
        (
            ["step", tmp_path / "none"],
            f"there is no folder {tmp_path}/none; name the one that fairseq-train reads",
        ),
        (
            ["step", tmp_path, "--arch", "transformer"],
            "--arch is transformer; it must be a dual-head architecture, which has --qat-bits",
        ),
        (
            ["step", tmp_path, "--out", tmp_path / "none" / "x"],
            f"--out {tmp_path}/none/x: there is no folder {tmp_path}/none; make it first",
        ),
        (
            ["serve", tmp_path, tmp_path / "model.pt", "--rounds", 0],
            "--rounds is 0; it must be 1 or more",
        ),
        (
            ["serve", tmp_path, tmp_path / "model.pt", "--threads", 0],
            "--threads is 0; it must be 1 or more",
        ),
        (
            ["serve", tmp_path, tmp_path / "model.pt", "--batch-tokens", 512, 0],
            "--batch-tokens is 0; it must be 1 or more",
        ),
        (["serve", tmp_path, tmp_path / "none.pt"], f"there is no file {tmp_path}/none.pt"),
        (
            ["serve", tmp_path, tmp_path / "model.pt", "--ref", tmp_path / "none"],
            f"there is no file {tmp_path}/none",
        ),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmark_precision.py", *map(str, arguments)])
        assert (benchmark.main(), capsys.readouterr().err) == (
            2,
            f"benchmark_precision: error: {message}\n",
        )


@pytest.mark.filterwarnings("ignore::UserWarning")  # of hydra
def test_the_benchmark_says_when_there_are_too_few_batches(joined_data, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark_precision.py"])
    with pytest.raises(
        benchmark.BenchmarkError, match="--rounds is 3, and .* has 1 batches of --max-tokens 100000"
    ):
        benchmark.time_steps(str(joined_data), "transformer_dualhead_b0", 3, 100000)
    with pytest.raises(
        benchmark.BenchmarkError, match="--max-tokens is 2; it must hold the longest sentence"
    ):
        benchmark.time_steps(str(joined_data), "transformer_dualhead_b0", 1, 2)


def test_every_flag_of_the_benchmark_has_a_help_text():
    parts = next(action for action in benchmark.arguments()._actions if action.choices)
    assert [
        (name, action.dest)
        for name, part in parts.choices.items()
        for action in part._actions
        if not action.help
    ] == []
