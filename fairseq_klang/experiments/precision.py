"""`klang study precision`: does a model keep its BLEU in fewer bits? FP32, half precision, and INT8
training from 8 bits down to 2, against the collision constant (claim C14)."""

import argparse
import functools
import os
import statistics
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from .. import register
from ..analysis import scoring
from ..analysis.hypotheses import read_hypotheses
from ..analysis.logs import INNER, by_update, read_log
from ..analysis.significance import (
    FEWEST_SAMPLES,
    Difference,
    paired_bootstrap,
    score_of,
    sentence_statistics,
)
from ..analysis.tables import Row, as_table, provenance, read_rows, write_rows
from ..analysis.tokens import bleu_tokenizer
from ..collision import min_bits
from ..errors import KlangError
from ..files import read_json, read_lines, written
from .options import add_lanes, add_machine, add_seeds, device_of, named_paths, number
from .plan import Data, Plan, find_reference, read_data
from .recipes import read_table
from .runner import References, check_flags, run_all

EPILOG = """\
examples:
  klang study precision --data bpe=data/m30k word=data/m30k-word --out runs/precision --seeds 1 2
  klang study precision --data bpe=data/m30k --from bpe=FLOAT.pt --out runs/precision \\
      --max-epoch 2 --lr 0.001 --warmup-updates 100

DIR is what klang prepare wrote. Every setting trains recipe m30k with cross-entropy on the same
data with the same seeds, translates the test split (beam 5), and is compared with FP32 over all
seeds and sentences (docs/statistics.md). With --from every setting, FP32 too, starts from the same
trained float weights. Half precision is fp16 autocast on CUDA, and bfloat16 on a CPU, where fairseq
has no autocast. fp32 and qat8 are exported to int8 and served by CTranslate2 as well: quantised
after training, and trained for it. Any further flag goes to fairseq-train. Started again, it goes
on where it stopped. OUT gets precision.csv, precision.png and verdict.txt.
"""

SETTINGS = ["fp32", "half"] + [f"qat{bits}" for bits in range(8, 1, -1)]
SERVED = ("fp32", "qat8")  # exported to int8
LIMIT = 0.005  # C14: a loss of less than 0.5 % of FP32's BLEU
MEASURE = "bleu_lc"


class StudyError(KlangError):
    """Options that do not go together."""


def bits_of(setting: str) -> int:
    """Bits of a setting's weights."""
    return int(setting[3:]) if setting.startswith("qat") else {"fp32": 32, "half": 16}[setting]


class System(NamedTuple):
    """One line of the table: a setting of one vocabulary, as trained or as served in int8.

    outputs: the translation of the test split for each seed; bytes: of the model.
    """

    vocabulary: str
    types: int
    label: str
    bits: int
    outputs: List[str]
    bytes: float
    seconds: float

    @property
    def run(self) -> str:
        """Its name among the rows."""
        return f"{self.vocabulary} {self.label}"


# -- training --------------------------------------------------------------------------------------


def flags_of(setting: str, device: str, options: argparse.Namespace) -> List[str]:
    """The flags of fairseq-train that make a setting."""
    if setting == "half":
        return ["--amp" if device == "cuda" else "--bf16"]
    if setting.startswith("qat"):
        start = ["--qat-start-update", str(options.qat_start_update)]
        return ["--qat-bits", setting[3:], *start]
    return []


