"""`klang study autoencoding PART`: learning from the source alone, in training and after (claims
C11 to C13); each part writes a CSV file and a picture."""

import argparse
import math
import os
import pickle
import zipfile
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from tqdm import tqdm

from .. import register
from ..analysis.clusters import cluster
from ..analysis.hypotheses import join_subwords
from ..analysis.logs import VALID, by_epoch, read_log
from ..analysis.ratio import alpha_star
from ..analysis.scoring import metrics
from ..analysis.significance import FEWEST_SAMPLES, score_of, sentence_statistics
from ..analysis.tables import Row, provenance, write_rows
from ..analysis.tokens import bleu_tokenizer
from ..errors import KlangError
from ..files import read_json, read_lines, write_json, written
from ..learning.adaptation import Adapter
from ..learning.noise import NOISES
from ..learning.objectives import SourceObjective
from ..models.autoencoder import check_source_passes, reconstruction_model
from ..tasks.adapting import Replay
from .comparing import pool
from .options import add_machine, add_seeds, device_of, number
from .plan import Data, Plan, find_reference, read_data
from .recipe import add_data
from .recipes import read_table
from .runner import Commands, check_flags
from .runner import run as run_plan
from .system import System

EPILOG = """\
parts:
  base      a model with both halves, for the next two; --from starts it from a checkpoint
  stream    frozen against learning, over a stream of source text: BLEU, clusters (C11)
  ratio     BLEU against autoencoding : translation steps, and bounds on alpha* (C12)
  pretrain  translation from scratch against from a pretrained encoder (C13)
  skeleton  the source language onto itself, epoch by epoch, after pretrain (C13)

example:
  klang study autoencoding base --data data/multi30k --out runs/ae --epochs 5

Trains recipe m30k with cross-entropy; any further flag goes to fairseq-train. DATA is what klang
prepare wrote. Needs scikit-learn: pip install 'fairseq-klang[analysis]'. Interrupted, the same
command goes on: fairseq resumes a training, a stream goes on from its last measurement, and what is
finished is not done again.
"""


class StudyError(KlangError):
    """A study that cannot be run on what is there."""


Options = argparse.Namespace
Figures = Dict[str, Any]  # what was measured at one place of a run, and where


# -- rows and pictures -----------------------------------------------------------------------------


def _metric(language: str) -> Any:
    """Lower-cased sacreBLEU for text in a language."""
    return metrics(bleu_tokenizer(language)[0])["bleu_lc"][0]


def _signature(language: str) -> str:
    metric = _metric(language)
    metric.corpus_score(["a"], [["a"]])  # a first score makes the signature
    return str(metric.get_signature())


def _settings(options: Options) -> Dict[str, Any]:
    """What every row of a part tells of its options."""
    names = {
        "stream": "objective parameters steps batch adapt_lr passes replay noise",
        "ratio": "objective parameters steps batch adapt_lr passes noise",
        "pretrain": "autoencoder noise pretrain_epochs epochs",
        "skeleton": "autoencoder noise pretrain_epochs",
    }
    settings = {name: getattr(options, name) for name in names[options.part].split()}
    if options.extra:
        settings["flags"] = " ".join(options.extra)
    return settings


def _write(options: Options, rows: Sequence[Row]) -> None:
    made = provenance()
    for row in rows:
        row.commit, row.versions = made["commit"], made["versions"]
        row.subset, row.decoding = options.valid, "greedy"
        row.settings.update(_settings(options))
    path = os.path.join(options.out, f"{options.part}.csv")
    write_rows(path, rows)
    print(path)


Points = List[Tuple[float, float]]


