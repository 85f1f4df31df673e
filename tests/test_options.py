"""Every option of every command with values that make no sense: one line, and exit status 2."""

import argparse
import re
import sys

import pytest

from fairseq_klang import cli
from fairseq_klang.data import prepare as preparing
from helpers.logs import JSON_LOG, log
from helpers.outputs import REFERENCE, SYSTEM, generated
from helpers.text import pairs

# No number, no name, no file; too small, too large; not UTF-8 (as an argument's bytes come in).
VALUES = [
    "",
    " ",
    "-1",
    "0",
    "1e9",
    "nan",
    "9" * 30,
    "\u00fc\u2581",
    "\udcff",
    "a,b:c",
    "none/x",
    ".",
]

# The least that each command needs, with files that are there where it works without fairseq.
COMMANDS = {
    "prepare multi30k": "--from {0}/none --out {0}/out",
    "prepare text": "--train {0}/t --valid {0}/t --test {0}/t --out {0}/out --vocab-size 9",
    "prepare iwslt14": "--archive {0}/gen --out {0}/out",
    "score": "--ref {0}/ref.en {0}/gen {0}/gen --samples 40",
    "average": "--inputs {0}/gen --output {0}/average.pt",
    "export": "{0}/gen --data {0}/none --out {0}/served",
    "translate": "{0}/none --input {0}/ref.en",
    "report": "{0} --out {0}/report",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that COMMANDS names, in the working folder; binarising is left out."""
    bin_facts = {"vocabulary": {"de": 0, "en": 0}, "dictionaries": {}}
    monkeypatch.setattr(preparing._Job, "bin", lambda job, folder: bin_facts)
    for lang, side in zip(("de", "en"), zip(*pairs(12, 1))):
        (tmp_path / f"t.{lang}").write_text("".join(line + "\n" for line in side))
    (tmp_path / "ref.en").write_text("".join(line + "\n" for line in REFERENCE))
    (tmp_path / "gen").write_text(generated(SYSTEM))
    log(tmp_path, JSON_LOG)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")  # where relative names in VALUES lead
    return tmp_path


def subparser(command):
    """The parser of a command such as "prepare text"."""
    parser = cli.parser()
    for name in command.split():
        (commands,) = (
            action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        )
        parser = commands.choices[name]
    return parser


def options(command):
    """The long names of a command's options that take a value."""
    return [
        action.option_strings[-1]
        for action in subparser(command)._actions
        if action.option_strings and action.nargs != 0
    ]


def ends_well(capsys, arguments):
    """The exit status; fails where an error is not one line, or none at all with status 2."""
    sys.stderr.reconfigure(errors="backslashreplace")  # as Python opens it, other than capsys
    try:
        status = cli.main(arguments)
    except SystemExit as stop:  # argparse
        status = stop.code
    err = capsys.readouterr().err
    told = [line for line in err.splitlines() if re.match(r"klang[\w -]*: error: .", line)]
    assert status in (0, 2) and len(told) == (status == 2), (arguments, err)
    assert not told or err.endswith(told[0] + "\n"), (arguments, err)
    return status


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_with_values_that_make_no_sense(folder, capsys, command):
    given = [*command.split(), *COMMANDS[command].format(folder).split()]
    tried = 0
    for option in options(command):
        for value in VALUES:
            out = f"--out={folder}/out{tried}"  # for those commands that have one
            fresh = [out] if command.startswith("prepare") and option != "--out" else []
            ends_well(capsys, [*given, *fresh, f"{option}={value}"])
            tried += 1
    assert tried >= len(VALUES)


def test_the_commands_work_with_values_that_do(folder, capsys):
    """Else the test above could pass on commands that fail before they look at an option."""
    for command in ("prepare text", "score", "report"):
        given = [*command.split(), *COMMANDS[command].format(folder).split()]
        assert ends_well(capsys, given) == 0


def test_every_command_is_tried():
    (commands,) = (
        action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    elsewhere = {"user-dir", "doctor", *cli.EXPERIMENTS, "study", "benchmark"}
    assert {name.split()[0] for name in COMMANDS} | elsewhere == set(commands.choices)
