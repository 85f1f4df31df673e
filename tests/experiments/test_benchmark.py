"""klang benchmark time and plot: one tiny grid measured, resumed and drawn; bad options in one
line."""

import argparse
import csv
import random

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.experiments import benchmark, benchmark_plot
from fairseq_klang.experiments.benchmark_plot import exponents
from helpers.recipes import error_of


def run(*arguments):
    """klang benchmark, in this process, in as many threads as before."""
    threads = torch.get_num_threads()
    try:
        assert cli.main(["benchmark", *map(str, arguments)]) == 0
    finally:
        torch.set_num_threads(threads)


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
    with pytest.MonkeyPatch.context() as patch:  # a process for each is slow
        patch.setattr(benchmark, "peak_memory", lambda *arguments: 12.5)
        run("time", "--what", "head", "step", *grid)
    return out, grid


def test_every_cell_has_its_figures(measured):
    with open(measured[0], newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["what"], row["criterion"]) for row in rows] == [
        (w, c) for w in ("head", "step") for c in ("fairseq_ce", "klang")
    ]
    for row in rows:
        assert 0 < float(row["p20_s"]) <= float(row["median_s"]) <= float(row["p80_s"])
        assert float(row["peak_mib"]) == 12.5 and "torch=" in row["versions"]
    head = rows[1]
    # docs/performance.md: the second head adds 2NVd operations to the 6NVd of one
    assert float(head["gflop"]) == pytest.approx(8 * 64 * 300 * 256 / 1e9)
    assert float(head["bound_s"]) == pytest.approx(
        float(head["gflop"]) / float(head["gemm_gflops"]), rel=0.05
    )


@pytest.mark.slow
def test_learning_from_the_source_is_measured_beside_training(tmp_path):
    out = tmp_path / "s.csv"
    grid = ["--vocab", 300, "--rows", 64, "--dim", 256, "--rounds", 1, "--threads", 1, "--out", out]
    run("time", "--what", "source", "adapt", *grid)
    with open(out, newline="") as stream:
        rows = {
            (row["what"], row["criterion"]): float(row["median_s"])
            for row in csv.DictReader(stream)
        }
    source = ["fairseq_ce", "ae_linear", "ae_decoder", "masked_lm", "contrastive"]
    assert list(rows) == [("source", name) for name in source] + [
        ("adapt", name) for name in ("translate", "adapt_0", "adapt_1")
    ]
    assert all(seconds > 0 for seconds in rows.values())


def test_what_is_measured_is_not_measured_again(measured):
    out, grid = measured
    before = out.read_bytes()
    run("time", "--what", "head", "step", *grid)
    assert out.read_bytes() == before


def test_a_cell_that_lacks_a_criterion_is_measured_again(measured, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "peak_memory", lambda *arguments: 12.5)
    path, out = tmp_path / "b.csv", measured[0]
    path.write_bytes(out.read_bytes())
    grid = [path if value == out else value for value in measured[1]]
    run("time", "--what", "head", *grid, "--criterion", "fused_ce", "klang")
    with open(path, newline="") as stream:
        rows = [(row["what"], row["criterion"]) for row in csv.DictReader(stream)]
    assert sorted(rows) == [("head", c) for c in ("fairseq_ce", "fused_ce", "klang")] + [
        ("step", c) for c in ("fairseq_ce", "klang")
    ]
    capsys.readouterr()
    run("time", "--what", "head", *grid)
    assert "1 of 1 cells are in" in capsys.readouterr().out


def test_ratios_are_to_fairseqs_in_any_order():
    """They were to the criterion that --criterion named first."""
    times = {"klang": [4.0, 6.0], "fairseq_ce": [2.0, 2.0]}
    options = argparse.Namespace(rounds=2)
    for names in (list(times), list(times)[::-1]):
        rows = benchmark.table_rows(
            {name: times[name] for name in names}, {}, "step", 300, 64, 256, options, {}
        )
        ratios = {row["criterion"]: row["ratio"] for row in rows}
        assert ratios == {"klang": 2.5, "fairseq_ce": 1.0}
    times = {"adapt_1": [4.0], "translate": [2.0]}
    rows = benchmark.table_rows(times, {}, "adapt", 300, 64, 256, options, {})
    assert [row["ratio"] for row in rows] == [2.0, 1.0]


