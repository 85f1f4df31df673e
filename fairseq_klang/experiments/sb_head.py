"""`klang study sb-head`: what do the heads of a trained model predict under teacher forcing, the
target, a token that they were given, or always the same one?"""

import argparse
import collections
import os
import re
from typing import Any, Counter, Dict, List, NamedTuple, Sequence, Tuple

from ..analysis.tables import Row, as_table, provenance, write_rows
from ..errors import KlangError
from ..files import written
from .options import number

EPILOG = """\
examples:
  klang study sb-head DATA runs/A10-softbleu-seed1/checkpoints/checkpoint_best.pt
  klang study sb-head DATA runs/A10-softbleu-seed1/checkpoints/checkpoint?.pt --out sb_head

Shares of the target positions before </s> at which a head's best token is the target, the previous
target token (the head's own input), or any token given so far; the head's most frequent best token
and its share; and the share of sentences that end in that token, and that hold it anywhere. A head
that predicts one token everywhere scores by its share alone. Checkpoints named checkpointN.pt are
epochs. --out FOLDER gets sb_head.csv, and sb_head.png where there are several epochs.
"""

HEADS = ("ce", "sb")
# measure: what it is, of the positions before </s>
SHARES = {
    "target": "best token = target",
    "previous": "best token = previous target token",
    "given": "best token was given before",
    "mode": "most frequent best token",
}
# of the sentences
SENTENCES = {"ends": "sentence ends in that token", "holds": "sentence holds that token"}


class StudyError(KlangError):
    """Checkpoints or data that the study cannot use."""


class Found(NamedTuple):
    """What one head of one checkpoint does: shares by measure, and its most frequent token."""

    shares: Dict[str, float]
    token: str


def counts(best: Any, target: Any, previous: Any, scored: Any) -> Dict[str, int]:
    """Over the scored positions [B, T]: best token = target, = previous token, = any token given
    so far. All arguments are [B, T]; `previous` is the decoder's input."""
    import torch

    given = torch.stack(
        [(previous[:, : t + 1] == best[:, t : t + 1]).any(1) for t in range(target.size(1))], 1
    )
    hits = {"target": best == target, "previous": best == previous, "given": given}
    return {name: int((hit & scored).sum()) for name, hit in hits.items()}


def examine(path: str, data: str, subset: str, batch_tokens: int = 2000) -> Dict[str, Found]:
    """{"ce": Found, "sb": Found} of a checkpoint. Raises StudyError for a model with one head."""
    import torch
    from fairseq import checkpoint_utils
    from tqdm import tqdm

    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [path], arg_overrides={"data": data}
    )
    model.eval()
    task.load_dataset(subset)
    batches = task.get_batch_iterator(
        task.dataset(subset),
        max_tokens=batch_tokens,
        max_positions=model.max_positions(),
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=False)
    dictionary = task.target_dictionary
    positions = 0
    sums: Dict[str, Counter[str]] = {head: collections.Counter() for head in HEADS}
    tokens: Dict[str, Counter[int]] = {head: collections.Counter() for head in HEADS}
    sentences: List[List[int]] = []
    with torch.no_grad():
        for sample in tqdm(batches, desc=os.path.basename(path), unit="batch", leave=False):
            features, extra = model(**sample["net_input"], features_only=True)
            if "heads" not in extra:
                raise StudyError(f"{path} has one head; name checkpoints of a dual-head model")
            target, previous = sample["target"], sample["net_input"]["prev_output_tokens"]
            scored = target.ne(dictionary.pad()) & target.ne(dictionary.eos())
            positions += int(scored.sum())
            sentences += [row[mask].tolist() for row, mask in zip(target, scored)]
            for name, head in zip(HEADS, extra["heads"]):
                best = torch.nn.functional.linear(features, *head).argmax(-1)
                sums[name].update(counts(best, target, previous, scored))
                tokens[name].update(best[scored].tolist())
    return {
        head: _found(sums[head], tokens[head], sentences, positions, dictionary) for head in HEADS
    }


def _found(
    sums: Counter[str],
    tokens: Counter[int],
    sentences: Sequence[Sequence[int]],
    positions: int,
    dictionary: Any,
) -> Found:
    """The shares of one head; sentences: target tokens before </s>."""
    if not positions:
        raise StudyError("no position can be scored: the target sentences are empty")
    mode, often = min(tokens.items(), key=lambda item: (-item[1], item[0]))
    shares = {name: sums[name] / positions for name in ("target", "previous", "given")}
    shares["mode"] = often / positions
    shares["ends"] = sum(bool(s) and s[-1] == mode for s in sentences) / len(sentences)
    shares["holds"] = sum(mode in s for s in sentences) / len(sentences)
    return Found(shares, dictionary[mode])


