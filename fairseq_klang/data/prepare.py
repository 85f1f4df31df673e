"""Turn raw parallel text into what fairseq-train reads: raw -> tok -> subword -> bin, each step
kept and reused."""

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..files import locked, read_json, sha256, versions, write_json
from .options import STEPS, PrepareError, PrepareOptions
from .steps import Facts, damage, finished_step, remove_step, run_step, say
from .subwords import (
    MODELS,
    count_words,
    frequency_threshold,
    learn_bpe,
    learn_sentencepiece,
    splitter,
)
from .text import copy_raw, count_lines, find_text, open_text, progress, tokenize_file

SUMMARY = "prepare.json"
# The facts of each step that others read in the summary.
_FACTS: Dict[str, Dict[str, Any]] = {
    "raw": {"lines": {"train": {"kept": int}}},
    "tok": {},
    "subword": {},
    "bin": {"vocabulary": dict, "dictionaries": dict},
}

_DOES = {
    "raw": "read and check the text",
    "tok": "tokenise and lower-case",
    "subword": "split into units",
    "bin": "binarise with fairseq-preprocess",
}


class _Job:
    """One call of prepare: the options, the input files, and a method for each step that fills the
    folder it is given."""

    def __init__(self, options: PrepareOptions, inputs: Mapping[str, Sequence[str]], out: str):
        self.options, self.inputs, self.out = options, inputs, out

    def texts(self, step: str) -> Iterator[Tuple[str, str, str]]:
        """Every text file of a step, as (split, lang, path)."""
        for split in self.inputs:
            for lang in self.options.langs:
                yield split, lang, os.path.join(self.out, step, f"{split}.{lang}")

    def training(self, step: str) -> Dict[str, str]:
        """{lang: path} of the training text of a step."""
        return {lang: path for split, lang, path in self.texts(step) if split == "train"}

    @functools.cached_property
    def digests(self) -> Dict[Tuple[str, str], str]:
        return {
            (split, lang): sha256(path)
            for split, paths in self.inputs.items()
            for lang, path in zip(self.options.langs, paths)
        }

    def key(self, step: str) -> Facts:
        """All that a step's result depends on."""
        inputs = {f"{split}.{lang}": digest for (split, lang), digest in self.digests.items()}
        return {"inputs": inputs, **self.options.until(step)}

    def raw(self, folder: str) -> Facts:
        lines = {}
        for split, paths in self.inputs.items():
            outputs = [os.path.join(folder, f"{split}.{lang}") for lang in self.options.langs]
            limit = self.options.limit if split == "train" else 0
            lines[split] = copy_raw(split, paths, outputs, limit)
            if lines[split]["dropped"]:
                say(
                    f"  {split}: dropped {lines[split]['dropped']} pairs with an empty side, kept "
                    f"{lines[split]['kept']}"
                )
        return {"lines": lines}

    def tok(self, folder: str) -> Facts:
        for split, lang, path in self.texts("raw"):
            tokenize_file(path, os.path.join(folder, f"{split}.{lang}"), lang, self.options)
        return {}

    def subword(self, folder: str) -> Facts:
        kind, size = self.options.subword, self.options.vocab_size
        training = list(self.training("tok").values())
        model, facts = os.path.join(folder, MODELS.get(kind, "")), {}
        if kind == "bpe":
            facts["merges"] = learn_bpe(training, model, size)
            if facts["merges"] < size:
                say(f"  only {facts['merges']} of {size} merges: no further pair occurs twice")
        elif kind == "sentencepiece":
            facts["pieces"] = learn_sentencepiece(training, model, size)
        split_line = splitter(kind, model)
        for split, lang, path in self.texts("tok"):
            output = os.path.join(folder, f"{split}.{lang}")
            if kind == "word":
                shutil.copyfile(path, output)
                continue
            with open_text(path) as lines, open_text(output, "w") as writer:
                for line in progress(lines, path):
                    writer.write(split_line(line.rstrip("\n")) + "\n")
        return facts

    def bin(self, folder: str) -> Facts:
        options = self.options
        command = [sys.executable, "-m", "fairseq_cli.preprocess"]
        command += ["-s", options.source_lang, "-t", options.target_lang]
        tests = [split for split in self.inputs if split.startswith("test")]
        for name, splits in (("train", ["train"]), ("valid", ["valid"]), ("test", tests)):
            paths = [os.path.join(self.out, "subword", split) for split in splits]
            command += [f"--{name}pref", ",".join(paths)]
        command += ["--destdir", folder, "--workers", str(options.workers)]
        if options.dictionary == "joined":
            command.append("--joined-dictionary")
        facts: Facts = {}
        if options.word_cut == "threshold":
            facts["threshold"] = self._thresholds()
            for side, lang in zip(("src", "tgt"), options.langs):
                command += [f"--threshold{side}", str(facts["threshold"][lang])]
        elif options.subword == "word" and options.vocab_size:
            size = str(options.vocab_size + 4)  # fairseq counts its four special symbols
            command += ["--nwordssrc", size, "--nwordstgt", size]
        _run(command)
        facts["vocabulary"] = {lang: self._check_binary(folder, lang) for lang in options.langs}
        names = [f"dict.{lang}.txt" for lang in options.langs]
        facts["dictionaries"] = {name: sha256(os.path.join(folder, name)) for name in names}
        return facts

    def _thresholds(self) -> Dict[str, int]:
        """{lang: how often a word must occur to be in the dictionary}."""
        options, training = self.options, self.training("subword")
        joined = options.dictionary == "joined"
        groups = [options.langs] if joined else [(lang,) for lang in options.langs]
        found: Dict[str, int] = {}
        for langs in groups:
            threshold, words = frequency_threshold(
                count_words(training[lang] for lang in langs), options.vocab_size
            )
            say(
                f"  {' and '.join(langs)}: {words} words occur {threshold} times or more; "
                f"--vocab-size asks for {options.vocab_size}"
            )
            found.update(dict.fromkeys(langs, threshold))
        return found

    def _check_binary(self, folder: str, lang: str) -> int:
        """The size of a dictionary, once every split of its language is seen to hold all its
        sentences."""
        from fairseq.data import Dictionary
        from fairseq.data.indexed_dataset import MMapIndexedDataset

        pair = "-".join(self.options.langs)
        for split, _, path in (text for text in self.texts("subword") if text[1] == lang):
            lines = count_lines(path)
            binary = os.path.join(folder, f"{split}.{pair}.{lang}")
            found = len(MMapIndexedDataset(binary)) if MMapIndexedDataset.exists(binary) else 0
            if found != lines:
                raise PrepareError(
                    f"fairseq-preprocess wrote {found} of the {lines} sentences of {path}; run "
                    "klang prepare again with --workers 1"
                )
        return len(Dictionary.load(os.path.join(folder, f"dict.{lang}.txt")))


