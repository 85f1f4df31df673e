"""The console command `klang`: parse the arguments and call the function that does the work."""

import argparse
import dataclasses
import importlib
import json
import logging
import os
import sys
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

from .data.options import BY_PRESET, PRESETS, PrepareOptions, flag, preset_options
from .errors import exit_status
from .files import PACKAGE
from .version import __version__

Options = TypeVar("Options")


def _add_fields(
    parser: argparse.ArgumentParser, cls: Type[Any], by_preset: Collection[str] = ()
) -> None:
    """One option for each field of a dataclass, which checks the values; an option named in
    by_preset is left out where not given."""
    for field in dataclasses.fields(cls):
        names = field.metadata.get("flags") or (flag(field.name),)
        if isinstance(field.default, bool):
            default = argparse.SUPPRESS if field.name in by_preset else False
            parser.add_argument(
                *names,
                dest=field.name,
                action="store_true",
                default=default,
                help=field.metadata["help"],
            )
            continue
        choices = field.metadata.get("choices")
        metavar = (
            "{{{}}}".format(",".join(choices))
            if choices
            else field.metadata.get("metavar", "N" if isinstance(field.default, int) else "LANG")
        )
        default, told = (
            (argparse.SUPPRESS, "by --preset")
            if field.name in by_preset
            else (field.default, field.default)
        )
        text = f"{field.metadata['help']} (default: {told})"
        parser.add_argument(
            *names,
            dest=field.name,
            type=type(field.default),
            default=default,
            metavar=metavar,
            help=text,
        )


def _fields(args: argparse.Namespace, cls: Type[Options]) -> Options:
    return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(cls)})


def user_dir(args: argparse.Namespace) -> None:
    """Print the folder for fairseq's --user-dir."""
    print(PACKAGE)


def prepare_command(args: argparse.Namespace) -> None:
    """Run `klang prepare`."""
    from .data.prepare import prepare
    from .data.text import multi30k_inputs, text_inputs

    options = _fields(args, PrepareOptions)
    inputs = (
        multi30k_inputs(args.folder)
        if args.corpus == "multi30k"
        else text_inputs(args.train, args.valid, args.test)
    )
    _tell_prepared(args.out, prepare(inputs, args.out, options))


def iwslt14_command(args: argparse.Namespace) -> None:
    """Run `klang prepare iwslt14`."""
    from .data.iwslt14 import prepare_iwslt14

    given = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(PrepareOptions)
        if hasattr(args, field.name)
    }
    report = prepare_iwslt14(
        args.out,
        preset_options(args.preset, **given),
        archive=args.archive,
        cache=args.cache,
        urls=args.url or (),
        digest=args.sha256,
        fold=args.fold,
        any_archive=args.any_archive,
    )
    _tell_prepared(args.out, report)


def _tell_prepared(out: str, report: Mapping[str, Any]) -> None:
    vocabulary = ", ".join(f"{lang} {size}" for lang, size in report["vocabulary"].items())
    print(
        f"ready for fairseq-train: {os.path.join(out, 'bin')} ({report['lines']['train']['kept']} "
        f"training pairs; vocabulary: {vocabulary})"
    )


def score_command(args: argparse.Namespace) -> None:
    """Run `klang score`."""
    from .analysis.scoring import format_report, score

    report = score(
        args.ref,
        args.hypotheses,
        args.target_lang,
        subword=args.subword,
        tokenizer=args.tokenizer,
        plain=args.plain,
        samples=args.samples,
        seed=args.seed,
        sacrebleu_tokenize=args.sacrebleu_tokenize,
    )
    print(json.dumps(report.as_dict(), indent=2) if args.json else format_report(report))


def average_command(args: argparse.Namespace) -> None:
    """Run `klang average`."""
    from .checkpoints.average import AverageError, average_to_file, find_last

    if bool(args.inputs) == bool(args.dir):
        raise AverageError(
            "give either --inputs CHECKPOINT..., or --dir DIR with --last-epochs N or "
            "--last-updates N"
        )
    if args.inputs and (args.last_epochs is not None or args.last_updates is not None):
        raise AverageError("--last-epochs and --last-updates go with --dir, not with --inputs")
    paths = args.inputs or find_last(args.dir, epochs=args.last_epochs, updates=args.last_updates)
    average_to_file(paths, args.output)
    print(f"{args.output}: the average of {', '.join(paths)}")


def export_command(args: argparse.Namespace) -> None:
    """Run `klang export`."""
    from .quantization.export import export, summary

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    check, dropped = export(
        args.checkpoint,
        args.data,
        args.out,
        kind=args.type,
        subset=args.check_subset,
        count=args.check_sentences,
        text=args.check,
    )
    if dropped:
        print(f"left out, since translation does not use them: {summary(dropped)}")
    print(check)
    print(f"ready for klang translate: {args.out}")


