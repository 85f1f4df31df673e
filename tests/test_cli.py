"""The command `klang`: exit statuses, one-line errors, and what goes to stdout."""

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis import curves
from fairseq_klang.checks import doctor
from fairseq_klang.data import prepare as preparing
from fairseq_klang.errors import KlangError
from helpers.checkpoints import save
from helpers.logs import JSON_LOG, log
from helpers.outputs import REFERENCE, SYSTEM, generated
from helpers.running import USER_DIR, spawn

COMMANDS = [
    "user-dir",
    "prepare multi30k",
    "prepare text",
    "prepare iwslt14",
    "score",
    "average",
    "export",
    "translate",
    "report",
    "doctor",
]


def klang(capsys, *arguments):
    """(exit status, stdout, stderr) of one call."""
    capsys.readouterr()
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def test_user_dir_prints_the_folder_and_nothing_else():
    assert spawn("fairseq_klang.cli", "user-dir").stdout == USER_DIR + "\n"


def test_exit_status_of_a_process():
    result = spawn("fairseq_klang.cli", "score", "--ref", "nowhere.en", "x", check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert (
        result.stderr.splitlines()[-1] == "klang: error: nowhere.en does not exist"
        and "Traceback" not in result.stderr
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(capsys, command):
    status, out, _ = klang(capsys, *command.split(), "--help")
    assert status == 0 and "example:" in out and f"klang {command}" in out.split("example:")[1]


def test_help_lists_every_command(capsys):
    _, out, _ = klang(capsys, "--help")
    assert all(command.split()[0] in out for command in COMMANDS)


@pytest.mark.slow
def test_prepare_then_everything_from_its_folder(capsys, tmp_path):
    for split, count in (("train", 6), ("dev", 5), ("test", 5)):
        for lang in ("de", "en"):
            (tmp_path / f"{split}.{lang}").write_text(
                "".join(f"{line}\n" for line in (REFERENCE * 2)[:count])
            )
    prefixes = [
        part
        for name, split in (("train", "train"), ("valid", "dev"), ("test", "test"))
        for part in (f"--{name}", tmp_path / split)
    ]
    status, out, err = klang(
        capsys, "prepare", "text", *prefixes, "--out", tmp_path / "out", "--vocab-size", 30
    )
    assert status == 0 and f"{tmp_path / 'out' / 'bin'} (6 training pairs" in out
    for number, step in enumerate(preparing.STEPS, 1):
        assert f"[{number}/4] {step}:" in err
    assert (tmp_path / "out" / "bin" / "dict.en.txt").exists()

    status, out, err = klang(
        capsys, "prepare", "text", *prefixes, "--out", tmp_path / "out", "--vocab-size", 31
    )
    assert (
        status == 2
        and out == ""
        and err.startswith("klang: error: ")
        and err.count("\n") == 1
        and "--vocab-size 30, now it is 31" in err
    )

    (tmp_path / "gen").write_text(generated(SYSTEM))
    status, out, _ = klang(
        capsys, "score", "--ref", tmp_path / "out" / "raw" / "test.en", tmp_path / "gen"
    )
    assert status == 0 and "sacreBLEU, detokenised, cased" in out and "nrefs:1" in out


def test_options_reach_prepare(capsys, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(
        preparing,
        "prepare",
        lambda *arguments: (
            seen.append(arguments) or {"vocabulary": {}, "lines": {"train": {"kept": 0}}}
        ),
    )
    command = (
        "prepare multi30k --from {0} --out o -s en -t de --subword word --vocab-size 0 "
        "--tokenizer none --keep-case --dictionary separate --limit 9 --workers 2"
    )
    status, _, _ = klang(capsys, *command.format(tmp_path).split())
    (inputs, out, options) = seen[0]
    assert status == 0 and out == "o" and inputs["valid"] == str(tmp_path / "val")
    assert options == preparing.PrepareOptions(
        "en", "de", "word", 0, "none", False, True, "separate", 9, 2
    )
    klang(capsys, "prepare", "multi30k", "--from", tmp_path, "--out", "o")
    assert seen[1][2] == preparing.PrepareOptions()
    klang(capsys, *"prepare text --train a --valid b --test c --test d --out o".split())
    assert seen[2][0] == {"train": "a", "valid": "b", "test": "c", "test1": "d"}


def test_bad_value_is_one_line(capsys, tmp_path):
    status, out, err = klang(
        capsys,
        "prepare",
        "multi30k",
        "--from",
        tmp_path,
        "--out",
        tmp_path / "o",
        "--subword",
        "bpee",
    )
    assert (status, out) == (
        2,
        "",
    ) and err == "klang: error: --subword is 'bpee'; it must be one of bpe, sentencepiece, word\n"


@pytest.mark.parametrize("encoding, shown", [("ascii", b"f\\xfcnf"), ("latin-1", b"f\xfcnf")])
def test_a_terminal_that_is_not_utf8_gets_what_it_can_show(tmp_path, monkeypatch, encoding, shown):
    folder = tmp_path / "f\u00fcnf"
    folder.mkdir()
    (folder / "ref.en").write_text("".join(line + "\n" for line in REFERENCE))
    log(folder, JSON_LOG)
    score = ["score", "--ref", folder / "ref.en", "--plain", folder / "ref.en"]
    report = ["report", folder, "--out", folder / "out"]
    for command, words in (
        (score, shown + b"/ref.en"),
        ([*score, "--json"], b"f\\u00fcnf/ref.en"),  # JSON anywhere
        (report, shown + b"/out/curves.csv"),
        (["translate", "--help"], b"ein hund"),
        (["recipe", "--list"], b"A10"),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            try:
                status = cli.main([str(part) for part in command])
            except SystemExit as stop:  # argparse
                status = stop.code
            stream.flush()
        assert status == 0 and words in stream.buffer.getvalue(), command


def test_a_full_disk_behind_standard_output_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "fairseq_klang.cli", "user-dir"],
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # empty: Python writes at its end
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    told = "klang: error: standard output: No space left on device\n"
    assert (result.returncode, result.stderr.splitlines(True)[-1]) == (2, told)
    assert "Exception" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["prepare"], ["score"], ["prepare", "text", "--train", "x"]]
)
def test_incomplete_commands(capsys, arguments):
    status, out, err = klang(capsys, *arguments)
    assert status == 2 and out == "" and "usage: klang" in err


# -- any value of any option --

ODD = [
    "",
    "-1",
    "0",
    "x",
    "1e9",
    "9" * 30,
    "nan",
    "/dev/null",
    ".",
    "no/x",
    "\udce4",
    "a\nb",
    "\u2581",
]


def options_of(*command):
    """The options of a command that take a value."""
    parser = cli.parser()
    for name in command:
        parser = next(action for action in parser._actions if action.choices).choices[name]
    return [
        action.option_strings[-1]
        for action in parser._actions
        if action.option_strings and action.nargs != 0
    ]


@pytest.mark.parametrize(
    "command",
    [
        "score --ref ref.en --plain ref.en ref.en --samples 40",
        "average --inputs checkpoint1.pt --output average.pt",
        "average --dir . --last-epochs 1 --output average.pt",
        "report . --out report",
        "translate no-model --input ref.en --output out",
        "export checkpoint1.pt --data . --out served",
        "prepare text --train ref --valid ref --test ref --out out -s en -t de",
        "prepare multi30k --from . --out out",
        "prepare iwslt14 --archive ref.en --out out",
    ],
)
def test_any_value_of_any_option_works_or_is_refused_in_one_line(
    capsys, tmp_path, monkeypatch, command
):
    def stop(*arguments):
        raise KlangError("the values are taken")

    monkeypatch.setattr(preparing, "run_step", stop)
    monkeypatch.setattr(curves, "PANELS", curves.PANELS[:1])  # drawing takes time
    monkeypatch.chdir(tmp_path)
    for name in ("ref.en", "ref.de"):
        (tmp_path / name).write_text("".join(line + "\n" for line in REFERENCE))
    save(tmp_path / "checkpoint1.pt", 1)
    log(tmp_path, JSON_LOG)
    words = command.split()
    for option in options_of(*words[: 2 if words[0] == "prepare" else 1]):
        for value in ODD:
            given = list(words)
            if option in given:
                given[given.index(option) + 1] = value
            else:
                given += [option, value]
            status, _, err = klang(capsys, *given)
            told = err.splitlines()[-1] if err else ""
            assert status == 0 or (status == 2 and ": error: " in told), (given, status, err)
            for made in ("out", "report", "served"):
                shutil.rmtree(tmp_path / made, ignore_errors=True)


def test_score_as_json(capsys, tmp_path):
    (tmp_path / "ref.en").write_text("".join(line + "\n" for line in REFERENCE))
    (tmp_path / "gen").write_text(generated(SYSTEM))
    status, out, _ = klang(
        capsys,
        "score",
        "--ref",
        tmp_path / "ref.en",
        tmp_path / "gen",
        tmp_path / "gen",
        "--json",
        "--samples",
        40,
    )
    report = json.loads(out)
    assert status == 0 and report["samples"] == 40 and len(report["systems"]) == 2
    assert report["differences"]["bleu"]["delta"] == 0 and report["systems"][0]["sentences"] == 5


def test_average(capsys, tmp_path):
    for epoch in (1, 2, 3):
        save(tmp_path / f"checkpoint{epoch}.pt", epoch)
    output = tmp_path / "average.pt"
    status, out, _ = klang(
        capsys, "average", "--dir", tmp_path, "--last-epochs", 2, "--output", output
    )
    assert status == 0 and "checkpoint2.pt" in out and "checkpoint1.pt" not in out
    assert torch.load(output)["model"]["bias"][0] == 2.5
    status, _, _ = klang(
        capsys,
        "average",
        "--inputs",
        tmp_path / "checkpoint1.pt",
        tmp_path / "checkpoint3.pt",
        "--output",
        output,
    )
    assert status == 0 and torch.load(output)["model"]["bias"][0] == 2.0
    for bad in (
        [],
        ["--dir", tmp_path],
        ["--inputs", "a", "--dir", "b"],
        ["--inputs", "a", "--last-epochs", 1],
        ["--inputs", tmp_path / "none.pt"],
    ):
        status, _, err = klang(capsys, "average", *bad, "--output", tmp_path / "other.pt")
        assert (
            status == 2
            and err.splitlines()[-1].startswith("klang: error: ")
            and not (tmp_path / "other.pt").exists()
        )


def test_interrupt_and_system_errors(capsys, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    def full(*arguments):
        raise OSError(28, "No space left on device", "out/tok")

    monkeypatch.setattr(preparing, "prepare", interrupted)
    command = ["prepare", "multi30k", "--from", tmp_path, "--out", "o"]
    status, _, err = klang(capsys, *command)
    assert (
        status == 130
        and err == "klang: interrupted; what is complete is kept, run the command again to go on\n"
    )
    from fairseq_klang.quantization import translate

    monkeypatch.setattr(translate, "translate_file", interrupted)
    status, _, err = klang(capsys, "translate", "m")  # it keeps nothing
    assert (
        status == 130
        and err
        == "klang: interrupted before it was complete; run the command again from the start\n"
    )
    monkeypatch.setattr(preparing, "prepare", full)
    status, _, err = klang(capsys, *command)
    assert (status, err) == (2, "klang: error: out/tok: No space left on device\n")


def test_report_calls_curves(capsys, monkeypatch):
    import types

    curves = types.ModuleType("curves")
    curves.write_report = lambda runs, out: [os.path.join(out, run + ".csv") for run in runs]
    monkeypatch.setitem(sys.modules, "fairseq_klang.analysis.curves", curves)
    assert klang(capsys, "report", "a", "b", "--out", "o")[:2] == (0, "o/a.csv\no/b.csv\n")


# -- doctor --


@pytest.mark.slow
def test_doctor_finds_this_installation_sound(capsys):
    status, out, _ = klang(capsys, "doctor")
    assert status == 0 and "broken" not in out
    for words in (
        "Python 3",
        f"torch {torch.__version__.split('+')[0]}",
        "fairseq",
        "sacrebleu",
        "ctranslate2 ",
        "device:",
        f"--user-dir {USER_DIR}",
        "BLEU self-test",
    ):
        assert words in out


def test_doctor_tells_of_what_is_optional(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    finding = doctor.check_optional("ctranslate2", "ctranslate2", "export", "klang export")
    assert (
        finding.state == "ok"
        and "optional" in finding.text
        and "pip install 'fairseq-klang[export]'" in finding.text
    )


def test_doctor_warns_of_several_fairseqs():
    finding = doctor.check_fairseq({"fairseq": "0.12.2", "ve-fairseq": "0.12.3"}.get)
    assert (
        finding.state == "warning"
        and "fairseq 0.12.2, ve-fairseq 0.12.3" in finding.text
        and "pip uninstall" in finding.fix
    )
    assert doctor.check_fairseq({}.get).state == "broken"
    assert doctor.check_fairseq({"fairseq-fixed": "0.12.3.1"}.get) == doctor.Finding(
        "ok", "fairseq-fixed 0.12.3.1"
    )


def test_doctor_ends_with_1_when_something_is_broken(capsys, monkeypatch):
    monkeypatch.setattr(
        doctor,
        "examine",
        lambda: iter([doctor.Finding("ok", "a"), doctor.Finding("broken", "b", "mend b")]),
    )
    status, out, _ = klang(capsys, "doctor")
    assert status == 1 and "broken   b\n         fix: mend b" in out


@pytest.mark.slow
def test_doctor_sees_what_is_broken(monkeypatch, tmp_path):
    (tmp_path / "broken_plugin").mkdir()
    (tmp_path / "broken_plugin" / "__init__.py").write_text(
        "raise RuntimeError('half installed')\n"
    )
    finding = doctor.check_user_dir(str(tmp_path / "broken_plugin"))
    assert finding.state == "broken" and "half installed" in finding.text and finding.fix
    (tmp_path / "empty_plugin").mkdir()
    (tmp_path / "empty_plugin" / "__init__.py").write_text("")
    assert (
        "restricted_softbleu is not registered"
        in doctor.check_user_dir(str(tmp_path / "empty_plugin")).text
    )
    finding = doctor.check_module("no_such_module_here", "no-such")
    assert finding.state == "broken" and "no-such" in finding.fix

    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    finding = doctor.check_scoring()
    assert (
        finding.state == "broken"
        and "pip install" in finding.fix
        and "pip install" not in finding.text
    )
