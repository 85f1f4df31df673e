"""What a model wrote, from fairseq-generate or as plain text: running text and tokens."""

import dataclasses
import re
from typing import Dict, List, Optional, Sequence, Tuple

from ..errors import KlangError
from ..files import Path, raw_lines, read_lines
from .tokens import moses_detokenizer, moses_tokenizer, unescape

PIECE_SPACE = "\u2581"  # sentencepiece's mark for the start of a word
SUBWORDS = ("bpe", "sentencepiece", "none")
_MARKS = {"bpe": "@@ ", "sentencepiece": PIECE_SPACE}


class ScoringError(KlangError):
    """Hypotheses that cannot be scored against the reference, or a sacrebleu that does not work."""


@dataclasses.dataclass
class Hypotheses:
    """One system's translations, in the order of the reference."""

    name: str
    detokenized: List[str]  # running text
    tokens: List[str]  # Moses tokens joined by spaces, entities undone
    nbest: int = 1  # hypotheses for each sentence in the file; the first is the one used
    notes: List[str] = dataclasses.field(default_factory=list)  # what a reader should know


def read_generated(path: Path, count: int) -> Tuple[List[str], int]:
    """The best hypothesis of each of `count` sentences from the output of fairseq-generate or
    fairseq-interactive, plain or packed with gzip.

    Uses the first `H-` line of each sentence. Other lines are ignored, T- and D- lines too, so that
    a reference rebuilt from ids is never read. Returns (lines in reference order, nbest).
    Raises ScoringError unless the ids are exactly 0 .. count-1, TextError for an unreadable file.
    """
    best: Dict[int, str] = {}
    nbest: Dict[int, int] = {}
    previous, line, skips = None, "\n", False
    for line in raw_lines(path):
        skips = skips or "samples have invalid sizes and will be skipped" in line  # fairseq's words
        found = re.match(r"H-(\d+)\t[^\t]*\t?(.*)", line.rstrip("\r\n"))
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
    if not line.endswith("\n"):
        raise ScoringError(
            f"{path} stops in the middle of its last line; run fairseq-generate again to its end"
        )
    if not best:
        raise ScoringError(
            f"{path} has no line that starts with H-; give the output of fairseq-generate, or "
            "--plain for one translation a line"
        )
    if max(best) >= count:
        raise ScoringError(
            f"{path} has a hypothesis for sentence {max(best)}, but the reference has only "
            f"{count} lines; is it another test set?"
        )
    missing = [number for number in range(count) if number not in best]
    if missing:
        reason = (
            "fairseq skipped sentences longer than the model takes "
            "(--skip-invalid-size-inputs-valid-test): split them in both files, or take them out"
            if skips
            else "fairseq drops the last batch unless fairseq-generate gets "
            "--required-batch-size-multiple 1, and long sentences where it gets "
            "--skip-invalid-size-inputs-valid-test"
        )
        raise ScoringError(
            f"{path} has hypotheses for {len(best)} of the {count} lines of the reference: "
            f"{len(missing)} missing, the first is number {missing[0]}; {reason}"
        )
    return [best[number] for number in range(count)], max(nbest.values())


def join_subwords(lines: Sequence[str], subword: str) -> List[str]:
    """Undo the splitting of lines into units of the kind `subword`, one of SUBWORDS.

    As fairseq's --remove-bpe does it. What looks like the mark of another kind is text.
    """
    if subword == "sentencepiece":
        return [line.replace(" ", "").replace(PIECE_SPACE, " ").strip() for line in lines]
    if subword == "bpe":
        return [re.sub(r"@@( |$)", "", line) for line in lines]
    return list(lines)


def _undo_subwords(path: Path, lines: List[str], subword: str) -> Tuple[List[str], List[str]]:
    """(running lines, notes) of an output whose splitting fairseq may have undone already.

    A mark in most lines is one of subwords, a mark in some is text. Raises ScoringError where most
    lines have the mark of another kind than `subword`.
    """
    notes = []
    filled = sum(bool(line.strip()) for line in lines)
    marked = {kind: sum(mark in line for line in lines) for kind, mark in _MARKS.items()}
    for kind, mark in _MARKS.items():
        if kind == subword or not marked[kind]:
            continue
        told = f"{marked[kind]} of the {len(lines)} hypotheses in {path} hold {kind}'s mark {mark}"
        if 2 * marked[kind] > filled:
            raise ScoringError(f"{told}; give --subword {kind}")
        notes.append(f"{told.rstrip()}, taken as text; if it is none, give --subword {kind}")
    if subword == "sentencepiece" and 2 * marked[subword] <= filled:  # each line of pieces has one
        return lines, notes
    return join_subwords(lines, subword), notes


def read_hypotheses(
    path: Path,
    count: int,
    lang: str,
    *,
    subword: str = "bpe",
    tokenizer: str = "moses",
    plain: bool = False,
    name: Optional[str] = None,
) -> Hypotheses:
    """One system's translations of `count` sentences into `lang`.

    Args:
        plain: the file is running text, one translation a line; `subword` and `tokenizer` are then
            not used.
        tokenizer: "moses" where the model writes Moses tokens, which are then detokenised; "none"
            where it writes running text.
    Raises:
        ScoringError: options or hypotheses that do not fit the reference.
        TextError: a file that cannot be read.
    """
    if tokenizer not in ("moses", "none"):
        raise ScoringError(f"--tokenizer is {tokenizer!r}; it must be one of moses, none")
    if subword not in SUBWORDS:
        raise ScoringError(f"--subword is {subword!r}; it must be one of {', '.join(SUBWORDS)}")
    nbest, notes = 1, []  # type: int, List[str]
    if plain:
        lines = list(read_lines(path))
        if len(lines) != count:
            raise ScoringError(
                f"{path} has {len(lines)} lines but the reference has {count}; a plain file needs "
                "one translation for each"
            )
    else:
        lines, nbest = read_generated(path, count)
        lines, notes = _undo_subwords(path, lines, subword)
    if plain or tokenizer == "none":
        running, tokens = lines, list(map(moses_tokenizer(lang), lines))
    else:
        running, tokens = list(map(moses_detokenizer(lang), lines)), list(map(unescape, lines))
    return Hypotheses(name or str(path), running, tokens, nbest, notes)
