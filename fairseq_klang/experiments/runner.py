"""The one runner: trains, translates and scores what a plan says, from where it stopped."""

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import glob
import io
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from tqdm import tqdm

from .. import register
from ..analysis.curves import write_report
from ..analysis.logs import INNER, VALID, by_epoch, read_line, read_log
from ..checkpoints.whole import mend_last_checkpoint
from ..errors import KlangError
from ..files import PACKAGE, locked, read_json, sha256, write_json, written
from .plan import Plan, difference, flag_value, shell
from .recipes import RecipeError

References = Dict[str, Optional[str]]  # {subset: the raw reference, or None where there is none}
ATTEMPT = ("trained", "train.log", "train.out", "generate.log", "scores.json")


# -- the run folder --------------------------------------------------------------------------------


def read_settings(folder: str) -> Optional[Dict[str, Any]]:
    """The settings.json of a run folder, or None. Raises RecipeError where it is damaged."""
    path = os.path.join(folder, "settings.json")
    fix = "choose another --out, or delete that folder"
    settings = read_json(path, RecipeError, fix)
    if settings is None:
        return None
    key = settings.get("key") if isinstance(settings, dict) else None
    commands: List[Any] = [None]
    if isinstance(key, dict) and isinstance(settings.get("starts"), list):
        generate = key.get("generate")
        commands = [
            key.get("train"),
            *(generate.values() if isinstance(generate, dict) else [None]),
        ]
    if not all(isinstance(words, list) and set(map(type, words)) <= {str} for words in commands):
        raise RecipeError(f"{path} is damaged: it does not tell what was run; {fix}")
    return settings


def open_folder(plan: Plan, references: References) -> Dict[str, Any]:
    """Make or reopen the run folder; returns its settings.

    One of other settings starts anew where nothing was trained in it, as after a mistyped flag.
    Raises RecipeError for any other folder of other settings, and for a folder that is no run's.
    """
    import torch

    from ..files import git_hash, versions

    settings, key = read_settings(plan.out), plan.key()
    if settings is None and set(os.listdir(plan.out)) - {".lock", "settings.json.partial"}:
        raise RecipeError(
            f"--out {plan.out} holds files but no settings.json, so it is no run folder; choose "
            "another"
        )
    found = difference(settings["key"], key) if settings else None
    if found:
        told = "{} was made with other settings ({}: {}; now {})".format(plan.out, *found)
        folder = glob.escape(plan.out)
        if glob.glob(os.path.join(folder, "checkpoints", "*.pt")) or glob.glob(
            os.path.join(folder, "gen.*.out")
        ):
            raise RecipeError(f"{told}; choose another --out, or delete that folder")
        print(f"{told}, but nothing was trained in it: it starts anew", flush=True)
        for name in ATTEMPT:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(plan.out, name))
        settings = None
    start = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "git": git_hash(),
        "threads": torch.get_num_threads(),
        "versions": versions("torch", "numpy", "sacrebleu"),
    }
    data = dataclasses.asdict(plan.data)
    settings = {
        "recipe": {"about": plan.recipe.about, "note": plan.recipe.note, "data": plan.recipe.data},
        "overrides": plan.extra,
        "key": key,
        "data": {name: value for name, value in data.items() if name != "files"},
        "commands": plan.commands(references),
        "starts": (settings["starts"] if settings else []) + [start],
    }
    write_json(os.path.join(plan.out, "settings.json"), settings)
    return settings


# -- commands --------------------------------------------------------------------------------------

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """On Linux a command ends with the runner, even when that is killed: two trainings must not
    share a folder."""
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class StoppedError(RecipeError):
    """A command that was ended because one beside it failed."""


