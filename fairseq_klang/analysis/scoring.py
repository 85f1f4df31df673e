"""Score translations against the raw reference file: every definition of BLEU side by side, and
whether two systems differ."""

import contextlib
import dataclasses
import inspect
import math
import os
import re
from typing import List, Optional, Tuple

import numpy as np

from ..files import read_lines
from .hypotheses import ScoringError, read_hypotheses
from .tokens import bleu_tokenizer, moses_detokenizer, moses_tokenizer

# -- scoring ---------------------------------------------------------------------------------------

# name: what it is. All are percentages; higher is better.
MEASURES = {
    "bleu": "sacreBLEU, detokenised, cased",
    "bleu_lc": "sacreBLEU, detokenised, lower-cased",
    "bleu_tok": "BLEU on Moses tokens, lower-cased",
    "chrf": "chrF, detokenised, cased",
}


# BLEU of a reference that was tokenised and detokenised, below which a note tells of the loss.
LOSSLESS = 98.0


@dataclasses.dataclass
class Measure:
    """One score with the signature that says how it was made."""

    score: float
    signature: str


@dataclasses.dataclass
class SystemScore:
    """Every value for one system; lengths, brevity penalty and precisions are those of the cased
    sacreBLEU."""

    name: str
    sentences: int
    nbest: int
    bleu: Measure
    bleu_lc: Measure
    bleu_tok: Measure
    chrf: Measure
    precisions: List[float]  # percent, for 1..4-grams
    brevity_penalty: float
    length_ratio: float  # sys_len / ref_len
    sys_len: int
    ref_len: int


@dataclasses.dataclass
class Difference:
    """Second system minus first, by paired bootstrap resampling."""

    delta: float
    p_value: float  # sacrebleu's PairedTest
    interval: Tuple[float, float]  # 95 %, of the difference, from the same resamples


@dataclasses.dataclass
class ScoreReport:
    """The scores of one or two systems on one reference."""

    reference: str
    systems: List[SystemScore]
    differences: Optional[dict] = None  # {measure: Difference}, with two systems
    samples: Optional[int] = None
    seed: Optional[int] = None
    notes: List[str] = dataclasses.field(default_factory=list)  # what a reader should know

    def as_dict(self):
        """Plain lists and dicts, for JSON."""
        return dataclasses.asdict(self)


def metrics(tokenize="13a"):
    """{measure: (a fresh sacrebleu metric, whether it scores Moses tokens instead of running
    text)}, in the order of MEASURES.

    tokenize: sacrebleu's tokenizer for running text. Raises ScoringError where it cannot be had.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if tokenize not in BLEU.TOKENIZERS:
        raise ScoringError(
            f"--sacrebleu-tokenize is {tokenize!r}; it must be one of {', '.join(BLEU.TOKENIZERS)}"
        )
    try:
        running = BLEU(tokenize=tokenize), BLEU(lowercase=True, tokenize=tokenize)
    except Exception as error:  # a model to download, a missing package: each fails in its own way
        raise ScoringError(
            f"sacrebleu's tokenizer {tokenize} cannot be had ({' '.join(str(error).split())})"
        ) from None
    return {
        "bleu": (running[0], False),
        "bleu_lc": (running[1], False),
        # force: sacrebleu warns of tokenised text, which here is meant
        "bleu_tok": (BLEU(lowercase=True, tokenize="none", force=True), True),
        "chrf": (CHRF(), False),
    }


def score_system(hypotheses, reference, lang, tokenize="13a"):
    """All measures of one system (Hypotheses) against the raw reference lines; returns
    SystemScore. tokenize: as in metrics."""
    self_test()
    split = moses_tokenizer(lang)
    tokens = [split(line) for line in reference]
    scores, measures = {}, {}
    for name, (metric, on_tokens) in metrics(tokenize).items():
        result = metric.corpus_score(
            hypotheses.tokens if on_tokens else hypotheses.detokenized,
            [tokens if on_tokens else reference],
        )
        scores[name], measures[name] = result, Measure(result.score, str(metric.get_signature()))
    bleu = scores["bleu"]
    return SystemScore(
        name=hypotheses.name,
        sentences=len(reference),
        nbest=hypotheses.nbest,
        precisions=list(bleu.precisions),
        brevity_penalty=bleu.bp,
        length_ratio=bleu.sys_len / bleu.ref_len if bleu.ref_len else math.nan,
        sys_len=bleu.sys_len,
        ref_len=bleu.ref_len,
        **measures,
    )


@contextlib.contextmanager
def _sacrebleu_seed(seed):
    """sacrebleu's paired test takes its seed from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def compare(metric, first, second, reference, samples=1000, seed=12345):
    """Whether `second` differs from `first` (lists of lines) under a sacrebleu metric; returns
    Difference.

    The p-value is that of sacrebleu's paired bootstrap test (Koehn 2004); it gives no interval of
    the difference, which is taken from the same resamples: the 2.5 and 97.5 percentiles. sacrebleu
    counts resamples that differ by more than what was seen, so it calls systems without any
    difference significant: their p is 1.
    """
    from sacrebleu.significance import PairedTest

    with _sacrebleu_seed(seed):
        _, results = PairedTest(
            [("first", first), ("second", second)],
            {"metric": metric},
            [reference],
            test_type="bs",
            n_samples=samples,
        )()
    (one, two) = next(values for name, values in results.items() if name != "System")
    indices = np.random.default_rng(seed).choice(
        len(reference), size=(samples, len(reference)), replace=True
    )
    statistics = [
        np.array(metric._extract_corpus_statistics(lines, [reference]), dtype="float32")
        for lines in (first, second)
    ]
    drawn = np.array(
        [
            [metric._compute_score_from_stats(rows[index].sum(0)).score for rows in statistics]
            for index in indices
        ]
    )
    low, high = np.percentile(drawn[:, 1] - drawn[:, 0], [2.5, 97.5])
    p_value = two.p_value if np.any(statistics[0] != statistics[1]) else 1.0
    return Difference(two.score - one.score, p_value, (float(low), float(high)))


