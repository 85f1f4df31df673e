"""klang compare: runs pooled over seeds, beside the series, and tested against a baseline."""

import json
import os
import random
import re

import numpy as np
import pytest

from fairseq_klang import cli
from fairseq_klang.analysis import scoring
from fairseq_klang.analysis.significance import paired_bootstrap, score_of, sentence_statistics
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.analysis.tokens import moses_tokenizer
from fairseq_klang.experiments import comparing, runner
from fairseq_klang.experiments.plan import BEAMS
from fairseq_klang.files import sha256, write_json
from helpers.recipes import error_of, plan_of
from helpers.running import toy_pairs


def made_up(
    data, folder, name, loss, seed, tok, epochs, reference=None, translations=None, extra=()
):
    """A run folder with given figures."""
    plan = plan_of(data, folder, name, loss, *extra, seed=seed)
    os.makedirs(folder)
    runner.open_folder(plan, {})
    measures = {
        key: {"score": value, "signature": f"{key}|version:x"} for key, value in tok.items()
    }
    tests = {}
    if reference:
        systems = {beam: measures for beam in BEAMS}
        tests["test"] = {
            "reference": str(reference),
            "reference_sha256": sha256(reference),
            "systems": systems,
        }
        lines = [f"H-{number}\t-1.0\t{line}\n" for number, line in enumerate(translations)]
        (folder / "gen.test.beam5.out").write_text("".join(lines))
    scores = {
        "epochs": [{"epoch": number, "bleu": bleu} for number, bleu in enumerate(epochs, 1)],
        "averaged_epochs": None,
        "tests": tests,
    }
    write_json(str(folder / "scores.json"), scores)
    return str(folder)


def figures(tok):
    return {"bleu_tok": tok, "bleu_lc": tok - 1, "bleu": tok - 2, "chrf": tok + 20}


def test_pooling_over_seeds():
    # Student's t, 97.5 %: 12.7062 with 1 degree of freedom, 4.3027 with 2 (printed tables).
    two, three = comparing.pool([3.0, 4.0]), comparing.pool([3.0, 4.0, 5.0])
    assert (two.n, two.mean) == (2, 3.5) and two.sd == pytest.approx(0.5**0.5)
    assert two.interval == pytest.approx((3.5 - 12.7062 / 2, 3.5 + 12.7062 / 2), abs=1e-4)
    assert (three.mean, three.sd) == (4.0, 1.0)
    assert three.interval == pytest.approx((4 - 4.3027 / 3**0.5, 4 + 4.3027 / 3**0.5), abs=1e-4)
    assert comparing.pool([3.0]) == comparing.Pooled(1, 3.0) and comparing.pool([]) is None


@pytest.fixture()
def study(joined_data, tmp_path):
    """A8 and A10 with two seeds each, and A15 with one and no reference."""
    reference = tmp_path / "test.en"
    lines = [target for _, target in toy_pairs(30, 5)]
    reference.write_text("".join(line + "\n" for line in lines))
    good, bad = (
        lines,
        [" ".join(line.split()[:-1]) if number % 2 else line for number, line in enumerate(lines)],
    )
    return [
        made_up(
            joined_data, tmp_path / "a", "A8", "ce", 1, figures(3.0), [1.0, 2.0], reference, bad
        ),
        made_up(
            joined_data, tmp_path / "b", "A8", "ce", 2, figures(4.0), [3.0, 4.0], reference, bad
        ),
        made_up(
            joined_data,
            tmp_path / "c",
            "A10",
            "sweep",
            1,
            figures(5.0),
            [1.5, 2.5],
            reference,
            good,
        ),
        made_up(
            joined_data, tmp_path / "d", "A10", "sweep", 2, figures(6.0), [3.5, 2.5], reference, bad
        ),
        made_up(joined_data, tmp_path / "e", "A15", "sweep", 1, {}, [7.0]),
    ]


