"""The objectives that need no target: from a batch of source sentences to a loss."""

from collections import namedtuple
from typing import List, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from torch import nn

from ..losses import contrastive_loss, fused_cross_entropy
from .noise import add_noise, draw_mask

OBJECTIVES = ("autoencoding", "masked_lm", "contrastive")

SourceBatch = namedtuple("SourceBatch", "src_tokens src_lengths previous target")
SourceBatch.__doc__ = """A prepared batch, padded on the right, longest input first: `src_tokens`
[B, S] as the encoder reads them, `src_lengths` [B], `previous` [B, S'] what the source decoder is
fed, `target` [B, S'] (pad where nothing is scored)."""

SourceLoss = namedtuple("SourceLoss", "loss units")
SourceLoss.__doc__ = (
    "`loss`: summed, in nats; `units`: what it is a sum over, tokens (sentences for contrastive)."
)


class SourceObjective:
    """One way to learn from source sentences alone.

    Args:
        name: `autoencoding` gives the sentence back through the model's autoencoder; `masked_lm`
            predicts masked words from the encoder's states through the source embeddings;
            `contrastive` tells two dropout views of a sentence from the other sentences of the
            batch.
        dictionary: the source's; <unk> is the mask.
        noise, rate: input noise of autoencoding (:mod:`fairseq_klang.learning.noise`); `rate` is
            masked_lm's share of masked words too.
        temperature: of contrastive.
    """

    def __init__(
        self,
        name: str,
        dictionary: Dictionary,
        noise: str = "none",
        rate: float = 0.15,
        temperature: float = 0.05,
    ) -> None:
        self.name, self.dictionary = name, dictionary
        self.noise, self.rate, self.temperature = noise, rate, temperature

    def without_noise(self) -> "SourceObjective":
        """The same objective on the sentences as they are."""
        return SourceObjective(self.name, self.dictionary, "none", self.rate, self.temperature)

    def prepare(
        self, sentences: Sequence[torch.Tensor], seeds: Sequence[Sequence[int]]
    ) -> SourceBatch:
        """:class:`SourceBatch` on the CPU.

        sentences: a list of [n] token ids with </s>, on the CPU; seeds: one sequence for each.
        """
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        inputs, targets = zip(
            *(self._corrupt(sentence, seed) for sentence, seed in zip(sentences, seeds))
        )
        lengths = torch.tensor([len(line) for line in inputs])
        # fairseq's LSTM wants the longest first, and noise may have changed which that is.
        lengths, order = lengths.sort(descending=True, stable=True)
        ordered = order.tolist()
        originals = [sentences[i] for i in ordered]
        return SourceBatch(
            collate_tokens([inputs[i] for i in ordered], pad, eos),
            lengths,
            collate_tokens(originals, pad, eos, move_eos_to_beginning=True),
            collate_tokens([targets[i] for i in ordered], pad, eos),
        )

    def _corrupt(
        self, sentence: torch.Tensor, seed: Sequence[int]
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """(input, target), both [n]."""
        ended = len(sentence) > 0 and int(sentence[-1]) == self.dictionary.eos()
        words = (sentence[:-1] if ended else sentence).numpy()
        end = sentence[len(words) :]
        if self.name == "masked_lm":
            chosen = draw_mask(len(words), self.rate, seed, at_least_one=True)
            noisy = np.where(chosen, self.dictionary.unk(), words)
            target = np.where(chosen, words, self.dictionary.pad())
            return torch.cat((torch.from_numpy(noisy), end)), torch.cat(
                (torch.from_numpy(target), end * 0 + self.dictionary.pad())
            )
        noise = self.noise if self.name == "autoencoding" else "none"
        noisy = add_noise(words, noise, self.rate, seed, self.dictionary.unk())
        return torch.cat((torch.from_numpy(noisy), end)), sentence

    def __call__(self, model: nn.Module, batch: SourceBatch) -> SourceLoss:
        """:class:`SourceLoss` of a prepared batch, computed where the model is. `model` may be
        wrapped for distributed training."""
        device = next(model.parameters()).device
        batch = SourceBatch(*(tensor.to(device) for tensor in batch))
        if self.name == "contrastive":
            return self._contrastive(model, batch)
        kind = "reconstruct" if self.name == "autoencoding" else "encode"
        features, weight, bias = model(
            src_tokens=batch.src_tokens,
            src_lengths=batch.src_lengths,
            prev_output_tokens=batch.previous,
            source_pass=kind,
        )
        scored = batch.target.ne(self.dictionary.pad())
        result = fused_cross_entropy(
            features[scored],
            weight,
            batch.target[scored],
            bias=bias,
            ignore_index=self.dictionary.pad(),
        )
        return SourceLoss(result.weighted.sum(), scored.sum())

    def _contrastive(self, model: nn.Module, batch: SourceBatch) -> SourceLoss:
        # Each sentence twice in one pass: dropout makes the two views.
        tokens, lengths = (
            value.repeat_interleave(2, 0) for value in (batch.src_tokens, batch.src_lengths)
        )
        states, _, _ = model(
            src_tokens=tokens, src_lengths=lengths, prev_output_tokens=None, source_pass="encode"
        )
        views = mean_states(states, tokens.ne(self.dictionary.pad()))
        loss = contrastive_loss(views[::2], views[1::2], self.temperature)
        # A sentence alone has nothing to be told from: its loss of 0 is no part of a mean.
        return SourceLoss(
            loss.sum(), torch.tensor(len(loss) if len(loss) > 1 else 0).to(loss.device)
        )


def mean_states(states: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """[B, S, d] and [B, S] bool -> [B, d]: the mean over the positions that are there."""
    weights = present.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def strip_padding(src_tokens: torch.Tensor, pad: int) -> List[torch.Tensor]:
    """[B, S], padded on either side -> a list of [n] token ids on the CPU."""
    return [row[row.ne(pad)] for row in src_tokens.cpu()]  # one transfer for the whole batch
