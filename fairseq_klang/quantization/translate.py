"""`klang translate`: raw text in, raw text out, through an exported CTranslate2 model."""

import contextlib
import itertools
import os
import sys
import tempfile
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from tqdm import tqdm

from ..analysis.hypotheses import join_subwords
from ..analysis.tokens import is_blank, moses_detokenizer
from ..data.options import PrepareOptions
from ..data.prepare import SUMMARY, read_summary
from ..data.subwords import MODELS, splitter
from ..data.text import tokenizer
from ..errors import KlangError
from ..files import Path, read_json, read_lines, sha256, written

RECORD = "klang.json"  # beside CTranslate2's own files
SERVED = {"bpe": "bpe.codes", "sentencepiece": "spm.model"}  # the subword model there
MAX_LENGTH = 200  # tokens of an output, as in fairseq-generate
# lines that are read, sorted by length and translated together, unless --buffer-size says otherwise
CHUNK = 2000

_FIELDS = {
    "source_lang": str,
    "target_lang": str,
    "max_source_tokens": int,
    "max_target_tokens": (int, type(None)),  # folders of the first exports do not say
    "prepare": (dict, type(None)),
    "files": (dict, type(None)),  # {name: SHA-256}
}


class TranslateError(KlangError):
    """A model folder or text that cannot be translated."""


def import_ctranslate2() -> Any:
    """The module ctranslate2; raises TranslateError where it is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise TranslateError(
            "CTranslate2 is not installed: pip install 'fairseq-klang[export]'"
        ) from None
    return ctranslate2


@contextlib.contextmanager
def _engine(what: str, fix: str) -> Iterator[None]:
    """CTranslate2's own errors as one line: `what` failed, and the `fix`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise TranslateError(
            f"CTranslate2 cannot {what}: {' '.join(str(error).split())}; {fix}"
        ) from None


def preprocessing(data: Path) -> Tuple[Optional[Dict[str, Any]], Dict[str, str]]:
    """(options, {name: path}) of klang prepare for the data folder `data`: its options, and the
    subword model to keep.

    (None, {}) where another tool made the folder: then text must be given as the model reads it.
    Raises TranslateError where what it needs is gone, or a dictionary is no longer the one that
    klang prepare wrote.
    """
    data = os.path.abspath(os.fspath(data))
    folder = os.path.dirname(data)
    report = read_summary(folder)
    if report is None:
        return None, {}
    options = PrepareOptions.of_record(report["options"], os.path.join(folder, SUMMARY))
    if os.path.basename(data) == "bin":  # the folder that the report is on
        for name, digest in report["dictionaries"].items():
            path = os.path.join(data, name)
            if not os.path.isfile(path) or sha256(path) != digest:
                raise TranslateError(
                    f"{path} is not the dictionary that klang prepare wrote there; a model trained "
                    "with that one would speak other words: put it back, or prepare and train again"
                )
    if options.subword not in MODELS:
        return report["options"], {}
    path = os.path.join(folder, "subword", MODELS[options.subword])
    if not os.path.isfile(path):
        raise TranslateError(
            f"{path} is gone, and raw text cannot be translated without it; run klang prepare again"
        )
    return report["options"], {SERVED[options.subword]: path}


def _read_record(folder: str) -> Dict[str, Any]:
    """The record in an exported folder, whose files are seen to be those of the export."""
    fix = "export the checkpoint again"
    record = read_json(os.path.join(folder, RECORD), TranslateError, fix, _FIELDS)
    if record is None:
        raise TranslateError(f"{folder} holds no {RECORD}; name a folder that klang export wrote")
    for name, digest in (record.get("files") or {}).items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise TranslateError(f"{path} is gone; {fix}")
        if sha256(path) != digest:
            raise TranslateError(f"{path} is damaged: it is not what klang export wrote; {fix}")
    return record


