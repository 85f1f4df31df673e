"""2,000 pairs of running text through the whole pipeline: prepare, train, validate, generate,
interactive, score."""

import json
import os
import re
import subprocess
import sys

import pytest

from helpers.running import ROOT, USER_DIR, run

# The generated corpus is always there; Multi30k where KLANG_MULTI30K names a folder with its files.
CORPORA = ["generated"] + (["multi30k"] if os.environ.get("KLANG_MULTI30K") else [])
HELD_OUT = {"generated": {"valid": 107, "test": 103}, "multi30k": {"valid": 1014, "test": 1000}}


def prepare(corpus, folder):
    out = folder / "data"
    options = ["--out", out, "--limit", "2000", "--vocab-size", "800"]
    if corpus == "multi30k":
        run(
            "fairseq_klang.cli",
            "prepare",
            "multi30k",
            "--from",
            os.environ["KLANG_MULTI30K"],
            *options,
        )
    else:
        grammar = os.path.join(ROOT, "examples", "quickstart", "grammar.py")
        sizes = [
            "--train",
            "2000",
            "--valid",
            HELD_OUT[corpus]["valid"],
            "--test",
            HELD_OUT[corpus]["test"],
        ]
        subprocess.run(
            [sys.executable, grammar, "--out", folder / "text", "--seed", "1", *map(str, sizes)],
            check=True,
            stdout=subprocess.PIPE,
        )
        prefixes = [
            part
            for split in ("train", "valid", "test")
            for part in (f"--{split}", folder / "text" / split)
        ]
        run("fairseq_klang.cli", "prepare", "text", *prefixes, "-s", "de", "-t", "en", *options)
    return out


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_whole_pipeline(corpus, tmp_path):
    data, save_dir = prepare(corpus, tmp_path), tmp_path / "run"
    common = [
        data / "bin",
        "--user-dir",
        USER_DIR,
        "--cpu",
        "--required-batch-size-multiple",
        "1",
        "--max-tokens",
        "4000",
    ]
    small = "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2".split()
    small += "--decoder-attention-heads 2 --optimizer adam --lr 0.01 --label-smoothing 0.1".split()
    trained = run(
        "fairseq_cli.train",
        *common,
        "-s",
        "de",
        "-t",
        "en",
        "--arch",
        "transformer_dualhead",
        "--criterion",
        "restricted_softbleu",
        *small,
        "--max-epoch",
        "2",
        "--save-dir",
        save_dir,
        "--log-format",
        "json",
        "--seed",
        "1",
    )
    epochs = [
        json.loads(row)
        for row in re.findall(r"INFO \| train \| (\{.*\})", trained.stdout + trained.stderr)
    ]
    assert float(epochs[1]["train_nll_loss"]) < float(epochs[0]["train_nll_loss"])
    assert float(epochs[1]["train_sb"]) > float(epochs[0]["train_sb"])
    sentences = [
        float(row["train_bsz"]) * (float(row["train_num_updates"]) / row["epoch"]) for row in epochs
    ]
    assert sentences == pytest.approx([2000, 2000], rel=1e-3)
    checkpoint = save_dir / "checkpoint_last.pt"
    run("fairseq_cli.validate", *common, "--task", "translation", "--path", checkpoint)
    for subset, count in HELD_OUT[corpus].items():
        output = tmp_path / f"{subset}.out"
        generated = run(
            "fairseq_cli.generate",
            *common,
            "-s",
            "de",
            "-t",
            "en",
            "--path",
            checkpoint,
            "--gen-subset",
            subset,
            "--beam",
            "1",
            "--max-len-b",
            "30",
        )
        output.write_text(generated.stdout, encoding="utf-8")
        assert len(set(re.findall(r"^H-(\d+)", generated.stdout, re.M))) == count
        scored = run(
            "fairseq_klang.cli", "score", "--ref", data / "raw" / f"{subset}.en", output, "--json"
        )
        system = json.loads(scored.stdout)["systems"][0]
        assert system["sentences"] == count and 0 <= system["bleu"]["score"] <= 100
    line = (data / "subword" / "test.de").read_text(encoding="utf-8").splitlines()[0]
    interactive = run(
        "fairseq_cli.interactive",
        *common,
        "-s",
        "de",
        "-t",
        "en",
        "--path",
        checkpoint,
        "--beam",
        "1",
        "--max-len-b",
        "30",
        stdin=line + "\n",
    )
    assert re.search(r"^H-0\t", interactive.stdout, re.M)
