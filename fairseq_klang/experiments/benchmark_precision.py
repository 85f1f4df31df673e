"""`klang benchmark precision`: the time of a training step with quantised weights, and the speed,
size and BLEU of an INT8 model beside fairseq-generate."""

import argparse
import os
import re
import statistics
import tempfile
import time
from typing import Any, Dict, List, Tuple

import torch

from .. import register
from ..analysis.tables import Row, as_table, provenance, write_rows
from ..errors import KlangError
from ..files import PACKAGE
from .options import number
from .runner import Commands

EPILOG = """\
examples:
  klang benchmark precision step DATA --arch transformer_dualhead_b0 --out step.csv
  klang benchmark precision serve DATA CHECKPOINT --ref FILE --out serve.csv

`step` trains the float and the quantised model by turns on the same batches and gives the median
ratio of their times. `serve` exports the checkpoint to int8, translates a split with
fairseq-generate in fp32 (quantisation off) and with CTranslate2 by turns, each with several
batchings, and compares the best of both. Run it on a quiet machine: CTranslate2 suffers most from a
busy one.
"""


class BenchmarkError(KlangError):
    """Options or data that cannot be measured."""


def training(data: str, arch: str, *more: str) -> Tuple[Any, Any, Any]:
    """(model, criterion, task) of a fairseq-train command line."""
    register()
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    command = [data, "--user-dir", PACKAGE, "--arch", arch, "--cpu", "--optimizer", "adam"]
    command += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", *more]
    with tempfile.TemporaryDirectory() as folder:  # parsing makes it
        args = options.parse_args_and_arch(
            options.get_training_parser(), [*command, "--save-dir", folder]
        )
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    return task.build_model(cfg.model).train(), task.build_criterion(cfg.criterion), task


def time_steps(data: str, arch: str, rounds: int, max_tokens: int) -> Dict[str, List[float]]:
    """{"float", "qat": seconds of each counted step}, both models by turns on the same batches.

    Raises BenchmarkError where the data have too few batches, or too long a sentence.
    """
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
    seconds: Dict[str, List[float]] = {name: [] for name in models}
    for update, sample in zip(range(rounds + 1), batches):
        for name in sorted(models, reverse=bool(update % 2)):
            begin = time.perf_counter()
            models[name].set_num_updates(update)
            criterion(models[name], sample)[0].backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if update:  # the first warms up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def run_generate(data: str, checkpoint: str, subset: str, batching: str, folder: str) -> float:
    """Sentences a second that fairseq-generate reports in fp32; its output goes to the file
    `fairseq.out` of the folder."""
    command = ["fairseq-generate", data, "--user-dir", PACKAGE, "--path", checkpoint, "--cpu"]
    command += ["--beam", "5", "--gen-subset", subset, "--required-batch-size-multiple", "1"]
    command += [*batching.split(), "--model-overrides"]
    command += ["{'qat_bits': None, 'qat_gradient_bits': None, 'qat_start_update': 0}"]
    output, log = (os.path.join(folder, f"fairseq.{end}") for end in ("out", "log"))
    with open(output, "wb") as stream:
        Commands().execute(command, stream, log, lambda line: None)
    told = ""
    for path in (output, log):
        with open(path, encoding="utf-8", errors="replace") as reader:
            told += reader.read()
    speeds = re.findall(r"Translated .* \(([\d.]+) sentences/s", told)
    if not speeds:
        raise BenchmarkError("fairseq-generate told no speed; is this its version 0.12?")
    return float(speeds[-1])