class Translator:
    """An exported model: tokens to tokens, and with its record raw text to raw text.

    folder: what `klang export` wrote. threads: translations at a time, one core each; None is all
        cores.
    Raises TranslateError where the folder is no such model.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: Optional[int] = None,
        compute_type: str = "default",
        record: Optional[Mapping[str, Any]] = None,
    ) -> None:
        ctranslate2 = import_ctranslate2()
        self.folder = os.fspath(folder)
        self.record = _read_record(self.folder) if record is None else record
        most = self.record.get("max_target_tokens")
        self.max_length = MAX_LENGTH if most is None else max(1, min(MAX_LENGTH, most))
        _check_range("--threads", threads, 1024)
        with _engine(f"load {folder}", "export the checkpoint again"):
            # Many small translations beside each other are faster than one on many cores, in int8
            # by far.
            self._model = ctranslate2.Translator(
                self.folder,
                compute_type=compute_type,
                inter_threads=threads or os.cpu_count() or 1,
                intra_threads=1,
            )
        self._text: Optional[Tuple[Callable[[str], List[str]], Callable[[List[str]], str]]] = None

    # -- text --

    def _steps(self) -> Tuple[Callable[[str], List[str]], Callable[[List[str]], str]]:
        """(encode, decode): a raw line to tokens, and tokens to a raw line."""
        if self._text is None:
            if self.record["prepare"] is None:
                self._text = str.split, " ".join
                return self._text
            options = PrepareOptions.of_record(
                self.record["prepare"], os.path.join(self.folder, RECORD)
            )
            kind = options.subword
            tokenize = tokenizer(self.record["source_lang"], options)
            split = splitter(kind, os.path.join(self.folder, SERVED.get(kind, "")))
            moses = options.tokenizer == "moses"
            detokenize = moses_detokenizer(self.record["target_lang"]) if moses else str
            joined = "none" if kind == "word" else kind
            self._text = (
                lambda line: split(tokenize(line)).split(),
                lambda tokens: detokenize(join_subwords([" ".join(tokens)], joined)[0]),
            )
        return self._text

    def encode(self, line: str) -> List[str]:
        """A raw line as the tokens that the model reads."""
        return self._steps()[0](line)

    def decode(self, tokens: List[str]) -> str:
        """The model's tokens as running text."""
        return self._steps()[1](tokens)

    # -- tokens --

    def _start(self, sentences: List[List[str]], beam: int, batch_tokens: int) -> Any:
        return self._model.translate_batch(
            sentences,
            beam_size=beam,
            max_batch_size=batch_tokens,
            batch_type="tokens",
            max_decoding_length=self.max_length,
            max_input_length=0,  # no silent cut
            asynchronous=True,
            suppress_sequences=[["<blank>"]],  # fairseq never writes padding
        )

    def _translating(self) -> Any:
        return _engine(
            f"translate with {self.folder}",
            "if an older version exported it, export the checkpoint again",
        )

    def translate_tokens(
        self, sentences: List[List[str]], *, beam: int = 5, batch_tokens: int = 1024
    ) -> List[List[str]]:
        """Lists of source tokens to lists of target tokens, in order."""
        with self._translating():
            return [
                result.result().hypotheses[0]
                for result in self._start(sentences, beam, batch_tokens)
            ]

    def score_tokens(
        self, sentences: List[List[str]], targets: List[List[str]], *, batch_tokens: int = 1024
    ) -> List[List[float]]:
        """Log-probabilities of each target's tokens and of </s> after them, teacher-forced."""
        with self._translating():
            results = self._model.score_batch(
                sentences,
                targets,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                max_input_length=0,
            )
        return [result.log_probs for result in results]

    # -- lines --

    def encode_lines(self, lines: Iterable[str]) -> Iterator[List[str]]:
        """Yield the tokens of each raw line; none for a blank one. Raises TranslateError for a line
        longer than the model takes, naming it."""
        most = self.record["max_source_tokens"]
        for number, line in enumerate(lines, 1):
            tokens = [] if is_blank(line) else self.encode(line)
            if len(tokens) > most:
                raise TranslateError(
                    f"line {number} has {len(tokens)} tokens and the model takes {most}; split the "
                    "line"
                )
            yield tokens

    def translate_encoded(
        self,
        sentences: Iterable[List[str]],
        *,
        beam: int = 5,
        batch_tokens: int = 1024,
        chunk: int = CHUNK,
    ) -> Iterator[str]:
        """Yield a translation for each list of tokens, in order; no tokens are a blank line.
        `chunk` of them are read before the first answer."""
        sentences = iter(sentences)
        while True:
            group = list(itertools.islice(sentences, chunk))
            if not group:
                return
            with self._translating():
                results = iter(
                    self._start([tokens for tokens in group if tokens], beam, batch_tokens)
                )
            for tokens in group:
                with self._translating():
                    output = next(results).result().hypotheses[0] if tokens else []
                yield self.decode(output)

    def translate(self, lines: Iterable[str], **options: int) -> Iterator[str]:
        """Yield a translation for each raw line of an iterable, in order; a blank line stays blank.
        Options are those of translate_encoded.

        Raises TranslateError for a line longer than the model takes, naming it.
        """
        return self.translate_encoded(self.encode_lines(lines), **options)


