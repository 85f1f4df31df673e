"""The benchmark scripts: one tiny grid measured, resumed and drawn; bad options in one line."""

import csv
import os
import subprocess
import sys

import pytest

from helpers.running import ROOT

SCRIPTS = os.path.join(ROOT, "scripts")


def run(script, *arguments):
    command = [sys.executable, os.path.join(SCRIPTS, script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark") / "b.csv"
    grid = [
        "--vocab",
        300,
        "--rows",
        64,
        "--dim",
        256,
        "--rounds",
        2,
        "--threads",
        1,
        "--criterion",
        "klang",
        "--out",
        out,
    ]
    result = run("benchmark.py", "--what", "head", "step", *grid)
    assert result.returncode == 0, result.stderr
    return out, grid


def test_every_cell_has_its_figures(measured):
    with open(measured[0], newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["what"], row["criterion"]) for row in rows] == [
        (w, c) for w in ("head", "step") for c in ("fairseq_ce", "klang")
    ]
    for row in rows:
        assert 0 < float(row["p20_s"]) <= float(row["median_s"]) <= float(row["p80_s"])
        assert float(row["peak_mib"]) > 0 and "torch=" in row["versions"]
    head = rows[1]
    # DESIGN 2: the second head adds 2NVd operations to the 6NVd of one
    assert float(head["gflop"]) == pytest.approx(8 * 64 * 300 * 256 / 1e9)
    assert float(head["bound_s"]) == pytest.approx(
        float(head["gflop"]) / float(head["gemm_gflops"]), rel=0.05
    )


def test_learning_from_the_source_is_measured_beside_training(tmp_path):
    out = tmp_path / "s.csv"
    grid = ["--vocab", 300, "--rows", 64, "--dim", 256, "--rounds", 1, "--threads", 1, "--out", out]
    result = run("benchmark.py", "--what", "source", "adapt", *grid)
    assert result.returncode == 0, result.stderr
    with open(out, newline="") as stream:
        rows = {
            (row["what"], row["criterion"]): float(row["median_s"])
            for row in csv.DictReader(stream)
        }
    source = ["fairseq_ce", "ae_linear", "ae_decoder", "masked_lm", "contrastive"]
    assert list(rows) == [("source", name) for name in source] + [
        ("adapt", name) for name in ("translate", "adapt_0", "adapt_1")
    ]
    # the encoder alone against encoder and decoder; learning before translating against translating
    assert (
        rows["source", "masked_lm"] < rows["source", "fairseq_ce"]
        and rows["adapt", "adapt_1"] > rows["adapt", "adapt_0"]
    )


def test_what_is_measured_is_not_measured_again(measured):
    out, grid = measured
    before = out.read_bytes()
    result = run("benchmark.py", "--what", "head", "step", *grid)
    assert result.returncode == 0 and out.read_bytes() == before


def test_a_cell_that_lacks_a_criterion_is_measured_again(measured, tmp_path):
    path, out = tmp_path / "b.csv", measured[0]
    path.write_bytes(out.read_bytes())
    grid = [path if value == out else value for value in measured[1]]
    result = run("benchmark.py", "--what", "head", *grid, "--criterion", "fused_ce", "klang")
    assert result.returncode == 0, result.stderr
    with open(path, newline="") as stream:
        rows = [(row["what"], row["criterion"]) for row in csv.DictReader(stream)]
    assert sorted(rows) == [("head", c) for c in ("fairseq_ce", "fused_ce", "klang")] + [
        ("step", c) for c in ("fairseq_ce", "klang")
    ]
    result = run("benchmark.py", "--what", "head", *grid)
    assert result.returncode == 0 and "1 of 1 cells are in" in result.stdout


def test_files_cut_short_or_of_several_settings_are_one_line(measured, tmp_path):
    text, path = measured[0].read_text(), tmp_path / "b.csv"
    path.write_text(text[:-40])
    for result in (
        run("benchmark.py", "--out", path, "--threads", 1),
        run("plot_benchmark.py", path),
    ):
        assert (
            result.returncode == 2
            and "is damaged at line 5" in result.stderr
            and result.stderr.strip().count("\n") == 0
        )
    assert path.read_text() == text[:-40]
    path.write_text(text + text.splitlines()[1].replace("float32", "bfloat16") + "\n")
    result = run("plot_benchmark.py", path)
    assert result.returncode == 2 and "with dtype bfloat16 and float32" in result.stderr


def test_the_picture_and_the_tables_come_from_the_file(measured, tmp_path):
    result = run("plot_benchmark.py", measured[0], "--out", tmp_path / "b.png")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("| head | 300 | 64 | 256 |") == 2
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_exponents_are_those_of_the_times():
    sys.path.insert(0, SCRIPTS)
    try:
        from fairseq_klang.experiments.benchmark_plot import exponents
    finally:
        sys.path.remove(SCRIPTS)
    sizes = [(v, n, d) for v in (10, 20, 40) for n in (1, 3) for d in (5, 7)]
    rows = [
        dict(
            what="head", criterion="klang", vocab=v, rows=n, dim=d, median_s=0.5 * v * n**0.5 * d**2
        )
        for v, n, d in sizes
    ]
    assert exponents(rows, "klang") == pytest.approx({"V": 1, "N": 0.5, "d": 2})
    assert exponents(rows[:1], "klang") == {}


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("benchmark.py", ["--rows", "50"], "--rows is 50; it must be a multiple of 32"),
        ("benchmark.py", ["--out", __file__], "has other columns"),
        ("benchmark.py", ["--threads", "0"], "--threads is 0; it must be 1 or more"),
        ("benchmark.py", ["--out", "/nowhere/b.csv"], "No such file or directory"),
        ("plot_benchmark.py", [__file__], "holds no rows of scripts/benchmark.py"),
    ],
)
def test_bad_input_is_one_line(script, arguments, message):
    result = run(script, *arguments)
    assert (
        result.returncode == 2
        and result.stderr.strip().count("\n") == 0
        and message in result.stderr
    )
