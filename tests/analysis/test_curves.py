"""Training logs as fairseq writes them, the table made of them, and the picture."""

import csv
import json
import subprocess
import sys

import pytest

from fairseq_klang.analysis.curves import read_log, write_report
from fairseq_klang.errors import KlangError
from helpers.running import ROOT

# Lines in the form that fairseq 0.12.3 wrote with --log-format json to a --log-file (no prefix) ...
JSON_LOG = """\
Namespace(no_progress_bar=False, log_format='json', activation={'a': 1})
begin training epoch 1
{"epoch": 1, "update": 0.284, "loss": "9.5", "nll_loss": "9.25", "ppl": "608.9", "wps": "0", "num_updates": "20", "train_wall": "4", "gnorm_ce_head": "0.5"}
{"epoch": 1, "update": 0.582, "loss": "8.5", "nll_loss": "8.25", "ppl": "304.4", "num_updates": "40", "train_wall": "8", "sb_p4": "nan"}
{"epoch": 1, "valid_loss": "7.5", "valid_nll_loss": "7.0", "valid_ppl": "128", "valid_bleu": "3.5", "valid_num_updates": "67"}
end of epoch 1 (average epoch stats below)
{"epoch": 1, "train_loss": "8.8", "train_nll_loss": "8.6", "train_train_wall": "13", "train_num_updates": "67"}
"""  # noqa: E501
# ... and with --log-format simple, to standard output (prefix) and to the file.
SIMPLE_LOG = """\
2026-01-02 03:04:05 | INFO | train_inner | epoch 001:     20 / 67 loss=9.5, nll_loss=9.25, ppl=608.9, num_updates=20, train_wall=4, gnorm_ce_head=0.5
epoch 001:     40 / 67 loss=8.5, nll_loss=8.25, ppl=304.4, num_updates=40, train_wall=8, sb_p4=nan
2026-01-02 03:04:05 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.5 | nll_loss 7.0 | ppl 128 | bleu 3.5 | num_updates 67
end of epoch 1 (average epoch stats below)
epoch 001 | loss 8.8 | nll_loss 8.6 | train_wall 13 | num_updates 67
Saved checkpoint checkpoint_best.pt (epoch 1 @ 67 updates, score 3.5)
"""  # noqa: E501


