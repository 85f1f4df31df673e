"""What a recipe is: the table of settings, the data folder, and the commands that follow from both;
nothing here runs or writes."""

import configparser
import contextlib
import dataclasses
import glob
import json
import os
import re
import shlex
from typing import Dict, List

from ..collision import K_LANG, collision_size
from ..errors import KlangError
from ..files import sha256

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)


TABLE = os.path.join(PACKAGE, "experiments", "recipes.ini")
USER_DIR = PACKAGE
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


class RecipeError(KlangError):
    """A recipe, data folder or run folder that cannot be used."""


# -- the table -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Recipe:
    """One experiment. model, training: flags of fairseq-train; losses: {name: flags} of every
    criterion it can be trained with."""

    id: str
    about: str
    source: (
        str  # test BLEU in the source, or why there is none; "" where only source_epochs is known
    )
    source_epochs: List[float]
    data: str
    always: List[str]
    model: List[str]
    training: List[str]
    loss: str  # the source's criterion
    losses: Dict[str, List[str]]
    epochs: int
    seed: int
    average: int  # 0: translate with the best epoch
    note: str

    def flags(self, loss):
        """The flags of fairseq-train without those of the machine and the data."""
        return (
            self.always
            + self.model
            + self.losses[loss]
            + self.training
            + ["--max-epoch", str(self.epochs)]
        )


SHARED = ("always", "models", "training", "losses")
INHERITED = ("data", "model", "training", "loss", "epochs", "seed", "average")


def read_table(path=TABLE):
    """{id: Recipe} of a table as examples/iwslt14/recipes.ini describes it."""
    table = configparser.ConfigParser(interpolation=None)
    with open(path, encoding="utf-8") as stream:
        table.read_file(stream)
    return {name: _recipe(table, name) for name in table.sections() if name not in SHARED}


def _recipe(table, name):
    section = dict(table[name])
    inherited = table[section["like"]] if "like" in section else {}
    section.update(
        {key: inherited[key] for key in INHERITED if key in inherited and key not in section}
    )

    def expand(group, text):
        first, *flags = shlex.split(text)
        return shlex.split(table[group][first]) + flags

    loss = section["loss"].split()[0]
    losses = {other: expand("losses", other) for other in ("ce", "softbleu")}
    losses[loss] = expand("losses", section["loss"])
    return Recipe(
        id=name,
        about=section["about"],
        source=section.get("source", ""),
        source_epochs=[float(value) for value in section.get("source_epochs", "").split()],
        data=section["data"],
        always=shlex.split(table["always"]["flags"]),
        model=expand("models", section["model"]),
        training=expand("training", section["training"]),
        loss=loss,
        losses=losses,
        epochs=int(section["epochs"]),
        seed=int(section["seed"]),
        average=int(section.get("average", 0)),
        note=section.get("note", ""),
    )


def find_recipe(table, name):
    """The recipe of that id, in any case and with A8' for A8p. Raises RecipeError."""
    wanted = name.replace("'", "p").lower()
    for known, recipe in table.items():
        if known.lower() == wanted:
            return recipe
    raise RecipeError(f"there is no recipe {name!r}; the recipes are {', '.join(table)}")


def list_recipes(table):
    """The table as text: id, BLEU in the source, criterion, epochs, data, what it is."""
    rows = [("id", "source", "loss", "epochs", "data", "what")]
    for recipe in table.values():
        source = recipe.source or " ".join(f"{value:.2f}" for value in recipe.source_epochs)
        what = f"{recipe.about} ({recipe.note})" if recipe.note else recipe.about
        rows.append((recipe.id, source, recipe.loss, str(recipe.epochs), recipe.data, what))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


# -- the data --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    """A folder that fairseq-preprocess wrote, by whomever."""

    folder: str
    source: str
    target: str
    subword: str  # "bpe" (undoing it does nothing to words) or "sentencepiece"
    tokenizer: str  # "moses" or "none"
    vocabulary: Dict[
        str, int
    ]  # {language: entries of the dictionary, without fairseq's four special ones}
    joined: bool
    files: Dict[str, str]  # {name: SHA-256}, of the dictionaries and every split