def _draw(options: Options, panels: Dict[str, Tuple[str, Dict[str, Points]]]) -> None:
    """Draw {y label: (x label, {line: points})} side by side.

    Several y of one x are seeds: their mean is drawn, with the 95 % interval of the mean by
    Student's t, and each of them as a dot.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (label, (x_label, lines)) in zip(axes[0], panels.items()):
        for name, points in lines.items():
            places = sorted({x for x, _ in points})
            pooled = [pool([y for x, y in points if x == place]) for place in places]
            found = [it for it in pooled if it is not None]
            means = np.array([it.mean for it in found])
            halves = [(it.interval[1] - it.mean) if it.interval else 0 for it in found]
            drawn = axis.errorbar(
                places, means, yerr=halves, label=name, marker="o", markersize=3, capsize=2
            )
            axis.plot(*zip(*points), ".", color=drawn.lines[0].get_color(), alpha=0.4)
        axis.set(xlabel=x_label, ylabel=label)
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    path = os.path.join(options.out, f"{options.part}.png")
    with written(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=120)
    pyplot.close(figure)
    print(path)


# -- training --------------------------------------------------------------------------------------


def train(options: Options, name: str, epochs: int, seed: int, *flags: str) -> Plan:
    """Train OUT/name from recipe m30k unless that is done; returns its plan."""
    extra = ["--task", "translation_autoencoding", "--max-epoch", str(epochs)]
    extra += ["--keep-last-epochs", "-1", *flags, *options.extra]
    out = os.path.join(os.path.abspath(options.out), name)
    device = device_of(options.device)
    plan = Plan(
        read_table()["m30k"], options.folder, out, "ce", seed, device, subsets=[], extra=extra
    )
    check_flags(plan)
    run_plan(plan, {}, Commands(options.threads))
    return plan


def base(options: Options) -> None:
    """A model with both halves, each update learning both."""
    start = ["--init-from", os.path.abspath(options.start)] if options.start else []
    halves = ["--autoencoder", options.autoencoder, "--ae-weight", "1", "--ae-noise", options.noise]
    plan = train(options, "base", options.epochs, options.seeds[0], *halves, *start)
    print(plan.out)


def _pretrained(options: Options, seed: int) -> Plan:
    """A model that has learnt the source language onto itself."""
    flags = ["--autoencoder", options.autoencoder, "--source-only", "--ae-noise", options.noise]
    return train(options, f"pretrain/source-seed{seed}", options.pretrain_epochs, seed, *flags)


# -- learning at inference -------------------------------------------------------------------------


def _system(options: Options) -> System:
    if not os.path.isfile(options.checkpoint):
        raise StudyError(
            f"no checkpoint {options.checkpoint}; run the study's base first, or name one with "
            "--checkpoint"
        )
    return System(options.checkpoint, options.folder)


def _adapter(options: Options, system: System, ratio: float, seed: int) -> Adapter:
    """An :class:`Adapter` with the study's settings; ratio: translation steps a source step."""
    check_source_passes(system.model, options.objective, "--objective")
    noise = options.noise if options.objective == "autoencoding" else "none"
    replay = None
    if ratio:
        system.task.load_dataset("train")
        replay = Replay(system.task.dataset("train"), system.task.target_dictionary.pad())
    return Adapter(
        system.model,
        SourceObjective(options.objective, system.task.source_dictionary, noise),
        steps=options.steps,
        lr=options.adapt_lr,
        parameters=options.parameters,
        patience=0,
        seed=seed,
        replay=replay,
        ratio=ratio,
    )


def stream_of(options: Options, system: System, seed: int) -> List[List[torch.Tensor]]:
    """Batches of source sentences from the stream's splits, in an order drawn from the seed."""
    sentences = [sentence for split in options.stream for sentence in system.sentences(split)]
    sentences = sentences[: options.sentences]
    order = np.concatenate(
        [
            np.random.default_rng([seed, turn]).permutation(len(sentences))
            for turn in range(options.passes)
        ]
    )
    return [
        [sentences[i] for i in order[start : start + options.batch]]
        for start in range(0, len(order), options.batch)
    ]


def _references(options: Options) -> List[str]:
    path = find_reference(options.folder, options.valid)
    if path is None:
        raise StudyError(
            f"--data {options.data} has no raw/{options.valid}.{options.folder.target}; make it "
            "with klang prepare"
        )
    return list(read_lines(path))[: options.held_out]


