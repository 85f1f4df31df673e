"""Learning at inference: some steps on the source about to be translated, undone afterwards or
kept."""

import contextlib
import copy
import math
import zlib
from collections import namedtuple
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from ..compat import without_encoder_fast_path
from ..errors import UsageError
from .objectives import SourceObjective

PARAMETERS = ("encoder", "all")
RESETS = ("sentence", "never")

LearnReport = namedtuple("LearnReport", "losses before after stopped")
LearnReport.__doc__ = """`losses`: the objective at each step, per unit, with dropout and noise;
`before`, `after`: without them, before the first and after the last step (None where it came to no
end); `stopped`: None, or why the steps were taken back."""


def sentence_seed(sentences: Sequence[torch.Tensor]) -> int:
    """A whole number that depends only on the tokens of the sentences (a list of [n])."""
    return zlib.crc32(
        b"|".join(sentence.cpu().numpy().astype("<i8").tobytes() for sentence in sentences)
    )


def adaptable_parameters(model: nn.Module, which: str) -> List[nn.Parameter]:
    """The parameters that learning may change.

    which: `encoder`, those of the encoder alone: a table that the decoder uses too stays as it is,
        since the decoder stands still; `all`, every one.
    """
    if which == "all":
        return list(model.parameters())
    decoder = {id(parameter) for parameter in model.decoder.parameters()}
    return [parameter for parameter in model.encoder.parameters() if id(parameter) not in decoder]


def not_finite(loss: float) -> Optional[str]:
    """None, or the reason to stop that a loss (a number) of nan or inf is."""
    return None if math.isfinite(loss) else f"the objective is {loss}"


