"""What does the SB head of a trained model predict under teacher forcing: the target, or a token it
was given?

    python scripts/study_sb_head.py DATA CHECKPOINT... [--subset valid] [--out FILE.json]

For each checkpoint of a dual-head model, the share of target positions (before </s>) at which each
head's best token is the target, the previous target token (its own input), or any earlier one.
Prints a table and writes JSON.
"""

import argparse
import json
import os
import sys

import torch
from fairseq import checkpoint_utils
from tqdm import tqdm

from .. import register


def shares(best, target, previous, scored):
    """Counts over the scored positions [B, T]: best token = target, = previous token, = any token
    given so far."""
    given = torch.stack(
        [(previous[:, : t + 1] == best[:, t : t + 1]).any(1) for t in range(target.size(1))], 1
    )
    hits = {"target": best == target, "previous": best == previous, "given": given}
    return {name: int((hit & scored).sum()) for name, hit in hits.items()}


def examine(path, data, subset):
    """{"positions": n, "ce": {...}, "sb": {...}}: shares for both heads of the checkpoint at
    `path`."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [path], arg_overrides={"data": data}
    )
    model.eval()
    task.load_dataset(subset)
    batches = task.get_batch_iterator(
        task.dataset(subset),
        max_tokens=2000,
        max_positions=model.max_positions(),
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=False)
    dictionary, positions = task.target_dictionary, 0
    sums = {head: {"target": 0, "previous": 0, "given": 0} for head in ("ce", "sb")}
    with torch.no_grad():
        for sample in tqdm(batches, desc=os.path.basename(os.path.dirname(path)), unit="batch"):
            features, extra = model(**sample["net_input"], features_only=True)
            target = sample["target"]
            scored = target.ne(dictionary.pad()) & target.ne(dictionary.eos())
            positions += int(scored.sum())
            for name, head in zip(("ce", "sb"), extra["heads"]):
                best = torch.nn.functional.linear(features, *head).argmax(-1)
                for key, count in shares(
                    best, target, sample["net_input"]["prev_output_tokens"], scored
                ).items():
                    sums[name][key] += count
    return dict(
        positions=positions,
        **{
            head: {key: count / positions for key, count in part.items()}
            for head, part in sums.items()
        },
    )


def main():
    """Parse the command line, examine each checkpoint, print and write the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", help="folder that fairseq-train reads")
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--subset", default="valid")
    parser.add_argument("--out", help="JSON file to write")
    options = parser.parse_args()
    missing = [path for path in options.checkpoints if not os.path.isfile(path)]
    if missing:
        parser.error(f"no checkpoint {missing[0]}")
    register()
    results = {path: examine(path, options.data, options.subset) for path in options.checkpoints}
    print(
        f"{'checkpoint':40}  {'head':4}  {'= target':>8}  {'= previous':>10}  {'given before':>12}"
    )
    for path, result in results.items():
        for head in ("ce", "sb"):
            values = result[head]
            print(
                f"{path[-40:]:40}  {head:4}  {values['target']:8.1%}  {values['previous']:10.1%}  "
                f"{values['given']:12.1%}"
            )
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as stream:
            json.dump(results, stream, indent=2)
        os.replace(options.out + ".part", options.out)


if __name__ == "__main__":
    sys.exit(main())
