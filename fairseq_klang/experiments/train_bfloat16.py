"""`python -m fairseq_klang.experiments.train_bfloat16`: fairseq-train in bfloat16 on a CPU."""

import sys

from .. import register
from ..compat import train_in_bfloat16

if __name__ == "__main__":
    register()  # this package was imported before fairseq
    train_in_bfloat16(sys.argv[1:])
