"""scripts/study_gradients.py on logs written by hand."""

import json
import os
import subprocess
import sys

from helpers.running import ROOT


def run(*arguments):
    command = [
        sys.executable,
        os.path.join(ROOT, "scripts", "study_gradients.py"),
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def test_ratios_by_epoch_and_a_run_without_an_sb_head(tmp_path):
    inner = {
        "epoch": 1,
        "update": 0.5,
        "num_updates": "50",
        "sb": "0.1",
        "gnorm_ce_head": "2.0",
        "gnorm_sb_head": "0.5",
    }
    epochs = [
        {
            "epoch": epoch,
            "train_num_updates": str(100 * epoch),
            "train_sb": "0.3",
            "train_gnorm_ce_head": ce,
            "train_gnorm_sb_head": sb,
        }
        for epoch, ce, sb in ((1, "3.0", "0.001"), (2, "1.0", "0.0"))
    ]
    (tmp_path / "run").mkdir()
    lines = [f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(inner)}"]
    lines += [f"2026-01-01 00:00:00 | INFO | train | {json.dumps(row)}" for row in epochs]
    (tmp_path / "run" / "train.log").write_text("\n".join(lines) + "\n")
    result = run(tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "| run | 4.0 (0.100) | 3,000.0 (0.300) | inf (0.300) |" in result.stdout
    (tmp_path / "plain.log").write_text("\n".join(lines).replace("gnorm_sb_head", "other") + "\n")
    refused = run(tmp_path / "plain.log")
    assert (
        refused.returncode == 2
        and refused.stderr.count("\n") == 1
        and "logs no gnorm_sb_head" in refused.stderr
    )