def jobs_of(options: argparse.Namespace) -> Dict[Tuple[str, str, int], Tuple[Plan, References]]:
    """{(vocabulary, setting, seed): job}. Raises StudyError."""
    datas = named_paths("--data", options.data)
    starts = named_paths("--from", options.start)
    for name, path in starts.items():
        if name not in datas or not os.path.isfile(path):
            reason = f"there is no file {path}" if name in datas else f"--data names no {name}"
            raise StudyError(f"--from {name}={path}: {reason}")
    device, recipe = device_of(options.device), read_table()["m30k"]
    jobs: Dict[Tuple[str, str, int], Tuple[Plan, References]] = {}
    for name, folder in datas.items():
        data = read_data(folder)
        reference = find_reference(data, "test")
        if reference is None:
            raise StudyError(
                f"--data {name}={folder} has no raw/test.{data.target}; make it with klang prepare"
            )
        begin = ["--task", "translation_dualhead"] if name in starts else []
        begin += ["--init-from", os.path.abspath(starts[name])] if name in starts else []
        for setting in options.settings:
            for seed in options.seeds:
                out = os.path.abspath(os.path.join(options.out, f"{name}-{setting}-seed{seed}"))
                extra = [*flags_of(setting, device, options), *begin, *options.extra]
                plan = Plan(recipe, data, out, "ce", seed, device, extra=extra, decodings=["beam5"])
                jobs[name, setting, seed] = plan, {"test": reference}
            check_flags(plan)
    return jobs


def served(plan: Plan) -> Tuple[str, int]:
    """Export to int8 and translate the test split with CTranslate2 unless that is done.

    Returns (the translations, bytes of the model's file).
    """
    from ..quantization.export import export, load_model, sentences_of
    from ..quantization.translate import Translator

    checkpoint = os.path.join(plan.checkpoints, "checkpoint_best.pt")
    model, output = os.path.join(plan.out, "int8"), os.path.join(plan.out, "gen.test.int8.out")
    if not os.path.exists(model):
        export(checkpoint, plan.data.folder, model)
    if not os.path.exists(output):
        sentences = sentences_of(load_model(checkpoint, plan.data.folder)[1], "test", 10**9)
        translations = Translator(model).translate_tokens(sentences)
        with written(output) as stream:
            stream.writelines(
                f"H-{i}\t0\t{' '.join(tokens)}\n" for i, tokens in enumerate(translations)
            )
    return output, os.path.getsize(os.path.join(model, "model.bin"))


def size_in_bits(path: str, bits: int) -> Tuple[int, float]:
    """(V, bytes) of a checkpoint's translation model with its matrices in `bits` and a float scale
    a row, the rest in float32; 16 bits hold everything."""
    from ..checkpoints.reading import load_checkpoint

    total, seen, vocabulary = 0.0, set(), 0
    for name, tensor in load_checkpoint(path)["model"].items():
        content = tensor.shape, tensor.float().numpy().tobytes()
        if "sb_projection" in name or content in seen:  # a shared table counts once
            continue
        seen.add(content)
        if name == "decoder.output_projection.weight":
            vocabulary = tensor.size(0)
        if bits < 16 and tensor.dim() > 1:
            total += tensor.numel() * bits / 8 + tensor.size(0) * 4
        else:
            total += tensor.numel() * (2 if bits == 16 else 4)
    return vocabulary, total


def seconds_per_update(log: str) -> float:
    """Median seconds of an update from the training log; nan for a training too short to log
    one."""
    rates = [stats.get("ups", 0.0) for stats in by_update(read_log(log), INNER).values()]
    seconds = [1 / rate for rate in rates if rate > 0]
    return statistics.median(seconds) if seconds else float("nan")


def systems_of(jobs: Dict[Tuple[str, str, int], Tuple[Plan, References]]) -> List[System]:
    """Every line of the table, over what is trained."""
    groups: Dict[Tuple[str, str], List[Plan]] = {}
    for (name, setting, _), (plan, _) in jobs.items():
        groups.setdefault((name, setting), []).append(plan)
    systems = []
    for (name, setting), plans in groups.items():
        best = os.path.join(plans[0].checkpoints, "checkpoint_best.pt")
        types, size = size_in_bits(best, bits_of(setting))
        seconds = statistics.fmean(seconds_per_update(plan.log) for plan in plans)
        outputs = [plan.outputs()["test", "beam5"] for plan in plans]
        systems.append(System(name, types, setting, bits_of(setting), outputs, size, seconds))
        if setting in SERVED:
            found = [served(plan) for plan in plans]
            outputs = [output for output, _ in found]
            systems.append(
                System(name, types, f"{setting} served", 8, outputs, found[0][1], float("nan"))
            )
    return systems


