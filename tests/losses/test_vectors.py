"""The losses against vectors/soft_bleu.json, float64 values made from the definition by other
code."""

import json
import os

import pytest
import torch

from fairseq_klang.losses import combine, linear_cross_entropy, restricted_soft_bleu, soft_bleu

with open(
    os.path.join(os.path.dirname(__file__), "..", "vectors", "soft_bleu.json"), encoding="utf-8"
) as stream:
    CASES = json.load(stream)


def _score(case, lean):
    options = {name: case[name] for name in ("pad", "eos", "unk", "bos")}
    options.update(
        {name: case["options"][name] for name in ("counts", "ngrams", "decay", "max_order")},
        topk=case["k"],
    )
    logits = torch.tensor(case["sb_logits"], dtype=torch.float64)
    target = torch.tensor(case["target"])
    if lean:
        return restricted_soft_bleu(
            logits, torch.eye(case["vocab"], dtype=torch.float64), target, **options
        )
    return soft_bleu(logits, target, **options)


def _cross_entropy(case):
    logits = torch.tensor(case["ce_logits"], dtype=torch.float64)
    target = torch.tensor(case["target"])
    loss, nll = linear_cross_entropy(
        logits.flatten(0, 1),
        torch.eye(case["vocab"], dtype=torch.float64),
        target.flatten(),
        label_smoothing=case["options"]["label_smoothing"],
        ignore_index=case["pad"],
    )
    return loss.view_as(target).sum(1), nll.view_as(target).sum(1), target.ne(case["pad"]).sum(1)


@pytest.mark.parametrize("lean", [False, True], ids=["dense", "lean"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_scores_precisions_and_sizes(case, lean):
    result = _score(case, lean)
    for row, sentence in enumerate(case["sentences"]):
        assert result.score[row].item() == pytest.approx(sentence["sb"], abs=1e-9)
        found = [p for p in result.precisions[row].tolist() if p == p]
        assert found == pytest.approx(
            [p for p in sentence["precisions"] if p is not None], abs=1e-9
        )
        assert [size for size in result.sizes[row].tolist() if size] == sentence["sizes"]
        assert len(sentence["sizes"]) == sentence["T"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_cross_entropy_and_every_form(case):
    ce, nll, tokens = _cross_entropy(case)
    assert ce.tolist() == pytest.approx([s["ce"] for s in case["sentences"]], abs=1e-9)
    assert nll.tolist() == pytest.approx([s["nll"] for s in case["sentences"]], abs=1e-9)
    assert tokens.sum().item() == case["ntokens"]
    score = _score(case, lean=True).score
    assert case["loss"]
    for name, expected in case["loss"].items():
        form, *options = name.split(":")
        options = {key: float(value) for key, value in (option.split("=") for option in options)}
        loss = combine(ce, score, tokens, form=form, **options).sum().item()
        assert loss == pytest.approx(expected, abs=1e-9, rel=1e-12), name
