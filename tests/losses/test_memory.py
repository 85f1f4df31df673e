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
    """Records the largest tensor that any operation returns (its number of elements), the shapes
    of all of them, and the operations that make a device wait."""

    def __init__(self):
        super().__init__()
        self.largest, self.waiting, self.shapes = 0, (), set()

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
                self.shapes.add(tuple(value.shape))
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

    @pytest.mark.parametrize("training", [True, False])
    def test_without_gradients_nothing_of_the_weights_size_is_made(training):
        """A parameter asks for its gradient in validation too; there nobody would read it."""
        rng = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(VOCAB, DIM, generator=rng))
        features = torch.randn(BATCH, DIM, generator=rng)
        target = torch.randint(4, VOCAB, (BATCH,), generator=rng)
        with torch.set_grad_enabled(training), LargestTensor() as seen:
            fused_cross_entropy(features, weight, target, ignore_index=1)
        assert ((VOCAB, DIM) in seen.shapes) == training

    def test_the_test_sees_a_dense_step():
        assert step(9, dense=True).largest >= BATCH * LENGTH * VOCAB
        with LargestTensor() as seen:
            torch.ones(3).sum().item()
        assert len(seen.waiting) == 1
