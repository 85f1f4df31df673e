"""`klang benchmark time`: time and memory of the output layer and its loss, and of a whole training
step, against fairseq's cross-entropy."""

import argparse
import csv
import functools
import itertools
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from fairseq import optim, tasks
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor
from tqdm import tqdm

from .. import register
from ..collision import collision_size
from ..compat import HAS_TORCH_LINEAR_CROSS_ENTROPY
from ..criterions.fused_cross_entropy import FusedCrossEntropyConfig, FusedCrossEntropyCriterion
from ..criterions.restricted_softbleu import RestrictedSoftBleuConfig, RestrictedSoftBleuCriterion
from ..errors import KlangError
from ..files import PACKAGE, git_hash, versions, written
from ..learning.objectives import SourceObjective, strip_padding
from ..losses import combine, soft_bleu
from ..losses.soft_bleu import _score, target_masks
from ..models.heads import DualHeadDecoder, decoder_heads
from ..tasks.translation_autoencoding import (
    TranslationAutoencodingConfig,
    TranslationAutoencodingTask,
)
from .options import number, seed_number

EPILOG = """\
examples:
  klang benchmark time --out benchmark.csv                 the whole grid, resumable cell by cell
  klang benchmark time --what head --vocab 8000 --rows 4096 --dim 256      one cell of it
  klang benchmark time --device cuda --dtype float16       on a GPU, under autocast

What is measured (--what):
  head     the output layers and the loss alone, forward and backward, from features [B, T, d]
  step     a whole training step of transformer_dualhead_b0 (d = 256) or _b1 (d = 512) with
           fairseq's Adam
  ngrams   the soft n-gram part alone (T = 256, B = 16, all orders), beside a whole step of the same
           size
  source   a whole step of each objective that learns from the source alone, beside a training step
           of the same batch
  adapt    translating a batch (beam 5) with --task translation_autoencoding --adapt-steps 0 and 1,
           beside --task translation
ngrams, source and adapt are measured in one cell each: the smallest V and d of the grid, and its
largest N. Every cell times its criterions in turn (A B C A B C ...) in one process, so that a noisy
machine disturbs all alike; a ratio is the median of the rounds' ratios to fairseq_ce (translate, of
adapt). Peak memory is that of one step in a fresh process, with the heads' weights and gradients
and, for `step`, all of the model. N = B * T rows of T = 32; tokens are drawn from a Zipf
distribution. One CSV row for each criterion of each cell; a cell that is in the file with all that
is asked for is not measured again. klang benchmark plot draws from that file alone.
"""

Sample = Dict[str, Any]  # a batch as fairseq's tasks make it
Loss = Tuple[Tensor, int, Dict[str, Any]]
Action = Callable[[], None]

LENGTH = 32
EPSILON = 0.1  # label smoothing, as the field trains
ALPHA = 0.8
SPECIAL: Any = dict(bos=0, pad=1, eos=2, unk=3)
ARCHITECTURES = {256: "transformer_dualhead_b0", 512: "transformer_dualhead_b1"}
CRITERIONS = {
    "fairseq_ce": "fairseq's label_smoothed_cross_entropy",
    "fused_ce": "fused_cross_entropy",
    "torch_ce": "fused_cross_entropy --ce-kernel torch, without label smoothing",
    "dense": "two heads with full logits and a masked softmax, plain autograd",
    "klang": "restricted_softbleu",
    "klang_clipped": "restricted_softbleu --sb-counts clipped",
}
# What `source` compares: the model's --autoencoder, and the objective.
SOURCE_STEPS = {
    "ae_linear": ("linear", "autoencoding"),
    "ae_decoder": ("decoder", "autoencoding"),
    "masked_lm": ("none", "masked_lm"),
    "contrastive": ("none", "contrastive"),
}
ADAPT_STEPS = {
    "translate": None,
    "adapt_0": 0,
    "adapt_1": 1,
}  # what `adapt` compares: --adapt-steps
WHAT = ("head", "step", "ngrams", "source", "adapt")
ONE_CELL = {
    "ngrams": ["fairseq_ce", "klang"],
    "source": ["fairseq_ce", *SOURCE_STEPS],
    "adapt": list(ADAPT_STEPS),
}
BASE = {"adapt": "translate"}  # what the ratios of a cell refer to; fairseq_ce elsewhere
# Floating-point operations of the matrix products in units of N * V * d: a head's forward is 2, its
# backward 4 (docs/performance.md).
FLOPS = {"fairseq_ce": 6, "fused_ce": 6, "torch_ce": 6, "dense": 12, "klang": 8, "klang_clipped": 8}
FIELDS = (
    "what vocab rows dim criterion topk median_s p20_s p80_s ratio peak_mib gflop gemm_gflops "
    "bound_s bound_share rounds threads device dtype seed "
    "git versions python machine"
).split()


