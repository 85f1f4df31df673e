"""`klang study significance`: every case once, as rows that a page can be made of; the numbers are
tested in tests/analysis/test_significance.py."""

from fairseq_klang import cli
from fairseq_klang.analysis.tables import read_rows


def test_the_study_writes_every_case(tmp_path, capsys):
    path = tmp_path / "significance.csv"
    assert cli.main(["study", "significance", "--out", str(path), "--draws", "2"]) == 0
    assert str(path) in capsys.readouterr().out
    rows = read_rows(path)
    # one seed: three effects, without and with a difference; two to four seeds: three effects by
    # three shares without a difference, and one share with it
    sizes = [row for row in rows if row.measure == "size"]
    assert len(sizes) == 3 + 3 * 3 * 3
    assert len([row for row in rows if row.measure == "power"]) == 3 + 3 * 3
    assert {row.settings["count"] for row in rows} == {1, 2, 3, 4} and {row.n for row in rows} == {
        2
    }
    assert all(0 <= row.low <= row.value <= row.high <= 100 for row in rows)
