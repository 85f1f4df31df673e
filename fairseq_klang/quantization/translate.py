"""`klang translate`: raw text in, raw text out, through an exported CTranslate2 model."""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import tempfile

from tqdm import tqdm

from ..analysis.hypotheses import join_subwords
from ..analysis.tokens import is_blank, moses_detokenizer
from ..data.prepare import PrepareOptions, apply_bpe, apply_sentencepiece, tokenizer
from ..errors import KlangError
from ..files import read_lines, sha256

RECORD, CODES, PIECES = "klang.json", "bpe.codes", "spm.model"  # beside CTranslate2's own files
MAX_LENGTH = 200  # tokens of an output, as in fairseq-generate
# lines that are read, sorted by length and translated together, unless --buffer-size says otherwise
CHUNK = 2000


class TranslateError(KlangError):
    """A model folder or text that cannot be translated."""


def import_ctranslate2():
    """The module ctranslate2; raises TranslateError where it is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise TranslateError(
            "CTranslate2 is not installed: pip install 'fairseq-klang[export]'"
        ) from None
    return ctranslate2


@contextlib.contextmanager
def _engine(what, fix):
    """CTranslate2's own errors as one line: `what` failed, and the `fix`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise TranslateError(
            f"CTranslate2 cannot {what}: {' '.join(str(error).split())}; {fix}"
        ) from None


def preprocessing(data):
    """(options, {name: path}) of klang prepare for the data folder `data`: its options, and the
    subword model to keep.

    (None, {}) where another tool made the folder: then text must be given as the model reads it.
    Raises TranslateError where what it needs is gone, or a dictionary is no longer the one that
    klang prepare wrote.
    """
    folder = os.path.dirname(os.path.abspath(str(data)))
    path = os.path.join(folder, "prepare.json")
    if not os.path.isfile(path):
        return None, {}
    try:
        with open(path, encoding="utf-8") as stream:
            report = json.load(stream)
        options = report["options"]
    except (ValueError, KeyError) as error:
        raise TranslateError(f"{path} cannot be read ({error}); run klang prepare again") from None
    if os.path.basename(os.path.abspath(str(data))) == "bin":  # the folder that the report is on
        for name, digest in report.get("dictionaries", {}).items():
            if sha256(os.path.join(str(data), name)) != digest:
                raise TranslateError(
                    f"{os.path.join(str(data), name)} is not the dictionary that klang prepare "
                    "wrote there; a model trained with that one would "
                    "speak other words: put it back, or prepare and train again"
                )
    names = {"bpe": (CODES, "codes"), "sentencepiece": (PIECES, "spm.model")}
    if options["subword"] not in names:
        return options, {}
    name, kept = names[options["subword"]]
    path = os.path.join(folder, "subword", kept)
    if not os.path.isfile(path):
        raise TranslateError(
            f"{path} is gone, and raw text cannot be translated without it; run klang prepare again"
        )
    return options, {name: path}


class Translator:
    """An exported model: tokens to tokens, and with its record raw text to raw text.

    folder: what `klang export` wrote. threads: translations at a time, one core each; None is all
        cores.
    Raises TranslateError where the folder is no such model.
    """

    def __init__(self, folder, *, threads=None, compute_type="default", record=None):
        ctranslate2 = import_ctranslate2()
        self.folder = str(folder)
        if record is None:
            try:
                with open(self._path(RECORD), encoding="utf-8") as stream:
                    record = json.load(stream)
            except (OSError, ValueError):
                raise TranslateError(
                    f"{folder} holds no {RECORD}; name a folder that klang export wrote"
                ) from None
        self.record = record
        # Folders of the first exports do not say.
        self.max_length = min(MAX_LENGTH, record.get("max_target_tokens", MAX_LENGTH))
        if threads is not None and threads < 1:
            raise TranslateError(f"--threads is {threads}; it must be 1 or more")
        with _engine(f"load {folder}", "export the checkpoint again"):
            # Many small translations beside each other are faster than one on many cores, in int8
            # by far.
            self._model = ctranslate2.Translator(
                str(folder),
                compute_type=compute_type,
                inter_threads=threads or os.cpu_count() or 1,
                intra_threads=1,
            )
        self._text = None

    # -- text --

    def _steps(self):
        """(encode, decode): a raw line to tokens, and tokens to a raw line."""
        if self._text is None:
            options = self.record["prepare"]
            if options is None:
                self._text = str.split, " ".join
                return self._text
            known = {field.name for field in dataclasses.fields(PrepareOptions)}
            prepare = PrepareOptions(
                **{name: value for name, value in options.items() if name in known}
            )
            tokenize = tokenizer(self.record["source_lang"], prepare)
            split = str
            if prepare.subword == "bpe":
                split = apply_bpe(self._path(CODES))
            elif prepare.subword == "sentencepiece":
                split = apply_sentencepiece(self._path(PIECES))
            kind = "none" if prepare.subword == "word" else prepare.subword
            detokenize = (
                moses_detokenizer(self.record["target_lang"])
                if prepare.tokenizer == "moses"
                else str
            )
            self._text = (
                lambda line: split(tokenize(line)).split(),
                lambda tokens: detokenize(join_subwords([" ".join(tokens)], kind)[0]),
            )
        return self._text

    def _path(self, name):
        return os.path.join(self.folder, name)

    def encode(self, line):
        """A raw line as the tokens that the model reads."""
        return self._steps()[0](line)

    def decode(self, tokens):
        """The model's tokens as running text."""
        return self._steps()[1](tokens)

    # -- tokens --

    def _start(self, sentences, beam, batch_tokens):
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

    def _translating(self):
        return _engine(
            f"translate with {self.folder}",
            "if an older version exported it, export the checkpoint again",
        )

    def translate_tokens(self, sentences, *, beam=5, batch_tokens=1024):
        """Lists of source tokens to lists of target tokens, in order."""
        with self._translating():
            return [
                result.result().hypotheses[0]
                for result in self._start(sentences, beam, batch_tokens)
            ]

    def score_tokens(self, sentences, targets, *, batch_tokens=1024):
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

    def encode_lines(self, lines):
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

    def translate_encoded(self, sentences, *, beam=5, batch_tokens=1024, chunk=CHUNK):
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
                    output = next(results).result().hypotheses[0] if tokens else None
                yield self.decode(output) if tokens else ""

    def translate(self, lines, **options):
        """Yield a translation for each raw line of an iterable, in order; a blank line stays blank.
        Options are those of translate_encoded.

        Raises TranslateError for a line longer than the model takes, naming it.
        """
        return self.translate_encoded(self.encode_lines(lines), **options)