def _measure(
    options: Options,
    lines: Sequence[str],
    states: np.ndarray,
    references: Sequence[str],
    name: str,
    seed: int,
    seen: int,
) -> Figures:
    bleu = _metric(options.folder.target).corpus_score(list(lines), [list(references)]).score
    indices = cluster(states, options.clusters)._asdict()
    return dict(
        system=name,
        seed=seed,
        sentences=seen,
        bleu_lc=round(bleu, 3),
        **{index: round(value, 5) for index, value in indices.items()},
    )


def stream(options: Options) -> None:
    """(a) Frozen against learning: BLEU and clusters of held-out text against source sentences
    seen."""
    found: List[Figures] = []
    systems = [("frozen", 0.0), ("each sentence, reset", 0.0), ("learning", 0.0)]
    systems.append(("learning, replay", options.replay))
    for seed in options.seeds:
        for name, ratio in systems:
            found += _stream_run(options, name, ratio, seed)
    rows, signature = [], _signature(options.folder.target)
    labels = {
        "bleu_lc": "BLEU of held-out text, lower-cased",
        "silhouette": "silhouette of encoder states",
        "relative_inertia": "inertia / spread of encoder states",
    }
    for figures in found:
        for measure in labels:
            settings = {"sentences": figures["sentences"]}
            if f"{measure}_sd" in figures:
                settings["sd_over_starts"] = figures[f"{measure}_sd"]
            row = Row(figures["system"], measure, figures[measure], settings=settings)
            row.seeds, row.signature = [figures["seed"]], signature if "bleu" in measure else ""
            rows.append(row)
    _write(options, rows)
    last = max(figures["sentences"] for figures in found)
    panels = {}
    for measure, label in labels.items():
        lines: Dict[str, Points] = {}
        for figures in found:
            place = figures["sentences"], figures[measure]
            lines.setdefault(figures["system"], []).append(place)
        # what does not learn from the stream is a level line
        flat = {
            name: [(x, y) for _, y in points for x in (0, last)]
            for name, points in lines.items()
            if {x for x, _ in points} == {0}
        }
        panels[label] = ("source sentences seen", {**lines, **flat})
    _draw(options, panels)


def _read_record(path: str, keys: Sequence[str]) -> List[Figures]:
    """The figures of a finished run. Raises StudyError where the file does not hold them."""
    fix = "delete it, and run the study again"
    found = read_json(path, StudyError, fix)
    whole = isinstance(found, list) and all(
        isinstance(figures, dict) and set(keys) <= set(figures) for figures in found
    )
    numbers = [v for f in found for k, v in f.items() if k != "system"] if whole else [None]
    if not all(isinstance(value, (int, float)) for value in numbers):
        raise StudyError(f"{path} is damaged: it does not hold what was measured; {fix}")
    return list(found)


def _read_state(path: str) -> Dict[str, Any]:
    """What a stream left when it was stopped. Raises StudyError where the file is damaged."""
    try:
        saved = torch.load(path, map_location="cpu")
        return dict(rows=saved["rows"], place=int(saved["place"]), adapter=saved["adapter"])
    except (
        *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
        *(pickle.UnpicklingError, zipfile.BadZipFile, IndexError),
    ) as error:
        raise StudyError(
            f"{path} is damaged ({type(error).__name__}); delete it, and run the study again"
        ) from None


MEASURED = ("system", "seed", "sentences", "bleu_lc", "silhouette", "relative_inertia")