def test_the_tables_hold_the_series_figures_beside_the_runs(study, capsys):
    assert cli.main(["compare", *study, "--samples", "50"]) == 0
    scores, epochs, pairs, notes = capsys.readouterr().out.split("\n\n")
    rows = {line.split("  ")[0]: re.split(r"\s{2,}", line) for line in scores.splitlines()}
    # 3.5 -+ 12.7062 * 0.7071 / sqrt 2 = -2.8531, 9.8531
    first = ["CE only", "124", "1 2", "3.45 (best epoch)", "test", "3.50 +- 0.71 [-2.85, 9.85]"]
    assert rows["A8 ce"][1:7] == first
    assert rows["A8 ce"][7:] == ["3.50 +- 0.71", "2.50 +- 0.71", "23.50 +- 0.71", "3.00 +- 1.41"]
    last = ["1", "3.77 (best epoch)", "test", "-", "-", "-", "-", "7.00"]
    assert rows["A15 sweep"][3:] == last
    lines = [re.split(r"\s{2,}", line) for line in epochs.splitlines()]
    assert ["A10 sweep", "series", "3.18", "3.31", "3.63", "3.43", "-"] in lines
    assert ["A10 sweep", "here", "2.50 +- 1.41", "2.50 +- 0.00", "-", "-", "-"] in lines
    assert "signature of BLEU tok: bleu_tok|version:x" in notes
    assert "all runs were made with" in notes
    assert re.search(r"^A15 sweep +A8 ce +test +1 +not compared: no test scores", pairs, re.M)


def test_a_difference_is_that_of_both_seeds_together(study, capsys, tmp_path):
    table = str(tmp_path / "table.csv")
    assert cli.main(["compare", *study, "--samples", "50", "--csv", table]) == 0
    rows = [row for row in read_rows(table) if row.measure.endswith(" minus A8 ce")]
    assert {(row.decoding, row.measure.split()[0]) for row in rows} == {
        (beam, measure) for beam in BEAMS for measure in comparing.MEASURES
    }
    assert all(row.value == pytest.approx(2.0) for row in rows if row.p is None)
    (tested,) = [row for row in rows if row.p is not None]
    assert (tested.decoding, tested.measure) == ("beam5", "bleu_tok minus A8 ce")
    # the oracle: the same outputs through analysis/significance.py
    split, (metric, _) = moses_tokenizer("en"), scoring.metrics()["bleu_tok"]
    reference = (tmp_path / "test.en").read_text().splitlines()
    tokens = [split(line) for line in reference]

    def statistics(folders):
        outputs = []
        for folder in folders:
            with open(os.path.join(folder, "gen.test.beam5.out")) as stream:
                lines = [split(line.rstrip("\n").split("\t")[2]) for line in stream]
            outputs.append(sentence_statistics(metric, lines, tokens))
        return np.stack(outputs)

    found = paired_bootstrap(
        statistics(study[:2]), statistics(study[2:4]), score_of(metric), samples=50
    )
    assert found.delta > 0.5
    assert (tested.value, tested.low, tested.high) == (found.delta, *found.interval)
    assert (tested.p, tested.settings["holm_p"], tested.n) == (found.p_value, found.p_value, 2)
    assert tested.settings["over"] == "seeds and sentences"


def test_every_figure_is_a_row(study, capsys, tmp_path):
    table = str(tmp_path / "table.csv")
    assert cli.main(["compare", *study, "--csv", table, "--no-pairs"]) == 0
    rows = read_rows(table)
    found = [
        (row.n, row.seeds, row.value)
        for row in rows
        if (row.run, row.measure, row.decoding) == ("A8 ce", "bleu_tok", "beam5")
    ]
    assert found == [(1, [1], 3.0), (1, [2], 4.0), (2, [1, 2], 3.5)]
    (pooled,) = [
        row
        for row in rows
        if row.run == "A8 ce" and row.n == 2 and row.measure == "chrf" and row.decoding == "greedy"
    ]
    assert (pooled.value, pooled.signature) == (23.5, "chrf|version:x")
    epochs = [row for row in rows if row.run == "A10 sweep" and row.settings.get("epoch") == 2]
    assert {row.measure: row.value for row in epochs} == {"bleu": 2.5, "bleu of the series": 3.31}
    assert all(row.versions["python"] for row in rows if "series" not in row.measure)


