"""klang study autoencoding: its tables, and going on where it stopped."""

import json
import os
import shutil

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis.tables import read_rows
from fairseq_klang.experiments import autoencoding
from helpers.recipes import error_of
from helpers.running import SPLITS


def study(part, *arguments):
    """The study in this process, small."""
    small = "--seeds 1 2 --stream test --batch 3 --every 1 --clusters 3 --samples 40"
    small += " --pretrain-epochs 1 --device cpu"
    command = ["study", "autoencoding", part, *map(str, arguments), *small.split()]
    return cli.main(command)


@pytest.fixture()
def where(joined_data, tmp_path):
    """--data and --out: a corpus as klang prepare leaves it."""
    corpus = tmp_path / "corpus"
    (corpus / "raw").mkdir(parents=True)
    os.symlink(joined_data, corpus / "bin")
    for split in SPLITS:
        for language in ("de", "en"):
            os.symlink(
                os.path.join(os.path.dirname(joined_data), f"{split}.{language}"),
                corpus / "raw" / f"{split}.{language}",
            )
    return ["--data", corpus, "--out", tmp_path / "out"]


@pytest.mark.slow
def test_streams_are_measured_and_go_on(where, trained, monkeypatch):
    out = where[3]
    arguments = [*where, "--checkpoint", trained[0]]
    assert study("stream", *arguments) == 0
    rows = read_rows(out / "stream.csv")
    # 7 test sentences in batches of 3, twice: 5 measurements after the one at the start, and 2
    # systems with one; 2 seeds, 3 measures
    assert len(rows) == 3 * 2 * (2 * 6 + 2) and (out / "stream.png").stat().st_size > 10000
    assert {row.settings["sentences"] for row in rows} == {0, 3, 6, 9, 12, 14}
    starts = {
        row.value
        for row in rows
        if row.measure == "bleu_lc"
        and row.settings["sentences"] == 0
        and row.run != "each sentence, reset"
    }
    assert len(starts) == 1
    # stopped after two measurements of one system: the rest comes out the same
    before, folder = (out / "stream.csv").read_text(), out / "stream" / "learning-seed1"
    os.remove(folder / "rows.json")
    real, calls = autoencoding._measure, []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(autoencoding, "_measure", stopping)
    assert study("stream", *arguments) == 130 and (folder / "state.pt").exists()
    assert study("stream", *arguments) == 0
    assert (out / "stream.csv").read_text() == before and len(calls) == 4 + 3
    assert study("ratio", *arguments, "--ratios", "1", "inf") == 0
    rows = read_rows(out / "ratio.csv")
    scores = [(row.settings["ratio"], row.seeds) for row in rows if row.measure == "bleu_lc"]
    inf = float("inf")
    assert scores == [(0, []), (1.0, [1]), (1.0, [2]), (inf, [1]), (inf, [2])]
    gains = [row for row in rows if row.measure == "bleu_lc minus frozen"]
    assert [row.n for row in gains] == [2, 2] and all(row.low <= row.value for row in gains)


def test_trainings_that_are_finished_are_read(where, trained, monkeypatch):
    plans = []

    def finished(plan, references, commands):
        """A training of one epoch, in place of the runner."""
        plans.append(plan)
        os.makedirs(plan.checkpoints, exist_ok=True)
        for name in ("checkpoint1.pt", "checkpoint_last.pt"):
            shutil.copy(trained[0], os.path.join(plan.checkpoints, name))
        row = {"epoch": 1, "valid_bleu": str(plan.seed), "valid_num_updates": "5"}
        with open(plan.log, "w") as stream:
            stream.write(f"2026-01-01 | INFO | valid | {json.dumps(row)}\n")

    monkeypatch.setattr(autoencoding, "run_plan", finished)
    assert study("pretrain", *where) == 0
    rows = read_rows(where[3] / "pretrain.csv")
    assert [(row.run, row.value, row.settings["epoch"]) for row in rows] == [
        ("scratch", 1.0, 1), ("pretrained", 1.0, 1), ("scratch", 2.0, 1), ("pretrained", 2.0, 1),
    ]  # fmt: skip
    source, scratch, pretrained = plans[:3]
    # what learns from the source alone has no BLEU, and what starts from it starts from its last
    assert "--source-only" in source.train_flags() and "--eval-bleu" not in source.train_flags()
    assert "--eval-bleu" in scratch.train_flags()
    assert pretrained.extra[-1] == os.path.join(source.checkpoints, "checkpoint_last.pt")
    assert study("skeleton", *where) == 0
    rows = read_rows(where[3] / "skeleton.csv")
    assert [(row.measure, row.seeds) for row in rows] == [
        ("bleu_lc", [1]), ("exact", [1]), ("bleu_lc", [2]), ("exact", [2]),
    ]  # fmt: skip


def test_records_of_its_own_that_are_damaged(tmp_path):
    path = str(tmp_path / "rows.json")
    good = dict(system="frozen", seed=1, sentences=0, bleu_lc=1.0)
    good.update(silhouette=0.1, relative_inertia=0.2)
    for value in ({}, [1], [{}], [dict(good, bleu_lc="x")], "text", [dict(good, seed=None)]):
        with open(path, "w") as stream:
            json.dump(value, stream)
        with pytest.raises(autoencoding.StudyError, match="is damaged.*delete it"):
            autoencoding._read_record(path, autoencoding.MEASURED)
    with open(path, "w") as stream:
        json.dump([good], stream)
    assert autoencoding._read_record(path, autoencoding.MEASURED) == [good]
    torch.save({"rows": [], "place": 0, "adapter": {}}, tmp_path / "state.pt")
    whole = (tmp_path / "state.pt").read_bytes()
    for data in (b"", b"text", whole[:200], whole[: len(whole) // 2], b"PK" + whole[2:50]):
        (tmp_path / "state.pt").write_bytes(data)
        with pytest.raises(autoencoding.StudyError, match="is damaged"):
            autoencoding._read_state(str(tmp_path / "state.pt"))
    torch.save([1], tmp_path / "state.pt")
    with pytest.raises(autoencoding.StudyError, match="is damaged"):
        autoencoding._read_state(str(tmp_path / "state.pt"))


def test_bad_input_is_one_line(where, capsys, tmp_path):
    stream = ["study", "autoencoding", "stream", *where, "--stream", "test"]
    for more, message in (
        ([], "run the study's base first"),
        (["--objective", "contrastive"], "cannot learn from one sentence alone"),
        (["--seeds", "-1"], "between 0 and"),
        (["--clusters", "1"], "2 or more"),
        (["--ratios", "nan"], "above 0"),
        (["--adapt-lr", "0"], "between 0 and 1"),
        (["--samples", "1"], "between 40 and 100000"),
        (["--valid", "none"], "lacks none.de-en.de.bin"),
        (["--lr", "3"], "stream trains nothing: --lr 3 has no effect"),
        (["--stream", "none"], "lacks none.de-en.de.bin"),
    ):
        assert message in error_of(capsys, *stream, *more), more
    text = tmp_path / "text.pt"
    text.write_text("no checkpoint")
    assert "text.pt" in error_of(capsys, *stream, "--checkpoint", text)
    assert "invalid choice: 'all'" in error_of(capsys, "study", "autoencoding", "all", *where)
