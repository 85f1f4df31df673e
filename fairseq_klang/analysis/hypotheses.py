"""What a model wrote: the output of fairseq-generate or plain text, as running text and as tokens."""

import contextlib
import dataclasses
import os
import re
from typing import List

from ..errors import KlangError
from ..files import read_lines
from .tokens import moses_detokenizer, moses_tokenizer, unescape

SUBWORDS = ("bpe", "sentencepiece", "none")
PIECE_SPACE = "\u2581"  # sentencepiece's mark for the start of a word


class ScoringError(KlangError):
    """Hypotheses that cannot be scored against the reference, or a sacrebleu that does not work."""


# -- reading ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Hypotheses:
    """One system's translations, in the order of the reference."""

    name: str
    detokenized: List[str]  # running text
    tokens: List[str]  # Moses tokens joined by spaces, entities undone
    nbest: int = 1  # hypotheses for each sentence in the file; the first is the one used


def _check_ends(path):
    """Raise ScoringError when the last line has no end: whoever wrote the file was stopped."""
    with contextlib.suppress(OSError), open(
        path, "rb"
    ) as stream:  # _log_lines tells of a file that cannot be opened
        stream.seek(0, os.SEEK_END)
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                raise ScoringError(
                    f"{path} stops in the middle of its last line; run fairseq-generate again to "
                    "its end"
                )


def read_generated(path, count):
    """The best hypothesis of each of `count` sentences from the output of fairseq-generate or
    fairseq-interactive.

    Uses the first `H-` line of each sentence; log lines and S-, T-, D-, P- lines are ignored, so a
    reference rebuilt from ids is never read. Returns (lines in reference order, nbest).
    Raises ScoringError unless the ids are exactly 0 .. count-1.
    """
    _check_ends(path)
    best, nbest, previous = {}, {}, None
    for line in _log_lines(path):
        found = re.match(r"H-(\d+)\t[^\t]*\t?(.*)", line)
        if not found:
            continue
        number = int(found.group(1))
        if number in best and number != previous:
            raise ScoringError(
                f"{path} has sentence {number} twice, with others between; it seems to hold two "
                "outputs: split them"
            )
        best.setdefault(number, found.group(2))
        nbest[number] = nbest.get(number, 0) + 1
        previous = number
    if not best:
        raise ScoringError(
            f"{path} has no line that starts with H-; give the output of fairseq-generate, or "
            "--plain for one translation a line"
        )
    beyond = sorted(number for number in best if number >= count)
    if beyond:
        raise ScoringError(
            f"{path} has a hypothesis for sentence {beyond[-1]}, but the reference has only "
            f"{count} lines; is it another test set?"
        )
    missing = [number for number in range(count) if number not in best]
    if missing:
        raise ScoringError(
            f"{path} has hypotheses for {len(best)} of the {count} lines of the reference: "
            f"{len(missing)} missing, the first is number "
            f"{missing[0]}; fairseq drops the last batch unless fairseq-generate gets "
            "--required-batch-size-multiple 1"
        )
    return [best[number] for number in range(count)], max(nbest.values())


def _log_lines(path):
    """The lines of a generate output as they are, for tabs matter. Raises ScoringError."""
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            for line in stream:
                yield line.rstrip("\r\n")
    except OSError as error:
        raise ScoringError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ScoringError(
            f"{path} is not UTF-8 ({error.reason}); run fairseq-generate with "
            "PYTHONIOENCODING=utf-8"
        ) from None


def join_subwords(lines, subword):
    """Undo the splitting into subwords; text whose splitting fairseq already undid (--remove-bpe)
    stays as it is.

    Raises ScoringError where `subword` is not one of SUBWORDS, or marks of another kind of subword
    are left.
    """
    if subword not in SUBWORDS:
        raise ScoringError(f"--subword is {subword!r}; it must be one of {', '.join(SUBWORDS)}")
    pieces = any(PIECE_SPACE in line for line in lines)
    if subword == "sentencepiece" and pieces:
        return [line.replace(" ", "").replace(PIECE_SPACE, " ").strip() for line in lines]
    if pieces:
        raise ScoringError(
            f"the hypotheses hold sentencepiece's mark {PIECE_SPACE}; give --subword sentencepiece"
        )
    if subword == "bpe":
        return [re.sub(r"@@( |$)", "", line) for line in lines]
    if any("@@ " in line for line in lines):
        raise ScoringError("the hypotheses hold BPE's mark @@; give --subword bpe")
    return lines


def read_hypotheses(path, count, lang, *, subword="bpe", tokenizer="moses", plain=False, name=None):
    """One system's translations of `count` sentences into `lang`.

    plain: the file is running text, one translation a line; `subword` and `tokenizer` are then not
        used.
    tokenizer: "moses" where the model writes Moses tokens, which are then detokenised; "none" where
        it writes running text.
    Raises ScoringError.
    """
    nbest = 1
    if tokenizer not in ("moses", "none"):
        raise ScoringError(f"--tokenizer is {tokenizer!r}; it must be one of moses, none")
    if plain:
        lines = list(read_lines(path))
        if len(lines) != count:
            raise ScoringError(
                f"{path} has {len(lines)} lines but the reference has {count}; a plain file needs "
                "one translation for each"
            )
    else:
        lines, nbest = read_generated(path, count)
        lines = join_subwords(lines, subword)
    if plain or tokenizer == "none":
        split = moses_tokenizer(lang)
        return Hypotheses(name or str(path), lines, [split(line) for line in lines], nbest)
    join = moses_detokenizer(lang)
    return Hypotheses(
        name or str(path), [join(line) for line in lines], [unescape(line) for line in lines], nbest
    )
