"""Turns the JSON log of fairseq-train (standard input) into a progress bar, and keeps every line in
a file.

fairseq-train ... --log-format json 2>&1 | python progress.py --epochs 10 --name ce --log
console.log
"""

import argparse
import json
import sys

from tqdm import tqdm


def stats_of(line):
    """The JSON object in a log line, or None."""
    try:
        stats = json.loads(line[line.index("{") :])
    except ValueError:
        return None
    return stats if isinstance(stats, dict) else None


def summary(stats):
    """One line about a validation: 'epoch 3: perplexity 3.43, BLEU 21.5'."""
    text = f"epoch {stats['epoch']}: validation perplexity {stats['valid_ppl']}"
    for key, name in (("valid_bleu", "BLEU"), ("valid_sb", "soft BLEU")):
        if key in stats:
            text += f", {name} {stats[key]}"
    return text


def follow(lines, log, bar, name):
    """Copy each line to `log` and move `bar`, which counts epochs, to where the training is."""
    for line in lines:
        log.write(line)
        log.flush()
        stats = stats_of(line)
        if stats is None:
            continue
        if "valid_ppl" in stats:
            bar.write(f"  {name}, {summary(stats)}", file=sys.stderr)
        elif "update" in stats:
            if (
                not bar.n
            ):  # a resumed run starts where the last one stopped: its past is no measure of speed
                bar.initial = bar.n = int(stats["epoch"]) - 1
            bar.set_postfix_str(f"loss {stats['loss']}", refresh=False)
            bar.update(min(float(stats["update"]), bar.total) - bar.n)
        elif "train_loss" in stats:
            bar.update(min(int(stats["epoch"]), bar.total) - bar.n)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, required=True, help="epochs of the whole training")
    parser.add_argument("--name", required=True, help="what to call the training")
    parser.add_argument("--log", required=True, help="file that gets every line, appended")
    options = parser.parse_args(arguments)
    form = (
        "  {desc} {percentage:3.0f}%|{bar:30}| epoch {n:.1f} of {total}, {elapsed} passed, "
        "{remaining} left{postfix}"
    )
    quiet = (
        0.5 if sys.stderr.isatty() else 15
    )  # seconds between two lines where a bar cannot redraw itself
    with open(options.log, "a", encoding="utf-8") as log, tqdm(
        total=options.epochs, desc=options.name, bar_format=form, mininterval=quiet, file=sys.stderr
    ) as bar:
        follow(iter(sys.stdin.readline, ""), log, bar, options.name)


if __name__ == "__main__":
    main()