def _stream_run(options: Options, name: str, ratio: float, seed: int) -> List[Figures]:
    folder = os.path.join(
        options.out, "stream", f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
    )
    done, state = os.path.join(folder, "rows.json"), os.path.join(folder, "state.pt")
    if os.path.exists(done):
        return _read_record(done, MEASURED)
    os.makedirs(folder, exist_ok=True)
    references = _references(options)
    system = _system(options)
    sentences = system.sentences(options.valid)[: options.held_out]

    def measure(seen: int) -> Figures:
        lines, states = system.translate(sentences), system.states(sentences)
        return _measure(options, lines, states, references, name, seed, seen)

    if name.startswith("learning"):
        adapter = _adapter(options, system, ratio, seed)
        batches = stream_of(options, system, seed)
        if os.path.exists(state):
            saved = _read_state(state)
            rows, place = saved["rows"], saved["place"]
            adapter.restore(saved["adapter"])
        else:
            rows, place = [measure(0)], 0
        taken_back = 0
        progress = tqdm(
            total=len(batches), initial=place, desc=f"{name}, seed {seed}", unit="batch"
        )
        while place < len(batches):
            taken_back += adapter.learn(batches[place]).stopped is not None
            place += 1
            progress.set_postfix(taken_back=taken_back)
            progress.update()
            if place % options.every == 0 or place == len(batches):
                rows.append(measure(sum(map(len, batches[:place]))))
                with written(state, "wb") as stream:
                    torch.save(dict(rows=rows, place=place, adapter=adapter.state()), stream)
        progress.close()
    elif name == "frozen":
        rows = [measure(0)]
    else:
        adapter, lines, states = _adapter(options, system, 0, seed), [], []
        for sentence in tqdm(sentences, desc=f"{name}, seed {seed}", unit="sentence"):
            with adapter.adapted([sentence]):
                lines += system.translate([sentence])
                states.append(system.states([sentence])[0])
        rows = [_measure(options, lines, np.stack(states), references, name, seed, 0)]
    write_json(done, rows)
    if os.path.exists(state):
        os.remove(state)
    return rows


def ratio(options: Options) -> None:
    """(b) BLEU against autoencoding steps for each translation step, after the same stream, and
    bounds on alpha*."""
    folder = os.path.join(options.out, "ratio")
    os.makedirs(folder, exist_ok=True)
    references = _references(options)
    metric = _metric(options.folder.target)

    def statistics(name: str, learn: Callable[[System], None]) -> np.ndarray:
        path = os.path.join(folder, f"{name}.txt")
        if not os.path.exists(path):
            system = _system(options)
            learn(system)
            lines = system.translate(system.sentences(options.valid)[: options.held_out])
            with written(path) as stream:
                stream.writelines(f"{line}\n" for line in lines)
        found = list(read_lines(path))
        if len(found) != len(references):
            raise StudyError(
                f"{path} has {len(found)} lines for {len(references)} references; delete it, and "
                "run the study again"
            )
        return sentence_statistics(metric, found, references)

    def learning(alpha: float, seed: int) -> Callable[[System], None]:
        def learn(system: System) -> None:
            translating = 0 if math.isinf(alpha) else 1 / alpha
            adapter = _adapter(options, system, translating, seed)
            batches = stream_of(options, system, seed)
            for batch in tqdm(batches, desc=f"ratio {alpha:g}, seed {seed}", unit="batch"):
                adapter.learn(batch)

        return learn

    frozen = statistics("frozen", lambda system: None)
    measured = np.array(
        [
            [
                statistics(f"ratio{alpha:g}-seed{seed}", learning(alpha, seed))
                for seed in options.seeds
            ]
            for alpha in options.ratios
        ]
    )  # [A, R, N, C]
    bleu, signature = score_of(metric), _signature(options.folder.target)
    level = float(bleu(frozen.sum(0)))
    rows = [Row("frozen", "bleu_lc", level, settings={"ratio": 0})]
    gains: Points = []
    for alpha, values in zip(options.ratios, bleu(measured.sum(2))):
        for seed, value in zip(options.seeds, values):
            row = Row("learning", "bleu_lc", float(value), settings={"ratio": alpha})
            row.seeds = [seed]
            rows.append(row)
            share = 1.0 if math.isinf(alpha) else alpha / (1 + alpha)
            gains.append((share, float(value) - level))
    star = alpha_star(options.ratios, measured, frozen, bleu, samples=options.samples)
    verdict = star.verdict(options.ratios)
    for alpha, found in zip(options.ratios, star.gains):
        settings = {"ratio": alpha, "over": found.over, "samples": found.samples}
        settings["alpha_star"] = verdict
        row = Row("learning", "bleu_lc minus frozen", found.delta, settings=settings)
        row.low, row.high = found.interval
        row.p, row.n, row.seeds = found.p_value, found.seeds, list(options.seeds)
        rows.append(row)
    for row in rows:
        row.signature = signature
    _write(options, rows)
    print(f"alpha*: {verdict}")
    lines = {"learning": gains, "frozen": [(0.0, 0.0), (1.0, 0.0)]}
    label = "autoencoding's share of all steps, alpha / (1 + alpha)"
    _draw(options, {"gain in BLEU over the frozen model": (label, lines)})