def detokenizing_note(reference, lang, tokenize):
    """[a note] where Moses tokens cannot be turned back into this reference, else [].

    Moses' rules for spaces are those of Latin scripts: elsewhere a perfect translation of tokens
    may score far below 100.
    """
    split, join = moses_tokenizer(lang), moses_detokenizer(lang)
    metric, _ = metrics(tokenize)["bleu"]
    perfect = metric.corpus_score([join(split(line)) for line in reference], [reference]).score
    if perfect > LOSSLESS:
        return []
    return [
        f"the reference itself, split into Moses tokens and joined again, has BLEU {perfect:.2f}, "
        "for Moses joins by the rules of Latin scripts; nothing is lost with klang prepare "
        "--tokenizer none (then --tokenizer none here too), or with text joined elsewhere (--plain)"
    ]


def score(
    reference_path,
    paths,
    lang=None,
    *,
    subword="bpe",
    tokenizer="moses",
    plain=False,
    samples=1000,
    seed=12345,
    sacrebleu_tokenize=None,
):
    """Score one or two systems against a raw reference file; returns ScoreReport.

    lang: target language; None takes the ending of the reference's name (ref.en, ref.en.gz).
    sacrebleu_tokenize: sacrebleu's tokenizer for running text; None takes the one for the language.
    The other arguments are those of read_hypotheses and compare. Raises ScoringError, or TextError
    for unreadable files.
    """
    self_test()
    if not 1 <= len(paths) <= 2:
        raise ScoringError(f"got {len(paths)} systems; score one, or two to compare them")
    if not 1 <= samples <= 100_000:
        raise ScoringError(f"--samples is {samples}; it must be 1 to 100,000")
    if seed < 0:
        raise ScoringError(f"--seed is {seed}; it must be 0 or more")
    reference = list(read_lines(reference_path))
    if not reference:
        raise ScoringError(f"{reference_path} is empty")
    if lang is None:
        lang = re.sub(r"\.gz$", "", str(reference_path)).rpartition(".")[2]
        if not re.fullmatch("[a-z]{2,3}([_-][A-Za-z0-9]+)?", lang):
            raise ScoringError(
                f"the name {reference_path} does not end in a language code such as .en; give "
                "--target-lang"
            )
    options = {"subword": subword, "tokenizer": tokenizer, "plain": plain}
    systems = [read_hypotheses(path, len(reference), lang, **options) for path in paths]
    tokenize, note = (sacrebleu_tokenize, None) if sacrebleu_tokenize else bleu_tokenizer(lang)
    report = ScoreReport(
        str(reference_path), [score_system(system, reference, lang, tokenize) for system in systems]
    )
    report.notes += [note] if note else []
    if tokenizer == "moses" and not plain:
        report.notes += detokenizing_note(reference, lang, tokenize)
    report.notes += [text for system in systems for text in system.notes]
    if len(systems) == 2:
        split = moses_tokenizer(lang)
        tokens = [split(line) for line in reference]
        report.samples, report.seed, report.differences = samples, seed, {}
        for name, (metric, on_tokens) in metrics(tokenize).items():
            texts = [system.tokens if on_tokens else system.detokenized for system in systems]
            report.differences[name] = compare(
                metric, *texts, tokens if on_tokens else reference, samples, seed
            )
    return report


