"""`klang translate`: raw text in, raw text out, through an exported CTranslate2 model."""
import dataclasses
import itertools
import json
import os
import sys

from tqdm import tqdm

from ..analysis.scoring import join_subwords
from ..data.prepare import PrepareOptions, apply_bpe, apply_sentencepiece, tokenizer
from ..errors import KlangError
from ..text import is_blank, moses_detokenizer, read_lines

RECORD, CODES, PIECES = "klang.json", "bpe.codes", "spm.model"  # beside CTranslate2's own files
MAX_LENGTH = 200  # tokens of an output, as in fairseq-generate
CHUNK = 2000  # lines that are read, sorted by length and translated together


class TranslateError(KlangError):
    """A model folder or text that cannot be translated."""


def import_ctranslate2():
    """The module ctranslate2; raises TranslateError where it is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise TranslateError("CTranslate2 is not installed: pip install 'fairseq-klang[export]'") from None
    return ctranslate2


def preprocessing(data):
    """(options, {name: path}) of klang prepare for the data folder `data`: its options, and the subword model to keep.

    (None, {}) where another tool made the folder: then text must be given as the model reads it.
    """
    folder = os.path.dirname(os.path.abspath(str(data)))
    path = os.path.join(folder, "prepare.json")
    if not os.path.isfile(path):
        return None, {}
    try:
        with open(path, encoding="utf-8") as stream:
            options = json.load(stream)["options"]
    except (ValueError, KeyError) as error:
        raise TranslateError(f"{path} cannot be read ({error}); run klang prepare again") from None
    names = {"bpe": (CODES, "codes"), "sentencepiece": (PIECES, "spm.model")}
    if options["subword"] not in names:
        return options, {}
    name, kept = names[options["subword"]]
    path = os.path.join(folder, "subword", kept)
    if not os.path.isfile(path):
        raise TranslateError(f"{path} is gone, and raw text cannot be translated without it; run klang prepare again")
    return options, {name: path}


class Translator:
    """An exported model: tokens to tokens, and with its record raw text to raw text.

    folder: what `klang export` wrote. threads: translations at a time, one core each; None is all cores.
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
                raise TranslateError(f"{folder} holds no {RECORD}; name a folder that klang export wrote") from None
        self.record = record
        if threads is not None and threads < 1:
            raise TranslateError(f"--threads is {threads}; it must be 1 or more")
        try:
            # Many small translations beside each other are faster than one on many cores, in int8 by far.
            self._model = ctranslate2.Translator(
                str(folder), compute_type=compute_type, inter_threads=threads or os.cpu_count() or 1, intra_threads=1
            )
        except (RuntimeError, ValueError) as error:
            raise TranslateError(f"CTranslate2 cannot load {folder}: {' '.join(str(error).split())}; export the checkpoint again") from None
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
            prepare = PrepareOptions(**{name: value for name, value in options.items() if name in known})
            tokenize = tokenizer(self.record["source_lang"], prepare)
            split = str
            if prepare.subword == "bpe":
                split = apply_bpe(self._path(CODES))
            elif prepare.subword == "sentencepiece":
                split = apply_sentencepiece(self._path(PIECES))
            kind = "none" if prepare.subword == "word" else prepare.subword
            detokenize = moses_detokenizer(self.record["target_lang"]) if prepare.tokenizer == "moses" else str
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
            max_decoding_length=MAX_LENGTH,
            max_input_length=0,  # no silent cut
            asynchronous=True,
            suppress_sequences=[["<blank>"]],  # fairseq never writes padding
        )

    def translate_tokens(self, sentences, *, beam=5, batch_tokens=1024):
        """Lists of source tokens to lists of target tokens, in order."""
        return [result.result().hypotheses[0] for result in self._start(sentences, beam, batch_tokens)]

    def score_tokens(self, sentences, targets, *, batch_tokens=1024):
        """Log-probabilities of each target's tokens and of </s> after them, teacher-forced."""
        results = self._model.score_batch(sentences, targets, max_batch_size=batch_tokens, batch_type="tokens", max_input_length=0)
        return [result.log_probs for result in results]

    def translate(self, lines, *, beam=5, batch_tokens=1024, chunk=CHUNK):
        """Yield a translation for each raw line of an iterable, in order; a blank line stays blank.

        Raises TranslateError for a line longer than the model takes, naming it.
        """
        numbered = enumerate(lines, 1)
        while True:
            group = list(itertools.islice(numbered, chunk))
            if not group:
                return
            sentences = []
            for number, line in group:
                tokens = [] if is_blank(line) else self.encode(line)
                if len(tokens) > self.record["max_source_tokens"]:
                    raise TranslateError(
                        f"line {number} has {len(tokens)} tokens and the model takes {self.record['max_source_tokens']}; split the line"
                    )
                sentences.append(tokens)
            results = iter(self._start([tokens for tokens in sentences if tokens], beam, batch_tokens))
            for tokens in sentences:
                yield self.decode(next(results).result().hypotheses[0]) if tokens else ""


def translate_file(folder, source=None, output=None, *, beam=5, batch_tokens=1024, threads=None):
    """Translate the file `source` (None: standard input) into the file `output` (None: standard output); returns the number of lines.

    The output file appears only when it is complete. Raises TranslateError, TextError.
    """
    for option, value in (("--beam", beam), ("--batch-tokens", batch_tokens)):
        if value < 1:
            raise TranslateError(f"{option} is {value}; it must be 1 or more")
    if source is not None and not os.path.isfile(source):
        raise TranslateError(f"{source} does not exist")
    translator = Translator(folder, threads=threads)
    typed = source is None and sys.stdin.isatty()
    total = sum(1 for _ in read_lines(source)) if source is not None else None
    lines = translator.translate(
        read_lines("/dev/stdin" if source is None else source), beam=beam, batch_tokens=batch_tokens, chunk=1 if typed else CHUNK
    )
    lines = tqdm(lines, total=total, desc="translate", unit=" lines", disable=typed or None if source is None else False)
    count = 0
    partial = None if output is None else f"{output}.partial"
    stream = sys.stdout if output is None else open(partial, "w", encoding="utf-8", newline="\n")
    try:
        for line in lines:
            stream.write(line + "\n")
            count += 1
            if typed:
                stream.flush()
        stream.flush()
    except BaseException:
        if output is not None:
            stream.close()
            os.remove(partial)
        raise
    if output is not None:
        stream.close()
        os.replace(partial, output)
    return count