class BenchmarkError(KlangError):
    """Options that cannot be measured."""


# -- what is compared ------------------------------------------------------------------------------


class DenseCriterion(torch.nn.Module):
    """The naive dual head: full logits of both heads, a masked softmax, and plain autograd."""

    def __init__(self, topk: int) -> None:
        super().__init__()
        self.topk = topk

    def forward(self, model: Any, sample: Sample) -> Loss:
        """(loss, sample_size, {}) as fairseq's criterions return them."""
        features, extra = model(**sample["net_input"], features_only=True)
        (ce_head, sb_head), target = extra["heads"], sample["target"]
        logits = torch.nn.functional.linear(features, *ce_head)
        loss, _ = label_smoothed_nll_loss(
            log_softmax(logits), target.flatten(), EPSILON, SPECIAL["pad"], reduce=False
        )
        score = soft_bleu(
            torch.nn.functional.linear(features, *sb_head), target, **SPECIAL, topk=self.topk
        ).score
        tokens = target.ne(SPECIAL["pad"]).sum(1)
        return (
            combine(loss.view_as(target).sum(1), score, tokens, form="linear", alpha=ALPHA).sum(),
            sample["ntokens"],
            {},
        )


def log_softmax(logits: Tensor) -> Tensor:
    """fairseq's get_normalized_probs for criterions: float32, [B, T, V] -> [B * T, V]."""
    return torch.log_softmax(logits, -1, dtype=torch.float32).flatten(0, 1)


class SourceCriterion:
    """One objective of learning from the source alone, as a criterion."""

    def __init__(self, objective: str, task: Any) -> None:
        self.objective = SourceObjective(objective, task.source_dictionary)

    def __call__(self, model: Any, sample: Sample) -> Loss:
        """(loss, sample_size, {}) as fairseq's criterions return them."""
        sentences = strip_padding(sample["net_input"]["src_tokens"], SPECIAL["pad"])
        loss, units = self.objective(
            model, self.objective.prepare(sentences, [(1, 1, i) for i in range(len(sentences))])
        )
        return loss, int(units), {}


class HeadsOnly(DualHeadDecoder, torch.nn.Module):
    """Two output layers and nothing below them: the decoder's states are a parameter, so that they
    get a gradient too."""

    def __init__(self, vocab: int, dim: int, batch: int) -> None:
        super().__init__()
        self.features = torch.nn.Parameter(torch.randn(batch, LENGTH, dim))
        self.output_projection, self.sb_projection = (
            torch.nn.Linear(dim, vocab, bias=False) for _ in range(2)
        )
        for head in (self.output_projection, self.sb_projection):
            torch.nn.init.normal_(head.weight, std=dim**-0.5)

    encoder, decoder = None, property(lambda self: self)

    def forward(self, features_only: bool = False, **_: Any) -> Tuple[Tensor, Dict[str, Any]]:
        """(features, {"heads"}) or (logits [B, T, V], {}), as a dual-head model."""
        if features_only:
            return self.features, {"heads": decoder_heads(self)}
        return self.output_projection(self.features), {}

    def get_normalized_probs(self, net_output: Any, log_probs: bool) -> Tensor:
        """log p [B, T, V] in float32, as fairseq's decoder."""
        return torch.log_softmax(net_output[0], -1, dtype=torch.float32)

    def get_targets(self, sample: Sample, net_output: Any) -> Tensor:
        """[B, T], as fairseq's model."""
        return sample["target"]


def dictionary(vocab: int) -> Dictionary:
    """A fairseq dictionary of `vocab` types, specials included."""
    result = Dictionary()
    for i in range(vocab - len(result)):
        result.add_symbol(f"w{i}")
    return result


def build_task(vocab: int, adapt_steps: Optional[int] = None) -> Any:
    """A translation task with a joined dictionary of that size and no data; with `adapt_steps`, the
    one that can adapt."""
    config = (
        tasks.translation.TranslationConfig()
        if adapt_steps is None
        else TranslationAutoencodingConfig(adapt_steps=adapt_steps, seed=1, path="")
    )
    config.source_lang, config.target_lang = "de", "en"
    words = dictionary(vocab)
    return (
        tasks.translation.TranslationTask if adapt_steps is None else TranslationAutoencodingTask
    )(config, words, words)


