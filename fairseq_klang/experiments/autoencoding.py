"""The experiments on autoencoding and learning at inference (claims C11 to C13): each writes a CSV
file and a picture.

    python scripts/study_autoencoding.py base     --data DATA --out OUT [--from CKPT]   # a model
    with both halves, for the next two python scripts/study_autoencoding.py stream   --data DATA
    --out OUT   # frozen against learning, over a stream of source text python
    scripts/study_autoencoding.py ratio    --data DATA --out OUT   # BLEU against autoencoding :
    translation, and alpha* python scripts/study_autoencoding.py pretrain --data DATA --out OUT   #
    translation from scratch against from a pretrained encoder python scripts/study_autoencoding.py
    skeleton --data DATA --out OUT   # the source language onto itself, after pretrain

DATA is what klang prepare wrote (bin and raw). Needs scikit-learn: pip install
'fairseq-klang[analysis]'. Interrupted, the same command goes on: fairseq resumes a training, a
stream goes on from its last measurement, and what is finished is not done again.
"""

import argparse
import csv
import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator
from tqdm import tqdm

from .. import register
from ..analysis.clusters import cluster
from ..analysis.hypotheses import join_subwords
from ..analysis.logs import read_log
from ..analysis.ratio import alpha_star
from ..analysis.scoring import metrics
from ..analysis.significance import FEWEST_SAMPLES, score_of, sentence_statistics
from ..analysis.tokens import bleu_tokenizer, moses_detokenizer
from ..errors import KlangError, exit_status
from ..files import read_lines
from ..learning.adaptation import Adapter
from ..learning.objectives import SourceObjective, mean_states
from ..models.autoencoder import check_source_passes, reconstruction_model
from ..tasks.adapting import Replay

USER_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class StudyError(KlangError):
    """A study that cannot be run on what is there."""


# -- files -----------------------------------------------------------------------------------------


def write(path, action):
    """Call action(temporary path); the file appears at `path` when that is done."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    root, ending = os.path.splitext(path)
    action(f"{root}.partial{ending}")
    os.replace(f"{root}.partial{ending}", path)


def write_lines(path, lines):
    """Write text lines; the file is complete or absent."""

    def save(partial):
        with open(partial, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in lines)

    write(path, save)


def write_table(path, rows):
    """Write dicts of the same keys as CSV."""

    def save(partial):
        with open(partial, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, list(rows[0]))
            table.writeheader()
            table.writerows(rows)

    write(path, save)
    print(f"wrote {path}")


def write_plot(path, panels):
    """Draw {title: (x label, {line: [(x, y)]})} side by side; several y of one x are joined by
    their mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (title, (label, lines)) in zip(axes[0], panels.items()):
        for name, points in lines.items():
            places = sorted({x for x, _ in points})
            means = [np.mean([y for x, y in points if x == place]) for place in places]
            (line,) = axis.plot(places, means, label=name, marker="o", markersize=3)
            axis.plot(*zip(*points), ".", color=line.get_color(), alpha=0.4)
        axis.set_title(title)
        axis.set_xlabel(label)
        axis.legend(fontsize="small")
    figure.tight_layout()
    write(path, lambda partial: figure.savefig(partial, dpi=120))
    pyplot.close(figure)
    print(f"wrote {path}")


# -- training --------------------------------------------------------------------------------------