def _run(command: List[str]) -> None:
    """Run fairseq-preprocess, showing what it says of each file; raises PrepareError with its last
    line if it fails."""
    last = "no output"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in filter(None, map(str.strip, process.stdout or ())):
            last = line
            told = re.search(r"fairseq_cli\.preprocess\W+(\[\w+\] .*)", line)
            if told:
                say("  " + told.group(1))
    if process.returncode:
        raise PrepareError(f"fairseq-preprocess ended with status {process.returncode}: {last}")


def make_out(out: Any) -> str:
    """The absolute path of the folder --out, made if it is not there; raises PrepareError for a
    file, and for a name that fairseq takes apart."""
    out = os.path.abspath(str(out))
    for mark in (mark for mark in ",:" if mark in out):
        raise PrepareError(
            f"--out {out} holds {mark!r}, where fairseq splits a list of folders; choose a name "
            "without it"
        )
    if os.path.exists(out) and not os.path.isdir(out):
        raise PrepareError(f"--out {out} is a file; name a folder")
    os.makedirs(out, exist_ok=True)
    return out


def read_summary(out: str) -> Optional[Facts]:
    """The content of OUT/prepare.json, or None where there is none; raises PrepareError where it is
    damaged."""
    fix = "delete it, and run klang prepare again as before"
    fields = {"options": dict, **_FACTS["raw"], **_FACTS["bin"]}
    return read_json(os.path.join(out, SUMMARY), PrepareError, fix, fields)