def read_data(folder, source=None, target=None, tokenizer=None, subset="test"):
    """Look over a data folder; languages are found by the names of its files unless given. Raises
    RecipeError.

    tokenizer: None takes what klang prepare wrote beside the folder, or else "moses".
    """
    folder = os.path.abspath(folder)
    if not glob.glob(os.path.join(folder, "dict.*.txt")) and glob.glob(
        os.path.join(folder, "bin", "dict.*.txt")
    ):
        folder = os.path.join(folder, "bin")
    if not os.path.isdir(folder):
        raise RecipeError(
            f"--data {folder} is no folder; make it with klang prepare or fairseq-preprocess"
        )
    names = sorted(os.listdir(folder))
    found = sorted(
        {
            match.group(1, 2)
            for name in names
            for match in [re.match(r"train\.(\w+)-(\w+)\.\w+\.idx$", name)]
            if match
        }
    )
    pairs = [pair for pair in found if source in (None, pair[0]) and target in (None, pair[1])]
    if len(pairs) != 1:
        what = ", ".join("-".join(pair) for pair in found) or "no train.SOURCE-TARGET.LANG.idx"
        raise RecipeError(
            f"--data {folder} has {what}; name a folder that fairseq-preprocess wrote, and the "
            "languages with -s and -t"
        )
    source, target = pairs[0]
    needed = [f"dict.{lang}.txt" for lang in (source, target)]
    for split in ("train", "valid", subset):
        needed += [
            f"{split}.{source}-{target}.{lang}.{end}"
            for lang in (source, target)
            for end in ("bin", "idx")
        ]
    missing = [name for name in needed if name not in names]
    if missing:
        raise RecipeError(
            f"--data {folder} lacks {missing[0]}; run fairseq-preprocess with the splits train, "
            f"valid and {subset}"
        )
    vocabulary, marked = {}, False
    for lang in (source, target):
        with open(os.path.join(folder, f"dict.{lang}.txt"), encoding="utf-8") as stream:
            lines = stream.readlines()
        vocabulary[lang] = len(lines)
        marked = marked or any(line.startswith("\u2581") for line in lines)
    if tokenizer is None:
        tokenizer = "moses"
        with contextlib.suppress(FileNotFoundError), open(
            os.path.join(os.path.dirname(folder), "prepare.json"), encoding="utf-8"
        ) as stream:
            tokenizer = json.load(stream).get("options", {}).get("tokenizer", tokenizer)
    files = {name: sha256(os.path.join(folder, name)) for name in needed}
    joined = files[f"dict.{source}.txt"] == files[f"dict.{target}.txt"]
    subword = "sentencepiece" if marked else "bpe"
    return Data(folder, source, target, subword, tokenizer, vocabulary, joined, files)


def find_reference(data, subset):
    """The raw reference that klang prepare keeps beside the binary data, or None."""
    path = os.path.join(os.path.dirname(data.folder), "raw", f"{subset}.{data.target}")
    return next((name for name in (path, path + ".gz") if os.path.isfile(name)), None)


# -- the commands ----------------------------------------------------------------------------------


def flag_value(flags, *names):
    """The value of the last of these flags on a command line, "" where it has none, or None where
    it is not there."""
    value = None
    for flag, after in zip(flags, [*flags[1:], ""]):
        name, equals, given = flag.partition("=")
        if name in names:
            value = given if equals else after
    return value


