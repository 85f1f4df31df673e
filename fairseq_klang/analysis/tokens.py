"""Moses tokens and running text, shared by preparing and scoring, and the tokenizer that BLEU
takes for a language."""

import re
from typing import Callable, Optional, Tuple

# What leaves nothing on paper: control characters (which Moses' tokenizer drops), the soft hyphen,
# zero-width spaces, joiners and marks of direction, the byte order mark.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)

# Languages written without spaces between words, by ISO 639-1 and 639-3, to sacrebleu's tokenizer
# (sacrebleu/metrics/bleu.py); None where it has none that works offline.
_SACREBLEU = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "km", "khm", "lo", "lao", "my", "mya"), None),
}


def is_blank(line: str) -> bool:
    """Whether nothing of the line can be seen: white space, control and zero-width characters."""
    return not _INVISIBLE.sub("", line).strip()


def moses_tokenizer(lang: str, escape: bool = False) -> Callable[[str], str]:
    """A function from a line to its Moses tokens, joined by spaces.

    escape: write & ' " < > [ ] | as entities such as &apos;, as Moses' tokenizer.perl does.
    """
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang)
    return lambda line: tokenizer.tokenize(line, escape=escape, return_str=True)


def moses_detokenizer(lang: str) -> Callable[[str], str]:
    """A function from tokens joined by spaces to running text, with entities undone, as in
    fairseq's --eval-bleu."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang)
    return lambda line: detokenizer.detokenize(line.split())


def unescape(line: str) -> str:
    """Undo the entities of an escaping tokenizer; other lines are returned as they are."""
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer().unescape_xml(line)


def bleu_tokenizer(lang: str) -> Tuple[str, Optional[str]]:
    """(sacrebleu's tokenizer for text in `lang`, a note on what it stands in for, or None).

    13a splits at spaces and punctuation, so that a Chinese sentence would be one word: languages
    without spaces between words get sacrebleu's tokenizer of their own where it is installed, and
    characters elsewhere (its flores200 would be downloaded when first used).
    """
    from sacrebleu.metrics import BLEU

    code = re.split("[-_]", lang)[0].lower()
    if code not in _SACREBLEU:
        return "13a", None
    name = _SACREBLEU[code]
    if name is None:
        return "char", (
            f"BLEU counts characters (char): sacrebleu has no tokenizer for {lang} of its own; "
            "with a network, --sacrebleu-tokenize flores200"
        )
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError):  # sacrebleu raises either where MeCab is missing
        return "char", (
            f"BLEU counts characters (char): sacrebleu's {name} for {lang} is not installed; "
            f"pip install 'sacrebleu[{name[:2]}]'"
        )
    return name, None
