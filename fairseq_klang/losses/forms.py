"""How cross-entropy and soft BLEU become one loss (the `form` of DESIGN 1)."""

import torch

FORMS = ("linear", "power", "exp", "add", "interpolate", "log")


def combine(ce, score, tokens, *, form, alpha, beta=0.5):
    """Per-sentence loss from the summed cross-entropy and soft BLEU of each sentence (DESIGN 1).

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
        scored = score > 0
        # The inner where keeps log(0) out of the graph: its gradient would be nan even where
        # masked.
        return torch.where(
            scored, -tokens * torch.log(torch.where(scored, score, torch.ones_like(score))), 0 * ce
        )
    x = 1 - score
    if form == "linear":
        return ce * (1 + alpha * x)
    if form == "power":
        # x ** beta has an infinite slope at x = 0, a perfect sentence; the floor keeps the gradient
        # finite there.
        return ce * (1 + alpha * x.clamp(min=torch.finfo(x.dtype).eps) ** beta)
    if form == "exp":
        return ce * torch.exp(alpha * x)
    if form == "add":
        return ce + alpha * tokens * x
    return (1 - alpha) * ce + alpha * tokens * x


def ce_weight(score, tokens, *, form, alpha, beta=0.5):
    """The factor of `ce` in :func:`combine`, d loss / d ce, [B]; constant in `ce`, so it is known
    before `ce` is."""
    with torch.enable_grad():
        probe = torch.zeros_like(score, requires_grad=True)
        loss = combine(probe, score.detach(), tokens, form=form, alpha=alpha, beta=beta)
        return torch.autograd.grad(loss.sum(), probe)[0]
