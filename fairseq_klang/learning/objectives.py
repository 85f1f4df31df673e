"""The objectives that need no target: from a batch of source sentences to a loss (DESIGN 3 and
4)."""

from collections import namedtuple

import numpy as np
import torch
from fairseq.data.data_utils import collate_tokens

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
        noise, rate: input noise of autoencoding (:mod:`fairseq_klang.data.noise`); `rate` is
            masked_lm's share of masked words too.
        temperature: of contrastive.
    """

    def __init__(self, name, dictionary, noise="none", rate=0.15, temperature=0.05):
        self.name, self.dictionary = name, dictionary
        self.noise, self.rate, self.temperature = noise, rate, temperature

    def without_noise(self):
        """The same objective on the sentences as they are."""
        return SourceObjective(self.name, self.dictionary, "none", self.rate, self.temperature)

    def prepare(self, sentences, seeds):
        """:class:`SourceBatch` from `sentences`, a list of [n] token ids with </s>, and one seed (a
        sequence) for each."""
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        inputs, targets = zip(
            *(self._corrupt(sentence, seed) for sentence, seed in zip(sentences, seeds))
        )
        lengths = torch.tensor([len(line) for line in inputs])
        # fairseq's LSTM wants the longest first, and noise may have changed which that is.
        lengths, order = lengths.sort(descending=True, stable=True)
        ordered = order.tolist()
        originals = [sentences[i].cpu() for i in ordered]
        batch = SourceBatch(
            collate_tokens([inputs[i] for i in ordered], pad, eos),
            lengths,
            collate_tokens(originals, pad, eos, move_eos_to_beginning=True),
            collate_tokens([targets[i] for i in ordered], pad, eos),
        )
        return SourceBatch(*(tensor.to(sentences[0].device) for tensor in batch))

    def _corrupt(self, sentence, seed):
        """(input, target), both [n] tensors on the CPU."""
        sentence = sentence.cpu()
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

    def __call__(self, model, batch):
        """:class:`SourceLoss` of a prepared batch. `model` may be wrapped for distributed
        training."""
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

    def _contrastive(self, model, batch):
        # Each sentence twice in one pass: dropout makes the two views.
        tokens, lengths = (
            value.repeat_interleave(2, 0) for value in (batch.src_tokens, batch.src_lengths)
        )
        states, _, _ = model(
            src_tokens=tokens, src_lengths=lengths, prev_output_tokens=None, source_pass="encode"
        )
        views = mean_states(states, tokens.ne(self.dictionary.pad()))
        loss = contrastive_loss(views[::2], views[1::2], self.temperature)
        return SourceLoss(loss.sum(), torch.tensor(len(loss), device=loss.device))


def mean_states(states, present):
    """[B, S, d] and [B, S] bool -> [B, d]: the mean over the positions that are there."""
    weights = present.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def strip_padding(src_tokens, pad):
    """[B, S], padded on either side -> a list of [n] token ids."""
    return [row[row.ne(pad)] for row in src_tokens]