def log(folder, text, name="train.log"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def values(rows):
    return {(row.split, row.epoch, row.update, row.metric): row.value for row in rows}


@pytest.mark.parametrize("text", [JSON_LOG, SIMPLE_LOG], ids=["json", "simple"])
def test_both_formats_give_the_same_rows(tmp_path, text):
    found = values(read_log(str(log(tmp_path, text))))
    assert found["train_inner", 1, 20, "nll_loss"] == 9.25
    assert found["train_inner", 1, 40, "loss"] == 8.5
    assert found["train_inner", 1, 20, "gnorm_ce_head"] == 0.5
    assert (
        found["train_inner", 1, 40, "sb_p4"] != found["train_inner", 1, 40, "sb_p4"]
    )  # nan is kept
    assert found["valid", 1, 67, "bleu"] == 3.5
    assert found["train", 1, 67, "train_wall"] == 13
    assert {key[0] for key in found} == {"train_inner", "train", "valid"}
    assert not [key for key in found if key[3] in ("num_updates", "update", "epoch")]


def test_prefixed_json_and_named_subsets(tmp_path):
    text = '2026-01-02 | INFO | valid1 | {"epoch": 2, "valid1_loss": "7.5", "valid1_num_updates": "134"}\n'
    assert values(read_log(str(log(tmp_path, text)))) == {("valid1", 2, 134, "loss"): 7.5}


def test_repeated_lines_count_once_and_a_resumed_run_replaces_its_past(tmp_path):
    def line(update, loss):
        return (
            json.dumps(
                {"epoch": 1, "update": update / 100, "loss": str(loss), "num_updates": str(update)}
            )
            + "\n"
        )

    # written three times, killed in the middle of a line after update 30, resumed from update 10
    text = (
        line(10, 9) * 3
        + line(20, 8)
        + line(30, 7)
        + line(40, 6)[:25]
        + "\n"
        + line(20, 8.5)
        + line(30, 7.5)
        + line(40, 6.5)
    )
    rows = [(row.update, row.value) for row in read_log(str(log(tmp_path, text)))]
    assert rows == [(10, 9), (20, 8.5), (30, 7.5), (40, 6.5)]


@pytest.mark.parametrize(
    "text, message", [(None, "there is no log"), ("nothing here\n{\n", "has no line with numbers")]
)
def test_a_log_that_says_nothing_is_one_clear_line(tmp_path, text, message):
    if text:
        log(tmp_path / "run", text)
    with pytest.raises(KlangError, match=message) as caught:
        write_report([str(tmp_path / "run")], str(tmp_path / "out"))
    assert "\n" not in str(caught.value) and "--log-format json" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_report_holds_every_number_and_a_picture(tmp_path):
    log(tmp_path / "a" / "run", JSON_LOG)
    log(
        tmp_path / "b" / "run",
        JSON_LOG.replace(
            '"9.25"', '"9.125", "sb": "0.1", "sb_p1": "0.5", "gnorm_sb_head": "1e-05"'
        ),
    )
    runs = [str(tmp_path / name / "run") for name in ("a", "b")]
    paths = write_report(runs, str(tmp_path / "out"))
    assert [path[len(str(tmp_path / "out")) + 1 :] for path in paths] == [
        "curves.csv",
        "curves.png",
    ]
    with open(paths[0], encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert list(table[0]) == ["run", "split", "epoch", "update", "metric", "value"]
    assert {row["run"] for row in table} == {
        "a/run",
        "b/run",
    }  # the shortest names that tell the runs apart
    first = [row["value"] for row in table if row["metric"] == "nll_loss" and row["update"] == "20"]
    assert first == ["9.25", "9.125"]
    with open(paths[1], "rb") as stream:
        picture = stream.read()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 20000
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "curves.csv",
        "curves.png",
    ]


def test_only_panels_with_data_are_drawn(tmp_path):
    def size(text, name):
        log(tmp_path / name, text)
        with open(
            write_report([str(tmp_path / name)], str(tmp_path / name / "out"))[1], "rb"
        ) as stream:
            header = stream.read(24)
        return int.from_bytes(header[16:20], "big"), int.from_bytes(
            header[20:24], "big"
        )  # the PNG's IHDR: width, height

    one = size('{"epoch": 1, "update": 0.1, "nll_loss": "9", "num_updates": "20"}\n', "one")
    two = size(
        '{"epoch": 1, "update": 0.1, "nll_loss": "9", "sb": "0.1", "sb_alpha": "nan", "num_updates": "20"}\n',
        "two",
    )
    assert abs(two[0] - 2 * one[0]) <= 1
    with pytest.raises(KlangError, match="none of the numbers"):
        size('{"epoch": 1, "update": 0.1, "wps": "9", "num_updates": "20"}\n', "none")


def test_a_run_named_twice_is_refused(tmp_path):
    log(tmp_path / "run", JSON_LOG)
    with pytest.raises(KlangError, match="named twice"):
        write_report([str(tmp_path / "run"), str(tmp_path / "run") + "/"], str(tmp_path / "out"))


def test_the_progress_bar_of_the_quickstart_follows_a_log(tmp_path):
    command = [
        sys.executable,
        "examples/quickstart/progress.py",
        "--epochs",
        "1",
        "--name",
        "ce",
        "--log",
        str(tmp_path / "console.log"),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=JSON_LOG,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "console.log").read_text() == JSON_LOG
    assert "ce, epoch 1: validation perplexity 128, BLEU 3.5" in done.stderr
    assert "100%" in done.stderr and "epoch 1.0 of 1" in done.stderr