def translate_command(args: argparse.Namespace) -> None:
    """Run `klang translate`."""
    from .quantization.translate import translate_file

    sizes = dict(
        beam=args.beam,
        batch_tokens=args.batch_tokens,
        threads=args.threads,
        buffer_size=args.buffer_size,
    )
    translate_file(args.model, args.input, args.output, **sizes)


def report_command(args: argparse.Namespace) -> None:
    """Run `klang report`."""
    from .analysis.curves import write_report

    for path in write_report(args.runs, args.out):
        print(path)


def doctor_command(args: argparse.Namespace) -> int:
    """Run `klang doctor`; the exit status is 1 when something is broken."""
    from .checks.doctor import examine

    broken = 0
    for finding in examine():
        print(finding, flush=True)
        broken += finding.state == "broken"
    return 1 if broken else 0


def _command(
    commands: Any, name: str, function: Callable[..., Optional[int]], text: str, example: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=function, resumes=function in (prepare_command, iwslt14_command))
    return parser


def _prepare_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "prepare", help="turn raw parallel text into a folder that fairseq-train reads"
    )
    corpora = parser.add_subparsers(dest="corpus", metavar="CORPUS", required=True)
    multi30k = _command(
        corpora,
        "multi30k",
        prepare_command,
        "prepare Multi30k (task 1): train, valid, test (2016 Flickr), test1 (2017 Flickr), test2 "
        "(2017 MSCOCO)",
        "example:\n  klang prepare multi30k --from data/multi30k --out data/m30k --vocab-size "
        "8000\n  fairseq-train data/m30k/bin ...",
    )
    multi30k.add_argument(
        "--from",
        dest="folder",
        required=True,
        metavar="DIR",
        help=(
            "folder with train, val, test_2016_flickr, test_2017_flickr and test_2017_mscoco, "
            "each .de and .en, plain or .gz"
        ),
    )
    text = _command(
        corpora,
        "text",
        prepare_command,
        "prepare any parallel text; PREFIX stands for the files PREFIX.de and PREFIX.en (-s and "
        "-t), plain or .gz",
        "example:\n  klang prepare text --train raw/train --valid raw/dev --test raw/test --out "
        "data/mine -s de -t en",
    )
    for name in ("train", "valid"):
        text.add_argument("--" + name, required=True, metavar="PREFIX", help=f"{name} text")
    text.add_argument(
        "--test",
        required=True,
        action="append",
        metavar="PREFIX",
        help="test text; give it again for test1, test2, ...",
    )
    iwslt14 = _iwslt14_parser(corpora)
    for sub in (multi30k, text, iwslt14):
        sub.add_argument(
            "--out",
            required=True,
            metavar="DIR",
            help=(
                "folder for raw/ (for klang score), tok/, subword/, bin/ (for fairseq) and "
                "prepare.json; a second run reuses what is there"
            ),
        )
        _add_fields(sub, PrepareOptions, by_preset=BY_PRESET if sub is iwslt14 else ())


def _iwslt14_parser(corpora: Any) -> argparse.ArgumentParser:
    parser = _command(
        corpora,
        "iwslt14",
        iwslt14_command,
        "prepare IWSLT14 German-English by the rules of fairseq's published recipe: fetch, clean, "
        "split, tokenise, binarise",
        "example:\n  klang prepare iwslt14 --preset bpe10k --cache data/iwslt14 --out "
        "data/iwslt14/bpe10k",
    )
    parser.add_argument(
        "--preset",
        default="bpe8k",
        metavar="{{{}}}".format(",".join(PRESETS)),
        help="bpe8k, bpe32k: joined dictionary; bpe10k: fairseq's own, separate dictionaries; "
        "sentencepiece: 8,000 joined; word: joined, words above the threshold that comes closest "
        "to 56,652 (default: bpe8k)",
    )
    parser.add_argument(
        "--archive",
        metavar="FILE",
        help="the archive, de-en.tgz or 2014-01.tgz; without it de-en.tgz is fetched",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder that keeps the fetched archive for further preparations (default: --out)",
    )
    parser.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help="fetch from here instead of the known addresses; give it again for a second choice",
    )
    parser.add_argument(
        "--sha256", default="", metavar="HEX", help="refuse an archive of another SHA-256"
    )
    parser.add_argument(
        "--fold",
        type=int,
        default=0,
        metavar="R",
        help=(
            "validation is each pair whose number leaves R when divided by 23; 0 is fairseq's "
            "split (default: 0)"
        ),
    )
    parser.add_argument(
        "--any-archive",
        action="store_true",
        help="go on with an archive whose size or line counts are not the published ones",
    )
    return parser