# -- files -----------------------------------------------------------------------------------------


def _check_range(option: str, value: Optional[int], most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise TranslateError(f"{option} is {value}; it must be 1 to {most:,}")


def _check_paths(source: Optional[str], output: Optional[str]) -> None:
    """Raise TranslateError, before any work, for an input that cannot be read or an output that
    cannot be written."""
    if source is None and sys.stdin is None:
        raise TranslateError("standard input is closed; name a file with --input")
    if source is not None and os.path.isdir(source):
        raise TranslateError(f"--input {source} is a folder; name a file")
    if source is not None and not os.path.exists(source):
        raise TranslateError(f"--input {source} does not exist")
    if output is None:
        if sys.stdout is None:
            raise TranslateError("standard output is closed; name a file with --output")
        return
    folder, name = os.path.split(output)
    if os.path.isdir(output) or not name:
        raise TranslateError(f"--output {output or repr(output)} is a folder; name a file in it")
    if not os.path.isdir(folder or "."):
        raise TranslateError(f"--output {output}: there is no folder {folder}; make it first")


@contextlib.contextmanager
def _output(path: Optional[str]) -> Iterator[IO[str]]:
    """The stream for the translations: the file `path`, or standard output (None), in UTF-8 as the
    input is, whatever the terminal's language."""
    if path is not None:
        with written(path) as stream:
            yield stream
        return
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    yield sys.stdout


def _spooled(sentences: Iterable[List[str]]) -> Tuple[int, IO[str]]:
    """(number, an open file with a line for each) of lists of tokens, so that an error in one of
    them comes before work while memory stays small."""
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")
            )
            count = 0
            for tokens in sentences:
                stream.write(" ".join(tokens) + "\n")
                count += 1
            stream.seek(0)
            stack.pop_all()  # the caller closes it
            return count, stream
    except OSError as error:
        raise TranslateError(
            f"the tokens cannot be kept in {tempfile.gettempdir()}: {error.strerror or error}; set "
            "TMPDIR to a folder with room"
        ) from None


def translate_file(
    folder: Path,
    source: Optional[str] = None,
    output: Optional[str] = None,
    *,
    beam: int = 5,
    batch_tokens: int = 1024,
    threads: Optional[int] = None,
    buffer_size: Optional[int] = None,
) -> int:
    """Translate the file `source` (None: standard input) into the file `output` (None: standard
    output); returns the number of lines.

    All lines of a file are tokenised before the first is translated; of a pipe `buffer_size` lines
    are read at a time (None: CHUNK, and 1 where a user types). The output file appears only when it
    is complete. Raises TranslateError, TextError, OutputError.
    """
    _check_range("--beam", beam, 1000)
    _check_range("--batch-tokens", batch_tokens, 1_000_000)
    _check_range("--buffer-size", buffer_size, 1_000_000_000)
    _check_paths(source, output)
    translator = Translator(folder, threads=threads)
    typed = source is None and sys.stdin.isatty()
    quiet = typed or None if source is None else False  # None: where standard error is no terminal
    lines = read_lines("standard input", sys.stdin.buffer) if source is None else read_lines(source)
    sentences: Iterable[List[str]] = translator.encode_lines(lines)
    total, count = None, 0
    with contextlib.ExitStack() as stack:
        if source is not None and os.path.isfile(source):
            total, spool = _spooled(tqdm(sentences, desc="tokenise", unit=" lines"))
            sentences = map(str.split, stack.enter_context(spool))
        translations = translator.translate_encoded(
            sentences,
            beam=beam,
            batch_tokens=batch_tokens,
            chunk=buffer_size or (1 if typed else CHUNK),
        )
        stream = stack.enter_context(_output(output))
        for line in tqdm(translations, total=total, desc="translate", unit=" lines", disable=quiet):
            stream.write(line + "\n")
            stream.flush()
            count += 1
    return count