# -- pretraining -----------------------------------------------------------------------------------


def pretrain(options: Options) -> None:
    """(c) Translation from scratch against translation from an encoder pretrained by autoencoding:
    validation BLEU by epoch."""
    rows = []
    for seed in options.seeds:
        last = os.path.join(_pretrained(options, seed).checkpoints, "checkpoint_last.pt")
        for name, flags in (("scratch", []), ("pretrained", ["--init-encoder-from", last])):
            plan = train(options, f"pretrain/{name}-seed{seed}", options.epochs, seed, *flags)
            for epoch, stats in by_epoch(read_log(plan.log), VALID).items():
                if "bleu" in stats:
                    row = Row(name, "bleu", stats["bleu"], settings={"epoch": epoch})
                    row.seeds = [seed]
                    rows.append(row)
    if not rows:
        raise StudyError(
            f"the logs in {options.out}/pretrain hold no validation BLEU; remove that folder and "
            "start again"
        )
    _write(options, rows)
    lines: Dict[str, Points] = {}
    for row in rows:
        lines.setdefault(row.run, []).append((row.settings["epoch"], row.value))
    _draw(options, {"BLEU of the validation set": ("epoch of translation", lines)})


def skeleton(options: Options) -> None:
    """(d) The source language onto itself: BLEU of reconstruction by epoch, the model's own tokens
    joined as the reference."""
    rows, source = [], options.folder.source
    signature = _signature(source)
    for seed in options.seeds:
        plan = _pretrained(options, seed)
        for epoch in range(1, options.pretrain_epochs + 1):
            done = os.path.join(plan.out, f"reconstruction{epoch}.json")
            if not os.path.exists(done):
                path = os.path.join(plan.checkpoints, f"checkpoint{epoch}.pt")
                write_json(done, [_reconstruction(options, path)])
            (figures,) = _read_record(done, ("bleu_lc", "exact")) or [{}]
            for measure in ("bleu_lc", "exact"):
                settings = {"epoch": epoch}
                row = Row("reconstruction", measure, figures[measure], settings=settings)
                row.seeds, row.signature = [seed], signature if "bleu" in measure else ""
                rows.append(row)
    _write(options, rows)
    points = [(row.settings["epoch"], row.value) for row in rows if row.measure == "bleu_lc"]
    lines: Dict[str, Points] = {"reconstruction": points}
    lines["the series' 90"] = [(1, 90), (options.pretrain_epochs, 90)]
    _draw(options, {"BLEU of the source language onto itself": ("epoch", lines)})


def _reconstruction(options: Options, path: str) -> Figures:
    """{"bleu_lc", "exact"} of a checkpoint's copy of the held-out source sentences."""
    system = System(path, options.folder)
    sentences = system.sentences(options.valid)[: options.held_out]
    dictionary = system.task.source_dictionary
    found = system.generate(sentences, reconstruction_model(system.model), dictionary)
    tokens = [dictionary.string(sentence) for sentence in sentences]
    expected = join_subwords(tokens, options.folder.subword)
    bleu = _metric(options.folder.source).corpus_score(found, [expected]).score
    exact = np.mean([one == other for one, other in zip(found, expected)])
    return {"bleu_lc": round(bleu, 3), "exact": round(float(exact), 4)}


