"""Recipes made small enough for a test."""

from fairseq_klang import cli
from fairseq_klang.experiments.plan import Plan, flag_value, read_data
from fairseq_klang.experiments.recipes import read_table
from helpers.running import TINY_LSTM, TINY_TRANSFORMER

TABLE = read_table()


def tiny(name):
    """Overrides that make any recipe small enough for a test."""
    arch = flag_value(TABLE[name].flags(TABLE[name].loss), "--arch")
    size = TINY_LSTM if "lstm" in arch else TINY_TRANSFORMER
    return [*size, "--num-workers", "0"]


def plan_of(data, out, name, loss, *extra, seed=None, subsets=("test",)):
    """The plan of a recipe on the CPU, with a tiny model."""
    recipe = TABLE[name]
    seed = recipe.seed if seed is None else seed
    flags = [*tiny(name), *extra]
    folder = read_data(str(data), subsets=subsets)
    return Plan(recipe, folder, str(out), loss, seed, subsets=list(subsets), extra=flags)


def error_of(capsys, *arguments):
    """The one line with which `klang` refuses its arguments, with status 2."""
    capsys.readouterr()
    try:
        status = cli.main(list(map(str, arguments)))
    except SystemExit as end:
        status = end.code
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    return line
