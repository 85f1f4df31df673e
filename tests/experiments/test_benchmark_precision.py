"""klang benchmark precision: what it refuses before it measures, and a step that is measured."""

import pytest

from fairseq_klang import cli
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.experiments import benchmark_precision as benchmark
from helpers.recipes import error_of


def test_it_refuses_before_it_measures(tmp_path, capsys):
    (tmp_path / "model.pt").write_text("")
    model, none = tmp_path / "model.pt", tmp_path / "none"
    for arguments, message in (
        (["step", tmp_path, "--rounds", 0], "1 or more"),
        (["step", tmp_path, "--max-tokens", -1], "1 or more"),
        (["step", none], f"there is no folder {none}; name the one that fairseq-train reads"),
        (["step", tmp_path, "--arch", "transformer"], "it must be a dual-head architecture"),
        (["step", tmp_path, "--out", none / "x"], f"there is no folder {none}; make it first"),
        (["serve", tmp_path, model, "--rounds", 0], "1 or more"),
        (["serve", tmp_path, model, "--threads", 0], "1 or more"),
        (["serve", tmp_path, model, "--batch-tokens", 512, 0], "1 or more"),
        (["serve", tmp_path, none], f"there is no file {none}"),
        (["serve", tmp_path, model, "--ref", none], f"there is no file {none}"),
        (["serve", tmp_path, model], f"--data {tmp_path} holds no dict.*.txt"),
        ([], "arguments are required: {step,serve}"),
    ):
        assert message in error_of(capsys, "benchmark", "precision", *arguments), arguments


@pytest.mark.filterwarnings("ignore::UserWarning")  # of hydra
def test_too_few_batches(joined_data):
    with pytest.raises(
        benchmark.BenchmarkError, match="--rounds is 3, and .* has 1 batches of --max-tokens 100000"
    ):
        benchmark.time_steps(str(joined_data), "transformer_dualhead_b0", 3, 100000)
    with pytest.raises(
        benchmark.BenchmarkError, match="--max-tokens is 2; it must hold the longest sentence"
    ):
        benchmark.time_steps(str(joined_data), "transformer_dualhead_b0", 1, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_is_measured(joined_data, tmp_path, capsys):
    command = ["benchmark", "precision", "step", joined_data, "--rounds", 2, "--max-tokens", 100]
    command += ["--out", tmp_path / "step.csv"]
    assert cli.main(list(map(str, command))) == 0
    rows = read_rows(tmp_path / "step.csv")
    assert [(row.run, row.measure) for row in rows] == [
        ("float", "seconds a step, median"),
        ("qat", "seconds a step, median"),
        ("qat", "time / float's, median"),
    ]
    assert all(row.value > 0 and row.n == 2 for row in rows)
