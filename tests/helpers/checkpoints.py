"""Checkpoints that hold next to nothing."""

import argparse

import torch


def save(path, value, dtype=torch.float32, **more):
    """A checkpoint in fairseq's form whose weights are made of `value`; the embedding is tied to
    the output layer."""
    table = torch.full((3, 2), float(value), dtype=dtype)
    model = {
        "embed": table,
        "out": table,
        "bias": torch.tensor([value, -value], dtype=dtype),
        "steps": torch.tensor(int(value)),
    }
    model.update(more)
    state = {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="tiny", note=str(value))},
        "model": model,
        "optimizer_history": [{"num_updates": int(value)}],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": int(value)}},
        "last_optimizer_state": {"state": torch.zeros(1000)},
    }
    torch.save(state, path)
    return str(path)
