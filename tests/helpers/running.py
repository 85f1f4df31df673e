"""A toy corpus binarised with fairseq-preprocess, and fairseq's commands as subprocesses."""

import json
import os
import random
import re
import subprocess
import sys

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


def run(module, *arguments, check=True, env=None, stdin=None):
    """Run `python -m module arguments` in a fresh process and return the completed process with
    text output."""
    environment = dict(os.environ, PYTHONIOENCODING="utf-8", OMP_NUM_THREADS="1", **(env or {}))
    result = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=environment,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
    )
    if check and result.returncode:
        raise AssertionError(
            f"{module} {arguments} ended with "
            f"{result.returncode}:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
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


def train_in_two_processes(arguments, port):
    """fairseq-train with legacy_ddp over gloo, two workers on this machine; the rows that the first
    logs as it trains."""
    flags = [
        "--distributed-world-size",
        "2",
        "--distributed-init-method",
        f"tcp://127.0.0.1:{port}",
        "--distributed-no-spawn",
    ]
    flags += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fairseq_cli.train",
                *map(str, arguments),
                *flags,
                "--distributed-rank",
                str(rank),
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
