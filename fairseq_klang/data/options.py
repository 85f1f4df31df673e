"""The options of `klang prepare`, each declared once: value, help, and the step it matters from."""

import dataclasses
import re
from typing import Any, Dict, Mapping, Tuple

from ..errors import KlangError

STEPS = ("raw", "tok", "subword", "bin")


class PrepareError(KlangError):
    """Text or options that cannot be prepared."""


def _option(default: Any, text: str, **metadata: Any) -> Any:
    """A field. step: the first step whose result depends on the option, None if none does."""
    return dataclasses.field(default=default, metadata=dict(metadata, help=text))


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """Every option of `klang prepare`; the command line is made from these fields. Raises
    PrepareError on a bad value."""

    source_lang: str = _option(
        "de",
        "source language: the ending of the source files",
        flags=("-s", "--source-lang"),
        step="raw",
    )
    target_lang: str = _option(
        "en",
        "target language: the ending of the target files",
        flags=("-t", "--target-lang"),
        step="raw",
    )
    subword: str = _option(
        "bpe",
        "units of the model, learned on the training text of both languages",
        choices=("bpe", "sentencepiece", "word"),
        step="subword",
    )
    vocab_size: int = _option(
        8000,
        "bpe: merge operations; sentencepiece: size of the vocabulary; word: most frequent words "
        "kept in each dictionary (a joined dictionary is one), 0 keeps all",
        step="subword",
    )
    tokenizer: str = _option(
        "moses", "tokenizer, applied before lower-casing", choices=("moses", "none"), step="tok"
    )
    escape: bool = _option(
        False,
        "write & ' \" < > [ ] | as entities such as &apos;, as Moses' tokenizer.perl does",
        step="tok",
    )
    keep_case: bool = _option(False, "do not lower-case the text", step="tok")
    dictionary: str = _option(
        "joined",
        "one dictionary for both languages, or one for each",
        choices=("joined", "separate"),
        step="bin",
    )
    limit: int = _option(
        0, "use only the first N training pairs, for trials; 0 uses all", metavar="N", step="raw"
    )
    workers: int = _option(
        1, "processes to work with; the result does not depend on it", metavar="N", step=None
    )
    word_cut: str = _option(
        "exact",
        "word: exact keeps the --vocab-size most frequent words; threshold keeps every word that "
        "occurs N times or more, with the N that comes closest to --vocab-size words",
        choices=("exact", "threshold"),
        step="bin",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            choices, value = field.metadata.get("choices"), getattr(self, field.name)
            if type(value) is not type(field.default):  # from a damaged record
                raise PrepareError(
                    f"{flag(field.name)} is {value!r}; it must be of the type "
                    f"{type(field.default).__name__}"
                )
            if choices and value not in choices:
                raise PrepareError(
                    f"{flag(field.name)} is {value!r}; it must be one of {', '.join(choices)}"
                )
        if self.word_cut == "threshold" and self.subword != "word":
            raise PrepareError(
                f"--word-cut threshold needs --subword word; --subword is {self.subword!r}"
            )
        may_keep_all = self.subword == "word" and self.word_cut == "exact"
        least = {"vocab_size": 0 if may_keep_all else 1, "limit": 0, "workers": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise PrepareError(
                    f"{flag(name)} is {getattr(self, name)}; it must be {minimum} or more"
                )
        for name, most in {"vocab_size": 10**9, "workers": 1024}.items():
            if getattr(self, name) > most:
                raise PrepareError(
                    f"{flag(name)} is {getattr(self, name)}; it must be at most {most}"
                )
        if self.source_lang == self.target_lang:
            raise PrepareError(
                f"--source-lang and --target-lang are both {self.source_lang!r}; they must differ"
            )
        for name in ("source_lang", "target_lang"):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", getattr(self, name)):
                raise PrepareError(
                    f"{flag(name)} is {getattr(self, name)!r}; it must be letters, digits or _, "
                    "such as de or pt_BR"
                )
        if self.escape and self.tokenizer != "moses":
            raise PrepareError(
                f"--escape needs --tokenizer moses; --tokenizer is {self.tokenizer!r}"
            )

    @property
    def langs(self) -> Tuple[str, str]:
        """(source, target)"""
        return self.source_lang, self.target_lang

    def until(self, step: str) -> Dict[str, Any]:
        """{name: value} of the options that the result of `step` depends on."""
        steps = STEPS[: STEPS.index(step) + 1]
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["step"] in steps
        }

    @classmethod
    def of_record(cls, values: Mapping[str, Any], path: str) -> "PrepareOptions":
        """The options that the file `path` keeps, which may hold names of another version."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except PrepareError as error:
            raise PrepareError(f"{path} is damaged: {error}") from None


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


# -- presets of klang prepare iwslt14 --------------------------------------------------------------

PRESETS: Dict[str, Dict[str, Any]] = {
    "bpe8k": {"subword": "bpe", "vocab_size": 8000},
    "bpe32k": {"subword": "bpe", "vocab_size": 32000},
    # fairseq's own recipe
    "bpe10k": {"subword": "bpe", "vocab_size": 10000, "dictionary": "separate"},
    "sentencepiece": {"subword": "sentencepiece", "vocab_size": 8000},
    "word": {"subword": "word", "vocab_size": 56652, "word_cut": "threshold"},
}
# The options that a preset decides.
BY_PRESET = ("subword", "vocab_size", "word_cut", "dictionary", "escape")


def preset_options(preset: str, **changes: Any) -> PrepareOptions:
    """The PrepareOptions of a preset with `changes`; tokens are escaped as in fairseq's recipe.
    Raises PrepareError."""
    if preset not in PRESETS:
        raise PrepareError(f"--preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    values = dict(PRESETS[preset], **changes)
    values.setdefault("escape", values.get("tokenizer", "moses") == "moses")
    return PrepareOptions(**values)