class Commands:
    """Runs fairseq's commands with this copy of fairseq_klang; the failure of one ends the others.

    threads: OMP_NUM_THREADS of each command, or None for that of this process.
    """

    def __init__(self, threads: Optional[int] = None) -> None:
        self._running: List[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._changing = threading.Lock()
        self.threads = threads

    def stop(self) -> None:
        """End what runs, and start no more."""
        with self._changing:
            self._stopped = True
            for process in self._running:
                process.kill()

    def execute(
        self,
        command: Sequence[str],
        output: IO[bytes],
        log: str,
        follow: Callable[[str], None],
    ) -> None:
        """Run a command: its standard output to `output`, its errors appended to the file `log`.

        Where both are one file, both take one way to it, so that they stay in order.
        follow: is called with each line of output. Raises RecipeError, with the last line of the
        log, where the command fails, and StoppedError after :meth:`stop`.
        """
        with open(log, "ab") as errors:
            process = self._start(
                command, subprocess.STDOUT if getattr(output, "name", "") == log else errors
            )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    output.write(line)
                    output.flush()
                    follow(line.decode("utf-8", "replace"))
                status = process.wait()
            finally:
                process.kill()  # does nothing to one that has ended
                process.stdout.close()
                process.wait()
                with self._changing:
                    self._running.remove(process)
        if self._stopped:
            raise StoppedError(f"{command[0]} was stopped, for a command beside it failed")
        if status:
            output.flush()
            with open(log, encoding="utf-8", errors="replace") as stream:
                lines = [line.strip() for line in stream if line.strip()] or ["nothing was said"]
            raise RecipeError(
                f"{command[0]} ended with status {status}: {lines[-1]} (all of it: {log})"
            )

    def _start(
        self, command: Sequence[str], errors: Union[int, IO[bytes]]
    ) -> "subprocess.Popen[bytes]":
        path = [os.path.dirname(PACKAGE), os.environ.get("PYTHONPATH", "")]
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            PYTHONIOENCODING="utf-8",
            PYTHONUNBUFFERED="1",
        )
        if self.threads:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        with self._changing:
            if self._stopped:
                raise StoppedError(f"{command[0]} was not started, for a command beside it failed")
            process = subprocess.Popen(
                [sys.executable, "-m", *_module(command)],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                preexec_fn=_die_with_parent if _LIBC is not None else None,
            )
            self._running.append(process)
        return process


def _module(command: Sequence[str]) -> List[str]:
    """["fairseq_cli.train", arguments...] of a command as one would type it."""
    if list(command[:2]) == ["python", "-m"]:
        return list(command[2:])
    modules = {"fairseq-train": "fairseq_cli.train", "fairseq-generate": "fairseq_cli.generate"}
    return [modules[command[0]], *command[1:]]


def _bar(total: Optional[int], unit: str, name: str) -> tqdm:
    form = (
        "{desc} {percentage:3.0f}%|{bar:30}| {n:.4g} of {total} {unit}, {elapsed} passed, "
        "{remaining} left{postfix}"
    )
    return tqdm(
        total=total,
        unit=unit,
        desc=name,
        bar_format=form,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        file=sys.stderr,
    )


# -- the steps of a run ----------------------------------------------------------------------------


def train(plan: Plan, commands: Commands) -> None:
    """Train to the end, or go on from the last checkpoint. Raises RecipeError where training saves
    no checkpoint."""
    marker, outputs = os.path.join(plan.out, "trained"), plan.outputs().values()
    if os.path.exists(marker) and (
        saved(plan) or (outputs and all(os.path.exists(output) for output in outputs))
    ):
        print(f"{plan.name}: training: already done", flush=True)
        return
    copied = mend_last_checkpoint(plan.checkpoints)
    if copied:
        print(f"checkpoint_last.pt was cut short; copied again from {copied}", flush=True)
    command, log = plan.train(), os.path.join(plan.out, "train.out")
    epochs = flag_value(command, "--max-epoch", "--me") or ""
    total = int(epochs) if epochs.isdigit() else None
    with _bar(total, "epochs", plan.name) as bar, open(log, "ab") as output:

        def follow(text: str) -> None:
            line = read_line(text)
            if line and line.split == INNER and line.progress is not None:
                if not bar.n:  # a resumed run: what was done before is no measure of speed
                    bar.initial = bar.n = line.epoch - 1
                bar.set_postfix_str(f"loss {line.stats.get('loss')}", refresh=False)
                bar.update(line.progress - bar.n)
            elif line and line.split == VALID:
                bar.update(line.epoch - bar.n)
                figures = [("BLEU", "bleu"), ("perplexity", "ppl")]
                told = [f"{what} {line.stats[key]}" for what, key in figures if key in line.stats]
                bar.write(
                    f"{plan.name}, epoch {line.epoch}: validation {', '.join(told)}",
                    file=sys.stderr,
                )

        commands.execute(command, output, log, follow)
    if not saved(plan):
        raise RecipeError(
            f"training ended without a checkpoint in {plan.checkpoints}; leave out the flag that "
            "keeps fairseq from saving"
        )
    write_json(marker, {"command": shell(command)})


def saved(plan: Plan) -> Optional[str]:
    """The checkpoint to translate with: the recipe's choice, else the best, the last or the newest;
    None where there is none."""
    others = glob.glob(os.path.join(glob.escape(plan.checkpoints), "checkpoint*.pt"))
    named = [plan.translating] + [
        os.path.join(plan.checkpoints, f"checkpoint_{name}.pt") for name in ("best", "last")
    ]
    newest_first = sorted(others, key=os.path.getmtime, reverse=True)
    return next(filter(os.path.exists, named + newest_first), None)