def test_markdown(study, capsys):
    assert cli.main(["compare", *study, "--markdown", "--no-pairs"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("| run") and set(table[1]) <= set("|-: ")
    assert all(line.count("|") == table[0].count("|") for line in table[:5])


def test_a_run_of_version_0_1_is_read(study):
    path = os.path.join(study[0], "scores.json")
    with open(path) as stream:
        scores = json.load(stream)
    before = comparing.read_run(study[0])
    scores["test"] = dict(scores.pop("tests")["test"], subset="test")
    write_json(path, scores)
    assert comparing.read_run(study[0]) == before


@pytest.mark.parametrize("name", ["settings.json", "scores.json"])
def test_damaged_records_are_one_line(study, name, capsys):
    """A list in place of a record was a traceback, as were numbers too large, and missing parts."""
    path, draw, refused = os.path.join(study[0], name), random.Random(3), 0
    with open(path, "rb") as stream:
        whole = stream.read()
    values = ["[]", "null", "3", '{"key": 1}', '{"tests": [], "epochs": []}']
    for number in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 5)):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 3)] = draw.choice(
                [b"", b'"', b"[", b"1e999", b"null", b"\xff", b"{}", bytes([draw.randrange(256)])]
            )
        with open(path, "wb") as stream:
            stream.write(values[number].encode() if number < len(values) else data)
        try:
            comparing.group_runs([comparing.read_run(study[0])])
        except comparing.CompareError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100
    assert error_of(capsys, "compare", study[0]).startswith("klang: error: ")


@pytest.mark.parametrize("name", ["settings.json", "scores.json"])
def test_the_runner_tells_a_damaged_record_in_one_line(joined_data, study, name):
    plan = plan_of(joined_data, study[0], "A8", "ce", seed=1)
    texts = ["[]", "{", '{"tests": [1]}', '"x"']
    if name == "settings.json":
        texts += ['{"key": {"train": 1}}', '{"key": null}', "{}"]
    for text in texts:
        with open(os.path.join(study[0], name), "w") as stream:
            stream.write(text)
        read = runner.read_settings if name == "settings.json" else runner.read_scores
        with pytest.raises(runner.RecipeError, match="is damaged") as told:
            read(plan.out)
        assert "\n" not in str(told.value)


def test_runs_that_differ_in_more_than_the_seed_are_not_pooled(
    joined_data, study, tmp_path, capsys
):
    other = made_up(joined_data, tmp_path / "f", "A8", "ce", 1, {}, [1.0], extra=["--lr", "0.1"])
    another = made_up(
        joined_data, tmp_path / "h", "A10", "sweep", 1, {}, [1.0], extra=["--sb-topk", "3"]
    )
    assert (
        comparing.score_table(comparing.group_runs([comparing.read_run(another)]))[1][1]
        == "k = 170 (here --sb-topk 3)"
    )
    groups = comparing.group_runs([comparing.read_run(folder) for folder in [*study, other]])
    assert [group.label for group in groups] == [
        "A8 ce",
        "A10 sweep",
        "A15 sweep",
        "A8 ce --lr 0.1",
    ]
    (tmp_path / "g").mkdir()
    assert "is no run folder" in error_of(capsys, "compare", tmp_path / "g")
    assert "same recipe with the same seed" in error_of(
        capsys, "compare", study[0], study[1], study[1]
    )
    os.remove(other + "/scores.json")
    assert "is not finished" in error_of(capsys, "compare", other)
    # runs/* may name more than finished runs
    (tmp_path / "table.md").write_text("")
    assert (
        cli.main(
            [
                "compare",
                other,
                str(tmp_path / "g"),
                str(tmp_path / "table.md"),
                *study,
                "--no-pairs",
            ]
        )
        == 0
    )
    text, left_out = capsys.readouterr()
    assert "A8 ce" in text and [line.split(";")[0] for line in left_out.splitlines()] == [
        f"compare: left out: {other} is not finished: it has no scores.json",
        f"compare: left out: {tmp_path / 'g'} is no run folder: it has no settings.json",
        f"compare: left out: {tmp_path / 'table.md'} is no run folder: it has no settings.json",
    ]
    assert "nowhere does not exist" in error_of(capsys, "compare", study[0], tmp_path / "nowhere")
    assert "--baseline is 'A1'; it must be one of A8 ce, A10 sweep" in error_of(
        capsys, "compare", *study[:4], "--baseline", "A1"
    )
