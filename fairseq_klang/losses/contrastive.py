"""The contrastive loss between two views of the same sentences, with the other sentences of the
batch as negatives."""

import torch


def contrastive_loss(first, second, temperature=0.05):
    """-log of the probability that each sentence's first view picks its own second view among those
    of the batch.

    The probability is a softmax over cosine similarities divided by the temperature (Gao et al.
    2021, SimCSE).

    Args:
        first, second: [B, d], one vector a sentence; row i of both is the same sentence.
        temperature: above 0; the smaller, the harder the choice.
    Returns:
        [B] in nats, float32 or better; all zeros, without gradient to speak of, where B is 1:
        nothing to choose from.
    Raises:
        ValueError: a temperature that is not above 0, or views of different shapes.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    if first.shape != second.shape:
        raise ValueError(
            f"the two views have different shapes, {tuple(first.shape)} and {tuple(second.shape)}"
        )
    if first.dtype in (torch.float16, torch.bfloat16):
        first, second = first.float(), second.float()
    first, second = (torch.nn.functional.normalize(view, dim=1) for view in (first, second))
    scores = first @ second.t() / temperature
    return torch.logsumexp(scores, 1) - scores.diagonal()
