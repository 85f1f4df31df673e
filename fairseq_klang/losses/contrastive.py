"""The contrastive loss: two views of a sentence attract, those of the batch's others repel."""

import torch
from torch import Tensor

from .chunked import accumulation_dtype


def contrastive_loss(first: Tensor, second: Tensor, temperature: float = 0.05) -> Tensor:
    """-log of the probability that a sentence's first view picks its own second view.

    It chooses among the second views of the batch, with a softmax over cosine similarities divided
    by the temperature (Gao et al. 2021, SimCSE).

    Args:
        first, second: [B, d], one vector a sentence; row i of both is the same sentence.
        temperature: above 0; the smaller, the harder the choice.
    Returns:
        [B] in nats, float32 or better; zeros where B is 1, for there is nothing to choose from.
    Raises:
        ValueError: a temperature that is not above 0, or views of different shapes.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    if first.shape != second.shape:
        raise ValueError(
            f"the two views have different shapes, {tuple(first.shape)} and {tuple(second.shape)}"
        )
    dtype = accumulation_dtype(first.dtype)
    first, second = (
        torch.nn.functional.normalize(view.to(dtype), dim=1) for view in (first, second)
    )
    scores = first @ second.t() / temperature
    return torch.logsumexp(scores, 1) - scores.diagonal()
