"""The table made of training logs, and the picture."""

import csv
import os

import pytest

from fairseq_klang.analysis.curves import write_report
from fairseq_klang.errors import KlangError
from helpers.logs import JSON_LOG, log


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
        '{"epoch": 1, "update": 0.1, "nll_loss": "9", "sb": "0.1", "sb_alpha": "nan", '
        '"num_updates": "20"}\n',
        "two",
    )
    assert abs(two[0] - 2 * one[0]) <= 1
    with pytest.raises(KlangError, match="none of the numbers"):
        size('{"epoch": 1, "update": 0.1, "wps": "9", "num_updates": "20"}\n', "none")


@pytest.mark.parametrize(
    "metric, value",
    [("nll_loss", v) for v in ("inf", "-1e308", "2000")] + [("bleu", "1e308"), ("sb_p1", "1e-320")],
)
def test_no_number_is_too_large_for_the_picture(tmp_path, metric, value):
    """2 ** 2000, a tick of the perplexity's axis, was an OverflowError."""
    lines = JSON_LOG + JSON_LOG.replace('"9.5", "nll_loss": "9.25"', f'"9", "{metric}": "{value}"')
    log(tmp_path / "run", lines)
    table, picture = write_report([str(tmp_path / "run")], str(tmp_path / "out"))
    assert (tmp_path / "out" / "curves.png").stat().st_size > 1000


@pytest.mark.parametrize("name, shown", [(b"l\xe4uf", "l\\udce4uf"), (b"$x_$", "$x_$")])
def test_any_name_of_a_run_is_shown(tmp_path, name, shown):
    """One that is not UTF-8, which no table can hold, and one that matplotlib takes for a formula,
    were tracebacks."""
    run = tmp_path / os.fsdecode(name)
    log(run, JSON_LOG)
    table, _ = write_report([str(run)], str(tmp_path / "out"))
    with open(table, encoding="utf-8") as stream:
        assert {row["run"] for row in csv.DictReader(stream)} == {shown}


def test_the_table_goes_through_a_link_and_the_link_stays(tmp_path):
    log(tmp_path / "run", JSON_LOG)
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere.csv").write_text("old")
    (tmp_path / "out" / "curves.csv").symlink_to(tmp_path / "elsewhere.csv")
    write_report([str(tmp_path / "run")], str(tmp_path / "out"))
    assert (tmp_path / "out" / "curves.csv").is_symlink()
    assert (tmp_path / "elsewhere.csv").read_text().startswith("run,split,")
