"""The table of experiments, recipes.ini: for each one the model, the training and the losses, and
what the series reports."""

import configparser
import dataclasses
import os
import shlex
from typing import Dict, List

from ..analysis.tables import as_table
from ..errors import KlangError
from ..files import PACKAGE, Path

TABLE = os.path.join(PACKAGE, "experiments", "recipes.ini")


class RecipeError(KlangError):
    """A recipe, data folder or run folder that cannot be used."""


@dataclasses.dataclass
class Recipe:
    """One experiment.

    Attributes:
        always, model, training: flags of fairseq-train.
        validation: further ones, of a training that translates the validation set.
        losses: {name: flags} of every criterion it can be trained with; `loss` is its own.
        series: test BLEU in the series, or why there is none; "" where the series has no such
            experiment, or only figures by epoch, `series_epochs`.
        average: average that many last epochs before translating; 0 takes the best epoch.
    """

    id: str
    about: str
    series: str
    series_epochs: List[float]
    data: str
    always: List[str]
    validation: List[str]
    model: List[str]
    training: List[str]
    loss: str
    losses: Dict[str, List[str]]
    epochs: int
    seed: int
    average: int
    note: str

    def flags(self, loss: str) -> List[str]:
        """The flags of fairseq-train without those of the machine, the data and validation."""
        epochs = ["--max-epoch", str(self.epochs)]
        return self.always + self.model + self.losses[loss] + self.training + epochs

    def series_told(self) -> str:
        """The series' figures as text, "" where it has none."""
        return self.series or " ".join(f"{value:.2f}" for value in self.series_epochs)


SHARED = ("always", "models", "training", "losses")
INHERITED = ("data", "model", "training", "loss", "epochs", "seed", "average")


def read_table(path: Path = TABLE) -> Dict[str, Recipe]:
    """{id: Recipe} of a table; recipes.ini itself tells its form."""
    table = configparser.ConfigParser(interpolation=None)
    with open(path, encoding="utf-8") as stream:
        table.read_file(stream)
    return {name: _recipe(table, name) for name in table.sections() if name not in SHARED}


def _recipe(table: configparser.ConfigParser, name: str) -> Recipe:
    section = dict(table[name])
    if "like" in section:
        like = table[section["like"]]
        section = {**{key: like[key] for key in INHERITED if key in like}, **section}

    def expand(group: str, text: str) -> List[str]:
        first, *flags = shlex.split(text)
        return shlex.split(table[group][first]) + flags

    loss = section["loss"].split()[0]
    losses = {other: expand("losses", other) for other in ("ce", "softbleu")}
    losses[loss] = expand("losses", section["loss"])
    return Recipe(
        id=name,
        about=section["about"],
        series=section.get("series", ""),
        series_epochs=[float(value) for value in section.get("series_epochs", "").split()],
        data=section["data"],
        always=shlex.split(table["always"]["flags"]),
        validation=shlex.split(table["always"]["validation"]),
        model=expand("models", section["model"]),
        training=expand("training", section["training"]),
        loss=loss,
        losses=losses,
        epochs=int(section["epochs"]),
        seed=int(section["seed"]),
        average=int(section.get("average", 0)),
        note=" ".join(section.get("note", "").split()),
    )


def find_recipe(table: Dict[str, Recipe], name: str) -> Recipe:
    """The recipe of that id, in any case and with A8' for A8p. Raises RecipeError."""
    wanted = name.replace("'", "p").lower()
    for known, recipe in table.items():
        if known.lower() == wanted:
            return recipe
    raise RecipeError(f"there is no recipe {name!r}; the recipes are {', '.join(table)}")


def list_recipes(table: Dict[str, Recipe]) -> str:
    """The table as text: id, BLEU in the series, criterion, epochs, data, what it is."""
    rows = [["id", "series", "loss", "epochs", "data", "what"]]
    for recipe in table.values():
        what = f"{recipe.about} ({recipe.note})" if recipe.note else recipe.about
        told = recipe.series_told() or "-"
        rows.append([recipe.id, told, recipe.loss, str(recipe.epochs), recipe.data, what])
    return as_table(rows)