class Adapter:
    """Lets one model learn from source sentences at inference.

    Args:
        model: a dual-head model, in evaluation mode and with its weights loaded: they are what is
            put back.
        objective: a :class:`~fairseq_klang.learning.objectives.SourceObjective`.
        steps: on the source, N; lr: of Adam; parameters: `encoder` or `all`.
        patience: stop when the objective has risen this many times in a row; 0 never does.
        seed: of noise, dropout and replay, together with the sentence itself.
        replay: what has `loss(model, seed, device)`, the loss of a translation step, such as
            :class:`fairseq_klang.tasks.adapting.Replay`; None takes no such steps.
        ratio: steps on replay data for each step on the source (0.5 is one after every second).
    Raises:
        UsageError: half precision, in which small steps are lost; nothing to change.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: SourceObjective,
        *,
        steps: int,
        lr: float,
        parameters: str = "encoder",
        patience: int = 3,
        seed: int = 1,
        replay: Any = None,
        ratio: float = 0.0,
    ) -> None:
        self.model, self.objective = model, objective
        self.clean = objective.without_noise()
        self.steps, self.patience, self.seed, self.replay, self.ratio = (
            steps,
            patience,
            seed,
            replay,
            ratio,
        )
        self.chosen = adaptable_parameters(model, parameters)
        if not self.chosen:
            raise UsageError(
                f"--adapt-parameters is {parameters}, but this encoder has no weights that are not "
                "the decoder's too; it must be all"
            )
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in self.chosen):
            raise UsageError(
                "--adapt-steps cannot be combined with --fp16 or --bf16, in which small steps are "
                "lost; leave that flag out"
            )
        without_encoder_fast_path(model)
        self.owed = 0.0  # steps on replay data that are due
        self.optimizer = torch.optim.Adam(self.chosen, lr=lr, betas=(0.9, 0.98))
        self.origin = self.state()

    @contextlib.contextmanager
    def adapted(self, sentences: Sequence[torch.Tensor]) -> Iterator[LearnReport]:
        """Learn from `sentences` (a list of [n]) and yield the :class:`LearnReport`.

        Afterwards weights, optimiser, random state, the mode of each module (train or eval) and the
        choice of parameters that take gradients are as they were at the start.
        """
        with self._random_state():
            try:
                report = self.learn(sentences)
                # Sampling depends on the sentence alone, too.
                torch.manual_seed(self._seeds(sentences)[0])
                yield report
            finally:
                self.restore(self.origin)

    def learn(self, sentences: Sequence[torch.Tensor]) -> LearnReport:
        """Take the steps on `sentences` and keep what was learnt; returns :class:`LearnReport`.

        If the objective is not finite, has risen `patience` times in a row, or is higher after the
        steps than it was before them, weights and optimiser go back to what they were before the
        first of these steps.
        """
        origin, (seed, key) = self.state(), self._seeds(sentences)
        with self._random_state():
            torch.manual_seed(seed)
            before, after = self._measure(sentences, key), None
            losses, stopped = self._steps(sentences, key)
            if not stopped:
                after = self._measure(sentences, key)
                stopped = not_finite(after) or (
                    f"the objective rose from {before:.3f} to {after:.3f}"
                    if after > before
                    else None
                )
        if stopped:
            self.restore(origin)
        return LearnReport(losses, before, after, stopped)

    def _measure(self, sentences, key):
        """The objective per unit as it is now, without noise, the modules in evaluation mode."""
        with torch.no_grad():
            result = self.clean(
                self.model,
                self.clean.prepare(sentences, [(*key, 0, i) for i in range(len(sentences))]),
            )
        return float(result.loss / result.units)

    def _steps(self, sentences, key):
        """Take the steps; returns (the objective at each, None or why they ended early)."""
        losses, risen, stopped = [], 0, None
        with self._training():
            for step in range(self.steps):
                result = self.objective(
                    self.model,
                    self.objective.prepare(
                        sentences, [(*key, step, i) for i in range(len(sentences))]
                    ),
                )
                loss = result.loss / result.units
                losses.append(float(loss.detach()))
                risen = risen + 1 if step and losses[-1] > losses[-2] else 0
                stopped = not_finite(losses[-1])
                if self.patience and risen >= self.patience:
                    stopped = f"the objective has risen {risen} times in a row (--adapt-patience)"
                stopped = stopped or self._step(loss)
                self.owed += self.ratio
                while self.owed >= 1 and not stopped:
                    stopped = self._step(
                        self.replay.loss(self.model, (*key, step, int(self.owed)), loss.device)
                    )
                    self.owed -= 1
                if stopped:
                    break
        return losses, stopped

    def _step(self, loss):
        """One step of the optimiser, or the reason not to take it."""
        if not torch.isfinite(loss):
            return f"the translation loss on replay data is {float(loss.detach())}"
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return None

    def _seeds(self, sentences):
        """(a seed for torch, a key for numpy)."""
        key = (abs(self.seed), sentence_seed(sentences))
        return int(np.random.SeedSequence(list(key)).generate_state(1)[0]), key

    @contextlib.contextmanager
    def _random_state(self):
        devices = sorted({p.device.index for p in self.chosen if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices):
            yield

    @contextlib.contextmanager
    def _training(self):
        """Inside the block every module is in training mode and only the chosen parameters take
        gradients."""
        modes = [(module, module.training) for module in self.model.modules()]
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        try:
            # Not model.train(): fairseq forbids that once a model is prepared for inference.
            for module, _ in modes:
                module.training = True
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            for parameter in self.chosen:
                parameter.requires_grad_(True)
            with torch.enable_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, flag in flags:
                parameter.grad = None
                parameter.requires_grad_(flag)

    def state(self) -> Tuple[List[torch.Tensor], Any, float]:
        """A copy of all that learning changes: the chosen weights, the optimiser's state, and the
        replay steps that are due."""
        return (
            [p.detach().clone() for p in self.chosen],
            copy.deepcopy(self.optimizer.state_dict()),
            self.owed,
        )

    def restore(self, state: Tuple[List[torch.Tensor], Any, float]) -> None:
        """Put back what :meth:`state` returned."""
        weights, optimizer, self.owed = state
        with torch.no_grad():
            for parameter, value in zip(self.chosen, weights):
                parameter.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))