def step_rows(options: argparse.Namespace) -> List[Row]:
    """Time the steps: a row for each model, and one for the ratio."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    if options.arch not in ARCH_MODEL_REGISTRY or "dualhead" not in options.arch:
        raise BenchmarkError(
            f"--arch is {options.arch}; it must be a dual-head architecture, which has --qat-bits"
        )
    seconds = time_steps(options.data, options.arch, options.rounds, options.max_tokens)
    settings = {"arch": options.arch, "max_tokens": options.max_tokens}
    settings["threads"] = torch.get_num_threads()
    common = dict(settings=settings, n=options.rounds, seeds=[1], **provenance())
    rows = [
        Row(name, "seconds a step, median", statistics.median(values), **common)
        for name, values in seconds.items()
    ]
    ratios = [q / f for q, f in zip(seconds["qat"], seconds["float"])]
    return rows + [Row("qat", "time / float's, median", statistics.median(ratios), **common)]


def serve_rows(options: argparse.Namespace) -> List[Row]:
    """Export, translate by turns, score: rows of speeds, sizes and BLEU."""
    from ..quantization.export import export, load_model, sentences_of
    from ..quantization.translate import Translator

    common = dict(subset=options.subset, decoding="beam5", **provenance())
    with tempfile.TemporaryDirectory() as work:
        sizes = {}
        for kind, count in (("int8", 200), ("float32", 10)):
            folder = os.path.join(work, kind)
            check, _ = export(options.checkpoint, options.data, folder, kind=kind, count=count)
            print(f"{kind}: {check}", flush=True)
            sizes[kind] = os.path.getsize(os.path.join(folder, "model.bin"))
        model, task = load_model(options.checkpoint, options.data)
        weights = os.path.join(work, "weights.pt")
        torch.save(
            {n: p for n, p in model.state_dict().items() if "sb_projection" not in n}, weights
        )
        sizes["fp32 weights"] = os.path.getsize(weights)
        sentences = sentences_of(task, options.subset, 10**9)
        translator = Translator(os.path.join(work, "int8"), threads=options.threads)
        speeds: Dict[Tuple[str, str], List[float]] = {}
        served: List[List[str]] = []
        for turn in range(options.rounds):
            for batching in options.fairseq_batching:
                speed = run_generate(
                    options.data, options.checkpoint, options.subset, batching, work
                )
                speeds.setdefault(("fairseq-generate FP32", batching), []).append(speed)
            for tokens in options.batch_tokens:
                begin = time.perf_counter()
                served = translator.translate_tokens(sentences, beam=5, batch_tokens=tokens)
                speed = len(sentences) / (time.perf_counter() - begin)
                speeds.setdefault(("int8", f"--batch-tokens {tokens}"), []).append(speed)
            for (system, batching), values in speeds.items():
                print(f"round {turn + 1}: {system} {batching}: {values[-1]:.1f} sentences/s")
        rows = [
            Row(
                system,
                "sentences/s, median",
                statistics.median(values),
                n=len(values),
                settings={"batching": batching, "sentences": len(sentences)},
                **common,
            )
            for (system, batching), values in speeds.items()
        ]
        best = {row.run: max(it.value for it in rows if it.run == row.run) for row in rows}
        ratio = best["int8"] / best["fairseq-generate FP32"]
        rows.append(Row("int8", "best speed / fairseq-generate's", ratio, **common))
        rows += [Row(kind, "megabytes", size / 1e6, **common) for kind, size in sizes.items()]
        share = sizes["int8"] / sizes["fp32 weights"]
        rows.append(Row("int8", "size / fp32 weights'", share, **common))
        if options.ref:
            rows += _bleu_rows(options.ref, work, served, common)
    return rows


def _bleu_rows(
    reference: str, work: str, served: List[List[str]], common: Dict[str, Any]
) -> List[Row]:
    from ..analysis.scoring import score

    outputs = [os.path.join(work, name) for name in ("fairseq.out", "int8.out")]
    with open(outputs[1], "w", encoding="utf-8") as stream:
        stream.writelines(f"H-{i}\t0\t{' '.join(tokens)}\n" for i, tokens in enumerate(served))
    report = score(reference, outputs, samples=1000)
    rows = [
        Row(name, "bleu_lc", system.bleu_lc.score, signature=system.bleu_lc.signature, **common)
        for name, system in zip(("fairseq-generate FP32", "int8"), report.systems)
    ]
    found = (report.differences or {})["bleu_lc"]
    low, high = found.interval
    row = Row("int8", "bleu_lc minus fairseq-generate FP32", found.delta, low=low, high=high)
    row.p, row.signature = found.p_value, rows[0].signature
    row.subset, row.decoding = common["subset"], common["decoding"]
    row.commit, row.versions = common["commit"], common["versions"]
    row.settings = {"over": found.over, "samples": found.samples}
    return [*rows, row]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang benchmark precision`."""
    parser.epilog = EPILOG
    parser.set_defaults(resumes=False)
    parts = parser.add_subparsers(dest="part", required=True, metavar="{step,serve}")
    step = parts.add_parser("step", help="a QAT training step against a float one")
    step.add_argument(
        "--arch",
        default="transformer_dualhead_b0",
        help="dual-head architecture (default: transformer_dualhead_b0)",
    )
    step.add_argument(
        "--max-tokens",
        type=number(int, 1),
        default=4096,
        metavar="N",
        help="tokens of a batch (default: 4096)",
    )
    serving = parts.add_parser("serve", help="the int8 model against fairseq-generate")
    for part, rounds in ((step, 7), (serving, 3)):
        part.add_argument("data", help="folder that fairseq-train reads")
        part.add_argument(
            "--rounds",
            type=number(int, 1),
            default=rounds,
            metavar="N",
            help=f"measurements of each, by turns (default: {rounds})",
        )
        part.add_argument("--out", metavar="CSV", help="file of results, one figure a row")
    serving.add_argument("checkpoint", help="trained transformer, with or without --qat-bits 8")
    serving.add_argument(
        "--subset", default="test", metavar="SPLIT", help="split to translate (default: test)"
    )
    serving.add_argument("--ref", metavar="FILE", help="raw reference of the split, for BLEU")
    serving.add_argument(
        "--threads",
        type=number(int, 1),
        metavar="N",
        help="translations at a time (default: all cores)",
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
        type=number(int, 1),
        metavar="N",
        default=[512, 1024, 2048, 4096],
        help="batchings of CTranslate2 (default: 512 1024 2048 4096)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write --out."""
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
    register()
    rows = step_rows(options) if options.part == "step" else serve_rows(options)
    table = [["what", "measure", "settings", "value"]]
    for row in rows:
        settings = " ".join(map(str, row.settings.values()))
        table.append([row.run, row.measure, settings, f"{row.value:.4g}"])
    print(as_table(table))
    if options.out:
        write_rows(options.out, rows)
    return 0