# -- figures ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def statistics_of(path: str, reference: str, target: str, subword: str, tokenizer: str) -> Any:
    """[N, C]: what lower-cased sacreBLEU counts in each sentence of an output."""
    lines = list(read_lines(reference))
    found = read_hypotheses(path, len(lines), target, subword=subword, tokenizer=tokenizer)
    return sentence_statistics(_metric(target), found.detokenized, lines)


def _metric(target: str) -> Any:
    return scoring.metrics(bleu_tokenizer(target)[0])[MEASURE][0]


def subword_of(data: Data) -> str:
    """The subwords to undo: none where klang prepare left words."""
    path = os.path.join(os.path.dirname(data.folder), "prepare.json")
    record = read_json(path, StudyError, "prepare the data again") or {}
    options = record.get("options") if isinstance(record, dict) else None
    words = isinstance(options, dict) and options.get("subword") == "word"
    return "none" if words else data.subword


def rows_of(
    systems: Sequence[System],
    datas: Dict[str, Tuple[Data, str]],
    seeds: Sequence[int],
    samples: int,
    more: Dict[str, Any],
) -> List[Row]:
    """Rows of every system; datas: {vocabulary: (data, reference)}, more: settings of all rows."""
    rows: List[Row] = []
    made = provenance()
    for name, (data, reference) in datas.items():
        own = [system for system in systems if system.vocabulary == name]
        metric = _metric(data.target)
        score, signature = score_of(metric), ""
        how = reference, data.target, subword_of(data), data.tokenizer
        counted = {
            system.label: np.stack([statistics_of(path, *how) for path in system.outputs])
            for system in own
        }  # {label: [R, N, C]}
        metric.corpus_score([""], [[""]])  # the signature is made by a first score
        signature = str(metric.get_signature())
        for system in own:
            settings = {"vocabulary": name, "V": system.types, "min_bits": min_bits(system.types)}
            settings.update(setting=system.label, bits=system.bits, **more)
            common = dict(subset="test", decoding="beam5", seeds=list(seeds), **made)
            values = score(counted[system.label].sum(1))
            figures = {MEASURE: float(values.mean()), "megabytes": system.bytes / 1e6}
            if system.seconds == system.seconds:
                figures["seconds per update"] = system.seconds
            for measure, value in figures.items():
                row = Row(system.run, measure, value, n=len(seeds), settings=settings, **common)
                row.signature = signature if measure == MEASURE else ""
                rows.append(row)
            if system.label != "fp32":
                found = paired_bootstrap(
                    counted["fp32"], counted[system.label], score, samples=samples
                )
                rows.append(
                    _difference(system.run, found, {**settings}, signature=signature, **common)
                )
    return rows


def _difference(run: str, found: Difference, settings: Dict[str, Any], **common: Any) -> Row:
    settings.update(above=found.bounds[0], below=found.bounds[1], samples=found.samples)
    settings.update(over=found.over)
    row = Row(run, f"{MEASURE} minus fp32", found.delta, settings=settings, **common)
    row.low, row.high = found.interval
    row.p, row.n = found.p_value, found.seeds
    return row


# -- verdicts --------------------------------------------------------------------------------------


def judge(lower: float, upper: float, reference_bleu: float) -> str:
    """Whether a loss below LIMIT of BLEU is sure ("kept"), excluded ("lost"), or neither: a test of
    non-inferiority. lower, upper: the one-sided 95 % bounds of the difference."""
    limit = -LIMIT * reference_bleu
    return "kept" if lower > limit else "lost" if upper < limit else "undecided"


class Line(NamedTuple):
    """The rows of one system, by what they say."""

    vocabulary: str
    setting: str
    bleu: Row
    difference: Row


