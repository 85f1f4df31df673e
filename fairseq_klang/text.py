"""Text in: lines of a file, and the one Moses tokenisation that preparing and scoring share."""
import contextlib
import gzip
import re
import zlib

from .errors import KlangError


class TextError(KlangError):
    """A text file that cannot be read."""


def read_lines(path, stream=None):
    """Yield each line of a UTF-8 file (.gz or not), every run of white space made one space.

    Only "\\n" ends a line: other separators that Python or fairseq would split at (U+2028, "\\r", ...) become spaces,
    so that every later tool sees the same number of lines. Raises TextError naming the file and line.
    stream: read this open binary stream, which errors call `path`.
    """
    number = 0
    try:
        with contextlib.ExitStack() as stack:
            stream = stream or stack.enter_context(open(path, "rb"))
            if str(path).endswith(".gz"):
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            for number, line in enumerate(stream, 1):
                yield " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
    except FileNotFoundError:
        raise TextError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise TextError(f"{path} line {number} is not UTF-8 ({error.reason}); convert the file, e.g. with iconv") from None
    except (EOFError, zlib.error) as error:
        raise TextError(f"{path} is damaged or cut short after line {number} ({error}); fetch it again") from None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}") from None


def is_blank(line):
    """Whether nothing is left of the line once control characters are gone (the tokenizer drops them)."""
    return not re.sub(r"[\x00-\x1f]", "", line).strip()


def moses_tokenizer(lang, escape=False):
    """A function from a line to its Moses tokens, joined by spaces.

    escape: write & ' " < > [ ] | as entities such as &apos;, as Moses' tokenizer.perl does.
    """
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang)
    return lambda line: tokenizer.tokenize(line, escape=escape, return_str=True)


def moses_detokenizer(lang):
    """A function from tokens joined by spaces to running text; entities are undone, as in fairseq's --eval-bleu."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang)
    return lambda line: detokenizer.detokenize(line.split())


def unescape(line):
    """Undo the entities that an escaping tokenizer wrote; a line without any is returned as it is."""
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer().unescape_xml(line)
