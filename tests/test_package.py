"""Installed with pip and used from another folder, and imported anew in a spawned worker."""

import os
import subprocess
import sys

import pytest

from helpers.running import ROOT, TINY_TRANSFORMER, spawn, train_arguments


@pytest.mark.slow
def test_pip_installed_from_any_folder(joined_data, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Out of a copy: setuptools leaves its build folder beside setup.py.
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "fairseq_klang", "setup.py", "README.md"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    for name in filter(
        lambda name: os.path.exists(os.path.join(ROOT, name)), listed.stdout.split()
    ):
        target = tmp_path / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(open(os.path.join(ROOT, name), "rb").read())
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            site,
            tmp_path / "source",
        ],
        check=True,
        capture_output=True,
    )
    environment = dict(os.environ, PYTHONPATH=str(site))
    printed = subprocess.run(
        [sys.executable, str(site / "bin" / "klang"), "user-dir"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert printed == f"{site / 'fairseq_klang'}\n"
    arguments = train_arguments(
        joined_data,
        tmp_path / "run",
        "--arch",
        "transformer_dualhead",
        *TINY_TRANSFORMER,
        "--criterion",
        "restricted_softbleu",
        "--max-update",
        "1",
    )
    arguments[arguments.index("--user-dir") + 1] = printed.strip()
    subprocess.run(
        [sys.executable, "-m", "fairseq_cli.train", *map(str, arguments)],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


WORKER = """
import multiprocessing, sys
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli.train import main

if __name__ == "__main__":
    args = options.parse_args_and_arch(options.get_training_parser(), sys.argv[1:])
    # The spawned process knows nothing of this one's imports: it gets a pickled configuration,
    # as fairseq's workers do.
    config = convert_namespace_to_omegaconf(args)
    worker = multiprocessing.get_context("spawn").Process(target=main, args=(config,))
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.slow
def test_spawned_workers_import_the_user_dir(joined_data, tmp_path):
    script = tmp_path / "spawned_training.py"
    script.write_text(WORKER)
    arguments = train_arguments(
        joined_data,
        tmp_path / "run",
        "--arch",
        "transformer_dualhead",
        *TINY_TRANSFORMER,
        "--criterion",
        "restricted_softbleu",
        "--max-update",
        "1",
    )
    result = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()
    assert "nll gets worse as BLEU improves" in result.stdout  # which training alone is told


def python(code, path=ROOT):
    """Run `code` in a fresh process outside the checkout, with `path` on its module path."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONPATH=str(path)),
        cwd=os.path.expanduser("~"),
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_without_fairseq_one_line_says_so_and_the_losses_work(tmp_path):
    (tmp_path / "fairseq.py").write_text("raise ImportError('no such thing here')\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    result = python("from fairseq_klang.losses import soft_bleu; print(soft_bleu.__name__)", path)
    assert (result.stdout, result.stderr) == ("soft_bleu\n", "")
    result = python("import fairseq_klang; fairseq_klang.register()", path)
    assert result.returncode == 1
    assert result.stderr == (
        "fairseq-klang: error: fairseq-klang needs fairseq (no such thing here): pip install "
        "'fairseq-klang[fairseq]'\n"
    )
    doctor = spawn("fairseq_klang.cli", "doctor", check=False, env={"PYTHONPATH": path})
    assert doctor.returncode == 1 and "Traceback" not in doctor.stderr + doctor.stdout
    assert "pip install 'fairseq-klang[fairseq]'" in doctor.stdout + doctor.stderr


REGISTERED = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
print("restricted_softbleu" in CRITERION_REGISTRY, "lstm_dualhead" in ARCH_MODEL_REGISTRY,
      "translation_dualhead" in TASK_REGISTRY)
"""


@pytest.mark.slow
def test_everything_is_registered_after_fairseq_or_by_a_call():
    after = "import fairseq\nimport fairseq_klang"
    called = "import fairseq_klang\nfairseq_klang.register()\nfairseq_klang.register()"
    for code in (after, called):
        result = python(code + REGISTERED)
        assert result.stdout == "True True True\n", code + result.stderr


def test_the_command_line_starts_without_fairseq_and_torch():
    code = """
import sys
from fairseq_klang.cli import main
try:
    main(["--version"])
except SystemExit:
    print([name for name in ("fairseq", "torch") if name in sys.modules])
"""
    assert python(code).stdout.splitlines()[1] == "[]"
