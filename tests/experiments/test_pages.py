"""The pages of docs/: current, no typed figures in tables, errors that name their place."""

import argparse
import os
import re
import shutil

import pandas
import pytest

from fairseq_klang.analysis.tables import Row, write_rows
from fairseq_klang.errors import exit_status
from fairseq_klang.experiments import pages
from fairseq_klang.experiments.pictures import draw_all
from helpers.running import ROOT


def run(docs, check=False):
    options = argparse.Namespace(docs=str(docs), check=check, pictures=False)
    return exit_status("klang", lambda: pages.run(options))


@pytest.fixture
def docs(tmp_path):
    """A documentation folder of one template and one file of results."""
    (tmp_path / "docs" / "templates" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results").mkdir()
    rows = [
        Row("A", "bleu", 31.5, settings={"epoch": 1}),
        Row("A", "bleu", 32.25, settings={"epoch": 2}),
        Row("B", "bleu minus A", 0.5, low=-0.25, high=1.25),
    ]
    write_rows(tmp_path / "docs" / "results" / "scores.csv", rows)
    template(tmp_path / "docs", "{{ number(one(data('scores'), run='A', epoch=2).value) }} BLEU\n")
    return tmp_path / "docs"


def template(docs, text, name="results/page.md.j2"):
    (docs / "templates" / name).write_text(text, encoding="utf-8")


def test_every_page_of_the_repository_is_what_its_template_and_data_give():
    assert pages.changed(os.path.join(ROOT, "docs")) == []


def test_the_pictures_are_drawn_from_the_committed_data(tmp_path):
    for name in ("series.csv", "heads.csv"):
        shutil.copy(os.path.join(ROOT, "docs", "results", name), tmp_path)
    paths = draw_all(str(tmp_path))
    assert [os.path.basename(path) for path in paths] == ["series_k.png", "heads.png"]
    for path in paths:
        with open(path, "rb") as stream:
            assert stream.read(8) == b"\x89PNG\r\n\x1a\n"


def test_a_page_is_made_checked_and_made_again(docs, capsys):
    assert run(docs, check=True) == 1 and not (docs / "results" / "page.md").exists()
    assert run(docs) == 0
    text = (docs / "results" / "page.md").read_text(encoding="utf-8")
    assert text.splitlines()[1] == "32.25 BLEU" and "klang results" in text.splitlines()[0]
    assert run(docs, check=True) == 0
    (docs / "results" / "page.md").write_text(text.replace("32.25", "33.25"), encoding="utf-8")
    assert run(docs, check=True) == 1
    assert "page.md" in capsys.readouterr().out


def test_differences_are_printed_with_their_interval(docs):
    template(docs, "{{ interval(one(data('scores'), run='B')) }}")
    assert pages.pages(str(docs))[0][1].endswith("+0.50 [-0.25, +1.25]")


@pytest.mark.parametrize(
    "text, message",
    [
        ("{{ one(data('scores'), run='C').value }}", "0 rows where run='C'"),
        ("{{ one(data('scores'), run='A').value }}", "2 rows where run='A'"),
        ("{{ one(data('scores'), seed=1).value }}", "no column 'seed'"),
        ("{{ data('other') }}", "other.csv cannot be read"),
        ("{{ verdict('proven') }}", "verdict is 'proven'; it must be one of supported, refuted"),
        ("one\n{{ nothing }}", "'nothing' is undefined"),
        ("one\n{% if %}", "line 2"),
    ],
)
def test_what_cannot_be_made_is_one_line_that_names_the_template(docs, capsys, text, message):
    template(docs, text)
    assert run(docs) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error and "results/page.md.j2" in error


def test_a_folder_without_templates_is_one_line(tmp_path, capsys):
    assert run(tmp_path) == 2
    assert "holds no templates" in capsys.readouterr().err


def test_readme_is_filled_between_its_marks(docs, capsys):
    template(docs, "| a |\n", "README.j2")
    readme = docs.parent / "README.md"
    readme.write_text("before\n" + pages.BEGIN + "old\n" + pages.END + "after\n", encoding="utf-8")
    assert run(docs) == 0
    assert readme.read_text() == "before\n" + pages.BEGIN + "| a |\n" + pages.END + "after\n"
    readme.write_text("no marks\n", encoding="utf-8")
    assert run(docs) == 2 and "must hold the line" in capsys.readouterr().err


def test_ratios_over_seeds_have_students_interval_of_their_logarithms():
    mean, low, high = pages.ratio_of_seeds([1.0, 10.0, 100.0])
    # logarithms to base 10 are 0, 1, 2: mean 1, deviation 1; t(0.975, 2) = 4.3027 (tables)
    half = 4.3027 / 3**0.5
    assert [mean, low, high] == pytest.approx([10, 10 ** (1 - half), 10 ** (1 + half)], rel=1e-3)
    with pytest.raises(pages.PageError, match="two or more"):
        pages.ratio_of_seeds([2.0])
    assert [pages.brief(x) for x in (0.834, 3.84, 107.3, 20311.4)] == [
        "0.83",
        "3.8",
        "107",
        "20,311",
    ]


def test_paragraphs_and_items_are_filled_and_the_rest_stays():
    words = "word " * 30
    text = f"# {words}\n\n{words}\nmore\n* {words}\n  more\n\n```\n{words}\n```\n| {words} |\n"
    lines = pages._wrap(text).split("\n")
    assert lines[0] == f"# {words}".rstrip() and f"| {words} |" in lines
    assert words.rstrip() in lines  # code
    filled = [line for line in lines[1:] if not line.startswith(("|", words[:90]))]
    assert all(len(line) <= 100 for line in filled)
    assert [line for line in lines if line.startswith("  word")], "a hanging indent"


def test_no_template_types_a_decimal_figure_into_a_table_of_results():
    """Cells come from data; targets and the series' claims are words of the template."""
    folder = os.path.join(ROOT, "docs", "templates")
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), encoding="utf-8") as stream:
                rows = [line for line in stream if line.startswith("|")]
            assert not [row for row in rows if re.search(r"\d\.\d", row)], name


def test_rows_of_results_keep_their_columns_and_gain_their_settings(docs):
    frame = pages._environment(str(docs)).globals["data"]("scores")
    assert list(frame.epoch)[:2] == [1, 2] and pandas.isna(frame.epoch[2])
