"""The contrastive loss against a loop over its definition."""

import math

import pytest
import torch

from fairseq_klang.losses import contrastive_loss


def slow(first, second, temperature):
    """-log softmax over cosine similarities, sentence by sentence (Gao et al. 2021, equation 1)."""
    losses = []
    for i in range(len(first)):
        scores = [
            torch.dot(first[i], other) / first[i].norm() / other.norm() / temperature
            for other in second
        ]
        losses.append(-torch.log(torch.exp(scores[i]) / sum(torch.exp(score) for score in scores)))
    return torch.stack(losses)


@pytest.mark.parametrize("size, temperature", [(1, 0.5), (2, 0.05), (7, 1.0)])
def test_values_and_gradients_equal_the_loop(size, temperature):
    torch.manual_seed(size)
    views = [torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    upstream = torch.rand(size, dtype=torch.float64)
    results = []
    for function in (contrastive_loss, slow):
        loss = function(*views, temperature)
        results.append((loss, *torch.autograd.grad(loss, views, upstream)))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected)


def test_limits():
    same = torch.eye(4)
    # Orthogonal sentences, each like its own second view: 3 others at similarity 0, itself at 1.
    assert contrastive_loss(same, same, 1.0).tolist() == pytest.approx(
        [math.log(3 + math.e) - 1] * 4
    )
    assert contrastive_loss(same[:1], same[:1], 0.05).tolist() == [0.0]
    half = torch.randn(3, 8).half()
    assert contrastive_loss(half, half).dtype == torch.float32
    with pytest.raises(ValueError, match="temperature is 0; it must be above 0"):
        contrastive_loss(same, same, 0)
    with pytest.raises(ValueError, match="different shapes"):
        contrastive_loss(same, same[:2])