PARTS = {
    "base": base,
    "stream": stream,
    "ratio": ratio,
    "pretrain": pretrain,
    "skeleton": skeleton,
}


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study autoencoding`; further ones are meant for fairseq-train."""
    parser.epilog = EPILOG
    parser.set_defaults(takes_flags=True)
    parser.add_argument("part", choices=PARTS, help="see below")
    add_data(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for everything")
    add_seeds(parser)
    add_machine(parser)
    training = parser.add_argument_group("training (base, pretrain, skeleton)")
    training.add_argument(
        "--from",
        dest="start",
        metavar="CKPT",
        help="base: start from this checkpoint of translation",
    )
    for name, text in (("epochs", "of translation"), ("pretrain-epochs", "of autoencoding before")):
        training.add_argument(
            f"--{name}", type=number(int, 1), default=5, metavar="N", help=f"{text} (default: 5)"
        )
    training.add_argument(
        "--autoencoder",
        choices=["linear", "decoder"],
        default="decoder",
        help="form of the source's half (default: decoder)",
    )
    training.add_argument(
        "--noise",
        choices=NOISES,
        default="mask",
        help="on the input of autoencoding (default: mask)",
    )
    learning = parser.add_argument_group("learning at inference (stream, ratio)")
    learning.add_argument(
        "--checkpoint",
        metavar="CKPT",
        help="the model to start from (default: the best of OUT/base)",
    )
    learning.add_argument(
        "--stream",
        nargs="+",
        default=["test", "test1", "test2"],
        metavar="SPLIT",
        help="whose source is learnt from (default: test test1 test2)",
    )
    learning.add_argument(
        "--objective",
        choices=["autoencoding", "masked_lm", "contrastive"],
        default="autoencoding",
        help="what is learnt from the source (default: autoencoding)",
    )
    learning.add_argument(
        "--parameters",
        choices=["encoder", "all"],
        default="encoder",
        help="what learning changes (default: encoder)",
    )
    for name, kind, default, text in (
        ("sentences", number(int, 1), None, "at most so many of the stream (default: all)"),
        ("passes", number(int, 1), 2, "over the stream"),
        ("batch", number(int, 1), 16, "sentences learnt from at a time"),
        ("steps", number(int, 1), 1, "on each batch"),
        ("adapt-lr", number(float, 0, 1, above=True), 1e-4, "learning rate of Adam"),
        ("replay", number(float, 0, above=True), 1.0, "stream: translation steps a source step"),
        ("held-out", number(int, 3), None, "first sentences of --valid (default: all)"),
        ("every", number(int, 1), 50, "stream: batches between two measurements"),
        ("clusters", number(int, 2), 10, "of K-means"),
        ("samples", number(int, FEWEST_SAMPLES, 100_000), 1000, "resamples of the tests"),
    ):
        told = text if default is None else f"{text} (default: {default:g})"
        learning.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=told)
    learning.add_argument(
        "--ratios",
        nargs="+",
        type=number(float, 0, above=True),
        default=[0.5, 1.0, 2.0, 4.0, 8.0, math.inf],
        metavar="N",
        help="autoencoding steps a translation step; inf: no translation (default: 0.5 to 8, inf)",
    )
    learning.add_argument(
        "--valid",
        default="valid",
        metavar="SPLIT",
        help="held-out split that BLEU and clusters are measured on (default: valid)",
    )


def _data(options: Options) -> Data:
    wanted = [options.valid]
    if options.part in ("stream", "ratio"):
        wanted += options.stream
    languages = options.source_lang, options.target_lang
    return read_data(options.data, *languages, options.tokenizer, list(dict.fromkeys(wanted)))


def run(options: Options) -> int:
    """Run one part."""
    if options.part == "stream" and options.objective == "contrastive":
        raise StudyError(
            "--objective contrastive cannot learn from one sentence alone, as one of stream's "
            "systems does; use ratio"
        )
    if options.part in ("stream", "ratio") and options.extra:
        raise StudyError(f"{options.part} trains nothing: {' '.join(options.extra)} has no effect")
    options.folder = _data(options)
    options.ratios = sorted(set(options.ratios))
    options.checkpoint = options.checkpoint or os.path.join(
        options.out, "base", "checkpoints", "checkpoint_best.pt"
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    register()
    os.makedirs(options.out, exist_ok=True)
    PARTS[options.part](options)
    return 0