# -- output ----------------------------------------------------------------------------------------


def name_of(path: str) -> Tuple[str, int]:
    """(the run's name, epoch) of a checkpoint; epoch 0 where the file's name tells none."""
    parts = os.path.abspath(path).split(os.sep)
    run = next((part for part in reversed(parts[:-1]) if part != "checkpoints"), "")
    match = re.fullmatch(r"checkpoint(\d+)\.pt", parts[-1])
    return (run, int(match.group(1))) if match else (f"{run}/{parts[-1]}", 0)


def rows_of(results: Dict[str, Dict[str, Found]], subset: str) -> List[Row]:
    """A row for each share of each head of each checkpoint."""
    made, rows = provenance(), []
    for path, heads in results.items():
        run, epoch = name_of(path)
        for head, found in heads.items():
            for measure, share in found.shares.items():
                settings = {"head": head, **({"epoch": epoch} if epoch else {})}
                if measure in ("mode", *SENTENCES):
                    # a CSV cell of settings cannot hold ";"
                    settings["token"] = found.token.replace(";", "semicolon")
                rows.append(Row(run, measure, share, subset=subset, settings=settings, **made))
    return rows


def table_of(results: Dict[str, Dict[str, Found]]) -> List[List[str]]:
    """A line for each head of each checkpoint."""
    table = [["checkpoint", "head", "token", *SHARES.values(), *SENTENCES.values()]]
    for path, heads in results.items():
        run, epoch = name_of(path)
        for head, found in heads.items():
            shares = [f"{found.shares[name]:.1%}" for name in (*SHARES, *SENTENCES)]
            label = f"{run}, epoch {epoch}" if epoch else run
            table.append([label, head, found.token, *shares])
    return table


def draw(results: Dict[str, Dict[str, Found]], path: str) -> None:
    """By epoch, a panel for each run: how often the SB head copies, and how often it says its most
    frequent token."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs: Dict[str, List[Tuple[int, Found]]] = {}
    for checkpoint, heads in results.items():
        run, epoch = name_of(checkpoint)
        if epoch:
            runs.setdefault(run, []).append((epoch, heads["sb"]))
    figure, axes = pyplot.subplots(
        1, len(runs), figsize=(4.5 * len(runs), 4), squeeze=False, sharey=True
    )
    for axis, (run, points) in zip(axes[0], runs.items()):
        points.sort(key=lambda point: point[0])
        for measure, text in SHARES.items():
            values = [100 * found.shares[measure] for _, found in points]
            axis.plot([epoch for epoch, _ in points], values, marker="o", label=text)
        said = dict.fromkeys(found.token for _, found in points)
        axis.set(xlabel="epoch", title=f"{run}: most frequent: “{' '.join(said)}”", ylim=(-3, 103))
        axis.set_ylabel("% of target positions, SB head")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    with written(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=120)
    pyplot.close(figure)


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study sb-head`."""
    parser.epilog = EPILOG
    parser.set_defaults(resumes=False)
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-train reads")
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument(
        "--subset", default="valid", metavar="NAME", help="split to examine (default: valid)"
    )
    parser.add_argument(
        "--batch-tokens",
        type=number(int, 1),
        default=2000,
        metavar="N",
        help="tokens at a time (default: 2000)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for table and picture")


def run(options: argparse.Namespace) -> int:
    """Examine each checkpoint; print and write the shares."""
    import logging

    from .. import register
    from ..checkpoints.reading import load_checkpoint

    data = options.data
    if not os.path.isfile(os.path.join(data, "preprocess.log")):
        inner = os.path.join(data, "bin")
        data = inner if os.path.isdir(inner) else data
    if not os.path.isdir(data):
        raise StudyError(f"there is no folder {data}; name the one that fairseq-train reads")
    names = os.listdir(data)
    if not any(re.match(rf"{re.escape(options.subset)}\..*\.idx$", name) for name in names):
        raise StudyError(f"{data} has no split {options.subset}; name another with --subset")
    register()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    for path in options.checkpoints:
        load_checkpoint(path)  # tells what is wrong with a file before any is examined
    results = {
        path: examine(path, data, options.subset, options.batch_tokens)
        for path in dict.fromkeys(options.checkpoints)
    }
    print(as_table(table_of(results)))
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        table, picture = (os.path.join(options.out, f"sb_head.{end}") for end in ("csv", "png"))
        write_rows(table, rows_of(results, options.subset))
        print(table)
        if len({name_of(path) for path in results if name_of(path)[1]}) > 1:
            draw(results, picture)
            print(picture)
    return 0
