"""Parallel text: the files, read and checked pair by pair, and tokenised."""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import IO, Any, Callable, Dict, Iterable, Iterator, Sequence

from tqdm import tqdm

from ..analysis.tokens import is_blank, moses_tokenizer
from ..files import read_lines
from .options import PrepareError, PrepareOptions

MULTI30K = {
    "train": "train",
    "valid": "val",
    "test": "test_2016_flickr",
    "test1": "test_2017_flickr",
    "test2": "test_2017_mscoco",
}


def multi30k_inputs(folder: str) -> Dict[str, str]:
    """{split: prefix} for a folder that holds Multi30k task 1 under its published file names."""
    if not os.path.isdir(folder):
        raise PrepareError(
            f"--from {folder} is no folder; it must hold train.de.gz, val.de.gz, "
            "test_2016_flickr.de.gz, ..."
        )
    return {split: os.path.join(folder, name) for split, name in MULTI30K.items()}


def text_inputs(train: str, valid: str, tests: Iterable[str]) -> Dict[str, str]:
    """{split: prefix} for any parallel text; the test sets become test, test1, test2, ..."""
    inputs = {"train": train, "valid": valid}
    for number, prefix in enumerate(tests):
        inputs[f"test{number or ''}"] = prefix
    return inputs


def find_text(prefix: str, lang: str) -> str:
    """The path of PREFIX.LANG or PREFIX.LANG.gz; raises PrepareError where neither is there."""
    for path in (f"{prefix}.{lang}", f"{prefix}.{lang}.gz"):
        if os.path.isfile(path):
            return path
    raise PrepareError(
        f"found neither {prefix}.{lang} nor {prefix}.{lang}.gz; check the folder and the language "
        "codes -s and -t"
    )


def copy_raw(
    split: str, paths: Sequence[str], outputs: Sequence[str], limit: int = 0
) -> Dict[str, int]:
    """Copy one split's two files to `outputs`, checked; pairs with a blank side are dropped from
    train, else refused.

    Returns {"read": pairs in the files, "dropped": pairs with a blank side, "kept": pairs written}.
    Raises PrepareError where the two files differ in length, a held-out line is blank, or nothing
    is left.
    """
    counts = {"read": 0, "dropped": 0, "kept": 0}
    lengths = [0, 0]
    with open_text(outputs[0], "w") as source, open_text(outputs[1], "w") as target:
        for number, pair in enumerate(itertools.zip_longest(*map(read_lines, paths)), 1):
            lengths = [length + (line is not None) for length, line in zip(lengths, pair)]
            if None in pair or (limit and counts["read"] == limit):
                # go on counting: files that differ in length are refused whatever the limit
                continue
            counts["read"] += 1
            blank = [path for path, line in zip(paths, pair) if is_blank(line)]
            if blank and split != "train":
                raise PrepareError(
                    f"{blank[0]} line {number} is empty; in {split} every line is scored: fill it, "
                    "or remove it from both files"
                )
            if blank:
                counts["dropped"] += 1
                continue
            counts["kept"] += 1
            source.write(pair[0] + "\n")
            target.write(pair[1] + "\n")
    if lengths[0] != lengths[1]:
        raise PrepareError(
            f"{paths[0]} has {lengths[0]} lines but {paths[1]} has {lengths[1]}; parallel files "
            "must have the same number"
        )
    if not counts["kept"]:
        raise PrepareError(f"{paths[0]} and {paths[1]} hold no pair with text on both sides")
    return counts


# -- tokens ----------------------------------------------------------------------------------------


def tokenizer(lang: str, options: PrepareOptions) -> Callable[[str], str]:
    """A function from a raw line to the model's text before it is split: Moses tokens, then
    lower-cased."""
    split = moses_tokenizer(lang, options.escape) if options.tokenizer == "moses" else str
    return split if options.keep_case else lambda line: split(line).lower()


_worker: Dict[str, Callable[[str], str]] = {}


def _start_worker(lang: str, options: PrepareOptions) -> None:
    _worker["tokenize"] = tokenizer(lang, options)
    parent = multiprocessing.parent_process()
    if parent is not None:  # when it is killed, its workers would wait for lines for ever
        wait = multiprocessing.connection.wait
        end = lambda: (wait([parent.sentinel]), os._exit(1))
        threading.Thread(target=end, daemon=True).start()


def _tokenize_line(line: str) -> str:
    return _worker["tokenize"](line.rstrip("\n"))


def tokenize_file(path: str, output: str, lang: str, options: PrepareOptions) -> None:
    """Tokenise a file line by line in `options.workers` processes; raises PrepareError where a line
    comes out empty."""
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open_text(path))
        writer = stack.enter_context(open_text(output, "w"))
        if options.workers > 1:
            # Spawned workers do not inherit the lock on the folder, as forked ones would.
            pool = stack.enter_context(
                multiprocessing.get_context("spawn").Pool(
                    options.workers, _start_worker, (lang, options)
                )
            )
            done: Iterator[str] = pool.imap(_tokenize_line, lines, chunksize=500)
        else:
            _start_worker(lang, options)
            done = map(_tokenize_line, lines)
        for number, line in enumerate(progress(done, path), 1):
            if not line.strip():
                raise PrepareError(
                    f"{path} line {number} has no token left after tokenising; remove the pair "
                    "from the input"
                )
            writer.write(line + "\n")


# -- files of one sentence a line ------------------------------------------------------------------


def open_text(path: str, mode: str = "r") -> IO[str]:
    """A UTF-8 file in which only "\\n" ends a line."""
    return open(path, mode, encoding="utf-8", newline="\n")


def count_lines(path: str) -> int:
    """The number of lines of a file."""
    with open_text(path) as stream:
        return sum(1 for _ in stream)


def progress(lines: Iterable[str], path: str) -> Any:
    """The lines, which are as many as the file has, with a progress bar named after it."""
    return tqdm(
        lines,
        desc="  " + os.path.basename(path),
        total=count_lines(path),
        unit=" lines",
        mininterval=0.5,
    )