def share_batch(flags, gpus):
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
    """Everything that one run does. Commands are lists; the first word of each is fairseq's console
    command."""

    recipe: Recipe
    data: Data
    out: str
    loss: str
    seed: int
    device: str
    gpus: int
    subset: str
    extra: List[str]
    generate_flags: List[str]

    def __post_init__(self):
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
    def checkpoints(self):
        """The folder for fairseq's --save-dir."""
        return os.path.join(self.out, "checkpoints")

    @property
    def translating(self):
        """The checkpoint that translates."""
        return os.path.join(
            self.checkpoints, "average.pt" if self.recipe.average else "checkpoint_best.pt"
        )

    def train_flags(self):
        """The flags of fairseq-train that decide what is trained; none of them is a path of this
        run."""
        flags = ["-s", self.data.source, "-t", self.data.target] + share_batch(
            self.recipe.flags(self.loss), self.gpus
        )
        flags += [
            "--eval-bleu-detok",
            "moses" if self.data.tokenizer == "moses" else "space",
            "--eval-bleu-remove-bpe",
        ]
        flags += ["sentencepiece"] if self.data.subword == "sentencepiece" else []
        flags += (
            ["--keep-last-epochs", str(self.recipe.average)]
            if self.recipe.average
            else ["--no-epoch-checkpoints"]
        )
        flags += ["--seed", str(self.seed), "--distributed-world-size", str(self.gpus)]
        return flags + (["--cpu"] if self.device == "cpu" else []) + self.extra

    def train(self):
        """The fairseq-train command."""
        paths = [
            "--user-dir",
            USER_DIR,
            "--save-dir",
            self.checkpoints,
            "--log-file",
            os.path.join(self.out, "train.log"),
        ]
        return ["fairseq-train", self.data.folder] + paths + self.train_flags()

    def output(self, beam):
        """The file that a generation fills."""
        return os.path.join(self.out, f"gen.{self.subset}.{beam}.out")

    def generate_settings(self, beam):
        """The flags of fairseq-generate that decide what is translated."""
        flags = [
            "-s",
            self.data.source,
            "-t",
            self.data.target,
            "--gen-subset",
            self.subset,
            "--beam",
            str(BEAMS[beam]),
        ]
        flags += ["--batch-size", "128", "--required-batch-size-multiple", "1"]
        return flags + (["--cpu"] if self.device == "cpu" else []) + self.generate_flags

    def generate(self, beam, checkpoint=None):
        """The fairseq-generate command, with :attr:`translating` unless told otherwise; its output
        goes to :meth:`output`."""
        return [
            "fairseq-generate",
            self.data.folder,
            "--user-dir",
            USER_DIR,
            "--path",
            checkpoint or self.translating,
        ] + self.generate_settings(beam)

    def notes(self):
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
        if self.loss == "ce":
            return lines
        flags, vocab = (
            self.train_flags(),
            data.vocabulary[data.target] + 4,
        )  # fairseq's special symbols
        given, k_lang = (
            flag_value(flags, "--sb-topk"),
            float(flag_value(flags, "--k-lang") or K_LANG),
        )
        try:
            k = collision_size(vocab, k_lang) if given is None else int(given)
        except ValueError as error:
            raise RecipeError(f"--k-lang: {error}") from None
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
                    f"note: k is the source's, for V = {theirs.group(1)}; append --sb-topk "
                    f"{wanted} to keep k / V"
                )
        return lines

    def key(self):
        """What makes two runs the same run: no path, date or version is part of it."""
        return {
            "id": self.recipe.id,
            "loss": self.loss,
            "seed": self.seed,
            "device": self.device,
            "gpus": self.gpus,
            "subset": self.subset,
            "train": self.train_flags(),
            "generate": {beam: self.generate_settings(beam) for beam in BEAMS},
            "average": self.recipe.average,
            "data": self.data.files,
        }

    def commands(self, reference=None):
        """{step: the command as one would type it}, in order."""
        steps = {"train": shell(self.train())}
        if self.recipe.average:
            steps["average"] = shell(
                [
                    "klang",
                    "average",
                    "--dir",
                    self.checkpoints,
                    "--last-epochs",
                    str(self.recipe.average),
                    "--output",
                    self.translating,
                ]
            )
        for beam in BEAMS:
            steps[f"generate {beam}"] = (
                f"{shell(self.generate(beam))} > {shlex.quote(self.output(beam))}"
            )
        for beam in BEAMS if reference else ():
            score = [
                "klang",
                "score",
                "--ref",
                reference,
                "--subword",
                self.data.subword,
                "--tokenizer",
                self.data.tokenizer,
            ]
            steps[f"score {beam}"] = shell(score + ["-t", self.data.target, self.output(beam)])
        return steps


def shell(command):
    """A command as one line for a shell."""
    return " ".join(map(shlex.quote, command))


# -- comparing two runs' settings
# ----------------------------------------------------------------------------------


def _flat(key):
    """A run's key as {what: value as text}; a command line falls apart into its flags, of which the
    last counts."""
    flat = {}
    for name, value in key.items():
        if name == "train":
            flag = ""
            for word in value:
                if re.match(r"-{1,2}[A-Za-z]", word):
                    flag, word = word.partition("=")[0], word.partition("=")[2]
                    flat[flag] = word
                else:
                    flat[flag] = f"{flat[flag]} {word}".strip()
        elif isinstance(value, dict):
            flat.update(
                {
                    f"{name} {part}": shell(it) if isinstance(it, list) else str(it)
                    for part, it in value.items()
                }
            )
        else:
            flat[name] = str(value)
    return flat


def difference(old, new):
    """The first thing in which two keys differ, as (what, old, new), or None."""
    if old == new:
        return None
    old, new = _flat(old), _flat(new)
    for what in [*old, *new]:
        if old.get(what) != new.get(what):
            return what, old.get(what, "not given"), new.get(what, "not given")
    return "the order of the flags", "another", "this"
