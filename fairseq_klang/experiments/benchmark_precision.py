"""INT8 in figures: cost of a QAT step, speed of the served model against fairseq-generate, size of
its file, and BLEU of both.

    python scripts/benchmark_precision.py step DATA [--arch transformer_dualhead_b0] [--rounds 7]
    [--out FILE.json] python scripts/benchmark_precision.py serve DATA CHECKPOINT [--ref FILE]
    [--rounds 3] [--out FILE.json]

`step` trains the float and the QAT model by turns on the same batches and gives the median ratio of
their times. `serve` exports the checkpoint to int8, translates a split with fairseq-generate in
fp32 (QAT off) and with CTranslate2 by turns, each with several batchings, and compares the best of
both. Run it on a quiet machine: CTranslate2 suffers most from a busy one.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from .. import register
from ..errors import KlangError, exit_status

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)


USER_DIR = PACKAGE


class BenchmarkError(KlangError):
    """Options or data that cannot be measured."""


def training(data, arch, *more):
    """(model, criterion, task) of a fairseq-train command line."""
    register()
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    command = [
        data,
        "--user-dir",
        USER_DIR,
        "--arch",
        arch,
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
        "0.1",
    ]
    command += ["--cpu", "--optimizer", "adam", "--save-dir", tempfile.mkdtemp(), *more]
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_training_parser(), command)
    )
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    return task.build_model(cfg.model).train(), task.build_criterion(cfg.criterion), task


def time_steps(data, arch, rounds, max_tokens):
    """Median seconds of a training step of both models, and the median of the ratios of neighbours
    in time."""
    plain, criterion, task = training(data, arch)
    quantized, _, _ = training(data, arch, "--qat-bits", "8")
    task.load_dataset("train")
    try:
        batches = task.get_batch_iterator(
            task.dataset("train"),
            max_tokens=max_tokens,
            max_positions=plain.max_positions(),
            seed=1,
            required_batch_size_multiple=1,
        ).next_epoch_itr(shuffle=True)
    except AssertionError as error:
        raise BenchmarkError(
            f"--max-tokens is {max_tokens}; it must hold the longest sentence ({error})"
        ) from None
    if len(batches) <= rounds:
        raise BenchmarkError(
            f"--rounds is {rounds}, and {data} has {len(batches)} batches of --max-tokens "
            f"{max_tokens}, one of which warms up; lower one of them"
        )
    models = {"float": plain, "qat": quantized}
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=1e-4) for name, model in models.items()
    }
    seconds = {name: [] for name in models}
    for update, sample in zip(range(rounds + 1), batches):
        for name in sorted(models, reverse=update % 2):
            begin = time.perf_counter()
            models[name].set_num_updates(update)
            criterion(models[name], sample)[0].backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if update:  # the first warms up
                seconds[name].append(time.perf_counter() - begin)
    ratios = [q / f for q, f in zip(seconds["qat"], seconds["float"])]
    return {name: statistics.median(values) for name, values in seconds.items()}, statistics.median(
        ratios
    )


def run_generate(data, checkpoint, subset, batching, output):
    """Sentences a second that fairseq-generate reports in fp32, and its output written to
    `output`."""
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.generate",
        data,
        "--user-dir",
        USER_DIR,
        "--path",
        checkpoint,
        "--cpu",
        "--beam",
        "5",
    ]
    command += ["--gen-subset", subset, "--required-batch-size-multiple", "1", *batching.split()]
    command += [
        "--model-overrides",
        "{'qat_bits': None, 'qat_gradient_bits': None, 'qat_start_update': 0}",
    ]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=ROOT),
    )
    speed = re.search(r"Translated .* \(([\d.]+) sentences/s", result.stdout + result.stderr)
    if result.returncode or not speed:
        raise BenchmarkError(
            f"fairseq-generate failed: {(result.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    with open(output, "w", encoding="utf-8") as stream:
        stream.write(result.stdout)
    return float(speed.group(1))


def serve(options):
    """The figures of `serve`, as a dict."""
    from ..analysis.scoring import score
    from ..quantization.export import export, load_model, sentences_of
    from ..quantization.translate import Translator

    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "int8")
        check, _ = export(options.checkpoint, options.data, folder)
        print(check)
        model, task = load_model(options.checkpoint, options.data)
        sentences = sentences_of(task, options.subset, 10**9)
        weights = os.path.join(work, "weights.pt")
        export(
            options.checkpoint,
            options.data,
            os.path.join(work, "float32"),
            kind="float32",
            count=10,
        )
        sizes = {
            kind: os.path.getsize(os.path.join(work, kind, "model.bin"))
            for kind in ("int8", "float32")
        }
        torch.save(
            {name: p for name, p in model.state_dict().items() if "sb_projection" not in name},
            weights,
        )
        sizes["fp32 weights"] = os.path.getsize(weights)
        translator = Translator(folder, threads=options.threads)
        fairseq_output, served = os.path.join(work, "fairseq.out"), []
        speeds = {}
        for turn in range(options.rounds):
            for batching in options.fairseq_batching:
                speed = run_generate(
                    options.data, options.checkpoint, options.subset, batching, fairseq_output
                )
                speeds.setdefault(f"fairseq-generate {batching}", []).append(speed)
                print(
                    f"round {turn + 1}: fairseq-generate {batching}: {speed:.1f} sentences/s",
                    flush=True,
                )
            for tokens in options.batch_tokens:
                begin = time.perf_counter()
                served = translator.translate_tokens(sentences, beam=5, batch_tokens=tokens)
                speed = len(sentences) / (time.perf_counter() - begin)
                speeds.setdefault(f"int8 --batch-tokens {tokens}", []).append(speed)
                print(
                    f"round {turn + 1}: int8 {tokens} tokens a batch: {speed:.1f} sentences/s",
                    flush=True,
                )
        result = {
            "sentences": len(sentences),
            "speeds": speeds,
            "best fairseq": max(
                statistics.median(v) for name, v in speeds.items() if name.startswith("fairseq")
            ),
            "best int8": max(
                statistics.median(v) for name, v in speeds.items() if name.startswith("int8")
            ),
            "bytes": sizes,
        }
        result["speed ratio"] = result["best int8"] / result["best fairseq"]
        result["size ratio"] = sizes["int8"] / sizes["fp32 weights"]
        if options.ref:
            output = os.path.join(work, "int8.out")
            with open(output, "w", encoding="utf-8") as stream:
                stream.writelines(
                    f"H-{i}\t0\t{' '.join(tokens)}\n" for i, tokens in enumerate(served)
                )
            bleu = [
                system["bleu_lc"]
                for system in score(options.ref, [fairseq_output, output], samples=100).as_dict()[
                    "systems"
                ]
            ]
            result["bleu, lower-cased"] = {"fairseq fp32": bleu[0], "int8 served": bleu[1]}
    return result


def check(options):
    """Raise BenchmarkError for an option that would end the measurement, or lose it, later on."""
    counts = (
        ["rounds", "max_tokens"]
        if options.part == "step"
        else ["rounds", "threads", "batch_tokens"]
    )
    for name in counts:
        value = getattr(options, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < 1:
                raise BenchmarkError(
                    f"--{name.replace('_', '-')} is {number}; it must be 1 or more"
                )
    if not os.path.isdir(options.data):
        raise BenchmarkError(
            f"there is no folder {options.data}; name the one that fairseq-train reads"
        )
    for path in [options.checkpoint, options.ref] if options.part == "serve" else []:
        if path is not None and not os.path.isfile(path):
            raise BenchmarkError(f"there is no file {path}")
    if options.out and not os.path.isdir(os.path.dirname(options.out) or "."):
        raise BenchmarkError(
            f"--out {options.out}: there is no folder {os.path.dirname(options.out)}; make it first"
        )


def measure(options):
    """Measure, print, and write --out."""
    check(options)
    if options.part == "step":
        from fairseq.models import ARCH_MODEL_REGISTRY

        register()
        if options.arch not in ARCH_MODEL_REGISTRY or "dualhead" not in options.arch:
            raise BenchmarkError(
                f"--arch is {options.arch}; it must be a dual-head architecture, which has "
                "--qat-bits"
            )
        seconds, ratio = time_steps(options.data, options.arch, options.rounds, options.max_tokens)
        result = {"arch": options.arch, "seconds": seconds, "step ratio": ratio}
    else:
        result = serve(options)
    print(json.dumps(result, indent=2))
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as stream:
            json.dump(result, stream, indent=2)
        os.replace(options.out + ".part", options.out)


def arguments():
    """The argument parser."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="{step,serve}")
    step = parts.add_parser("step", help="a QAT training step against a float one")
    step.add_argument(
        "--arch",
        default="transformer_dualhead_b0",
        help="dual-head architecture (default: transformer_dualhead_b0)",
    )
    step.add_argument(
        "--max-tokens",
        type=int,
        default=4096,
        metavar="N",
        help="tokens of a batch (default: 4096)",
    )
    serving = parts.add_parser("serve", help="the int8 model against fairseq-generate")
    for part, rounds in ((step, 7), (serving, 3)):
        part.add_argument("data", help="folder that fairseq-train reads")
        part.add_argument(
            "--rounds",
            type=int,
            default=rounds,
            metavar="N",
            help=f"measurements of each, by turns (default: {rounds})",
        )
        part.add_argument("--out", help="JSON file to write")
    serving.add_argument("checkpoint", help="trained transformer, with or without --qat-bits 8")
    serving.add_argument(
        "--subset", default="test", metavar="SPLIT", help="split to translate (default: test)"
    )
    serving.add_argument("--ref", help="raw reference of the split, for BLEU")
    serving.add_argument(
        "--threads", type=int, metavar="N", help="translations at a time (default: all cores)"
    )
    serving.add_argument(
        "--fairseq-batching",
        nargs="+",
        metavar="FLAGS",
        default=["--max-tokens 12000", "--max-tokens 4000", "--batch-size 32", "--batch-size 128"],
        help=(
            "batchings of fairseq-generate, each in quotes; the fastest counts (default: two of "
            "--max-tokens, two of --batch-size)"
        ),
    )
    serving.add_argument(
        "--batch-tokens",
        nargs="+",
        type=int,
        metavar="N",
        default=[512, 1024, 2048, 4096],
        help="batchings of CTranslate2 (default: 512 1024 2048 4096)",
    )
    return parser


def main():
    """Parse the command line and measure; returns the exit status."""
    options = arguments().parse_args()
    return exit_status("benchmark_precision", lambda: measure(options), resumes=False)


if __name__ == "__main__":
    sys.exit(main())
