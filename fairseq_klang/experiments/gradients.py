"""How large is the SB head's gradient beside the CE head's, epoch by epoch, and how far has soft
BLEU come (claims C1, C2, C6)?

    python scripts/study_gradients.py RUN... [--first 50]

RUN is a folder with the train.log of a `restricted_softbleu` training, or the log itself. Prints a
Markdown table of gnorm_ce_head / gnorm_sb_head (and SB in training): for the first logged interval
that ends at or after update --first, and for each epoch. The gradients are those of the two heads'
weights for the combined loss, as the criterion logs them.
"""

import argparse
import os
import sys

from ..analysis.logs import INNER, TRAIN, read_runs
from ..errors import KlangError, exit_status

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)


METRICS = ("gnorm_ce_head", "gnorm_sb_head", "sb")


def ratios(rows, split):
    """[(update, CE / SB gradient norm, SB)] of the rows of one split, in order; inf where the SB
    head has no gradient."""
    found = {}
    for row in rows:
        if row.split == split and row.metric in METRICS:
            found.setdefault(row.update, {})[row.metric] = row.value
    whole = [
        (update, values) for update, values in sorted(found.items()) if len(values) == len(METRICS)
    ]
    return [
        (
            update,
            v["gnorm_ce_head"] / v["gnorm_sb_head"] if v["gnorm_sb_head"] else float("inf"),
            v["sb"],
        )
        for update, v in whole
    ]


def cell(ratio, score):
    """One cell of the table."""
    return f"{ratio:,.1f} ({score:.3f})"


def run(options):
    """Print the table."""
    table = {}
    for name, rows in read_runs(options.runs).items():
        epochs, inner = ratios(rows, TRAIN), ratios(rows, INNER)
        if not epochs:
            raise KlangError(
                f"{name} logs no gnorm_sb_head; give runs of --criterion restricted_softbleu"
            )
        first = next((cell(*values[1:]) for values in inner if values[0] >= options.first), "")
        table[name] = [first] + [cell(*values[1:]) for values in epochs]
    columns = max(map(len, table.values()))
    print(
        "| run | update "
        + str(options.first)
        + " | "
        + " | ".join(f"epoch {i}" for i in range(1, columns))
        + " |"
    )
    print("|---" * (columns + 1) + "|")
    for name, cells in table.items():
        print(f"| {name} | " + " | ".join(cells + [""] * (columns - len(cells))) + " |")


def main():
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument(
        "--first", type=int, default=50, metavar="N", help="update of the first column (50)"
    )
    options = parser.parse_args()
    return exit_status("study_gradients.py", lambda: run(options), resumes=False)


if __name__ == "__main__":
    sys.exit(main())
