"""Moses tokens and running text: the one tokenisation that preparing and scoring share."""

import re


def is_blank(line):
    """Whether nothing is left of the line once control characters are gone (the tokenizer drops
    them)."""
    return not re.sub(r"[\x00-\x1f]", "", line).strip()


def moses_tokenizer(lang, escape=False):
    """A function from a line to its Moses tokens, joined by spaces.

    escape: write & ' " < > [ ] | as entities such as &apos;, as Moses' tokenizer.perl does.
    """
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang)
    return lambda line: tokenizer.tokenize(line, escape=escape, return_str=True)


def moses_detokenizer(lang):
    """A function from tokens joined by spaces to running text; entities are undone, as in fairseq's
    --eval-bleu."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang)
    return lambda line: detokenizer.detokenize(line.split())


def unescape(line):
    """Undo the entities that an escaping tokenizer wrote; a line without any is returned as it
    is."""
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer().unescape_xml(line)