def lines_of(rows: Sequence[Row]) -> Dict[Tuple[str, str], Line]:
    """{(vocabulary, setting): Line} of those rows that have a difference to FP32."""
    scores = {row.run: row for row in rows if row.measure == MEASURE}
    return {
        (str(row.settings["vocabulary"]), str(row.settings["setting"])): Line(
            str(row.settings["vocabulary"]), str(row.settings["setting"]), scores[row.run], row
        )
        for row in rows
        if row.measure == f"{MEASURE} minus fp32"
    }


def _plain(rows: Sequence[Row], vocabulary: str) -> Row:
    return next(row for row in rows if row.run == f"{vocabulary} fp32" and row.measure == MEASURE)


def verdicts(rows: Sequence[Row]) -> List[str]:
    """One line for each vocabulary and part of claim C14 (docs/claims.md)."""
    said = []
    lines = lines_of(rows)
    for name in dict.fromkeys(str(row.settings["vocabulary"]) for row in rows):
        fp32 = _plain(rows, name)
        plain, needed = fp32.value, int(fp32.settings["min_bits"])
        own = {setting: line for (of, setting), line in lines.items() if of == name}

        def bounds(setting: str, own: Dict[str, Line] = own) -> Tuple[float, float]:
            settings = own[setting].difference.settings
            return settings["above"], settings["below"]

        state = {setting: judge(*bounds(setting), plain) for setting in own}
        if "qat8" in state:
            words = {"kept": "supported", "lost": "refuted", "undecided": "undecided"}
            row, (lower, upper) = own["qat8"].difference, bounds("qat8")
            half = "kept" if lower > -0.5 else "lost" if upper < -0.5 else "open"
            said.append(
                f"{name}: INT8 training loses less than 0.5 % of BLEU, which is "
                f"{LIMIT * plain:.2f} BLEU: {words[state['qat8']]} (FP32 {plain:.2f}, difference "
                f"{row.value:+.2f}, 95 % {row.low:+.2f} to {row.high:+.2f}, one-sided above "
                f"{lower:+.2f} and below {upper:+.2f}); a limit of 0.5 BLEU is {half}"
            )
        enough, fewer = state.get(f"qat{needed}"), state.get(f"qat{needed - 1}")
        if enough and fewer:
            word = "undecided"
            if enough == "lost" or fewer == "kept":
                word = "refuted"
            elif (enough, fewer) == ("kept", "lost"):
                word = "supported"
            said.append(
                f"{name}: {needed} bits suffice and {needed - 1} do not: {word} (with {needed} "
                f"BLEU is {enough}, with {needed - 1} {fewer})"
            )
    return said


# -- the picture -----------------------------------------------------------------------------------