def prepare(
    inputs: Mapping[str, Any],
    out: Any,
    options: PrepareOptions,
    source: Optional[Mapping[str, Any]] = None,
) -> Facts:
    """Prepare parallel text below the folder `out`.

    Each step fills a folder that takes its name only when it is complete, so a run that was killed
    goes on where it stopped, and a folder made from other text or options is refused, never
    overwritten. A folder that has lost a file, or part of one, is made again, with those that were
    made from it.

    Args:
        inputs: {split: prefix}, splits named train, valid, test, test1, ...; a prefix is the path
            without `.de` or `.de.gz`.
        source: facts on where the text comes from, kept in prepare.json.
    Returns:
        The content of OUT/prepare.json: options, versions, line counts, vocabulary sizes and
        SHA-256 of inputs and dictionaries.
    Raises:
        PrepareError: text, options or folders that do not go together.
    """
    paths = {
        split: [find_text(str(prefix), lang) for lang in options.langs]
        for split, prefix in inputs.items()
    }
    out = make_out(out)
    with locked(out):
        return prepare_held(paths, out, options, source)


def _finished_steps(job: _Job) -> Dict[str, Facts]:
    """{step: facts} of the steps that are there, in order; what has lost a file is removed, and so
    is what was made from it. Raises PrepareError where a step between is gone."""
    folders = {step: os.path.join(job.out, step) for step in STEPS}
    found = {step: finished_step(job.out, step, job.key(step), _FACTS[step]) for step in STEPS}
    done = {step: facts for step, facts in found.items() if facts is not None}
    for number, step in enumerate(STEPS):
        lost = damage(folders[step]) if step in done else ""
        if lost:
            again = [later for later in STEPS[number:] if later in done]
            say(f"{folders[step]} is damaged: {lost}; made again: {', '.join(again)}")
            for later in reversed(again):  # the damaged one last: a kill here leaves it to be found
                remove_step(folders[later])
                del done[later]
            break
    missing = [step for step in STEPS if step not in done]
    if missing and STEPS.index(missing[0]) < len(done):
        place = STEPS.index(missing[0])
        later = ", ".join(folders[step] for step in STEPS[place:] if step in done)
        raise PrepareError(
            f"{folders[missing[0]]} is gone but what was made from it is there; delete {later} "
            "too, or choose another --out"
        )
    return done


def prepare_held(
    paths: Mapping[str, Sequence[str]],
    out: str,
    options: PrepareOptions,
    source: Optional[Mapping[str, Any]] = None,
) -> Facts:
    """What `prepare` does, for who has the lock on `out`.

    paths: {split: [source file, target file]}."""
    job = _Job(options, paths, out)
    done = _finished_steps(job)
    summary = os.path.join(out, SUMMARY)
    if len(done) == len(STEPS):
        report = read_summary(out)
        if report is not None:
            say(f"{out} is already prepared")
            return report
    elif os.path.exists(summary):
        os.remove(summary)  # it describes folders that are about to be made anew

    for number, step in enumerate(STEPS, 1):
        if step in done:
            say(f"[{number}/{len(STEPS)}] {step}: already done")
            continue
        say(f"[{number}/{len(STEPS)}] {step}: {_DOES[step]}")
        done[step] = run_step(out, step, job.key(step), getattr(job, step))

    report = {
        "options": dataclasses.asdict(options),
        "versions": versions("sacremoses", "subword-nmt", "sentencepiece"),
        "inputs": {
            split: {
                lang: {"path": path, "sha256": job.digests[split, lang]}
                for lang, path in zip(options.langs, paths[split])
            }
            for split in paths
        },
        **({"source": source} if source else {}),
    }
    for facts in done.values():
        report.update(facts)
    write_json(summary, report)
    return report