def train(options, name, epochs, seed, *flags, bleu=True):
    """Train OUT/name with fairseq-train unless that is done; returns the folder."""
    folder = os.path.join(options.out, name)
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(os.path.join(folder, "trained")):
        return folder
    dims = [
        part
        for side in ("encoder", "decoder")
        for part in (
            f"--{side}-layers",
            options.layers,
            f"--{side}-embed-dim",
            options.dim,
            f"--{side}-ffn-embed-dim",
            2 * options.dim,
            f"--{side}-attention-heads",
            4,
        )
    ]
    evaluation = ["--best-checkpoint-metric", "loss"]
    if bleu:
        evaluation = [
            "--eval-bleu",
            "--eval-bleu-args",
            '{"beam": 1}',
            "--eval-bleu-detok",
            "moses",
            "--eval-bleu-remove-bpe",
            "--best-checkpoint-metric",
            "bleu",
            "--maximize-best-checkpoint-metric",
        ]
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.train",
        os.path.join(options.data, "bin"),
        "--user-dir",
        USER_DIR,
        "--save-dir",
        folder,
        "-s",
        options.source,
        "-t",
        options.target,
        "--task",
        "translation_autoencoding",
        "--arch",
        "transformer_dualhead",
        *dims,
        "--dropout",
        0.3,
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
        0.1,
        "--optimizer",
        "adam",
        "--adam-betas",
        "(0.9, 0.98)",
        "--lr",
        options.lr,
        "--lr-scheduler",
        "inverse_sqrt",
        "--warmup-updates",
        options.warmup,
        "--max-tokens",
        options.max_tokens,
        "--required-batch-size-multiple",
        1,
        "--update-epoch-batch-itr",
        True,
        "--max-epoch",
        epochs,
        "--seed",
        seed,
        "--log-format",
        "json",
        "--log-interval",
        20,
        "--num-workers",
        0,
        "--log-file",
        os.path.join(folder, "train.log"),
        *evaluation,
        *([] if torch.cuda.is_available() else ["--cpu"]),
        *flags,
    ]
    print(f"training {folder}, {epochs} epochs; its log is train.log there", flush=True)
    with open(os.path.join(folder, "train.out"), "a") as log:
        status = subprocess.run(
            list(map(str, command)),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)),
        )
    if status.returncode:
        with open(os.path.join(folder, "train.out"), errors="replace") as log:
            reason = (log.read().strip().splitlines() or ["no output"])[-1]
        raise StudyError(f"training {folder} ended with status {status.returncode}: {reason}")
    write_lines(os.path.join(folder, "trained"), [])
    return folder


# -- a model in this process
# -------------------------------------------------------------------------------------


class System:
    """A trained model with what is needed to translate with it and to look at its encoder."""

    def __init__(self, options, path):
        if not os.path.isfile(path):
            raise StudyError(
                f"no checkpoint {path}; run the study's base first, or name one with --checkpoint"
            )
        data = os.path.join(options.data, "bin")
        (self.model,), _, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [path], arg_overrides={"data": data}
        )
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device).eval()
        self.options, self.join = options, moses_detokenizer(options.target)

    def sentences(self, split):
        """The source sentences of a split, [n] token ids each."""
        if split not in self.task.datasets:
            self.task.load_dataset(split)
        source = self.task.dataset(split).src
        return [source[i].to(self.device) for i in range(len(source))]

    def references(self, split):
        """The raw target lines of a split."""
        return list(
            read_lines(os.path.join(self.options.data, "raw", f"{split}.{self.options.target}"))
        )

    def _batches(self, sentences, size=64):
        """(indices, tokens [B, S] padded on the left, lengths) of sentences of like length."""
        pad = self.task.source_dictionary.pad()
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            longest = len(sentences[rows[0]])
            tokens = torch.full((len(rows), longest), pad, device=self.device)
            for row, i in zip(tokens, rows):
                row[longest - len(sentences[i]) :] = sentences[i]
            yield rows, tokens, torch.tensor([len(sentences[i]) for i in rows], device=self.device)

    def generate(self, sentences, model=None, dictionary=None, size=64):
        """Greedy output for each sentence, subwords joined; `model` and `dictionary`, those of
        translation unless given."""
        dictionary = dictionary or self.task.target_dictionary
        generator = SequenceGenerator(
            [model or self.model], dictionary, beam_size=1, max_len_a=1.5, max_len_b=10
        )
        lines = [None] * len(sentences)
        for rows, tokens, lengths in self._batches(sentences, size):
            with torch.no_grad():
                found = generator.generate(
                    [], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
                )
            for i, hypotheses in zip(rows, found):
                lines[i] = dictionary.string(hypotheses[0]["tokens"])
        return join_subwords(lines, "bpe")

    def translate(self, sentences):
        """Greedy translations as running text."""
        return [self.join(line) for line in self.generate(sentences)]

    def states(self, sentences):
        """[N, d] mean encoder states."""
        result = [None] * len(sentences)
        with torch.no_grad():
            for rows, tokens, _ in self._batches(sentences):
                present = tokens.ne(self.task.source_dictionary.pad())
                encoded = self.model.encoder(tokens, present.sum(1))["encoder_out"][0].transpose(
                    0, 1
                )
                for i, vector in zip(rows, mean_states(encoded, present)):
                    result[i] = vector.cpu().numpy()
        return np.stack(result)

    def adapter(self, ratio, seed, parameters):
        """An :class:`Adapter` with the study's settings."""
        options = self.options
        check_source_passes(self.model, options.objective, "--objective")
        noise = options.noise if options.objective == "autoencoding" else "none"
        replay = None
        if ratio:
            self.task.load_dataset("train")
            replay = Replay(self.task.dataset("train"), self.task.target_dictionary.pad())
        return Adapter(
            self.model,
            SourceObjective(options.objective, self.task.source_dictionary, noise),
            steps=options.steps,
            lr=options.adapt_lr,
            parameters=parameters,
            patience=0,
            seed=seed,
            replay=replay,
            ratio=ratio,
        )