def draw(rows: Sequence[Row], path: str) -> None:
    """BLEU by bits, and its difference to FP32 with the 95 % interval, once with every point and
    once near 0, where what lies below the axis is marked with its value."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5))
    level, whole, near = axes
    names = list(dict.fromkeys(str(row.settings["vocabulary"]) for row in rows))
    floor = -3.0
    for place, name in enumerate(names):
        color, plain = f"C{place}", _plain(rows, name)
        swept = sorted(
            (line for line in lines_of(rows).values() if line.vocabulary == name),
            key=lambda line: int(line.bleu.settings["bits"]),
        )
        swept = [line for line in swept if line.setting[3:].isdigit()]
        bits = np.array([int(line.bleu.settings["bits"]) for line in swept])
        label = f"{name} (V = {plain.settings['V']:,})"
        values = [line.bleu.value for line in swept]
        level.plot(bits, values, marker="o", color=color, label=label)
        level.axhline(plain.value, color=color, linestyle="--", linewidth=1)
        beside = bits + 0.08 * (place - (len(names) - 1) / 2)  # intervals side by side
        found = [line.difference for line in swept]
        delta = np.array([row.value for row in found])
        low, high = (np.array([getattr(row, end) for row in found]) for end in ("low", "high"))
        for axis in (whole, near):
            errors = [delta - low, high - delta]
            axis.errorbar(beside, delta, yerr=errors, marker="o", capsize=3, color=color)
            axis.axhline(-LIMIT * plain.value, color=color, linestyle=":", linewidth=1)
        for x, value in zip(beside, delta):
            if value < floor:
                near.annotate(
                    f"{value:.1f}",
                    (x, floor),
                    xytext=(0, 16 + 12 * place),
                    textcoords="offset points",
                    ha="center",
                    color=color,
                    arrowprops=dict(arrowstyle="->", color=color),
                )
        for axis in axes:
            edge = int(plain.settings["min_bits"]) + 0.02 * place
            axis.axvline(edge, color=color, linestyle=":", linewidth=1)
    near.set_ylim(floor, 1)
    for axis in (whole, near):
        axis.axhline(0, color="black", linestyle="--", linewidth=1)
        axis.set_ylabel("BLEU minus FP32's, 95 % interval")
    level.set(ylabel="BLEU, test", title="dashed: FP32; dotted: ceil(log2(K_lang V))")
    whole.set(title="horizontal dotted line: a loss of 0.5 %")
    near.set(title=f"the same from {floor:g}; arrows: below")
    for axis in axes:
        axis.set_xlabel("bits of weights and activations")
    level.legend()
    figure.tight_layout()
    with written(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=110)
    pyplot.close(figure)


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study precision`; further ones are meant for fairseq-train."""
    parser.epilog = EPILOG
    parser.set_defaults(takes_flags=True)
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="NAME=DIR",
        help="vocabularies: a name, and the folder klang prepare wrote",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of all runs")
    parser.add_argument(
        "--settings",
        nargs="+",
        default=SETTINGS,
        choices=SETTINGS,
        metavar="SETTING",
        help=f"of {' '.join(SETTINGS)}; fp32 is always there (default: all)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        nargs="+",
        default=[],
        metavar="NAME=CKPT",
        help="float checkpoints of the same sizes that the trainings of a vocabulary start from",
    )
    parser.add_argument(
        "--qat-start-update",
        type=number(int, 0),
        default=0,
        metavar="N",
        help="updates in float before quantised ones (default: 0)",
    )
    parser.add_argument(
        "--samples",
        type=number(int, FEWEST_SAMPLES, 100_000),
        default=1000,
        metavar="N",
        help="resamples of the sentences (default: 1000)",
    )
    add_seeds(parser)
    add_lanes(parser)
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Train, translate, compare; write the rows, the picture and the verdicts."""
    options.settings = [name for name in SETTINGS if name == "fp32" or name in options.settings]
    jobs = jobs_of(options)
    run_all(list(jobs.values()), options.lanes, options.threads)
    register()
    datas = {
        name: (plan.data, str(references["test"]))
        for (name, _, _), (plan, references) in jobs.items()
    }
    more = {"flags": " ".join(options.extra)} if options.extra else {}
    rows = rows_of(systems_of(jobs), datas, options.seeds, options.samples, more)
    table, picture, verdict = (
        os.path.join(options.out, name)
        for name in ("precision.csv", "precision.png", "verdict.txt")
    )
    write_rows(table, rows)
    rows = read_rows(table)  # the picture and the verdicts are those of the file
    draw(rows, picture)
    said = verdicts(rows)
    with written(verdict) as stream:
        stream.writelines(f"{line}\n" for line in said)
    shown = [["vocabulary and setting", "BLEU", "minus FP32 [95 %]", "MB"]]
    sizes = {row.run: row.value for row in rows if row.measure == "megabytes"}
    differences = {line.bleu.run: line.difference for line in lines_of(rows).values()}
    for row in rows:
        if row.measure == MEASURE:
            found = differences.get(row.run)
            told = f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]" if found else "-"
            shown.append([row.run, f"{row.value:.2f}", told, f"{sizes[row.run]:.1f}"])
    print("\n".join([as_table(shown), "", *said, table, picture, verdict]))
    return 0