# -- files -----------------------------------------------------------------------------------------


def _check_paths(source, output):
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


def _append(path, flags):
    return os.open(
        path, os.O_WRONLY | os.O_APPEND
    )  # what stands before in a file behind /dev/stdout is not ours


@contextlib.contextmanager
def _written(output):
    """The text stream to write to: standard output (None), or the file `output`, which appears only
    when it is complete.

    What exists and is no regular file (a device, a pipe) is written straight into. Raises
    TranslateError.
    """
    if output is None:
        yield sys.stdout
        return
    straight = (
        os.path.exists(output)
        and not os.path.isfile(output)
        or os.path.abspath(output).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    )
    real = os.path.realpath(output)  # the file, not a link to it, is replaced
    path = output if straight else f"{real}.partial"
    try:
        with open(
            path, "w", encoding="utf-8", newline="\n", opener=_append if straight else None
        ) as stream:
            yield stream
        if not straight:
            os.replace(path, real)
    except BaseException as error:
        if not straight:
            with contextlib.suppress(OSError):
                os.remove(path)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise TranslateError(
                f"--output {output} cannot be written: {error.strerror or error}"
            ) from None
        raise


@contextlib.contextmanager
def _spooled(sentences):
    """(number, iterator) of lists of tokens once all have been read, so that an error comes before
    work; memory stays small."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as stream:
        count = 0
        for tokens in sentences:
            stream.write(" ".join(tokens) + "\n")
            count += 1
        stream.seek(0)
        yield count, (line.split() for line in stream)


def translate_file(
    folder, source=None, output=None, *, beam=5, batch_tokens=1024, threads=None, buffer_size=None
):
    """Translate the file `source` (None: standard input) into the file `output` (None: standard
    output); returns the number of lines.

    All lines of a file are tokenised before the first is translated; of a pipe `buffer_size` lines
    are read at a time (None: CHUNK, and 1 where a user types). The output file appears only when it
    is complete. Raises TranslateError, TextError.
    """
    for option, value in (
        ("--beam", beam),
        ("--batch-tokens", batch_tokens),
        ("--buffer-size", CHUNK if buffer_size is None else buffer_size),
    ):
        if value < 1:
            raise TranslateError(f"{option} is {value}; it must be 1 or more")
    _check_paths(source, output)
    translator = Translator(folder, threads=threads)
    typed = source is None and sys.stdin.isatty()
    quiet = typed or None if source is None else False  # None: where standard error is no terminal
    lines = read_lines("standard input", sys.stdin.buffer) if source is None else read_lines(source)
    sentences, total, count = translator.encode_lines(lines), None, 0
    with contextlib.ExitStack() as stack:
        if source is not None and os.path.isfile(source):
            total, sentences = stack.enter_context(
                _spooled(tqdm(sentences, desc="tokenise", unit=" lines"))
            )
        translations = translator.translate_encoded(
            sentences,
            beam=beam,
            batch_tokens=batch_tokens,
            chunk=buffer_size or (1 if typed else CHUNK),
        )
        stream = stack.enter_context(_written(output))
        for line in tqdm(translations, total=total, desc="translate", unit=" lines", disable=quiet):
            stream.write(line + "\n")
            stream.flush()
            count += 1
    return count
