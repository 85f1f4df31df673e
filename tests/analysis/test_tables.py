"""Files of results: what is written is read back, and no other file is taken for one."""

import math
import random

import pytest

from fairseq_klang.analysis import tables
from fairseq_klang.analysis.tables import Row, TableError

ROWS = [
    Row("A10 softbleu", "bleu_lc", 34.5, "test", "beam5", 33.9, 35.25, 0.03, 2, [1, 2]),
    Row('m30k, "quoted" | über', "ratio", math.inf, settings={"V": 8000, "k": "full", "x": 0.5}),
    Row("none", "share", 1e-300, signature="nrefs:1|case:lc", commit="abc+", versions={"a": "1.0"}),
]


def test_rows_come_back_as_they_were(tmp_path):
    tables.write_rows(tmp_path / "rows.csv", ROWS)
    assert tables.read_rows(tmp_path / "rows.csv") == ROWS


def test_provenance_names_commit_and_versions():
    found = tables.provenance()
    assert set(found) == {"commit", "versions"}
    assert {"python", "fairseq-klang", "torch", "sacrebleu"} <= set(found["versions"])


@pytest.mark.parametrize("settings", [{"a;b": 1}, {"a": "1; b=2"}, {"a=b": 1}, {"a": "x\ny"}])
def test_a_setting_that_could_not_be_read_back_is_refused(settings):
    with pytest.raises(TableError, match="cannot be a setting"):
        tables.as_csv([Row("run", "measure", 1.0, settings=settings)])


def test_damaged_files_are_told_in_one_line(tmp_path):
    path = tmp_path / "rows.csv"
    tables.write_rows(path, ROWS)
    whole, draw, refused = path.read_bytes(), random.Random(1), 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(bytes(data[: draw.randint(1, len(data))]))
        try:
            tables.read_rows(path)
        except TableError as error:
            refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
    assert refused > 200  # some damage only changes a word


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TableError, match="cannot be read"):
            tables.read_rows(path)


def test_tables_as_text_and_markdown():
    rows = [["run", "BLEU"], ["a|b", "1.10"], ["c", "-"]]
    lines = tables.as_table(rows, "github").splitlines()
    assert lines[2].split() == ["|", "a\\|b", "|", "1.10", "|"]
    assert tables.as_table(rows).splitlines()[1].split() == ["a|b", "1.10"]
    assert [tables.rounded(v, sign=True) for v in (1.0, -0.126, None, math.nan)] == [
        "+1.00", "-0.13", "-", "-",
    ]  # fmt: skip
