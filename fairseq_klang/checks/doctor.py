"""Look over the installation: versions, what clashes, and whether fairseq finds this package, each
problem with its fix."""

import dataclasses
import importlib
import os
import platform
import shutil
import subprocess
import sys
from typing import Callable, Iterator, Optional

from ..files import FAIRSEQS, PACKAGE
from ..version import __version__

INSTALL = "pip install 'fairseq-klang[fairseq]'"

# what fairseq does with --user-dir, then a look at whether the criterion is there
_IMPORT = """
import argparse, sys
from fairseq import utils
utils.import_user_module(argparse.Namespace(user_dir=sys.argv[1]))
from fairseq.criterions import CRITERION_REGISTRY
found = "restricted_softbleu" in CRITERION_REGISTRY
sys.exit(None if found else "the criterion restricted_softbleu is not registered")
"""


@dataclasses.dataclass
class Finding:
    """One line of the report; state is "ok", "warning" or "broken"."""

    state: str
    text: str
    fix: str = ""

    def __str__(self):
        return f"{self.state:8} {self.text}" + (f"\n         fix: {self.fix}" if self.fix else "")


def _version(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_fairseq(version: Callable[[str], Optional[str]] = _version) -> Finding:
    """Which distribution provides fairseq. version: name -> version or None."""
    found = [f"{name} {version(name)}" for name in FAIRSEQS if version(name)]
    if not found:
        return Finding("broken", "fairseq is not installed", INSTALL)
    if len(found) > 1:
        fix = f"pip uninstall -y {' '.join(FAIRSEQS)}; then {INSTALL}"
        return Finding(
            "warning",
            f"several fairseqs are installed and overwrite each other's files: {', '.join(found)}",
            fix,
        )
    return Finding("ok", found[0])


def check_module(module: str, distribution: str) -> Finding:
    """Whether a module imports, and its version."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken install can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Finding(
            "broken",
            f"{distribution} cannot be imported: {reason}",
            f"pip install --force-reinstall {distribution}",
        )
    return Finding("ok", f"{distribution} {_version(distribution) or ''}".rstrip())


def check_optional(module: str, distribution: str, extra: str, use: str) -> Finding:
    """A module that only the extra named `extra` installs, and what it is for; nothing is wrong
    without it."""
    if not _version(distribution):
        return Finding(
            "ok",
            f"{distribution} is not installed (optional: {use}; pip install "
            f"'fairseq-klang[{extra}]')",
        )
    return check_module(module, distribution)


def check_device() -> Finding:
    """What there is to compute on."""
    try:
        import torch
    except Exception:
        return Finding("warning", "device unknown, since torch cannot be imported")
    cpu = f"CPU with {torch.get_num_threads()} threads"
    names = (
        [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return Finding(
        "ok", f"device: {', '.join(names)}; {cpu}" if names else f"device: {cpu}; no CUDA"
    )


def check_user_dir(folder: str = PACKAGE) -> Finding:
    """Whether fairseq can load this package as --user-dir, in a fresh process."""
    result = subprocess.run(
        [sys.executable, "-c", _IMPORT, folder],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        reason = ([line for line in result.stderr.splitlines() if line.strip()] or ["no message"])[
            -1
        ].strip()
        return Finding(
            "broken",
            f"fairseq cannot load --user-dir {folder}: {reason}",
            f"mend what it names, or {INSTALL} --force-reinstall",
        )
    return Finding("ok", f"--user-dir {folder}")


def check_commands() -> Finding:
    """Whether fairseq's commands are on PATH."""
    if shutil.which("fairseq-train"):
        return Finding("ok", "fairseq-train is on PATH")
    folder = os.path.dirname(sys.executable)
    return Finding(
        "warning",
        "fairseq-train is not on PATH",
        f'export PATH="{folder}:$PATH", or python -m fairseq_cli.train',
    )


def check_scoring() -> Finding:
    """Whether sacrebleu gives known values in the calls fairseq makes."""
    from ..analysis.scoring import ScoringError, self_test

    try:
        self_test()
    except ScoringError as error:
        text, _, fix = str(error).partition("; ")
        return Finding("broken", text, fix)
    return Finding("ok", "BLEU self-test")


def examine() -> Iterator[Finding]:
    """Yield every Finding, one after another."""
    yield Finding("ok", f"Python {platform.python_version()} ({sys.executable})")
    yield Finding("ok", f"fairseq-klang {__version__}")
    yield check_module("torch", "torch")
    yield check_device()
    yield check_fairseq()
    for module, distribution in (
        ("numpy", "numpy"),
        ("sacrebleu", "sacrebleu"),
        ("sacremoses", "sacremoses"),
        ("subword_nmt", "subword-nmt"),
        ("sentencepiece", "sentencepiece"),
        ("matplotlib", "matplotlib"),
    ):
        yield check_module(module, distribution)
    yield check_optional("ctranslate2", "ctranslate2", "export", "klang export and klang translate")
    yield check_optional("sklearn", "scikit-learn", "analysis", "klang study autoencoding")
    yield check_commands()
    yield check_user_dir()
    yield check_scoring()