def build_criterion(name: str, task: Any) -> Callable[[Any, Sample], Loss]:
    """The criterion that `name` stands for, at label smoothing 0.1 and the criterion's defaults."""
    if name in SOURCE_STEPS:
        return SourceCriterion(SOURCE_STEPS[name][1], task)
    if name == "fairseq_ce":
        return LabelSmoothedCrossEntropyCriterion(task, False, EPSILON)
    if name == "dense":
        return DenseCriterion(collision_size(len(task.target_dictionary)))
    if name in ("fused_ce", "torch_ce"):
        kernel = dict(ce_kernel="torch") if name == "torch_ce" else dict(label_smoothing=EPSILON)
        return FusedCrossEntropyCriterion(
            task, FusedCrossEntropyConfig(sentence_avg=False, **kernel)
        )
    counts = "clipped" if name == "klang_clipped" else "matched"
    config = RestrictedSoftBleuConfig(
        sentence_avg=False, sb_alpha=ALPHA, sb_counts=counts, label_smoothing=EPSILON
    )
    return RestrictedSoftBleuCriterion(task, config)


def build_sample(vocab: int, rows: int, length: int, rng: torch.Generator) -> Sample:
    """A batch of `rows` target tokens in sentences of `length`, `</s>` included, drawn from a Zipf
    distribution."""
    batch = rows // length
    frequency = 1 / torch.arange(10.0, vocab - 4 + 10)
    source, target = (
        torch.multinomial(frequency, batch * length, True, generator=rng).view(batch, length) + 4
        for _ in range(2)
    )
    source[:, -1] = target[:, -1] = SPECIAL["eos"]
    previous = torch.cat((target[:, -1:], target[:, :-1]), 1)
    lengths = torch.full((batch,), length)
    net_input = dict(src_tokens=source, src_lengths=lengths, prev_output_tokens=previous)
    return dict(net_input=net_input, target=target, ntokens=batch * length, nsentences=batch)


def to_device(value: Any, device: str) -> Any:
    """The sample with its tensors on `device`."""
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


