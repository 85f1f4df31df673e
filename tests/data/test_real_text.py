"""2,000 pairs of running text through the whole pipeline: prepare, train, validate, generate,
interactive, score."""

import json
import os
import re
import sys

import pytest
import sacrebleu
import sacremoses

from helpers.running import ROOT, USER_DIR, run
from helpers.text import lines_of

# The generated corpus is always there; Multi30k where KLANG_MULTI30K names a folder with its files.
CORPORA = ["generated"] + (["multi30k"] if os.environ.get("KLANG_MULTI30K") else [])
HELD_OUT = {"generated": {"valid": 107, "test": 103}, "multi30k": {"valid": 1014, "test": 1000}}
SMALL = (
    "--arch transformer_dualhead --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 "
    "--encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--criterion restricted_softbleu --label-smoothing 0.1 --optimizer adam --lr 0.01 "
    "--max-epoch 2 --log-format json --log-interval 1 --seed 1"
).split()


def prepare(corpus, folder):
    out = folder / "data"
    options = ["--out", out, "--limit", "2000", "--vocab-size", "800"]
    if corpus == "multi30k":
        source = ["multi30k", "--from", os.environ["KLANG_MULTI30K"]]
    else:
        sys.path.insert(0, os.path.join(ROOT, "examples", "quickstart"))
        sizes = [f"--{split}={size}" for split, size in HELD_OUT[corpus].items()]
        run("grammar", "--out", folder / "text", "--seed", "1", "--train", "2000", *sizes)
        source = ["text", "-s", "de", "-t", "en"]
        for split in ("train", "valid", "test"):
            source += [f"--{split}", folder / "text" / split]
    run("fairseq_klang.cli", "prepare", *source, *options)
    return out


def rows(result, name):
    found = re.findall(rf"INFO \| {name} \| (\{{.*\}})", result.stdout + result.stderr)
    return [json.loads(row) for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("corpus", CORPORA)
def test_the_whole_pipeline(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    data, save_dir = prepare(corpus, tmp_path), tmp_path / "run"
    common = [data / "bin", "--user-dir", USER_DIR, "--cpu", "--max-tokens", "4000"]
    common += ["--required-batch-size-multiple", "1"]
    pair, search = ["-s", "de", "-t", "en"], ["--beam", "1", "--max-len-b", "30"]
    trained = run("fairseq_cli.train", *common, *pair, *SMALL, "--save-dir", save_dir)
    first, second = rows(trained, "train")
    assert float(second["train_nll_loss"]) < float(first["train_nll_loss"])
    assert float(second["train_sb"]) > float(first["train_sb"])
    for epoch in (1, 2):  # each sentence once in each
        updates = [row for row in rows(trained, "train_inner") if row["epoch"] == epoch]
        assert sum(float(row["bsz"]) for row in updates) == 2000
    checkpoint = save_dir / "checkpoint_last.pt"
    run("fairseq_cli.validate", *common, "--task", "translation", "--path", checkpoint)
    for subset, count in HELD_OUT[corpus].items():
        output, reference = tmp_path / f"{subset}.out", data / "raw" / f"{subset}.en"
        where = ["--path", checkpoint, "--gen-subset", subset]
        generated = run("fairseq_cli.generate", *common, *pair, *where, *search)
        output.write_text(generated.stdout, encoding="utf-8")
        hypotheses = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", generated.stdout, re.M))
        assert sorted(map(int, hypotheses)) == list(range(count))
        scored = run("fairseq_klang.cli", "score", "--ref", reference, output, "--json")
        (system,) = json.loads(scored.stdout)["systems"]
        # The same by hand: subwords joined, Moses undone, sacrebleu's BLEU.
        detokenizer = sacremoses.MosesDetokenizer(lang="en")
        texts = [
            detokenizer.detokenize(re.sub("@@( |$)", "", hypotheses[str(number)]).split())
            for number in range(count)
        ]
        expected = sacrebleu.corpus_bleu(texts, [lines_of(reference)], lowercase=True)
        assert system["sentences"] == count
        assert system["bleu_lc"]["score"] == pytest.approx(expected.score)
        assert expected.counts[0] > count  # it has learnt some words
    line = lines_of(data / "subword" / "test.de")[0]
    interactive = run(
        "fairseq_cli.interactive",
        *common,
        *pair,
        "--path",
        checkpoint,
        *search,
        stdin=line + "\n",
    )
    assert re.search(r"^H-0\t", interactive.stdout, re.M)
