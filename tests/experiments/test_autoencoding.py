"""The study of autoencoding: its tables, and going on where it stopped."""

import csv
import json
import os

from fairseq_klang.experiments import autoencoding
from helpers.running import SPLITS


def study(*arguments):
    """The study in this process."""
    return autoencoding.main(
        [
            *map(str, arguments),
            "--seeds",
            "1",
            "2",
            "--stream",
            "test",
            "--batch",
            "3",
            "--every",
            "1",
            "--clusters",
            "3",
            "--samples",
            "40",
            "--pretrain-epochs",
            "1",
        ]
    )


def test_the_experiments_write_their_tables_and_go_on(
    joined_data, trained, tmp_path, monkeypatch, capsys
):
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    (corpus / "raw").mkdir(parents=True)
    os.symlink(joined_data, corpus / "bin")
    for split in SPLITS:
        for language in ("de", "en"):
            os.symlink(
                os.path.join(os.path.dirname(joined_data), f"{split}.{language}"),
                corpus / "raw" / f"{split}.{language}",
            )
    where = ["--data", corpus, "--out", out]
    assert study("stream", *where) == 2 and "run the study's base first" in capsys.readouterr().err
    where += ["--checkpoint", trained[0]]
    assert study("stream", *where) == 0
    table = read_csv(out / "stream.csv")
    # 7 test sentences in batches of 3, twice: 5 measurements after the one at the start, and 2
    # systems with one; 2 seeds
    assert len(table) == 2 * (2 * 6 + 2) and (out / "stream.png").stat().st_size > 10000
    assert {int(row["sentences"]) for row in table} == {0, 3, 6, 9, 12, 14}
    starts = {
        row["bleu"]
        for row in table
        if row["sentences"] == "0" and row["system"] != "each sentence, reset"
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
    assert study("stream", *where) == 130 and (folder / "state.pt").exists()
    assert study("stream", *where) == 0
    assert (out / "stream.csv").read_text() == before and len(calls) == 4 + 3
    assert study("ratio", *where, "--ratios", "1", "inf") == 0
    table = read_csv(out / "ratio.csv")
    assert [row["ratio"] for row in table] == ["0", "1.0", "1.0", "inf", "inf"] and read_csv(
        out / "alpha_star.csv"
    )[0]["seeds"] == "2"
    # trainings that are finished are read, not run
    for seed in (1, 2):
        for name in ("source", "scratch", "pretrained"):
            run_folder = out / "pretrain" / f"{name}-seed{seed}"
            run_folder.mkdir(parents=True)
            (run_folder / "trained").touch()
            os.symlink(trained[0], run_folder / "checkpoint1.pt")
            row = {"epoch": 1, "valid_bleu": str(seed), "valid_num_updates": "5"}
            (run_folder / "train.log").write_text(
                f"2026-01-01 | INFO | valid | {json.dumps(row)}\n"
            )
    assert study("pretrain", *where) == 0 and study("skeleton", *where) == 0
    assert [(row["system"], row["bleu"]) for row in read_csv(out / "pretrain.csv")] == [
        ("scratch", "1.0"),
        ("pretrained", "1.0"),
        ("scratch", "2.0"),
        ("pretrained", "2.0"),
    ]
    assert [row["seed"] for row in read_csv(out / "skeleton.csv")] == ["1", "2"]


def read_csv(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))
