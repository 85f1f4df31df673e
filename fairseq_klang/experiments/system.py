"""A trained model in this process, to translate with and to look at its encoder."""

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from ..analysis.hypotheses import join_subwords
from ..analysis.tokens import moses_detokenizer
from ..checkpoints.reading import load_checkpoint
from ..learning.objectives import mean_states
from .plan import Data


class System:
    """A trained model with what is needed to translate with it and to look at its encoder."""

    def __init__(self, path: str, data: Data) -> None:
        load_checkpoint(path)  # tells in one line what is wrong with the file
        (self.model,), _, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [path], arg_overrides={"data": data.folder}
        )
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device).eval()
        self.data = data
        self.join = moses_detokenizer(data.target) if data.tokenizer == "moses" else str

    def sentences(self, split: str) -> List[Tensor]:
        """The source sentences of a split, [n] token ids each."""
        if split not in self.task.datasets:
            self.task.load_dataset(split)
        source = self.task.dataset(split).src
        return [source[i].to(self.device) for i in range(len(source))]

    def _batches(
        self, sentences: Sequence[Tensor], size: int = 64
    ) -> Iterator[Tuple[List[int], Tensor, Tensor]]:
        """(indices, tokens [B, S] padded on the left, lengths) of sentences of like length."""
        pad = self.task.source_dictionary.pad()
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            longest = len(sentences[rows[0]])
            tokens = torch.full((len(rows), longest), pad, device=self.device)
            for row, i in zip(tokens, rows):
                row[longest - len(sentences[i]) :] = sentences[i]
            yield rows, tokens, torch.tensor([len(sentences[i]) for i in rows], device=self.device)

    def generate(
        self,
        sentences: Sequence[Tensor],
        model: Optional[torch.nn.Module] = None,
        dictionary: Any = None,
    ) -> List[str]:
        """Greedy output for each sentence, subwords joined.

        model, dictionary: those of translation unless given.
        """
        dictionary = dictionary or self.task.target_dictionary
        generator = SequenceGenerator(
            [model or self.model], dictionary, beam_size=1, max_len_a=1.5, max_len_b=10
        )
        lines = [""] * len(sentences)
        for rows, tokens, lengths in self._batches(sentences):
            with torch.no_grad():
                found = generator.generate(
                    [], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
                )
            for i, hypotheses in zip(rows, found):
                lines[i] = dictionary.string(hypotheses[0]["tokens"])
        return join_subwords(lines, self.data.subword)

    def translate(self, sentences: Sequence[Tensor]) -> List[str]:
        """Greedy translations as running text."""
        return [self.join(line) for line in self.generate(sentences)]

    def states(self, sentences: Sequence[Tensor]) -> np.ndarray:
        """[N, d] mean encoder states."""
        result: List[Any] = [None] * len(sentences)
        with torch.no_grad():
            for rows, tokens, _ in self._batches(sentences):
                present = tokens.ne(self.task.source_dictionary.pad())
                encoded = self.model.encoder(tokens, present.sum(1))["encoder_out"][0].transpose(
                    0, 1
                )
                for i, vector in zip(rows, mean_states(encoded, present)):
                    result[i] = vector.cpu().numpy()
        return np.stack(result)
