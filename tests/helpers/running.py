"""A toy corpus binarised with fairseq-preprocess, and fairseq's commands, here or in processes."""

import contextlib
import io
import json
import logging
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings

import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics

from fairseq_klang import compat

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER_DIR = os.path.join(ROOT, "fairseq_klang")

# Sizes are no multiples of 8: fairseq's main branch drops the last batch of such a split unless
# told otherwise.
SPLITS = {"train": 201, "valid": 23, "test": 7}


def toy_pairs(count, seed):
    """`count` pairs of a toy language: the target is the reversed source in other letters, with
    every fourth word doubled."""
    rng = random.Random(seed)
    for _ in range(count):
        words = [rng.choice("abcdefghij") + rng.choice("uvwxyz") for _ in range(rng.randint(2, 9))]
        target = [word.upper() for word in reversed(words)]
        yield " ".join(words), " ".join(target + target[:1] if len(words) % 4 == 0 else target)


def loggers():
    """{name: logger} of every logger there is, the root under the name ''."""
    made = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    return {"": logging.root, **made}


@contextlib.contextmanager
def log_as_it_was():
    """Puts back every logger's level and handlers at the end."""
    before = {name: (logger.level, logger.handlers[:]) for name, logger in loggers().items()}
    disabled = logging.root.manager.disable
    try:
        yield
    finally:
        for name, logger in loggers().items():
            level, handlers = before.get(name, (logging.NOTSET, []))
            for handler in set(logger.handlers) - set(handlers):
                handler.close()
            logger.handlers = handlers
            logger.setLevel(level)
        logging.disable(disabled)


@contextlib.contextmanager
def _as_a_fresh_process(module, arguments):
    """What a process starts with and fairseq changes: arguments, folder, log, meters, handlers."""
    argv, folder, threads = sys.argv, os.getcwd(), torch.get_num_threads()
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    with log_as_it_was(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
        logging.disable(logging.NOTSET)
        logging.root.handlers = []  # so that the command's own basicConfig has an effect
        for name, logger in loggers().items():
            if not name or name.split(".")[0] in ("fairseq", "fairseq_cli", "fairseq_klang"):
                logger.setLevel(logging.NOTSET if name else logging.WARNING)
        sys.argv = [module, *arguments]
        os.chdir(ROOT)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            compat._end_loaders()
            torch.set_num_threads(threads)
            os.chdir(folder)
            sys.argv = argv
            for number, handler in signals.items():
                signal.signal(number, handler)


def _text_stream(content=""):
    return io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8", write_through=True)


_LOADING = ("fairseq_cli.train", "fairseq_cli.generate", "fairseq_cli.validate")


def run(module, *arguments, check=True, stdin=""):
    """Run `python -m module arguments` inside this process, which saves its start of seconds.

    Returns the completed process with text output. What a process does when it ends
    (`--adapt-save`), environment variables and signals need `spawn`.
    """
    arguments = [str(argument) for argument in arguments]
    if module in _LOADING and "--num-workers" not in arguments:
        arguments += ["--num-workers", "0"]  # forks of a process with threads end after 5 s only
    streams, status = (_text_stream(stdin), _text_stream(), _text_stream()), 0
    before = sys.stdin, sys.stdout, sys.stderr
    with _as_a_fresh_process(module, arguments):
        sys.stdin, sys.stdout, sys.stderr = streams
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:  # as Python ends one: a number is the status, a text an error
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if not isinstance(end.code, (int, type(None))):
                print(end.code, file=sys.stderr)
        except Exception:
            traceback.print_exc()
            status = 1
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
    out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])
    return _checked(subprocess.CompletedProcess([module, *arguments], status, out, err), check)


def spawn(module, *arguments, check=True, env=None, stdin=None):
    """Run `python -m module arguments` in a process of its own; returns it with text output."""
    arguments = [str(argument) for argument in arguments]
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=dict(os.environ, PYTHONIOENCODING="utf-8", OMP_NUM_THREADS="1", **(env or {})),
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
    )
    result.args = [module, *arguments]
    return _checked(result, check)


def _checked(result, check):
    if check and result.returncode:
        raise AssertionError(
            f"{' '.join(result.args)} ended with {result.returncode}:\n"
            f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        )
    return result


def settled(state):
    """A state dict without the number that fairseq 0.12.2 saves uninitialised, and that only tells
    a device."""
    return {name: value for name, value in state.items() if not name.endswith("._float_tensor")}


def binarise(folder, joined, splits=SPLITS):
    """Write the toy corpus below `folder` and binarise it; returns the folder for fairseq-train."""
    for seed, (split, count) in enumerate(splits.items()):
        with open(folder / f"{split}.de", "w") as de, open(folder / f"{split}.en", "w") as en:
            for source, target in toy_pairs(count, seed):
                de.write(source + "\n")
                en.write(target + "\n")
    prefixes = [part for split in splits for part in (f"--{split}pref", folder / split)]
    run(
        "fairseq_cli.preprocess",
        "-s",
        "de",
        "-t",
        "en",
        *prefixes,
        "--destdir",
        folder / "bin",
        *(["--joined-dictionary"] if joined else []),
    )
    return folder / "bin"


def train_arguments(data, save_dir, *more):
    """A fairseq-train command line for a tiny model of this package, on the CPU."""
    return [
        data,
        *("--user-dir", USER_DIR, "--save-dir", save_dir, "--cpu", "-s", "de", "-t", "en"),
        *(
            "--optimizer",
            "adam",
            "--lr",
            "0.003",
            "--max-tokens",
            "300",
            "--required-batch-size-multiple",
            "1",
        ),
        *("--seed", "1", "--log-format", "json", "--log-interval", "1", "--num-workers", "0"),
        *more,
    ]


TINY_TRANSFORMER = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-layers 1 "
    "--encoder-attention-heads 2 "
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-layers 1 "
    "--decoder-attention-heads 2"
).split()
TINY_LSTM = (
    "--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16 --decoder-hidden-size "
    "16 --decoder-out-embed-dim 16"
).split()


def train_in_two_processes(arguments):
    """fairseq-train with legacy_ddp over gloo, two workers on this machine; the rows that the first
    logs as it trains."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            *("--distributed-world-size", "2", "--distributed-no-spawn"),
            *("--distributed-init-method", f"file://{folder}/meeting"),  # no port to be taken
            *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
        ]
        workers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "fairseq_cli.train", *map(str, arguments), *flags),
                    *("--distributed-rank", str(rank)),
                ],
                env=dict(os.environ, OMP_NUM_THREADS="1"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
            )
            for rank in (0, 1)
        ]
        outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [json.loads(row) for row in re.findall(r"INFO \| train_inner \| (\{.*\})", outputs[0])]
