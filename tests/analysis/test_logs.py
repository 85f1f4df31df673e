"""Training logs as fairseq writes them, and logs that no program should stumble over."""

import json
import random

import pytest

from fairseq_klang.analysis.logs import (
    LogError,
    by_epoch,
    by_update,
    read_line,
    read_log,
    read_runs,
)
from helpers.logs import JSON_LOG, SIMPLE_LOG, log


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
    text = 'x | valid1 | {"epoch": 2, "valid1_loss": "7.5", "valid1_num_updates": "134"}\n'
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


def test_a_run_named_twice_is_refused(tmp_path):
    log(tmp_path / "run", JSON_LOG)
    with pytest.raises(LogError, match="named twice"):
        read_runs([str(tmp_path / "run"), str(tmp_path / "run") + "/"])


def test_rows_by_update_and_by_epoch(tmp_path):
    rows = read_log(str(log(tmp_path, JSON_LOG)))
    assert list(by_update(rows, "train_inner")) == [20, 40]
    assert by_update(rows, "train_inner")[20]["nll_loss"] == 9.25
    assert by_epoch(rows)[1]["bleu"] == 3.5 and by_epoch(rows, "train")[1]["loss"] == 8.8


def test_a_line_while_it_trains():
    line = read_line('2026-01-01 | INFO | train_inner | {"epoch": 2, "update": 1.5, "loss": "3"}\n')
    assert (line.split, line.epoch, line.progress, line.stats) == (
        "train_inner",
        2,
        1.5,
        {"loss": 3.0},
    )
    assert read_line("begin training epoch 1") is None


@pytest.mark.parametrize(
    "number", ["Infinity", "-Infinity", "NaN", '"inf"', "1e999", "1" * 5000, "[]"]
)
@pytest.mark.parametrize("name", ["epoch", "update", "num_updates", "loss"])
def test_numbers_that_are_none_leave_the_rest_of_the_log(tmp_path, number, name):
    """int(inf) was an OverflowError, a traceback."""
    row = {"epoch": 1, "update": 0.5, "num_updates": "30", "loss": "8"}
    bad = json.dumps({**row, name: "HERE"}).replace('"HERE"', number)
    found = values(read_log(str(log(tmp_path, bad + "\n" + JSON_LOG))))
    assert found["train_inner", 1, 20, "loss"] == 9.5


def test_damaged_logs_are_read_or_refused_in_one_line(tmp_path):
    draw, refused = random.Random(2), 0
    for text in (JSON_LOG, SIMPLE_LOG) * 150:
        data = bytearray(text.encode())
        for _ in range(draw.choice((1, 10, 300))):
            data[draw.randrange(len(data))] = draw.choice(b'0123456789."{}:,-+eE\n\x00\xff naif')
        path = tmp_path / "train.log"
        path.write_bytes(bytes(data[draw.randrange(len(data)) :]))
        try:
            assert read_log(str(path))
        except LogError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 0 < refused < 300