def format_report(report):
    """The report as an aligned table, followed by the signatures."""
    systems = report.systems
    short = [os.path.basename(system.name) for system in systems]
    if len(set(short)) < len(
        short
    ):  # two runs often name their outputs alike: then the folder tells them apart
        folders = [
            os.path.basename(os.path.dirname(os.path.abspath(system.name))) for system in systems
        ]
        short = [f"{folder}/{name}" for folder, name in zip(folders, short)]
    if len(set(short)) < len(short):
        short = [f"{name} ({number})" for number, name in enumerate(short, 1)]
    rows = [["", *short]]
    if report.differences:
        rows[0] += ["difference", "95 % interval", "p"]
    for name, text in MEASURES.items():
        row = [text] + [f"{getattr(system, name).score:.2f}" for system in systems]
        if report.differences:
            found = report.differences[name]
            row += [
                f"{found.delta:+.2f}",
                "[{:+.2f}, {:+.2f}]".format(*found.interval),
                f"{found.p_value:.4f}",
            ]
        rows.append(row)
    rows.append(
        ["precisions, 1 to 4-grams"]
        + [" ".join(f"{value:.1f}" for value in system.precisions) for system in systems]
    )
    rows.append(["brevity penalty"] + [f"{system.brevity_penalty:.3f}" for system in systems])
    rows.append(
        ["length ratio"]
        + [f"{system.length_ratio:.3f} ({system.sys_len}/{system.ref_len})" for system in systems]
    )
    widths = [
        max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))
    ]
    lines = [f"{systems[0].sentences} sentences against {report.reference}"]
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.append("signatures")
    lines += [f"  {text}: {getattr(systems[0], name).signature}" for name, text in MEASURES.items()]
    if report.differences:
        lines.append(
            f"difference: second minus first; sacrebleu's paired bootstrap, {report.samples} "
            f"resamples, seed {report.seed}"
        )
    lines += [f"note: {note}" for note in report.notes]
    for system in systems:
        if system.nbest > 1:
            lines.append(
                f"note: {system.name} has {system.nbest} hypotheses a sentence; the first of each "
                "was scored"
            )
    return "\n".join(lines)


# -- does sacrebleu work at all
# ------------------------------------------------------------------------------


def self_test():
    """Score sentences with known values through sacrebleu, exactly as fairseq's --eval-bleu calls
    it.

    fairseq scores each batch with corpus_bleu, sums its counts, and turns the sums into BLEU with
    compute_bleu. Raises ScoringError, in one line, where sacrebleu is missing, cannot be called so,
    or gives a wrong number.
    """
    fix = "reinstall it: pip install --force-reinstall 'sacrebleu>=2.0'"
    try:
        import sacrebleu
        from sacrebleu.metrics import BLEU
    except Exception as error:  # a broken install can raise anything
        raise ScoringError(f"sacrebleu cannot be imported ({error}); {fix}") from None
    reference = "the cat sat on the mat"
    texts = [
        (text, more)
        for text in (reference, "the cat sat on a mat")
        for more in ({}, {"tokenize": "none"})
    ]
    try:
        results = [sacrebleu.corpus_bleu([text], [[reference]], **more) for text, more in texts]
        names = inspect.getfullargspec(BLEU.compute_bleu)[0]
        smooth = {"smooth_method" if "smooth_method" in names else "smooth": "exp"}
        total = BLEU.compute_bleu(
            correct=np.array(results[0].counts) + np.array(results[2].counts),
            total=np.array(results[0].totals) + np.array(results[2].totals),
            sys_len=results[0].sys_len + results[2].sys_len,
            ref_len=15,
            **smooth,
        )
        found = [result.score for result in results] + [total.score]
    except Exception as error:
        raise ScoringError(
            f"sacrebleu does not work as fairseq calls it ({type(error).__name__}: {error}); {fix}"
        ) from None
    # "a" for "the" leaves 5 of 6, 3 of 5, 2 of 4 and 1 of 3 n-grams; with the perfect sentence
    # 11/12, 8/10, 6/8, 4/6, 12 words for an assumed reference of 15
    partial = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    summed = 100 * math.exp(1 - 15 / 12) * (11 / 12 * 8 / 10 * 6 / 8 * 4 / 6) ** 0.25
    for value, expected in zip(found, (100.0, 100.0, partial, partial, summed)):
        if not abs(value - expected) < 1e-4:
            raise ScoringError(
                f"sacrebleu {sacrebleu.__version__} gives BLEU {value:.4f} where {expected:.4f} is "
                f"right; {fix}"
            )
