"""klang study gradients: on logs written by hand, and the first updates of tiny trainings."""

import json
import math

import pytest

from fairseq_klang import cli
from fairseq_klang.analysis.logs import INNER
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.experiments import gradients
from fairseq_klang.experiments.plan import read_data
from helpers.recipes import error_of
from helpers.running import TINY_TRANSFORMER


def log_lines():
    inner = {"epoch": 1, "update": 0.5, "num_updates": "50", "sb": "0.1"}
    inner.update(gnorm_ce_head="2.0", gnorm_sb_head="0.5")
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
    lines = [f"x | INFO | train_inner | {json.dumps(inner)}"]
    lines += [f"x | INFO | train | {json.dumps(row)}" for row in epochs]
    return "\n".join(lines) + "\n"


def test_ratios_by_epoch_and_a_run_without_an_sb_head(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text(log_lines())
    out = str(tmp_path / "out")
    arguments = ["study", "gradients", "--runs", str(tmp_path / "run")]
    assert cli.main([*arguments, "--out", out]) == 0
    table = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in table[2].strip("|").split("|")]
    assert cells == ["run", "4.0 (0.100)", "3,000.0 (0.300)", "inf (0.300)"]
    rows = read_rows(f"{out}/gradients_by_epoch.csv")
    ratios = [(row.settings["update"], row.value) for row in rows if row.measure == "ratio"]
    assert ratios == [(50, 4.0), (100, 3000.0), (200, math.inf)]
    (tmp_path / "plain.log").write_text(log_lines().replace("gnorm_sb_head", "other"))
    assert "logs no gnorm_sb_head" in error_of(
        capsys, "study", "gradients", "--runs", tmp_path / "plain.log"
    )


def test_sizes_are_shares_of_the_vocabulary_or_tokens():
    sizes = [gradients.size_of(text) for text in ("0.003", "170", "9000")]
    found = gradients.cells_of("bpe", 8000, sizes)
    # docs/loss.md: k = round(0.003 * 8,000) = 24; 9,000 is above V
    assert [(cell.asked, cell.k) for cell in found] == [("full", 0), ("0.003", 24), ("170", 170)]


def test_a_padded_dictionary_has_the_size_asked_for(joined_data, tmp_path):
    data = read_data(str(joined_data), subsets=())
    folder = gradients.padded(data, 1000, str(tmp_path / "padded"))
    after = read_data(folder, subsets=())
    assert after.vocabulary == {"de": 996, "en": 996} and after.joined
    unlike = [name for name in data.files if data.files[name] != after.files[name]]
    assert unlike == ["dict.de.txt", "dict.en.txt"]
    with pytest.raises(gradients.StudyError, match="more entries than that already"):
        gradients.padded(data, 100, str(tmp_path / "small"))


@pytest.mark.slow
def test_the_first_updates(joined_data, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["study", "gradients", "--data", f"large={joined_data}"]
    command += ["--pad", "large=3000", "--out", str(out), "--k", "0.05", "--updates", "3"]
    command += ["--device", "cpu", "--threads", "1", "--seed", "4", "--max-tokens", "200"]
    command += [*TINY_TRANSFORMER, "--num-workers", "0"]
    assert cli.main(command) == 0
    assert "filled with unused words up to 3,000 entries" in capsys.readouterr().out
    rows = read_rows(str(out / "gradients.csv"))
    assert {row.settings["k"] for row in rows} == {"full", 150}
    assert {row.settings["update"] for row in rows} == {0, 1, 2}
    assert all(row.seeds == [4] for row in rows)

    def value(measure, **where):
        (found,) = [
            row.value
            for row in rows
            if row.measure == measure and where.items() <= row.settings.items()
        ]
        return found

    full, small = (value("gnorm_sb_head", V=3000, k=k, update=0) for k in ("full", 150))
    assert 0 < full < small  # logged with six decimals, that of the full softmax was 0
    assert value("amplification", V=3000, k=150, update=0) == pytest.approx(small / full)
    ce = value("gnorm_ce_head", V=3000, k=150, update=0)
    assert value("ratio", V=3000, k=150, update=0) == pytest.approx(ce / small)
    # the same weights: CE's gradient differs by f(1 - SB) alone, and SB is nearly 0 in both
    assert ce == pytest.approx(value("gnorm_ce_head", V=3000, k="full", update=0), rel=0.01)
    assert (out / "gradients.png").read_bytes().startswith(b"\x89PNG")
    log = gradients.read_log(str(out / "large-kfull" / "train.log"))
    assert [point.update for point in gradients.points(log, INNER)] == [1, 2, 3]


def test_bad_input_is_one_line(joined_data, tmp_path, capsys):
    start = ["study", "gradients", "--data", f"toy={joined_data}", "--out", tmp_path / "out"]
    for more, message in (
        (["--k", "0"], "0 is no size"),
        (["--k", "1.5"], "1.5 is no size"),
        (["--k", "nan"], "nan is no size"),
        (["--updates", "0"], "1 or more"),
        (["--seed", "-1"], "between 0 and 4294967295"),
        (["--seed", str(2**32)], "between 0 and 4294967295"),
        (["--lanes", "0"], "1 or more"),
        (["--threads", "x"], "invalid whole number value: 'x'"),
        (["--recipe", "Z9"], "there is no recipe 'Z9'"),
        (["--pad", "other=5000"], "--data does not"),
        (["--pad", "toy=9"], "more entries than that already"),
        (["--pad", "toy"], "NAME=PATH"),
        (["--nosuch"], "unrecognized arguments: --nosuch"),
    ):
        assert message in error_of(capsys, *start, *more), more
    assert "--out DIR is needed" in error_of(capsys, *start[:4])
    assert "not allowed with argument" in error_of(capsys, *start, "--runs", tmp_path)
