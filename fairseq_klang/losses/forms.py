"""How cross-entropy and soft BLEU become one loss (the forms of docs/loss.md)."""

import torch
from torch import Tensor

FORMS = ("linear", "power", "exp", "add", "interpolate", "log")


def combine(
    ce: Tensor, score: Tensor, tokens: Tensor, *, form: str, alpha: float, beta: float = 0.5
) -> Tensor:
    """Loss of each sentence from its summed cross-entropy and its soft BLEU.

    With x = 1 - score::

        linear       ce * (1 + alpha * x)
        power        ce * (1 + alpha * x ** beta)
        exp          ce * e ** (alpha * x)
        add          ce + alpha * tokens * x
        interpolate  (1 - alpha) * ce + alpha * tokens * x
        log          -tokens * log(score)

    Every form is linear in `ce`, which :func:`ce_weight` and the fused cross-entropy rely on.

    Args:
        ce: [B], cross-entropy summed over the sentence's tokens, in nats.
        score: [B], soft BLEU in [0, 1]; 0 marks a sentence with nothing to match (it adds nothing
            under `log`).
        tokens: [B], number of target tokens, `</s>` included.
        form, alpha, beta: see above; `beta` is used by `power` alone.
    Returns:
        loss [B].
    Raises:
        ValueError: unknown form.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; legal values are {', '.join(FORMS)}")
    tokens = tokens.to(score.dtype)  # an integer times a Python float would be rounded to float32
    if form == "log":
        return torch.where(score > 0, -tokens * torch.log(_positive(score)), 0 * ce)
    x = 1 - score
    if form == "linear":
        return ce * (1 + alpha * x)
    if form == "power":
        # x ** beta has an infinite slope at x = 0, a perfect sentence, whose loss is ce.
        return torch.where(x > 0, ce * (1 + alpha * _positive(x) ** beta), ce)
    if form == "exp":
        return ce * torch.exp(alpha * x)
    if form == "add":
        return ce + alpha * tokens * x
    return (1 - alpha) * ce + alpha * tokens * x


def _positive(values: Tensor) -> Tensor:
    """The values, with 1 where one is not above 0.

    For use inside a `where` that masks those: a function without a finite slope at 0 would bring
    nan into their gradient even though it is masked.
    """
    return torch.where(values > 0, values, torch.ones_like(values))


def ce_weight(
    score: Tensor, tokens: Tensor, *, form: str, alpha: float, beta: float = 0.5
) -> Tensor:
    """d loss / d ce of :func:`combine`, [B]; constant in `ce`, so known before `ce` is."""
    with torch.enable_grad():
        probe = torch.zeros_like(score, requires_grad=True)
        loss = combine(probe, score.detach(), tokens, form=form, alpha=alpha, beta=beta)
        return torch.autograd.grad(loss.sum(), probe)[0]