class Cell:
    """One cell of the grid: builds its model and batch, and runs one step of any criterion on
    them."""

    def __init__(
        self,
        what: str,
        vocab: int,
        rows: int,
        dim: int,
        options: argparse.Namespace,
        autoencoder: str = "none",
    ) -> None:
        torch.manual_seed(options.seed)
        rng = torch.Generator().manual_seed(options.seed)
        self.what, self.options = what, options
        self.task = build_task(vocab)
        length = 256 if what == "ngrams" else LENGTH
        self.sample = to_device(build_sample(vocab, rows, length, rng), options.device)
        if what == "head":
            self.model = HeadsOnly(vocab, dim, rows // LENGTH)
        else:
            args = argparse.Namespace(
                criterion="cross_entropy", dropout=0.1, autoencoder=autoencoder
            )
            ARCH_CONFIG_REGISTRY[ARCHITECTURES[dim]](args)
            self.model = ARCH_MODEL_REGISTRY[ARCHITECTURES[dim]].build_model(args, self.task)
        self.model.to(options.device).train()
        self.optimizer: Any = None
        self.buffers: Optional[Tuple[Tensor, Tensor]] = None
        if what != "head":
            config = optim.adam.FairseqAdamConfig(adam_betas="(0.9, 0.98)", lr=[0.0005])
            self.optimizer = optim.adam.FairseqAdam(
                config, [p for p in self.model.parameters() if p.requires_grad]
            )

    def step(self, criterion: Callable[[Any, Sample], Loss]) -> None:
        """One step: forward, backward, and where the whole step is measured clipping and Adam."""
        with torch.autocast(
            self.options.device,
            getattr(torch, self.options.dtype),
            enabled=self.options.dtype != "float32",
        ):
            loss, sample_size, _ = criterion(self.model, self.sample)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.multiply_grads(1 / sample_size)
            self.optimizer.clip_grad_norm(1.0)
            self.optimizer.step()
        for parameter in self.model.parameters():
            parameter.grad = None

    def ngrams(self) -> None:
        """The soft n-gram part alone, forward and backward, from log p_SB(y_s | t) [B, T, T]."""
        target = self.sample["target"]
        log_probs = torch.log_softmax(
            torch.randn(*target.shape, target.size(1), device=target.device), -1
        ).requires_grad_()
        scored, matchable = target_masks(target, **SPECIAL)
        _score(
            log_probs, target, scored, matchable, scored.long(), 4, "true", 0.5, "matched"
        ).score.sum().backward()

    def translate(self, adapt_steps: Optional[int]) -> Action:
        """What translates the batch: fairseq's generator at beam 5, LENGTH tokens a sentence, and
        with a number the steps before it."""
        task = build_task(len(self.task.source_dictionary), adapt_steps)
        args = argparse.Namespace(
            beam=5, max_len_a=0, max_len_b=LENGTH, min_len=LENGTH
        )  # an untrained model knows no end
        generator = task.build_generator([self.model], args)

        def action() -> None:
            self.model.eval()
            task.inference_step(generator, [self.model], self.sample)

        return action

    def gemm(self) -> None:
        """The products of one head's weight gradient, 2NVd operations: the fastest that this
        machine multiplies at these sizes."""
        features, weight = (
            self.model.features.detach().flatten(0, 1),
            self.model.output_projection.weight,
        )
        if self.buffers is None:
            self.buffers = (
                features.new_zeros(min(features.size(0), 512), weight.size(0)),
                torch.zeros_like(weight),
            )
        dlogits, sums = self.buffers
        for chunk in features.split(dlogits.size(0)):
            sums.addmm_(dlogits[: chunk.size(0)].t(), chunk)


# -- measuring -------------------------------------------------------------------------------------


def seconds(action: Action, device: str) -> float:
    """Wall time of `action()`, waiting for the device."""
    start = time.perf_counter()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def build_actions(
    what: str,
    vocab: int,
    rows: int,
    dim: int,
    names: Sequence[str],
    options: argparse.Namespace,
) -> Dict[str, Action]:
    """{name: a function that runs it once}, for the criterions `names` and what else belongs to
    such a cell."""
    cell = Cell(what, vocab, rows, dim, options, "linear" if what == "adapt" else "none")
    if what == "adapt":
        return {name: cell.translate(ADAPT_STEPS[name]) for name in names}
    cells = {
        name: Cell(what, vocab, rows, dim, options, SOURCE_STEPS[name][0])
        if name in SOURCE_STEPS
        else cell
        for name in names
    }
    actions: Dict[str, Action] = {
        name: functools.partial(own.step, build_criterion(name, own.task))
        for name, own in cells.items()
    }
    if what == "head":
        actions["gemm"] = cell.gemm
    if what == "ngrams":
        actions["ngrams"] = cell.ngrams
    return actions


def measure(
    actions: Dict[str, Action], rounds: int, device: str, progress: tqdm
) -> Dict[str, List[float]]:
    """{name: [seconds of each round]}, the names in turn within a round; the first round only warms
    up."""
    times: Dict[str, List[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            elapsed = seconds(action, device)
            if turn:
                times[name].append(elapsed)
            progress.set_postfix_str(f"{name} {elapsed:.2f} s", refresh=False)
            progress.update()
    return times


def peak_memory(
    what: str, vocab: int, rows: int, dim: int, name: str, options: argparse.Namespace
) -> float:
    """Peak MiB that one step adds to a fresh process which holds the batch and, for `head`, the
    decoder states."""
    command = [
        *[sys.executable, "-m", "fairseq_klang.cli", "benchmark", "time"],
        "--peak-of",
        json.dumps([what, vocab, rows, dim, name]),
    ]
    for option in ("device", "dtype", "seed", "threads"):
        command += [f"--{option}", str(getattr(options, option))]
    path = os.pathsep.join(filter(None, [os.path.dirname(PACKAGE), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, PYTHONPATH=path)
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if found.returncode:
        raise BenchmarkError(
            f"{name} at V = {vocab}, N = {rows}, d = {dim} failed (see above); is there memory "
            "enough?"
        )
    return float(found.stdout.split()[-1])


def print_peak(
    what: str, vocab: int, rows: int, dim: int, name: str, options: argparse.Namespace
) -> None:
    """What --peak-of runs: one small step to load the libraries, then the step that counts."""
    small = Cell(what, 200, 2 * LENGTH, dim, options)
    small.step(build_criterion(name, small.task))
    del small
    criterion = build_criterion(name, build_task(vocab))
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # the small step's is none of this one
    before = peak(options.device)
    cell = Cell(what, vocab, rows, dim, options)
    cell.step(criterion)
    print(peak(options.device) - before)


def peak(device: str) -> float:
    """The peak in MiB: of the GPU's memory since the last reset, or of the resident process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        with open(
            "/proc/self/status", encoding="ascii"
        ) as stream:  # Linux: getrusage would count the parent before exec too
            return int(next(line.split()[1] for line in stream if line.startswith("VmHWM"))) / 2**10
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (
            20 if sys.platform == "darwin" else 10
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, by linear interpolation."""
    values = sorted(values)
    position = share * (len(values) - 1)
    low = int(position)
    return values[low] + (position - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def table_rows(
    times: Dict[str, List[float]],
    peaks: Dict[str, float],
    what: str,
    vocab: int,
    rows: int,
    dim: int,
    options: argparse.Namespace,
    common: Dict[str, Any],
) -> Iterator[Dict[str, Any]]:
    """The CSV rows of one cell; a ratio is to BASE's time, in whatever order they are measured."""
    base = times[BASE.get(what, "fairseq_ce")]
    gemm = times.get("gemm")
    rate = 2 * rows * vocab * dim / statistics.median(gemm) / 1e9 if gemm else None
    for name, values in times.items():
        if name == "gemm":
            continue
        work = FLOPS[name] * rows * vocab * dim / 1e9 if name in FLOPS else None
        bound = work / rate if work and rate else None
        median = statistics.median(values)
        yield dict(
            common,
            what=what,
            vocab=vocab,
            rows=rows,
            dim=dim,
            criterion=name,
            topk=collision_size(vocab),
            median_s=round(median, 5),
            p20_s=round(quantile(values, 0.2), 5),
            p80_s=round(quantile(values, 0.8), 5),
            ratio=round(statistics.median(a / b for a, b in zip(values, base)), 4),
            peak_mib=round(peaks[name], 1) if name in peaks else "",
            gflop=work or "",
            gemm_gflops=round(rate, 1) if rate else "",
            bound_s=round(bound, 5) if bound else "",
            bound_share=round(bound / median, 3) if bound else "",
            rounds=options.rounds,
        )


SETTING = ("device", "dtype", "threads")
CELL = ("what", "vocab", "rows", "dim", *SETTING)


def cell_of(row: Dict[str, Any]) -> Tuple[str, ...]:
    """What cell and setting a row of the CSV belongs to, as strings."""
    return tuple(str(row[key]) for key in CELL)


def read_rows(path: str) -> List[Dict[str, Any]]:
    """The rows that the CSV holds; raises BenchmarkError for another file, and for one that was cut
    short."""
    if not os.path.exists(path) or not os.path.getsize(path):
        return []
    with open(path, newline="", encoding="utf-8", errors="replace") as stream:
        reader = csv.DictReader(stream)
        if reader.fieldnames != FIELDS:
            raise BenchmarkError(f"{path} has other columns; choose another --out")
        rows = list(reader)
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise BenchmarkError(
                f"{path} is damaged at line {line}; remove that line or choose another --out"
            )
    return rows


def write_rows(path: str, rows: Sequence[Dict[str, Any]]) -> None:
    """Write the CSV; the file is replaced when it is complete."""
    with written(path) as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def cells(options: argparse.Namespace) -> Iterator[Tuple[str, int, int, int]]:
    """The grid: (what, V, N, d) of every cell."""
    for what, vocab, rows, dim in itertools.product(
        options.what, options.vocab, options.rows, options.dim
    ):
        if what in ONE_CELL:
            if (
                rows == max(options.rows)
                and vocab == min(options.vocab)
                and dim == min(options.dim)
            ):
                yield what, vocab, 16 * 256 if what == "ngrams" else rows, dim
        else:
            yield what, vocab, rows, dim


def run(options: argparse.Namespace) -> int:
    """Measure what is not in the file yet, cell by cell."""
    register()
    logging.disable(logging.INFO)  # the criterions' notes between the progress bars
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("--device is cuda, but torch sees no GPU; use cpu")
    for value in options.rows:
        if value % LENGTH:
            raise BenchmarkError(f"--rows is {value}; it must be a multiple of {LENGTH}")
    if "fairseq_ce" not in options.criterion:
        options.criterion.insert(0, "fairseq_ce")  # what the ratios refer to
    torch.set_num_threads(options.threads)
    if options.peak_of:
        try:
            what, vocab, rows, dim, name = json.loads(options.peak_of)
        except ValueError:
            raise BenchmarkError("--peak-of is for klang's own use") from None
        print_peak(what, vocab, rows, dim, name, options)
        return 0
    rows_so_far = read_rows(options.out)
    write_rows(
        options.out, rows_so_far
    )  # a file that cannot be written shows now, not after the first cell
    have: Dict[Tuple[str, ...], Set[str]] = {}
    for row in rows_so_far:
        have.setdefault(cell_of(row), set()).add(row["criterion"])
    names = [
        name for name in options.criterion if name != "torch_ce" or HAS_TORCH_LINEAR_CROSS_ENTROPY
    ]
    common = dict(
        threads=options.threads,
        device=options.device,
        dtype=options.dtype,
        seed=options.seed,
        git=git_hash(),
        versions=" ".join(
            f"{k}={v}"
            for k, v in dict(torch=torch.__version__, **versions()).items()
            if k != "python"
        ),
        python=platform.python_version(),
        machine=torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.machine()}, {os.cpu_count()} cores",
    )

    def cell_here(cell: Tuple[str, int, int, int]) -> Tuple[str, ...]:
        return cell_of(dict(zip(CELL, (*cell, *(getattr(options, key) for key in SETTING)))))

    grid = list(cells(options))
    todo = [
        cell
        for cell in grid
        if not have.get(cell_here(cell), set()) >= set(ONE_CELL.get(cell[0], names))
    ]
    if len(todo) < len(grid):
        print(f"{len(grid) - len(todo)} of {len(grid)} cells are in {options.out} already")
    for place, (what, vocab, rows, dim) in enumerate(todo, 1):
        title = f"cell {place} of {len(todo)}: {what}, V {vocab}, N {rows}, d {dim}"
        chosen = ONE_CELL.get(what, names)
        peaks = {}
        if what not in ONE_CELL:
            for name in tqdm(chosen, desc=title + ", memory", unit="process"):
                peaks[name] = peak_memory(what, vocab, rows, dim, name, options)
        actions = build_actions(what, vocab, rows, dim, chosen, options)
        with tqdm(total=(options.rounds + 1) * len(actions), desc=title, unit="step") as progress:
            times = measure(actions, options.rounds, options.device, progress)
        del actions
        found = list(table_rows(times, peaks, what, vocab, rows, dim, options, common))
        # A cell that lacked a criterion was measured again as a whole, for its ratios are those of
        # one run.
        rows_so_far = [
            row for row in rows_so_far if cell_of(row) != cell_here((what, vocab, rows, dim))
        ] + found
        write_rows(options.out, rows_so_far)
        for row in found:
            print(
                f"  {row['criterion']:14} {row['median_s']:8.3f} s   {row['ratio']:.2f} x "
                f"{BASE.get(what, 'fairseq_ce')}   {row['peak_mib'] or '-':>8} MiB"
            )
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang benchmark time`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--out",
        default="benchmark.csv",
        metavar="CSV",
        help="rows are added to this file (default: benchmark.csv)",
    )
    parser.add_argument(
        "--what", nargs="+", choices=WHAT, default=list(WHAT), help="default: all of them"
    )
    grid = [("vocab", 200, "V", [8000, 32000, 56652], "types of the dictionary")]
    grid += [("rows", LENGTH, "N", [1024, 4096], "target tokens of a batch")]
    for name, low, metavar, default, text in grid:
        told = " ".join(map(str, default))
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=number(int, low),
            default=default,
            metavar=metavar,
            help=f"{text} (default: {told})",
        )
    parser.add_argument(
        "--dim",
        nargs="+",
        type=int,
        choices=sorted(ARCHITECTURES),
        default=sorted(ARCHITECTURES),
        help="d (default: both)",
    )
    parser.add_argument(
        "--criterion",
        nargs="+",
        choices=CRITERIONS,
        default=list(CRITERIONS),
        help="default: all of them",
    )
    parser.add_argument("--rounds", type=number(int, 1), default=7, metavar="N", help="default: 7")
    parser.add_argument(
        "--threads",
        type=number(int, 1),
        default=torch.get_num_threads(),
        metavar="N",
        help="default: what torch takes",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="other than float32: under autocast (default: float32)",
    )
    parser.add_argument("--seed", type=seed_number, default=1, metavar="N", help="default: 1")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