@pytest.mark.slow
def test_peak_memory_is_that_of_a_fresh_process():
    options = argparse.Namespace(device="cpu", dtype="float32", seed=1, threads=1)
    found = benchmark.peak_memory("head", 20000, 1024, 256, "fairseq_ce", options)
    # the logits alone, 20,000 * 1,024 floats, are 78 MiB; more than a few copies would be wrong
    assert 78 < found < 1000


class Gpu:
    """A GPU's memory, as torch counts it."""

    def __init__(self):
        self.held = self.most = 0

    def hold(self, size):
        self.held += size
        self.most = max(self.most, self.held)

    def reset_peak_memory_stats(self):
        self.most = self.held

    def max_memory_allocated(self):
        return self.most


def test_a_peak_on_a_gpu_is_that_of_the_step_that_counts(monkeypatch, capsys):
    """The small step before it was part of it."""
    gpu = Gpu()

    class Step:
        def __init__(self, what, vocab, rows, dim, options):
            self.size = (300 if vocab == 200 else 100) * 2**20
            self.task = None

        def step(self, criterion):
            gpu.hold(self.size)
            gpu.hold(-self.size)

    monkeypatch.setattr(benchmark, "Cell", Step)
    monkeypatch.setattr(benchmark, "build_criterion", lambda name, task: None)
    monkeypatch.setattr(benchmark, "build_task", lambda vocab: None)
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    options = argparse.Namespace(device="cuda")
    benchmark.print_peak("step", 8000, 64, 256, "klang", options)
    assert float(capsys.readouterr().out) == 100


def test_files_cut_short_or_of_several_settings_are_one_line(measured, tmp_path, capsys):
    text, path = measured[0].read_text(), tmp_path / "b.csv"
    path.write_text(text[:-40])
    for command in (["time", "--out", path, "--threads", 1], ["plot", path]):
        assert "is damaged at line 5" in error_of(capsys, "benchmark", *command)
    assert path.read_text() == text[:-40]
    path.write_text(text + text.splitlines()[1].replace("float32", "bfloat16") + "\n")
    told = error_of(capsys, "benchmark", "plot", path)
    assert "with dtype bfloat16 and float32" in told


def test_damaged_files_are_drawn_or_refused_in_one_line(measured, tmp_path):
    whole, path, draw, refused = measured[0].read_bytes(), tmp_path / "b.csv", random.Random(4), 0
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 5)):
            at = draw.randrange(len(data))
            data[at : at + 1] = draw.choice([b"", b"-", b"inf", b",", b"\n", b'"', b"\xff", b"0"])
        path.write_bytes(data)
        try:
            benchmark_plot.tables(benchmark_plot.read(str(path)))
        except benchmark_plot.KlangError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


def test_the_picture_and_the_tables_come_from_the_file(measured, tmp_path, capsys):
    capsys.readouterr()
    run("plot", measured[0], "--out", tmp_path / "b.png")
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line[1:5]] for line in lines if len(line) > 5]
    assert cells.count(["head", "300", "64", "256"]) == 2
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_exponents_are_those_of_the_times():
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
    "arguments, message",
    [
        (["time", "--rows", "50"], "--rows is 50; it must be a multiple of 32"),
        (["time", "--rows", "-32"], "32 or more"),
        (["time", "--vocab", "10"], "200 or more"),
        (["time", "--dim", "3"], "invalid choice"),
        (["time", "--out", __file__], "has other columns"),
        (["time", "--threads", "0"], "1 or more"),
        (["time", "--rounds", "x"], "invalid whole number"),
        (["time", "--seed", "-1"], "between 0 and 4294967295"),
        (["time", "--device", "cuda"], "torch sees no GPU"),
        (["time", "--out", "/nowhere/b.csv"], "/nowhere"),
        (["plot", __file__], "holds no rows of klang benchmark time"),
        (["plot", "/nowhere/b.csv"], "No such file"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in error_of(capsys, "benchmark", *arguments)


def test_a_picture_of_an_unknown_kind_is_refused(measured, tmp_path, capsys):
    told = error_of(capsys, "benchmark", "plot", measured[0], "--out", tmp_path / "b.doc")
    assert "must end in .png" in told and not (tmp_path / "b.doc").exists()