def stream_of(options, system, seed):
    """Batches of source sentences from the stream's splits, in an order drawn from the seed."""
    sentences = [sentence for split in options.stream for sentence in system.sentences(split)][
        : options.sentences
    ]
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


# -- the experiments -------------------------------------------------------------------------------


def base(options):
    """A model with both halves, each update learning both."""
    start = ["--init-from", options.start] if options.start else []
    train(
        options,
        "base",
        options.epochs,
        options.seeds[0],
        "--autoencoder",
        options.autoencoder,
        "--ae-weight",
        1,
        "--ae-noise",
        options.noise,
        *start,
    )


def _held_out(options, system):
    count = options.held_out
    return system.sentences(options.valid)[:count], system.references(options.valid)[:count]


def _measure(options, lines, states, references, name, seed, seen):
    found = cluster(states, options.clusters)
    return dict(
        system=name,
        seed=seed,
        sentences=seen,
        bleu=round(_metric(options.target).corpus_score(lines, [references]).score, 3),
        **{index: round(value, 5) for index, value in found._asdict().items()},
    )


def _metric(language):
    """Lower-cased sacreBLEU for text in a language."""
    return metrics(bleu_tokenizer(language)[0])["bleu_lc"][0]


def stream(options):
    """(a) Frozen against learning: BLEU and clusters of held-out text against source sentences
    seen."""
    rows = []
    for seed in options.seeds:
        for name, ratio in (
            ("frozen", 0),
            ("each sentence, reset", 0),
            ("learning", 0),
            ("learning, replay", options.replay),
        ):
            rows += _stream_run(options, name, ratio, seed)
    write_table(os.path.join(options.out, "stream.csv"), rows)
    titles = {
        "bleu": "BLEU of held-out text",
        "silhouette": "silhouette",
        "relative_inertia": "inertia / spread",
    }
    last = max(row["sentences"] for row in rows)
    panels = {}
    for key, title in titles.items():
        lines = {}
        for row in rows:
            lines.setdefault(row["system"], []).append((row["sentences"], row[key]))
        # what does not learn from the stream is a level line
        flat = {
            name: [(x, y) for _, y in points for x in (0, last)]
            for name, points in lines.items()
            if {x for x, _ in points} == {0}
        }
        panels[title] = ("source sentences seen", {**lines, **flat})
    write_plot(os.path.join(options.out, "stream.png"), panels)


def _stream_run(options, name, ratio, seed):
    folder = os.path.join(
        options.out, "stream", f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
    )
    done, state = os.path.join(folder, "rows.json"), os.path.join(folder, "state.pt")
    if os.path.exists(done):
        with open(done) as file:
            return json.load(file)
    system = System(options, options.checkpoint)
    sentences, references = _held_out(options, system)

    def measure(seen):
        return _measure(
            options,
            system.translate(sentences),
            system.states(sentences),
            references,
            name,
            seed,
            seen,
        )

    if name.startswith("learning"):
        adapter = system.adapter(ratio, seed, options.parameters)
        batches = stream_of(options, system, seed)
        if os.path.exists(state):
            saved = torch.load(state, map_location="cpu")
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
                saved = dict(rows=rows, place=place, adapter=adapter.state())
                write(state, lambda partial: torch.save(saved, partial))
        progress.close()
    elif name == "frozen":
        rows = [measure(0)]
    else:
        adapter, lines, states = system.adapter(0, seed, options.parameters), [], []
        for sentence in tqdm(sentences, desc=f"{name}, seed {seed}", unit="sentence"):
            with adapter.adapted([sentence]):
                lines += system.translate([sentence])
                states.append(system.states([sentence])[0])
        rows = [_measure(options, lines, np.stack(states), references, name, seed, 0)]
    write_lines(done, [json.dumps(rows)])
    if os.path.exists(state):
        os.remove(state)
    return rows


