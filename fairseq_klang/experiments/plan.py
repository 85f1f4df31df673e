"""What one run does: the data folder that it reads, and the commands that follow from recipe and
data; nothing here runs or writes."""

import dataclasses
import glob
import os
import re
import shlex
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..collision import K_LANG, collision_size
from ..compat import resume_flags
from ..files import PACKAGE, read_json, sha256
from .recipes import Recipe, RecipeError

BEAMS = {"beam5": 5, "greedy": 1}
# What the command line sets by itself; the value says what to give instead.
OWNED = {
    "--save-dir": "--out",
    "--log-file": "--out",
    "--log-format": "nothing, for the log is read as JSON",
    "--cpu": "--device cpu",
    "--distributed-world-size": "--gpus",
    "--criterion": "--loss",
    "--no-save": "nothing, for a checkpoint translates",
    "--restore-file": "--finetune-from-model, or --task translation_dualhead --init-from",
}


# -- the data --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    """A folder that fairseq-preprocess wrote, by whomever.

    Attributes:
        subword: "bpe" (undoing it does nothing to words) or "sentencepiece".
        tokenizer: "moses" or "none".
        vocabulary: {language: entries of the dictionary, without fairseq's four special ones}.
        files: {name: SHA-256}, of the dictionaries and every split that is used.
    """

    folder: str
    source: str
    target: str
    subword: str
    tokenizer: str
    vocabulary: Dict[str, int]
    joined: bool
    files: Dict[str, str]


def read_data(
    folder: str,
    source: Optional[str] = None,
    target: Optional[str] = None,
    tokenizer: Optional[str] = None,
    subsets: Sequence[str] = ("test",),
) -> Data:
    """Look over a data folder, or the folder above it. Raises RecipeError.

    source, target: languages, found by the names of the files unless given.
    tokenizer: None takes what klang prepare wrote beside the folder, or else "moses".
    subsets: the splits that are translated.
    """
    folder = os.path.abspath(folder)
    inner = os.path.join(folder, "bin")
    if not _dictionaries(folder) and _dictionaries(inner):
        folder = inner
    if not os.path.isdir(folder):
        raise RecipeError(
            f"--data {folder} is no folder; make it with klang prepare or fairseq-preprocess"
        )
    names = sorted(os.listdir(folder))
    matches = [re.match(r"train\.(\w+)-(\w+)\.\w+\.idx$", name) for name in names]
    found = sorted({(match.group(1), match.group(2)) for match in matches if match})
    pairs = [pair for pair in found if source in (None, pair[0]) and target in (None, pair[1])]
    if len(pairs) != 1:
        what = ", ".join("-".join(pair) for pair in found) or "no train.SOURCE-TARGET.LANG.idx"
        raise RecipeError(
            f"--data {folder} has {what}; name a folder that fairseq-preprocess wrote, and the "
            "languages with -s and -t"
        )
    source, target = pairs[0]
    needed = [f"dict.{lang}.txt" for lang in (source, target)]
    for split in ("train", "valid", *subsets):
        needed += [name for lang in (source, target) for name in _split(split, pairs[0], lang)]
    missing = [name for name in needed if name not in names]
    if missing:
        raise RecipeError(
            f"--data {folder} lacks {missing[0]}; run fairseq-preprocess with the splits train, "
            f"valid and {' and '.join(subsets)}"
        )
    vocabulary, marked = {}, False
    for lang in (source, target):
        with open(
            os.path.join(folder, f"dict.{lang}.txt"), encoding="utf-8", errors="replace"
        ) as stream:
            lines = stream.readlines()
        vocabulary[lang] = len(lines)
        marked = marked or any(line.startswith("\u2581") for line in lines)
    files = {name: sha256(os.path.join(folder, name)) for name in needed}
    return Data(
        folder,
        source,
        target,
        "sentencepiece" if marked else "bpe",
        tokenizer or _prepared_tokenizer(folder),
        vocabulary,
        files[f"dict.{source}.txt"] == files[f"dict.{target}.txt"],
        files,
    )


def _dictionaries(folder: str) -> List[str]:
    return glob.glob(os.path.join(glob.escape(folder), "dict.*.txt"))


def _split(name: str, pair: Tuple[str, str], lang: str) -> List[str]:
    return [f"{name}.{pair[0]}-{pair[1]}.{lang}.{end}" for end in ("bin", "idx")]


def _prepared_tokenizer(folder: str) -> str:
    path = os.path.join(os.path.dirname(folder), "prepare.json")
    record = read_json(path, RecipeError, "prepare the data again, or give --tokenizer") or {}
    options = record.get("options") if isinstance(record, dict) else None
    return str(options.get("tokenizer", "moses")) if isinstance(options, dict) else "moses"


def find_subsets(folder: str, wanted: Sequence[str] = ("test", "test1", "test2")) -> List[str]:
    """Those of the splits `wanted` that a data folder, or its bin/, has."""
    places = [glob.escape(folder), os.path.join(glob.escape(folder), "bin")]
    return [
        name
        for name in wanted
        if any(glob.glob(os.path.join(place, f"{name}.*.idx")) for place in places)
    ]


def find_reference(data: Data, subset: str) -> Optional[str]:
    """The raw reference that klang prepare keeps beside the binary data, or None."""
    path = os.path.join(os.path.dirname(data.folder), "raw", f"{subset}.{data.target}")
    return next((name for name in (path, path + ".gz") if os.path.isfile(name)), None)


# -- the commands ----------------------------------------------------------------------------------


def flag_value(flags: Sequence[str], *names: str) -> Optional[str]:
    """The value of the last of these flags on a command line, "" where it has none, or None where
    it is not there."""
    value = None
    for flag, after in zip(flags, [*flags[1:], ""]):
        name, equals, given = flag.partition("=")
        if name in names:
            value = given if equals else after
    return value


def share_batch(flags: Sequence[str], gpus: int) -> List[str]:
    """The flags with --batch-size and --max-tokens divided by the number of GPUs. Raises
    RecipeError where that is no whole number."""
    shared = list(flags)
    for number, flag in enumerate(flags):
        if gpus > 1 and flag in ("--batch-size", "--max-tokens"):
            size, rest = divmod(int(flags[number + 1]), gpus)
            if rest:
                raise RecipeError(
                    f"--gpus {gpus} does not divide the recipe's {flag} {flags[number + 1]}; "
                    "choose another number"
                )
            shared[number + 1] = str(size)
    return shared


@dataclasses.dataclass
class Plan:
    """Everything that one run does. Commands are lists of words.

    Attributes:
        out: the run folder.
        subsets: the splits that are translated, each with all `decodings`, names of BEAMS.
        extra: further flags of fairseq-train, which override the recipe's.
        generate_flags: further flags of fairseq-generate.
    """

    recipe: Recipe
    data: Data
    out: str
    loss: str
    seed: int
    device: str = "cpu"
    gpus: int = 1
    subsets: List[str] = dataclasses.field(default_factory=lambda: ["test"])
    extra: List[str] = dataclasses.field(default_factory=list)
    generate_flags: List[str] = dataclasses.field(default_factory=list)
    decodings: List[str] = dataclasses.field(default_factory=lambda: list(BEAMS))

    def __post_init__(self) -> None:
        if self.loss not in self.recipe.losses:
            raise RecipeError(
                f"--loss is {self.loss!r}; it must be one of {', '.join(self.recipe.losses)}"
            )
        if self.gpus < 1 or (self.device == "cpu" and self.gpus > 1):
            raise RecipeError(
                f"--gpus is {self.gpus}; it must be 1 or more, and goes with --device cuda"
            )
        for flag in self.extra:
            name = flag.partition("=")[0]
            if name in OWNED or name.startswith("--reset-"):
                raise RecipeError(
                    f"{name} is set by the recipe; use "
                    f"{OWNED.get(name, 'another --out for a fresh start')}"
                )
        share_batch(self.recipe.flags(self.loss), self.gpus)

    @property
    def name(self) -> str:
        """What to call it while it runs."""
        return f"{self.recipe.id} {self.loss}, seed {self.seed}"

    @property
    def checkpoints(self) -> str:
        """The folder for fairseq's --save-dir."""
        return os.path.join(self.out, "checkpoints")

    @property
    def log(self) -> str:
        """The log of the training."""
        return os.path.join(self.out, "train.log")

    @property
    def translates(self) -> bool:
        """Whether the model translates; one that learns from the source alone does not."""
        return "--source-only" not in self.extra

    @property
    def translating(self) -> str:
        """The checkpoint that translates."""
        return os.path.join(
            self.checkpoints, "average.pt" if self.recipe.average else "checkpoint_best.pt"
        )

    def outputs(self) -> Dict[Tuple[str, str], str]:
        """{(subset, decoding): the file that a generation fills}"""
        pairs = [(subset, beam) for subset in self.subsets for beam in self.decodings]
        named = {pair: os.path.join(self.out, "gen.{}.{}.out".format(*pair)) for pair in pairs}
        return named if self.translates else {}

    def train_flags(self) -> List[str]:
        """The flags of fairseq-train that decide what is trained, on this device."""
        flags = ["-s", self.data.source, "-t", self.data.target, *resume_flags()]
        flags += share_batch(self.recipe.flags(self.loss), self.gpus)
        if self.translates:
            undo = "sentencepiece" if self.data.subword == "sentencepiece" else ""
            flags += self.recipe.validation
            flags += ["--eval-bleu-detok", "moses" if self.data.tokenizer == "moses" else "space"]
            flags += ["--eval-bleu-remove-bpe", *filter(None, [undo])]
        if self.recipe.average:
            flags += ["--keep-last-epochs", str(self.recipe.average)]
        elif flag_value(flags + self.extra, "--keep-last-epochs") is None:
            flags += ["--no-epoch-checkpoints"]
        flags += ["--seed", str(self.seed), "--distributed-world-size", str(self.gpus)]
        return flags + (["--cpu"] if self.device == "cpu" else []) + self.extra

    def train(self) -> List[str]:
        """The command that trains: fairseq-train, but for bfloat16 on a CPU."""
        flags, program = self.train_flags(), ["fairseq-train"]
        if self.device == "cpu" and "--bf16" in flags:
            program = ["python", "-m", "fairseq_klang.experiments.train_bfloat16"]
            flags = [flag for flag in flags if flag != "--bf16"]
        paths = ["--user-dir", PACKAGE, "--save-dir", self.checkpoints, "--log-file", self.log]
        return [*program, self.data.folder, *paths, *flags]

    def generate_settings(self, subset: str, beam: str) -> List[str]:
        """The flags of fairseq-generate that decide what is translated."""
        flags = ["-s", self.data.source, "-t", self.data.target, "--gen-subset", subset]
        flags += ["--beam", str(BEAMS[beam])]
        flags += ["--batch-size", "128", "--required-batch-size-multiple", "1"]
        return flags + (["--cpu"] if self.device == "cpu" else []) + self.generate_flags

    def generate(self, subset: str, beam: str, checkpoint: Optional[str] = None) -> List[str]:
        """The fairseq-generate command, with :attr:`translating` unless told otherwise."""
        paths = ["--user-dir", PACKAGE, "--path", checkpoint or self.translating]
        return [
            "fairseq-generate",
            self.data.folder,
            *paths,
            *self.generate_settings(subset, beam),
        ]

    def notes(self) -> List[str]:
        """Lines on where the data and k differ from those that the recipe is made for."""
        data, made_for = self.data, self.recipe.data
        sizes = [f"{data.vocabulary[lang]:,}" for lang in (data.source, data.target)]
        kind = (
            f"a joined dictionary of {sizes[0]}"
            if data.joined
            else f"separate dictionaries of {' and '.join(sizes)}"
        )
        lines = [f"data: {kind} entries; the recipe's: {made_for}"]
        if ("separate" if data.joined else "joined") in made_for:
            lines.append(
                f"note: the dictionaries are {'joined' if data.joined else 'separate'}, which is "
                "not what the recipe is made for"
            )
        flags = self.train_flags()
        if flag_value(flags, "--criterion") != "restricted_softbleu":
            return lines
        vocab = data.vocabulary[data.target] + 4  # fairseq's special symbols
        given = flag_value(flags, "--sb-topk")
        name = "--k-lang" if given is None else "--sb-topk"
        try:
            k_lang = float(flag_value(flags, "--k-lang") or K_LANG)
            k = collision_size(vocab, k_lang) if given is None else int(given)
        except ValueError as error:
            raise RecipeError(f"{name}: {error}") from None
        lines.append(
            f"soft BLEU over {f'k = {k:,}' if 0 < k < vocab else 'all'} of {vocab:,} tokens "
            f"({'k_lang' if given is None else '--sb-topk'})"
        )
        theirs = re.search(r"V = ([\d,]+)", made_for)
        if k > vocab:
            lines.append(
                f"note: --sb-topk {k} is above the vocabulary of {vocab:,}: the full softmax is "
                "used"
            )
        elif k and theirs and given is not None and flag_value(self.extra, "--sb-topk") is None:
            wanted = max(1, round(k * vocab / int(theirs.group(1).replace(",", ""))))
            if abs(wanted - k) > 0.1 * k:
                lines.append(
                    f"note: k is the series', for V = {theirs.group(1)}; append --sb-topk "
                    f"{wanted} to keep k / V"
                )
        return lines

    def key(self) -> Dict[str, Any]:
        """What makes two runs the same run: no path of the run, date or version is part of it."""
        return {
            "id": self.recipe.id,
            "loss": self.loss,
            "seed": self.seed,
            "device": self.device,
            "gpus": self.gpus,
            "train": self.train_flags(),
            "generate": {" ".join(pair): self.generate_settings(*pair) for pair in self.outputs()},
            "average": self.recipe.average,
            "data": self.data.files,
        }

    def commands(self, references: Dict[str, Optional[str]]) -> List[str]:
        """The commands as one would type them, in order; references: {subset: file or None}."""
        steps = [shell(self.train())]
        if self.recipe.average:
            epochs = ["--dir", self.checkpoints, "--last-epochs", str(self.recipe.average)]
            steps.append(shell(["klang", "average", *epochs, "--output", self.translating]))
        outputs = self.outputs()
        for (subset, beam), output in outputs.items():
            steps.append(f"{shell(self.generate(subset, beam))} > {shlex.quote(output)}")
        text = ["--subword", self.data.subword, "--tokenizer", self.data.tokenizer]
        for (subset, _), output in outputs.items():
            reference = references.get(subset)
            if reference:
                score = ["klang", "score", "--ref", reference, *text, "-t", self.data.target]
                steps.append(shell([*score, output]))
        return steps


def shell(command: Sequence[str]) -> str:
    """A command as one line for a shell."""
    return " ".join(map(shlex.quote, command))


# -- comparing two runs' settings ------------------------------------------------------------------


def _flat(key: Dict[str, Any]) -> Dict[str, str]:
    """A run's key as {what: value as text}; a command line falls apart into its flags, of which the
    last counts."""
    flat: Dict[str, str] = {}
    for name, value in key.items():
        if name == "train":
            flag = ""
            for word in value:
                if re.match(r"-{1,2}[A-Za-z]", word):
                    flag, word = word.partition("=")[0], word.partition("=")[2]
                    flat[flag] = word
                else:
                    flat[flag] = f"{flat.get(flag, '')} {word}".strip()
        elif isinstance(value, dict):
            for part, it in value.items():
                flat[f"{name} {part}"] = shell(it) if isinstance(it, list) else str(it)
        else:
            flat[name] = str(value)
    return flat


def difference(old: Dict[str, Any], new: Dict[str, Any]) -> Optional[Tuple[str, str, str]]:
    """The first thing in which two keys differ, as (what, old, new), or None."""
    if old == new:
        return None
    before, after = _flat(old), _flat(new)
    for what in [*before, *after]:
        if before.get(what) != after.get(what):
            return what, before.get(what, "not given"), after.get(what, "not given")
    return "the order of the flags", "another", "this"