def average(plan: Plan) -> Optional[int]:
    """Average the last epochs; says so where there are fewer than the recipe asks for.

    Returns how many were averaged, or None. An epoch that --max-update cuts short leaves no file of
    its own, so there may be none.
    """
    if not plan.recipe.average:
        return None
    from ..checkpoints.average import average_to_file, find_last

    names = glob.glob(os.path.join(glob.escape(plan.checkpoints), "checkpoint[0-9]*.pt"))
    epochs = [name for name in names if re.search(r"checkpoint\d+\.pt$", name)]
    count = min(len(epochs), plan.recipe.average)
    if count and not os.path.exists(plan.translating):
        if count < plan.recipe.average:
            print(
                f"average: {count} epochs, for no more were trained; the recipe asks for "
                f"{plan.recipe.average}",
                flush=True,
            )
        average_to_file(find_last(plan.checkpoints, epochs=count), plan.translating)
    return count or None


def generate(plan: Plan, subset: str, beam: str, commands: Commands) -> None:
    """Translate a split; the output appears only when it is complete."""
    output = plan.outputs()[subset, beam]
    if os.path.exists(output):
        print(f"{plan.name}: {os.path.basename(output)}: already done", flush=True)
        return
    log = os.path.join(plan.out, "generate.log")
    count, seen = sentences(plan, subset), set()
    with _bar(count, "sentences", f"{plan.name}, {subset}, {beam}") as bar, written(
        output, "wb"
    ) as stream:

        def follow(line: str) -> None:
            found = re.match(r"H-(\d+)\t", line)
            if found and found.group(1) not in seen:
                seen.add(found.group(1))
                bar.update()

        commands.execute(plan.generate(subset, beam, saved(plan)), stream, log, follow)
        if len(seen) != count:
            raise RecipeError(
                f"fairseq-generate translated {len(seen)} of the {count} sentences of {subset}; "
                f"see {log}"
            )


def sentences(plan: Plan, subset: str) -> int:
    """How many sentences a split has."""
    from fairseq.data.data_utils import load_indexed_dataset

    logging.getLogger("fairseq.data.data_utils").setLevel(logging.WARNING)
    data = plan.data
    name = f"{subset}.{data.source}-{data.target}.{data.target}"
    return len(load_indexed_dataset(os.path.join(data.folder, name)))


def read_scores(folder: str) -> Optional[Dict[str, Any]]:
    """The scores.json of a run folder, or None. Raises RecipeError where it is damaged."""
    path = os.path.join(folder, "scores.json")
    fix = "delete it, and run the recipe again"
    report = read_json(path, RecipeError, fix)
    if report is None:
        return None
    tests = report.get("tests", {}) if isinstance(report, dict) else None
    if not isinstance(tests, dict) or not all(isinstance(test, dict) for test in tests.values()):
        raise RecipeError(f"{path} is damaged: it holds no scores; {fix}")
    return report


def score(plan: Plan, references: References, averaged: Optional[int]) -> Dict[str, Any]:
    """Write scores.json and return its content.

    That is validation by epoch, which checkpoint translated, and the scores of each split that has
    a raw reference.
    """
    from ..analysis.scoring import score as score_output

    tests = {subset: path for subset, path in references.items() if path and plan.outputs()}
    digests = {subset: sha256(path) for subset, path in tests.items()}
    report = read_scores(plan.out)
    checkpoint = os.path.basename(saved(plan) or "") or None
    if report:
        before = report.get("tests", {})
        if {name: test.get("reference_sha256") for name, test in before.items()} == digests:
            return report
        # Scored before, without this reference: the checkpoints may have been removed since.
        averaged, checkpoint = report.get("averaged_epochs"), report.get("checkpoint")
    epochs = by_epoch(read_log(plan.log))
    report = {
        "epochs": [{"epoch": epoch, **figures} for epoch, figures in epochs.items()],
        "averaged_epochs": averaged,
        "checkpoint": checkpoint,
        "tests": {
            subset: {
                "reference": os.path.abspath(path),
                "reference_sha256": digests[subset],
                "systems": {},
            }
            for subset, path in tests.items()
        },
    }
    for (subset, beam), output in plan.outputs().items():
        if subset in tests:
            found = score_output(
                tests[subset],
                [output],
                plan.data.target,
                subword=plan.data.subword,
                tokenizer=plan.data.tokenizer,
            )
            report["tests"][subset]["systems"][beam] = found.as_dict()["systems"][0]
    write_json(os.path.join(plan.out, "scores.json"), report)
    return report


