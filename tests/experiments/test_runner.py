"""The runner's commands: which code they run, and how they end."""

import io
import os
import time

import pytest

from fairseq_klang.experiments import runner
from fairseq_klang.experiments.recipes import RecipeError
from fairseq_klang.experiments.runner import Commands
from fairseq_klang.files import PACKAGE


@pytest.fixture()
def modules(tmp_path, monkeypatch):
    """Modules that commands of these tests run, first on PYTHONPATH as somebody's own code is."""
    (tmp_path / "fairseq_klang").mkdir()
    (tmp_path / "fairseq_klang" / "__init__.py").write_text("")
    (tmp_path / "which.py").write_text("import fairseq_klang\nprint(fairseq_klang.__file__)\n")
    (tmp_path / "fails.py").write_text("import sys\nsys.exit('no such luck')\n")
    (tmp_path / "sleeps.py").write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "threads.py").write_text("import os\nprint(os.environ['OMP_NUM_THREADS'])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def output_of(name, folder, commands=None):
    stream = io.BytesIO()
    commands = commands or Commands()
    commands.execute(["python", "-m", name], stream, str(folder / "log"), lambda line: None)
    return stream.getvalue().decode().strip()


def test_commands_run_this_copy_of_the_package(modules):
    """The study of autoencoding ran whichever fairseq_klang came first on the path."""
    assert output_of("which", modules) == os.path.join(PACKAGE, "__init__.py")


def test_threads_of_a_command(modules):
    assert output_of("threads", modules, Commands(threads=3)) == "3"


def test_a_command_that_fails_is_told_with_its_last_line(modules):
    with pytest.raises(RecipeError, match=r"status 1: no such luck \(all of it: .*log\)$"):
        output_of("fails", modules)


def test_the_last_line_of_one_file_is_the_last_that_was_said(modules):
    """An error overtook what had been printed before, and another line was told as the reason."""
    said = "import sys\nprint('line\\n' * 2000)\nsys.exit('no such luck')\n"
    (modules / "says_much.py").write_text(said)
    log = str(modules / "one.log")
    with open(log, "ab") as stream, pytest.raises(RecipeError, match="status 1: no such luck"):
        Commands().execute(
            ["python", "-m", "says_much"], stream, log, lambda line: time.sleep(0.0001)
        )


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_runs_beside_each_other_stop_together(modules, monkeypatch):
    """The other training of the Multi30k study went on alone."""
    started = []

    def run(plan, references, commands):
        if plan == "fails":
            while not started:
                time.sleep(0.01)
        commands.execute(
            ["python", "-m", plan],
            io.BytesIO(),
            str(modules / f"{plan}.log"),
            lambda line: started.append(int(line)),
        )

    monkeypatch.setattr(runner, "run", run)
    begin = time.monotonic()
    with pytest.raises(RecipeError, match="no such luck"):
        runner.run_all([("sleeps", {}), ("fails", {}), ("sleeps", {})], lanes=2)
    assert time.monotonic() - begin < 60
    assert len(started) == 1 and not is_alive(started[0])  # and the third was never started


def test_runs_give_their_scores_in_order(monkeypatch):
    monkeypatch.setattr(runner, "run", lambda plan, references, commands: {"plan": plan})
    found = runner.run_all([(name, {}) for name in "abc"], lanes=2)
    assert [scores["plan"] for scores in found] == list("abc")