def ratio(options):
    """(b) BLEU against autoencoding steps for each translation step, after the same stream, and
    alpha*."""
    folder = os.path.join(options.out, "ratio")

    def hypotheses(name, run):
        path = os.path.join(folder, f"{name}.txt")
        if not os.path.exists(path):
            system = System(options, options.checkpoint)
            run(system)
            write_lines(path, system.translate(_held_out(options, system)[0]))
        with open(path, encoding="utf-8") as file:
            return file.read().split("\n")[:-1]

    def learn(alpha, seed):
        def run(system):
            adapter = system.adapter(
                0 if math.isinf(alpha) else 1 / alpha, seed, options.parameters
            )
            progress, taken_back = (
                tqdm(
                    stream_of(options, system, seed),
                    desc=f"ratio {alpha:g}, seed {seed}",
                    unit="batch",
                ),
                0,
            )
            for batch in progress:
                taken_back += adapter.learn(batch).stopped is not None
                progress.set_postfix(taken_back=taken_back)

        return run

    references = list(
        read_lines(os.path.join(options.data, "raw", f"{options.valid}.{options.target}"))
    )[: options.held_out]
    metric = _metric(options.target)

    def statistics(name, run):
        return sentence_statistics(metric, hypotheses(name, run), references)

    frozen = statistics("frozen", lambda system: None)
    measured = np.array(
        [
            [statistics(f"ratio{alpha:g}-seed{seed}", learn(alpha, seed)) for seed in options.seeds]
            for alpha in options.ratios
        ]
    )  # [A, R, N, C]
    bleu = score_of(metric)
    level = float(bleu(frozen.sum(0)))
    rows = [dict(ratio=0, seed="frozen", bleu=round(level, 3), gain=0.0)]
    for alpha, values in zip(options.ratios, bleu(measured.sum(2))):
        for seed, value in zip(options.seeds, values):
            rows.append(
                dict(ratio=alpha, seed=seed, bleu=round(value, 3), gain=round(value - level, 3))
            )
    star = alpha_star(options.ratios, measured, frozen, bleu, samples=options.samples)
    verdict = star.verdict(options.ratios)
    write_table(os.path.join(options.out, "ratio.csv"), rows)
    write_table(
        os.path.join(options.out, "alpha_star.csv"),
        [
            dict(
                ratio=alpha,
                gain=round(found.delta, 3),
                low=round(found.interval[0], 3),
                high=round(found.interval[1], 3),
                p_value=round(found.p_value, 5),
                over=found.over,
                seeds=found.seeds,
                alpha_star=verdict,
            )
            for alpha, found in zip(options.ratios, star.gains)
        ],
    )
    print(f"alpha*: {verdict}")
    shares = [
        (1.0 if math.isinf(row["ratio"]) else row["ratio"] / (1 + row["ratio"]), row["gain"])
        for row in rows[1:]
    ]
    lines = {"learning": shares, "frozen": [(0, 0), (1, 0)]}
    write_plot(
        os.path.join(options.out, "ratio.png"),
        {"gain in BLEU": ("autoencoding's share of all steps, alpha / (1 + alpha)", lines)},
    )


def _german(options, seed):
    return train(
        options,
        f"pretrain/source-seed{seed}",
        options.pretrain_epochs,
        seed,
        "--autoencoder",
        options.autoencoder,
        "--source-only",
        "--ae-noise",
        options.noise,
        bleu=False,
    )