def summary(plan: Plan, report: Dict[str, Any]) -> str:
    """What a run found, in a few lines."""
    lines = []
    scored = [epoch for epoch in report["epochs"] if "bleu" in epoch]
    if scored:
        best = max(scored, key=lambda epoch: epoch["bleu"])
        told = " ".join(f"{epoch['bleu']:.2f}" for epoch in scored)
        lines.append(f"validation BLEU by epoch: {told} (best: epoch {best['epoch']})")
    for subset, test in report["tests"].items():
        for beam, system in test["systems"].items():
            lines.append(
                f"{subset}, {beam}: {system['bleu_tok']['score']:.2f} tokenised, "
                f"{system['bleu_lc']['score']:.2f} sacreBLEU lower-cased, "
                f"{system['chrf']['score']:.2f} chrF"
            )
    for subset in plan.subsets:
        if plan.translates and subset not in report["tests"]:
            lines.append(
                f"no scores of {subset}: there is no raw reference beside {plan.data.folder}, and "
                "one rebuilt from ids would not be comparable; give --ref FILE to score what was "
                "translated"
            )
    recipe = plan.recipe
    if plan.loss == recipe.loss and recipe.series_told():
        by = "" if recipe.series else " by epoch"
        lines.append(f"in the series: {recipe.series_told()}{by}")
    return "\n".join(lines + [f"all of it: {plan.out}"])


# -- whole runs ------------------------------------------------------------------------------------


def run(plan: Plan, references: References, commands: Optional[Commands] = None) -> Dict[str, Any]:
    """Do what the plan says, from where it stopped; returns the content of scores.json.

    The run folder gets settings.json (recipe, commands, versions, hashes of data and dictionaries),
    train.log (JSON rows), train.out, checkpoints/, gen.SUBSET.DECODING.out, scores.json and report/
    (curves, as klang report draws them). Raises RecipeError and other KlangErrors, in one line.
    """
    commands = commands or Commands()
    if plan.device == "cuda":
        import torch

        seen = torch.cuda.device_count()
        if not seen:
            raise RecipeError("--device is cuda, but no GPU can be seen; use --device cpu")
        if seen < plan.gpus:
            raise RecipeError(f"--gpus is {plan.gpus}, but only {seen} can be seen")
    if os.path.exists(plan.out) and not os.path.isdir(plan.out):
        raise RecipeError(f"--out {plan.out} is a file; name a folder")
    os.makedirs(plan.out, exist_ok=True)
    with locked(plan.out, patience=30):
        open_folder(plan, references)
        train(plan, commands)
        averaged = average(plan)
        used = saved(plan)
        if plan.outputs() and used not in (None, plan.translating):
            why = "no epoch was trained to its end"
            if not plan.recipe.average:
                why = "there was no validation"
            print(
                f"{why}: {os.path.basename(used or '')} translates in place of "
                f"{os.path.basename(plan.translating)}",
                flush=True,
            )
        for subset, beam in plan.outputs():
            generate(plan, subset, beam, commands)
        report = score(plan, references, averaged)
        if not os.path.exists(os.path.join(plan.out, "report", "curves.png")):
            write_report([plan.out], os.path.join(plan.out, "report"))
        return report


def run_all(
    jobs: Sequence[Tuple[Plan, References]], lanes: int = 1, threads: Optional[int] = None
) -> List[Dict[str, Any]]:
    """:func:`run` for each job, `lanes` of them beside each other; returns their scores in order.

    When one fails, those beside it are stopped; what they had complete is kept. Raises the error of
    the one that failed first.
    """
    commands = Commands(threads)
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        futures = [pool.submit(run, plan, references, commands) for plan, references in jobs]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            commands.stop()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def check_flags(plan: Plan) -> None:
    """Let fairseq's own parsers read the commands, so that a mistyped flag is told now and not
    after the training. Raises RecipeError."""
    register()
    from fairseq import options

    for name in ("fairseq.tasks", "fairseq.utils"):  # what they tell of each parsing
        logging.getLogger(name).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        train_command = plan.train()
        train_command[train_command.index("--save-dir") + 1] = folder  # parsing makes it
        arguments = _module(train_command)[1:]
        parts = [("fairseq-train", options.get_training_parser, arguments)]
        for pair in list(plan.outputs())[:1]:
            arguments = plan.generate(*pair)[1:]
            parts.append(("fairseq-generate", options.get_generation_parser, arguments))
        for name, parser, arguments in parts:
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    options.parse_args_and_arch(parser(), input_args=arguments)
            except KlangError:
                raise
            except SystemExit:  # argparse
                reason = said.getvalue().strip().rpartition("error: ")[2]
                raise RecipeError(f"{name} refuses its flags: {reason}") from None
