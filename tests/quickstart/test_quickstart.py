"""scripts/quickstart.sh from end to end in its trial size, twice, and its messages."""

import os
import subprocess
import sys

import pytest

from helpers.running import ROOT


def quickstart(*arguments):
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    return subprocess.run(
        ["bash", os.path.join(ROOT, "scripts", "quickstart.sh"), *map(str, arguments)],
        env=dict(os.environ, PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_smoke_run_scores_both_trainings_and_a_second_run_reuses_them(tmp_path):
    first = quickstart("--smoke", "--active-env", "--out", tmp_path)
    assert first.returncode == 0, first.stdout[-3000:]
    for name in (
        "test.ce.out",
        "test.sb.out",
        "scores.txt",
        "report/curves.csv",
        "report/curves.png",
    ):
        assert (tmp_path / name).stat().st_size > 0, name
    assert "sb_p4" in (tmp_path / "report" / "curves.csv").read_text()
    hypotheses = [
        line
        for line in (tmp_path / "test.sb.out").read_text(encoding="utf-8").splitlines()
        if line.startswith("H-")
    ]
    assert len(hypotheses) == 21  # no multiple of 8: none is dropped

    kept = [
        tmp_path / name
        for name in (
            "text/train.de",
            "ce/checkpoint_last.pt",
            "sb/checkpoint_last.pt",
            "test.ce.out",
            "test.sb.out",
        )
    ]
    before = [path.stat().st_mtime_ns for path in kept]
    (tmp_path / "report" / "curves.png").unlink()
    second = quickstart("--smoke", "--active-env", "--out", tmp_path)
    assert second.returncode == 0, second.stdout[-3000:]
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert (tmp_path / "report" / "curves.png").exists()

    other = quickstart("--smoke", "--active-env", "--seed", 2, "--out", tmp_path)
    assert other.returncode == 2
    assert "was made with epochs=1 seed=1 smoke=1, not epochs=1 seed=2 smoke=1" in other.stdout


def test_bad_options_end_in_one_line(tmp_path):
    for arguments, message in (
        (["--epochs", "none"], "--epochs is none; it must be a whole number of at least 1"),
        (["--out"], "--out needs a value"),
        (["--speed"], "unknown option --speed; see --help"),
    ):
        result = quickstart(*arguments)
        assert result.returncode == 2 and message in result.stdout
        assert len(result.stdout.strip().splitlines()) == 1
    assert quickstart("--help").stdout.startswith("usage: scripts/quickstart.sh")