def _score_parser(commands: Any) -> None:
    parser = _command(
        commands,
        "score",
        score_command,
        "score the output of fairseq-generate against the raw reference, every kind of BLEU side "
        "by side; two outputs are compared",
        "example:\n  fairseq-generate data/m30k/bin --path checkpoint_best.pt "
        "--required-batch-size-multiple 1 > gen.out\n"
        "  klang score --ref data/m30k/raw/test.en gen.out",
    )
    parser.add_argument(
        "--ref",
        required=True,
        metavar="FILE",
        help="raw reference, one sentence a line, plain or .gz",
    )
    parser.add_argument(
        "hypotheses",
        nargs="+",
        metavar="OUTPUT",
        help="output of fairseq-generate or fairseq-interactive; one or two files",
    )
    parser.add_argument(
        "--subword",
        default="bpe",
        metavar="{bpe,sentencepiece,none}",
        help="subwords to undo, if fairseq has not undone them (default: bpe)",
    )
    parser.add_argument(
        "--tokenizer",
        default="moses",
        metavar="{moses,none}",
        help="moses: the model writes Moses tokens, detokenise them (default: moses)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="OUTPUT is running text, one translation a line"
    )
    parser.add_argument(
        "-t",
        "--target-lang",
        metavar="LANG",
        help="target language (default: the ending of the reference's name)",
    )
    parser.add_argument(
        "--sacrebleu-tokenize",
        metavar="NAME",
        help="sacrebleu's tokenizer (default: the one it has for the target language)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="resamples of the paired bootstrap (default: 1000)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=12345,
        metavar="N",
        help="seed of the paired bootstrap (default: 12345)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _average_parser(commands: Any) -> None:
    parser = _command(
        commands,
        "average",
        average_command,
        "average the weights of several checkpoints into one",
        "example:\n  klang average --dir checkpoints --last-epochs 5 --output "
        "checkpoints/average.pt",
    )
    parser.add_argument(
        "--inputs",
        nargs="+",
        metavar="CHECKPOINT",
        help="the checkpoints; settings are taken from the last",
    )
    parser.add_argument(
        "--dir", metavar="DIR", help="folder of checkpoints, with one of the next two"
    )
    parser.add_argument(
        "--last-epochs",
        type=int,
        metavar="N",
        help="average the last N of checkpoint1.pt, checkpoint2.pt, ...",
    )
    parser.add_argument(
        "--last-updates",
        type=int,
        metavar="N",
        help="average the last N of checkpoint_1_500.pt, ...",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")


def _export_parser(commands: Any) -> None:
    parser = _command(
        commands,
        "export",
        export_command,
        "export a transformer checkpoint as a CTranslate2 model, and check that it translates as "
        "fairseq does",
        "example:\n  klang export run/checkpoint_best.pt --data data/m30k/bin --out served --type "
        "int8",
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="checkpoint of transformer_dualhead, or of fairseq's transformer",
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="the folder that fairseq-train read"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="new folder for the model")
    parser.add_argument(
        "--type",
        default="int8",
        metavar="{float32,int8}",
        help="type of the weights and of the products (default: int8)",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="raw source sentences for the self-check (default: those of --check-subset)",
    )
    parser.add_argument(
        "--check-subset",
        default="valid",
        metavar="SPLIT",
        help="split whose sentences the self-check translates (default: valid)",
    )
    parser.add_argument(
        "--check-sentences",
        type=int,
        default=200,
        metavar="N",
        help="sentences of the self-check (default: 200)",
    )


def _translate_parser(commands: Any) -> None:
    parser = _command(
        commands,
        "translate",
        translate_command,
        "translate raw text, one sentence a line, with an exported model",
        "example:\n  klang translate served --input news.de --output news.en\n  echo 'ein hund "
        "läuft .' | klang translate served",
    )
    parser.add_argument("model", metavar="MODEL", help="folder that klang export wrote")
    parser.add_argument(
        "--input", metavar="FILE", help="text to translate, plain or .gz (default: standard input)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=(
            "file for the translations, which appears when it is complete (default: standard "
            "output)"
        ),
    )
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="beam size (default: 5)")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="source tokens of a batch (default: 1024)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="translations at a time, one core each (default: all cores)",
    )
    parser.add_argument(
        "--buffer-size",
        type=int,
        metavar="N",
        help="lines that are read before they are sorted by length and translated; 1 answers each "
        "line of a pipe at once (default: 2000, and 1 where you type)",
    )


