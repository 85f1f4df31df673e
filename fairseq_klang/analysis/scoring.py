"""Score translations against the raw reference file: every definition of BLEU side by side, and
whether two systems differ."""

import dataclasses
import inspect
import math
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..files import Path, read_lines
from .hypotheses import Hypotheses, ScoringError, read_hypotheses
from .significance import (
    FEWEST_SAMPLES,
    Difference,
    paired_bootstrap,
    score_of,
    sentence_statistics,
)
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
class ScoreReport:
    """The scores of one or two systems on one reference."""

    reference: str
    systems: List[SystemScore]
    differences: Optional[Dict[str, Difference]] = None  # by measure, with two systems
    samples: Optional[int] = None
    seed: Optional[int] = None
    notes: List[str] = dataclasses.field(default_factory=list)  # what a reader should know

    def as_dict(self) -> Dict[str, Any]:
        """Plain lists and dicts, for JSON."""
        return dataclasses.asdict(self)


def metrics(tokenize: str = "13a") -> Dict[str, Tuple[Any, bool]]:
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


def score_system(
    hypotheses: Hypotheses, reference: Sequence[str], lang: str, tokenize: str = "13a"
) -> SystemScore:
    """All measures of one system against the raw reference lines; tokenize: as in metrics."""
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


def compare(
    metric: Any,
    first: Sequence[Sequence[str]],
    second: Sequence[Sequence[str]],
    reference: Sequence[str],
    samples: int = 1000,
    seed: int = 12345,
) -> Difference:
    """Whether `second` differs from `first` under a sacrebleu metric.

    first, second: a list of lines for each seed of training, in the same order of seeds; the other
    arguments are those of paired_bootstrap.
    """
    one, two = (
        np.stack([sentence_statistics(metric, lines, reference) for lines in seeds])
        for seeds in (first, second)
    )
    return paired_bootstrap(one, two, score_of(metric), samples=samples, seed=seed)


def detokenizing_note(reference: Sequence[str], lang: str, tokenize: str) -> List[str]:
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
    reference_path: Path,
    paths: Sequence[Path],
    lang: Optional[str] = None,
    *,
    subword: str = "bpe",
    tokenizer: str = "moses",
    plain: bool = False,
    samples: int = 1000,
    seed: int = 12345,
    sacrebleu_tokenize: Optional[str] = None,
) -> ScoreReport:
    """Score one or two systems against a raw reference file.

    lang: target language; None takes the ending of the reference's name (ref.en, ref.en.gz).
    sacrebleu_tokenize: sacrebleu's tokenizer for running text; None takes the one for the language.
    The other arguments are those of read_hypotheses and compare. Raises ScoringError, or TextError
    for unreadable files.
    """
    self_test()
    if not 1 <= len(paths) <= 2:
        raise ScoringError(f"got {len(paths)} systems; score one, or two to compare them")
    if not FEWEST_SAMPLES <= samples <= 100_000:
        raise ScoringError(f"--samples is {samples}; it must be {FEWEST_SAMPLES} to 100,000")
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
    options: Dict[str, Any] = {"subword": subword, "tokenizer": tokenizer, "plain": plain}
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
                metric, texts[:1], texts[1:], tokens if on_tokens else reference, samples, seed
            )
    return report


def format_report(report: ScoreReport) -> str:
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
            "difference: second minus first; two-sided paired bootstrap over the sentences, "
            f"{report.samples} resamples, seed {report.seed}"
        )
    lines += [f"note: {note}" for note in report.notes]
    for system in systems:
        if system.nbest > 1:
            lines.append(
                f"note: {system.name} has {system.nbest} hypotheses a sentence; the first of each "
                "was scored"
            )
    return "\n".join(lines)


# -- does sacrebleu work at all --------------------------------------------------------------------


def self_test() -> None:
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
        smooth: Dict[str, Any] = {"smooth_method" if "smooth_method" in names else "smooth": "exp"}
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
