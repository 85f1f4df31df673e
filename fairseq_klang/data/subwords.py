"""The units of the model: BPE and sentencepiece models, learned and applied, and words counted."""

import collections
import contextlib
import io
import itertools
import os
from typing import Callable, Dict, Iterable, Mapping, Sequence, Tuple

from .options import PrepareError
from .text import open_text

MODELS = {"bpe": "codes", "sentencepiece": "spm.model"}  # the model's file in the subword folder


def learn_bpe(paths: Sequence[str], output: str, merges: int) -> int:
    """Learn one set of BPE merges from all files; returns how many there are (small text may have
    fewer than asked)."""
    from subword_nmt.learn_bpe import learn_bpe as learn

    with contextlib.ExitStack() as stack:
        lines = itertools.chain.from_iterable(
            stack.enter_context(open_text(path)) for path in paths
        )
        writer = stack.enter_context(open_text(output, "w"))
        try:
            learn(lines, writer, merges)
        except ValueError as error:  # max() of no pairs at all
            raise PrepareError(
                f"the training text has no pair of letters to merge ({error}); use --subword word"
            ) from None
    with open_text(output) as stream:
        return sum(1 for _ in stream) - 1  # the first line is the version


def learn_sentencepiece(paths: Sequence[str], output: str, size: int) -> int:
    """Learn one unigram model from all files; returns its size. Text is not normalised, so that
    pieces decode exactly."""
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            input=list(paths),
            model_prefix=os.path.splitext(output)[0],
            vocab_size=size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,  # the number of threads changes the model
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split()).split("] ")[-1]
        raise PrepareError(
            f"sentencepiece cannot learn --vocab-size {size} from this text: {reason}"
        ) from None
    return size


def splitter(kind: str, path: str) -> Callable[[str], str]:
    """A function from a tokenised line to a line of units joined by spaces.

    kind: `bpe` (units joined by `@@ `), `sentencepiece` (`\\u2581` marks where a word starts), or
        `word`, which has no model.
    path: the model's file. Raises PrepareError where it is damaged.
    """
    if kind == "word":
        return str
    try:
        if kind == "bpe":
            from subword_nmt.apply_bpe import BPE

            # subword_nmt tells of a bad line on standard error and leaves.
            with open_text(path) as stream, contextlib.redirect_stderr(io.StringIO()):
                return BPE(stream).process_line
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=path)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise PrepareError(f"{path} cannot be read as a model of {kind} ({reason})") from None
    return lambda line: " ".join(processor.encode(line, out_type=str))


# -- words -----------------------------------------------------------------------------------------


def frequency_threshold(counts: Mapping[str, int], size: int) -> Tuple[int, int]:
    """(N, words): the words that occur N times or more are closest in number to `size`; of two such
    N the smaller.

    counts: {word: how often it occurs}, not empty.
    """
    of_frequency = collections.Counter(counts.values())
    found, words = [], 0
    for frequency in sorted(of_frequency, reverse=True):
        words += of_frequency[frequency]
        found.append((frequency, words))
    return min(found, key=lambda pair: (abs(pair[1] - size), pair[0]))


def count_words(paths: Iterable[str]) -> Dict[str, int]:
    """{word: how often it occurs} over all files."""
    counts: Dict[str, int] = collections.Counter()
    for path in paths:
        with open_text(path) as stream:
            for line in stream:
                counts.update(line.split())  # type: ignore[arg-type]
    return counts
