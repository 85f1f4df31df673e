"""A reference and what a model made of it, as fairseq-generate writes it."""

REFERENCE = [
    "Anna's brother paints the old gate.",
    "It rains, and the boats stay in the harbour.",
    "Who locked the door?",
    "A well-known tower stands behind the mill!",
    "The baker sold 3,500 rolls & two cakes in May.",
]


# what a lower-casing model might write as Moses tokens split by BPE
SYSTEM = [
    "ann@@ a 's brother pain@@ ts the gate .",
    "it rains , and the boats stay in the har@@ bour .",
    "who lo@@ cked a door ?",
    "a well-known tower stands behind a mill !",
    "the baker sold 3,500 rolls & cakes in may .",
]


def generated(lines, order=None, nbest=1):
    """The text that fairseq-generate writes for these hypotheses, with decoys in every line that
    must not be read."""
    out = ["2026-01-01 10:00:00 | INFO | fairseq_cli.generate | H-0 is not here"]
    for number in order if order is not None else range(len(lines)):
        out += [f"S-{number}\tquelle", f"T-{number}\t<<unk>> decoy"]
        for rank in range(nbest):
            text = lines[number] if rank == 0 else "decoy"
            out += [
                f"H-{number}\t-0.{rank}5\t{text}",
                f"D-{number}\t-0.{rank}5\tdecoy",
                f"P-{number}\t-0.1000 -0.2000",
            ]
    return "\n".join(out + ["Generate test with beam=5: BLEU4 = 99.99"]) + "\n"