def pretrain(options):
    """(c) Translation from scratch against translation from an encoder pretrained by autoencoding:
    validation BLEU by epoch."""
    rows = []
    for seed in options.seeds:
        start = ["--init-encoder-from", os.path.join(_german(options, seed), "checkpoint_last.pt")]
        for name, flags in (("scratch", []), ("pretrained", start)):
            folder = train(options, f"pretrain/{name}-seed{seed}", options.epochs, seed, *flags)
            for row in read_log(os.path.join(folder, "train.log")):
                if row.split == "valid" and row.metric == "bleu":
                    rows.append(
                        dict(
                            system=name,
                            seed=seed,
                            epoch=row.epoch,
                            update=row.update,
                            bleu=row.value,
                        )
                    )
    if not rows:
        raise StudyError(
            f"the logs in {options.out}/pretrain hold no validation BLEU; remove that folder and "
            "start again"
        )
    write_table(os.path.join(options.out, "pretrain.csv"), rows)
    lines = {}
    for row in rows:
        lines.setdefault(row["system"], []).append((row["epoch"], row["bleu"]))
    write_plot(
        os.path.join(options.out, "pretrain.png"),
        {"validation BLEU": ("epoch of translation", lines)},
    )


def skeleton(options):
    """(d) The source language onto itself: BLEU of reconstruction by epoch, the model's own tokens
    joined as the reference."""
    rows = []
    for seed in options.seeds:
        folder = _german(options, seed)
        for epoch in range(1, options.pretrain_epochs + 1):
            path = os.path.join(folder, f"checkpoint{epoch}.pt")
            done = os.path.join(folder, f"reconstruction{epoch}.json")
            if not os.path.exists(done):
                system = System(options, path)
                sentences, dictionary = (
                    system.sentences(options.valid)[: options.held_out],
                    system.task.source_dictionary,
                )
                found = system.generate(sentences, reconstruction_model(system.model), dictionary)
                expected = join_subwords(
                    [dictionary.string(sentence) for sentence in sentences], "bpe"
                )
                bleu = _metric(options.source).corpus_score(found, [expected]).score
                exact = np.mean([one == other for one, other in zip(found, expected)])
                write_lines(
                    done,
                    [
                        json.dumps(
                            dict(
                                seed=seed,
                                epoch=epoch,
                                bleu=round(bleu, 3),
                                exact=round(float(exact), 4),
                            )
                        )
                    ],
                )
            with open(done) as file:
                rows.append(json.load(file))
    write_table(os.path.join(options.out, "skeleton.csv"), rows)
    lines = {
        "reconstruction": [(row["epoch"], row["bleu"]) for row in rows],
        "the source's 90": [(1, 90), (options.pretrain_epochs, 90)],
    }
    write_plot(
        os.path.join(options.out, "skeleton.png"),
        {"BLEU of the source language onto itself": ("epoch", lines)},
    )


EXPERIMENTS = {
    "base": base,
    "stream": stream,
    "ratio": ratio,
    "pretrain": pretrain,
    "skeleton": skeleton,
}