# -- experiments ----------------------------------------------------------------------------------

Experiments = Dict[str, Tuple[str, str]]
# command: (module of experiments/ that has add_arguments and run, what it does)
EXPERIMENTS: Experiments = {
    "recipe": ("recipe", "train, translate and score one experiment of the series, or another"),
    "compare": ("comparing", "put the runs of recipes into one table, and test their differences"),
    "results": ("pages", "make the pages of docs/ from their templates and data"),
}
STUDIES: Experiments = {
    "multi30k": ("multi30k", "cross-entropy against soft BLEU, with several seeds"),
    "gradients": ("gradients", "gradients of the two heads, update by update or epoch by epoch"),
    "sb-head": ("sb_head", "what the second head predicts: the target, or what it was given"),
    "precision": ("precision", "FP32, half precision, and INT8 training from 8 bits down to 2"),
    "autoencoding": ("autoencoding", "learning from the source alone, in training and after"),
    "significance": ("significance_check", "how often the test of a difference is wrong"),
}
BENCHMARKS: Experiments = {
    "time": ("benchmark", "time and memory of the losses against fairseq's cross-entropy"),
    "plot": ("benchmark_plot", "the picture and tables of what `time` measured"),
    "precision": ("benchmark_precision", "time of INT8 training, speed and size of INT8 models"),
}


class _ExperimentParser(argparse.ArgumentParser):
    """A parser that imports the module of its command, and asks it for its options, when it is
    used: the other commands need no fairseq and start at once."""

    module: Optional[str] = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.module:
            module = importlib.import_module(f".experiments.{self.module}", __package__)
            self.module = None
            self.set_defaults(function=module.run)
            module.add_arguments(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _experiment_parsers(commands: Any, experiments: Experiments) -> None:
    for name, (module, text) in experiments.items():
        parser = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.module = module
        parser.set_defaults(resumes=True, takes_flags=False)


def _group_parser(commands: Any, name: str, text: str, experiments: Experiments) -> None:
    group = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parsers = group.add_subparsers(
        dest="which", metavar=name.upper(), required=True, parser_class=_ExperimentParser
    )
    _experiment_parsers(parsers, experiments)


def _experiments(commands: Any) -> None:
    """`klang recipe`, `compare`, `results`, `study NAME` and `benchmark NAME`."""
    default, commands._parser_class = commands._parser_class, _ExperimentParser
    _experiment_parsers(commands, EXPERIMENTS)
    _group_parser(commands, "study", "run one of the studies", STUDIES)
    _group_parser(commands, "benchmark", "measure time, memory and size", BENCHMARKS)
    commands._parser_class = default


def parser() -> argparse.ArgumentParser:
    """The argument parser of `klang`."""
    root = argparse.ArgumentParser(prog="klang", description="The tools of fairseq-klang.")
    root.add_argument("--version", action="version", version=f"fairseq-klang {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _command(
        commands,
        "user-dir",
        user_dir,
        "print the folder for fairseq's --user-dir",
        "example:\n  fairseq-train DATA --user-dir $(klang user-dir) --criterion "
        "restricted_softbleu ...",
    )
    _prepare_parser(commands)
    _score_parser(commands)
    _average_parser(commands)
    _export_parser(commands)
    _translate_parser(commands)
    report = _command(
        commands,
        "report",
        report_command,
        "draw the curves of one or more trainings, and write their values",
        "example:\n  klang report checkpoints/ce checkpoints/softbleu --out report",
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="folder of a training")
    report.add_argument(
        "--out", required=True, metavar="DIR", help="folder for the figures and tables"
    )
    _command(
        commands,
        "doctor",
        doctor_command,
        "look over the installation; every problem comes with its fix, and the exit status is 1 if "
        "something is broken",
        "example:\n  klang doctor",
    )
    _experiments(commands)
    return root


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run `klang`; returns the exit status: 0, 1 (doctor found something broken), 2 (bad input),
    130 (interrupted)."""
    if sys.stderr is None:  # closed by the shell: what is told there must not go to standard output
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal has no character for is spelled out
            stream.reconfigure(errors="backslashreplace")
    # fairseq turns on every logger's debug messages
    for name in ("filelock", "sacrebleu", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    root = parser()
    args, extra = root.parse_known_args(argv)
    if extra and not getattr(args, "takes_flags", False):
        root.error(f"unrecognized arguments: {' '.join(extra)}")
    args.extra = extra  # flags of fairseq-train
    return exit_status("klang", lambda: args.function(args), resumes=args.resumes)


if __name__ == "__main__":
    sys.exit(main())
