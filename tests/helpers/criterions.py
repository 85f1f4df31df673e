"""Criterions run on small models: losses and gradients, and what must be equal."""

import torch

from helpers.models import SMALL, batch

SINGLE = {
    "transformer": SMALL["transformer_dualhead"],
    "lstm": SMALL["lstm_dualhead"],
    # Its decoder computes scores inside forward, so it goes the dense path.
    "fconv": dict(
        encoder_embed_dim=16,
        encoder_layers="[(16, 3)]",
        decoder_embed_dim=16,
        decoder_layers="[(16, 3)]",
        decoder_out_embed_dim=16,
        max_source_positions=64,
        max_target_positions=64,
    ),
}


MODELS = dict(SMALL, **SINGLE)


def make_sample(task, seed=0, size=4, length=6):
    """A padded batch as fairseq's data loader makes it, with targets of different lengths and an
    unk."""
    dictionary = task.target_dictionary
    net_input = batch(dictionary, seed, size, target=length)
    target = torch.cat(
        (net_input["prev_output_tokens"][:, 1:], torch.full((size, 1), dictionary.eos())), 1
    )
    for row in range(1, size):
        target[row, length - row] = dictionary.eos()
        target[row, length - row + 1 :] = dictionary.pad()
    target[0, 1] = dictionary.unk()
    previous = torch.full_like(target, dictionary.eos())
    previous[:, 1:] = target[:, :-1]
    net_input["prev_output_tokens"] = torch.where(target.eq(dictionary.pad()), target, previous)
    return dict(
        net_input=net_input,
        target=target,
        ntokens=int(target.ne(dictionary.pad()).sum()),
        nsentences=size,
    )


def loss_and_gradients(model, criterion, sample):
    model.zero_grad()
    loss, sample_size, log = criterion(model, sample)
    loss.backward()
    gradients = {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    return loss.detach(), gradients, sample_size, log


def assert_same(found, expected, tolerance=1e-9):
    torch.testing.assert_close(
        found[0], expected[0], rtol=tolerance, atol=tolerance, check_dtype=False
    )
    for name, gradient in expected[1].items():
        other = found[1][name]
        if gradient is None or other is None:
            rest = gradient if other is None else other
            assert rest is None or rest.abs().max() == 0, name
        else:
            torch.testing.assert_close(
                other, gradient, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}"
            )