def parser():
    """The command line; numbers are checked where they are read."""

    def number(convert, low, strict=False):
        def read(text):
            value = convert(text)
            if not (value > low if strict else value >= low):
                raise argparse.ArgumentTypeError(
                    f"{text} is not {'above' if strict else 'at least'} {low}"
                )
            return value

        return read

    result = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    result.add_argument("experiment", choices=EXPERIMENTS)
    result.add_argument("--data", required=True, help="what klang prepare wrote")
    result.add_argument("--out", required=True, help="folder for everything")
    result.add_argument("--source", default="de", help="language")
    result.add_argument("--target", default="en", help="language")
    result.add_argument(
        "--seeds", nargs="+", type=number(int, 0), default=[1, 2], help="one run each"
    )
    result.add_argument("--threads", type=number(int, 1), default=1, help="of a training process")
    training = result.add_argument_group("training (base, pretrain, skeleton)")
    training.add_argument(
        "--from", dest="start", help="base: start from this checkpoint of translation"
    )
    training.add_argument("--epochs", type=number(int, 1), default=5, help="of translation")
    training.add_argument(
        "--pretrain-epochs",
        type=number(int, 1),
        default=5,
        help="of autoencoding, before translation",
    )
    training.add_argument(
        "--autoencoder",
        choices=["linear", "decoder"],
        default="decoder",
        help="form of the source's half",
    )
    training.add_argument(
        "--noise",
        choices=["none", "mask", "drop", "swap"],
        default="mask",
        help="on the input of autoencoding",
    )
    training.add_argument(
        "--dim", type=number(int, 8), default=128, help="of embeddings and layers"
    )
    training.add_argument(
        "--layers", type=number(int, 1), default=4, help="of encoder and of decoder"
    )
    training.add_argument(
        "--lr", type=number(float, 0, True), default=0.004, help="peak learning rate"
    )
    training.add_argument("--warmup", type=number(int, 1), default=1000, help="updates")
    training.add_argument("--max-tokens", type=number(int, 1), default=4096, help="of a batch")
    learning = result.add_argument_group("learning at inference (stream, ratio)")
    learning.add_argument(
        "--checkpoint", help="the model to start from (OUT/base/checkpoint_best.pt)"
    )
    learning.add_argument(
        "--stream",
        nargs="+",
        default=["test", "test1", "test2"],
        metavar="SPLIT",
        help="whose source is learnt from",
    )
    learning.add_argument("--sentences", type=number(int, 1), help="at most so many of them")
    learning.add_argument("--passes", type=number(int, 1), default=2, help="over the stream")
    learning.add_argument(
        "--batch", type=number(int, 1), default=16, help="sentences learnt from at a time"
    )
    learning.add_argument("--steps", type=number(int, 1), default=1, help="on each batch")
    learning.add_argument("--adapt-lr", type=number(float, 0, True), default=1e-4, help="of Adam")
    learning.add_argument(
        "--objective",
        choices=["autoencoding", "masked_lm", "contrastive"],
        default="autoencoding",
        help="what is learnt from the source",
    )
    learning.add_argument(
        "--parameters", choices=["encoder", "all"], default="encoder", help="what learning changes"
    )
    learning.add_argument(
        "--replay",
        type=number(float, 0, True),
        default=1.0,
        help="stream: translation steps a step in 'learning, replay'",
    )
    learning.add_argument(
        "--ratios",
        nargs="+",
        type=number(float, 0, True),
        default=[0.5, 1.0, 2.0, 4.0, 8.0, math.inf],
        help="autoencoding steps for each translation step; inf is none of those",
    )
    learning.add_argument(
        "--valid", default="valid", help="held-out split that BLEU and clusters are measured on"
    )
    learning.add_argument("--held-out", type=number(int, 3), help="its first so many sentences")
    learning.add_argument(
        "--every", type=number(int, 1), default=50, help="stream: batches between two measurements"
    )
    learning.add_argument("--clusters", type=number(int, 2), default=10, help="of K-means")
    learning.add_argument(
        "--samples",
        type=number(int, FEWEST_SAMPLES),
        default=1000,
        help="of the bootstrap of alpha*",
    )
    return result


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The text as it stands, and each option with its default."""


def command(argv):
    """Run one experiment; raises KlangError."""
    options = parser().parse_args(argv)
    if not os.path.isfile(os.path.join(options.data, "bin", f"dict.{options.source}.txt")):
        raise StudyError(
            f"--data {options.data} holds no bin/dict.{options.source}.txt; make it with klang "
            "prepare"
        )
    if options.experiment == "stream" and options.objective == "contrastive":
        raise StudyError(
            "--objective contrastive cannot learn from one sentence alone, as one of stream's "
            "systems does; use ratio"
        )
    options.ratios = sorted(set(options.ratios))
    options.checkpoint = options.checkpoint or os.path.join(
        options.out, "base", "checkpoint_best.pt"
    )
    torch.set_num_threads(options.threads)
    register()
    logging.getLogger().setLevel(logging.WARNING)  # fairseq's and matplotlib's remarks
    EXPERIMENTS[options.experiment](options)


def main(argv=None):
    """Exit status of the command."""
    return exit_status(
        "study_autoencoding", lambda: command(sys.argv[1:] if argv is None else argv)
    )


if __name__ == "__main__":
    sys.exit(main())
