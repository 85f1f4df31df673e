"""No step of the lean path makes a tensor of N x V elements or reads a number back: every operation
is looked at."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from fairseq_klang.losses import chunked, fused_cross_entropy, restricted_soft_bleu

BATCH, LENGTH, VOCAB, DIM = 16, 32, 3000, 8  # N = 512 rows
ROWS = 64


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns, and what
    makes a device wait."""

    largest = 0
    waiting = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(
            name in str(function)
            for name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.")
        ):
            self.waiting += (str(function),)
        result = function(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                self.largest = max(self.largest, value.numel())
        return result


def step(topk, counts="matched", dense=False):
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(BATCH, LENGTH, DIM, generator=rng).requires_grad_()
    ce, sb = (torch.randn(VOCAB, DIM, generator=rng).requires_grad_() for _ in range(2))
    target = torch.randint(4, VOCAB, (BATCH, LENGTH), generator=rng)
    with LargestTensor() as seen:
        bleu = restricted_soft_bleu(
            features, sb, target, pad=1, eos=2, unk=3, bos=0, topk=topk, counts=counts
        )
        if dense:
            loss = torch.log_softmax(features @ ce.t(), -1).sum()
        else:
            loss = fused_cross_entropy(
                features.flatten(0, 1), ce, target.flatten(), label_smoothing=0.1, ignore_index=1
            ).weighted.sum()
        (loss + bleu.score.sum()).backward()
    assert features.grad is not None and ce.grad is not None and sb.grad is not None
    return seen


def usable():
    """torch 1.12 has these modes, but pushes them another way."""
    try:
        with LargestTensor():
            return True
    except TypeError:
        return False


if usable():

    @pytest.mark.parametrize("topk, counts", [(9, "matched"), (9, "clipped"), (None, "matched")])
    def test_the_largest_tensor_of_a_step_is_one_chunk(monkeypatch, topk, counts):
        monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", {"cpu": ROWS * VOCAB})
        seen = step(topk, counts)
        assert seen.largest <= ROWS * VOCAB < BATCH * LENGTH * VOCAB
        assert seen.waiting == ()

    def test_the_test_sees_a_dense_step():
        assert step(9, dense=True).largest >= BATCH * LENGTH * VOCAB
        with LargestTensor() as seen:
            torch.ones(3).sum().item()
        assert len(seen.waiting) == 1
