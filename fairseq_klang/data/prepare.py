"""Turn raw parallel text into what fairseq-train reads: raw -> tok -> subword -> bin, each step
kept and reused."""

import collections
import contextlib
import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys

from tqdm import tqdm

from ..analysis.tokens import is_blank, moses_tokenizer
from ..errors import KlangError
from ..files import read_lines, sha256, versions, write_json

LOCK = ".lock"  # inside --out and --cache, while a preparation is at work there
RECORD = ".step.json"  # inside each step's folder: what it was made from, and what came out
UNCOUNTED = (RECORD, "preprocess.log")  # what a step leaves that is no result
STEPS = ("raw", "tok", "subword", "bin")

MULTI30K = {
    "train": "train",
    "valid": "val",
    "test": "test_2016_flickr",
    "test1": "test_2017_flickr",
    "test2": "test_2017_mscoco",
}


class PrepareError(KlangError):
    """Text or options that cannot be prepared."""


def _option(default, text, **metadata):
    return dataclasses.field(default=default, metadata=dict(metadata, help=text))


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """Every option of `klang prepare`; the command line is made from these fields. Raises
    PrepareError on a bad value."""

    source_lang: str = _option(
        "de", "source language: the ending of the source files", flags=("-s", "--source-lang")
    )
    target_lang: str = _option(
        "en", "target language: the ending of the target files", flags=("-t", "--target-lang")
    )
    subword: str = _option(
        "bpe",
        "units of the model, learned on the training text of both languages",
        choices=("bpe", "sentencepiece", "word"),
    )
    vocab_size: int = _option(
        8000,
        "bpe: merge operations; sentencepiece: size of the vocabulary; word: most frequent words "
        "kept in each "
        "dictionary (a joined dictionary is one), 0 keeps all",
    )
    tokenizer: str = _option(
        "moses", "tokenizer, applied before lower-casing", choices=("moses", "none")
    )
    escape: bool = _option(
        False, "write & ' \" < > [ ] | as entities such as &apos;, as Moses' tokenizer.perl does"
    )
    keep_case: bool = _option(False, "do not lower-case the text")
    dictionary: str = _option(
        "joined",
        "one dictionary for both languages, or one for each",
        choices=("joined", "separate"),
    )
    limit: int = _option(
        0, "use only the first N training pairs, for trials; 0 uses all", metavar="N"
    )
    workers: int = _option(
        1, "processes to work with; the result does not depend on it", metavar="N"
    )
    word_cut: str = _option(
        "exact",
        "word: exact keeps the --vocab-size most frequent words; threshold keeps every word that "
        "occurs N times or more, "
        "with the N that comes closest to --vocab-size words",
        choices=("exact", "threshold"),
    )

    def __post_init__(self):
        for field in dataclasses.fields(self):
            choices, value = field.metadata.get("choices"), getattr(self, field.name)
            if choices and value not in choices:
                raise PrepareError(
                    f"{flag(field.name)} is {value!r}; it must be one of {', '.join(choices)}"
                )
        if self.word_cut == "threshold" and self.subword != "word":
            raise PrepareError(
                f"--word-cut threshold needs --subword word; --subword is {self.subword!r}"
            )
        may_keep_all = self.subword == "word" and self.word_cut == "exact"
        least = {"vocab_size": 0 if may_keep_all else 1, "limit": 0, "workers": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise PrepareError(
                    f"{flag(name)} is {getattr(self, name)}; it must be {minimum} or more"
                )
        if self.source_lang == self.target_lang:
            raise PrepareError(
                f"--source-lang and --target-lang are both {self.source_lang!r}; they must differ"
            )
        for name in ("source_lang", "target_lang"):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", getattr(self, name)):
                raise PrepareError(
                    f"{flag(name)} is {getattr(self, name)!r}; it must be letters, digits or _, "
                    "such as de or pt_BR"
                )
        if self.escape and self.tokenizer != "moses":
            raise PrepareError(
                f"--escape needs --tokenizer moses; --tokenizer is {self.tokenizer!r}"
            )

    @property
    def langs(self):
        """(source, target)"""
        return self.source_lang, self.target_lang


def flag(name):
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


# -- text files ------------------------------------------------------------------------------------


def find_text(prefix, lang):
    """The path of PREFIX.LANG, or else PREFIX.LANG.gz; raises PrepareError when there is
    neither."""
    for path in (f"{prefix}.{lang}", f"{prefix}.{lang}.gz"):
        if os.path.isfile(path):
            return path
    raise PrepareError(
        f"found neither {prefix}.{lang} nor {prefix}.{lang}.gz; check the folder and the language "
        "codes -s and -t"
    )


def copy_raw(split, paths, outputs, limit=0):
    """Copy one split's two files to `outputs`, checked; pairs with a blank side are dropped from
    train, else refused.

    Returns {"read": pairs in the files, "dropped": pairs with a blank side, "kept": pairs written}.
    Raises PrepareError where the two files differ in length, a held-out line is blank, or nothing
    is left.
    """
    counts = {"read": 0, "dropped": 0, "kept": 0}
    lengths = [0, 0]
    with open(outputs[0], "w", encoding="utf-8") as source, open(
        outputs[1], "w", encoding="utf-8"
    ) as target:
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


# -- tokenizing ------------------------------------------------------------------------------------


def tokenizer(lang, options):
    """A function from a raw line to the model's text before it is split: Moses tokens, then
    lower-cased."""
    split = moses_tokenizer(lang, options.escape) if options.tokenizer == "moses" else str
    return split if options.keep_case else lambda line: split(line).lower()


_worker = {}


def _start_worker(lang, options):
    _worker["tokenize"] = tokenizer(lang, options)


def _tokenize_line(line):
    return _worker["tokenize"](line.rstrip("\n"))


def tokenize_file(path, output, lang, options):
    """Tokenise a file line by line in `options.workers` processes; raises PrepareError where a line
    comes out empty."""
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(_open(path))
        writer = stack.enter_context(_open(output, "w"))
        _start_worker(
            lang, options
        )  # also before the pool, so that forked workers need not import it again
        if options.workers > 1:
            pool = stack.enter_context(
                multiprocessing.Pool(options.workers, _start_worker, (lang, options))
            )
            done = pool.imap(_tokenize_line, lines, chunksize=500)
        else:
            done = map(_tokenize_line, lines)
        for number, line in enumerate(_progress(done, path), 1):
            if not line.strip():
                raise PrepareError(
                    f"{path} line {number} has no token left after tokenising; remove the pair "
                    "from the input"
                )
            writer.write(line + "\n")


def _open(path, mode="r"):
    return open(path, mode, encoding="utf-8", newline="\n")


def _progress(lines, path):
    with _open(path) as stream:
        total = sum(1 for _ in stream)
    return tqdm(
        lines, desc="  " + os.path.basename(path), total=total, unit=" lines", mininterval=0.5
    )


# -- subwords --------------------------------------------------------------------------------------


def learn_bpe(paths, output, merges):
    """Learn one set of BPE merges from all files; returns how many there are (small text may have
    fewer than asked)."""
    from subword_nmt.learn_bpe import learn_bpe as learn

    with contextlib.ExitStack() as stack:
        lines = itertools.chain.from_iterable(stack.enter_context(_open(path)) for path in paths)
        writer = stack.enter_context(_open(output, "w"))
        try:
            learn(lines, writer, merges)
        except ValueError as error:  # max() of no pairs at all
            raise PrepareError(
                f"the training text has no pair of letters to merge ({error}); use --subword word"
            ) from None
    with _open(output) as stream:
        return sum(1 for _ in stream) - 1  # the first line is the version


def apply_bpe(codes):
    """A function from a tokenised line to a line of BPE units joined by `@@ `."""
    from subword_nmt.apply_bpe import BPE

    with _open(codes) as stream:
        return BPE(stream).process_line


def learn_sentencepiece(paths, output, size):
    """Learn one unigram model from all files; returns its size. Text is not normalised, so that
    pieces decode exactly."""
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            input=list(paths),
            model_prefix=os.path.splitext(output)[0],
            vocab_size=size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,  # the number of threads changes the model
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split()).split("] ")[-1]
        raise PrepareError(
            f"sentencepiece cannot learn --vocab-size {size} from this text: {reason}"
        ) from None
    return size


def apply_sentencepiece(model):
    """A function from a line to a line of pieces; `\\u2581` marks where a word starts."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return lambda line: " ".join(processor.encode(line.rstrip("\n"), out_type=str)) + "\n"


# -- words -----------------------------------------------------------------------------------------


def frequency_threshold(counts, size):
    """(N, words): the words that occur N times or more are closest in number to `size`; of two such
    N the smaller.

    counts: {word: how often it occurs}, not empty.
    """
    of_frequency = collections.Counter(counts.values())
    best, words = None, 0
    for frequency in sorted(of_frequency, reverse=True):
        words += of_frequency[frequency]
        if best is None or abs(words - size) <= abs(best[1] - size):
            best = frequency, words
    return best


def count_words(paths):
    """{word: how often it occurs} over all files."""
    counts = collections.Counter()
    for path in paths:
        with _open(path) as stream:
            for line in stream:
                counts.update(line.split())
    return counts


# -- the steps -------------------------------------------------------------------------------------


class _Job:
    """One call of prepare: the options, the input files, and a method for each step that fills the
    folder it is given."""

    def __init__(self, options, inputs, out):
        self.options, self.inputs, self.out = options, inputs, out

    def texts(self, step):
        """Every text file of a step, as (split, lang, path)."""
        for split in self.inputs:
            for lang in self.options.langs:
                yield split, lang, os.path.join(self.out, step, f"{split}.{lang}")

    def key(self, step):
        """All that a step's result depends on."""
        options = self.options
        key = {
            "inputs": {f"{split}.{lang}": digest for (split, lang), digest in self.digests.items()},
            "source_lang": options.source_lang,
            "target_lang": options.target_lang,
            "limit": options.limit,
        }
        if step != "raw":
            key.update(
                tokenizer=options.tokenizer, escape=options.escape, keep_case=options.keep_case
            )
        if step in ("subword", "bin"):
            key.update(subword=options.subword, vocab_size=options.vocab_size)
        if step == "bin":
            key.update(dictionary=options.dictionary, word_cut=options.word_cut)
        return key

    @property
    def digests(self):
        if not hasattr(self, "_digests"):
            self._digests = {
                (split, lang): sha256(path)
                for split, paths in self.inputs.items()
                for lang, path in zip(self.options.langs, paths)
            }
        return self._digests

    def raw(self, folder):
        lines = {}
        for split, paths in self.inputs.items():
            outputs = [os.path.join(folder, f"{split}.{lang}") for lang in self.options.langs]
            lines[split] = copy_raw(
                split, paths, outputs, self.options.limit if split == "train" else 0
            )
            if lines[split]["dropped"]:
                say(
                    f"  {split}: dropped {lines[split]['dropped']} pairs with an empty side, kept "
                    f"{lines[split]['kept']}"
                )
        return {"lines": lines}

    def tok(self, folder):
        for split, lang, path in self.texts("raw"):
            tokenize_file(path, os.path.join(folder, f"{split}.{lang}"), lang, self.options)
        return {}

    def subword(self, folder):
        options = self.options
        training = [path for split, _, path in self.texts("tok") if split == "train"]
        result = {}
        if options.subword == "bpe":
            codes = os.path.join(folder, "codes")
            result["merges"] = learn_bpe(training, codes, options.vocab_size)
            if result["merges"] < options.vocab_size:
                say(
                    f"  only {result['merges']} of {options.vocab_size} merges: no further pair "
                    "occurs twice"
                )
            encode = apply_bpe(codes)
        elif options.subword == "sentencepiece":
            model = os.path.join(folder, "spm.model")
            result["pieces"] = learn_sentencepiece(training, model, options.vocab_size)
            encode = apply_sentencepiece(model)
        for split, lang, path in self.texts("tok"):
            output = os.path.join(folder, f"{split}.{lang}")
            if options.subword == "word":
                shutil.copyfile(path, output)
                continue
            with _open(path) as lines, _open(output, "w") as writer:
                writer.writelines(map(encode, _progress(lines, path)))
        return result

    def bin(self, folder):
        options = self.options
        command = [
            sys.executable,
            "-m",
            "fairseq_cli.preprocess",
            "-s",
            options.source_lang,
            "-t",
            options.target_lang,
        ]
        tests = [split for split in self.inputs if split.startswith("test")]
        for name, splits in (("train", ["train"]), ("valid", ["valid"]), ("test", tests)):
            command += [
                f"--{name}pref",
                ",".join(os.path.join(self.out, "subword", split) for split in splits),
            ]
        command += ["--destdir", folder, "--workers", str(options.workers)]
        if options.dictionary == "joined":
            command.append("--joined-dictionary")
        result = {}
        if options.word_cut == "threshold":
            result["threshold"] = self._thresholds()
            for side, lang in zip(("src", "tgt"), options.langs):
                command += [f"--threshold{side}", str(result["threshold"][lang])]
        elif options.subword == "word" and options.vocab_size:
            # fairseq counts its four special symbols
            command += [
                "--nwordssrc",
                str(options.vocab_size + 4),
                "--nwordstgt",
                str(options.vocab_size + 4),
            ]
        _run(command)
        return {
            **result,
            "vocabulary": {lang: self._check_binary(folder, lang) for lang in options.langs},
            "dictionaries": {
                f"dict.{lang}.txt": sha256(os.path.join(folder, f"dict.{lang}.txt"))
                for lang in options.langs
            },
        }

    def _thresholds(self):
        """{lang: how often a word must occur to be in the dictionary}."""
        options = self.options
        training = {lang: path for split, lang, path in self.texts("subword") if split == "train"}
        groups = (
            [options.langs]
            if options.dictionary == "joined"
            else [(lang,) for lang in options.langs]
        )
        found = {}
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

    def _check_binary(self, folder, lang):
        """The size of a dictionary, once every split of its language is seen to hold all its
        sentences."""
        from fairseq.data import Dictionary
        from fairseq.data.indexed_dataset import MMapIndexedDataset

        pair = "-".join(self.options.langs)
        for split, _, path in (text for text in self.texts("subword") if text[1] == lang):
            with _open(path) as stream:
                lines = sum(1 for _ in stream)
            binary = os.path.join(folder, f"{split}.{pair}.{lang}")
            found = len(MMapIndexedDataset(binary)) if MMapIndexedDataset.exists(binary) else 0
            if found != lines:
                raise PrepareError(
                    f"fairseq-preprocess wrote {found} of the {lines} sentences of {path}; run "
                    "klang prepare again with --workers 1"
                )
        return len(Dictionary.load(os.path.join(folder, f"dict.{lang}.txt")))


def _run(command):
    """Run fairseq-preprocess, showing what it says of each file; raises PrepareError with its last
    line if it fails."""
    last = "no output"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    ) as process:
        for line in filter(None, map(str.strip, process.stdout)):
            last = line
            told = re.search(r"fairseq_cli\.preprocess\W+(\[\w+\] .*)", line)
            if told:
                say("  " + told.group(1))
    if process.returncode:
        raise PrepareError(f"fairseq-preprocess ended with status {process.returncode}: {last}")


def say(text):
    """Print a line of progress, at once, where it does not mix with what a command prints."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def hold(folder, name):
    """Hold a folder, which an error calls `name`, against other processes; the lock ends with this
    process, however it ends.

    A record lock: other than one of flock it is not inherited by workers, who may outlive a killed
    parent. Within one process it is not to be held twice. Raises PrepareError where another process
    has it.
    """
    import fcntl

    path = os.path.join(folder, LOCK)
    if not os.access(folder, os.W_OK):  # one can only read what is there
        yield
        return
    with contextlib.ExitStack() as stack:
        while True:
            stream = stack.enter_context(open(path, "w"))
            try:
                fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise PrepareError(
                    f"{name} {folder} is in use by another klang prepare; wait until it has ended, "
                    f"or choose another {name}"
                ) from None
            if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
                break  # else its holder removed it between the two calls
        stack.callback(os.remove, path)
        yield


def read_record(folder):
    """(key, result, sizes of the files) that run_step left in a step's folder; raises PrepareError
    if it left none."""
    try:
        with _open(os.path.join(folder, RECORD)) as stream:
            record = json.load(stream)
        return record["key"], record["result"], record.get("files", {})
    except (OSError, ValueError, KeyError, TypeError):
        raise PrepareError(
            f"{folder} was not made by klang prepare; choose another --out, or move it away"
        ) from None


def _refuse_other(out, step, old, new):
    """Raise PrepareError unless the folder of this step was made from the same inputs and
    options."""
    for name in new:
        before = old.get(
            name, getattr(PrepareOptions, name, None)
        )  # an option may be younger than the folder
        if before == new[name]:
            continue
        if name == "inputs":
            changed = sorted(
                key
                for key in set(old.get(name, {})) | set(new[name])
                if old.get(name, {}).get(key) != new[name].get(key)
            )
            what = f"{out} was prepared from other text ({', '.join(changed)})"
        else:
            what = f"{out} was prepared with {flag(name)} {before}, now it is {new[name]}"
        raise PrepareError(
            f"{what}; choose another --out, or delete {os.path.join(out, step)} and the steps "
            "after it"
        )


def file_sizes(folder):
    """{name: bytes} of the results in a step's folder."""
    return {
        entry.name: entry.stat().st_size
        for entry in os.scandir(folder)
        if entry.is_file() and entry.name not in UNCOUNTED
    }


def damage(folder):
    """What a step's folder has lost since it was filled, as "NAME is gone" or "NAME has other
    bytes", or ""."""
    found = file_sizes(folder)
    for name, size in read_record(folder)[2].items():
        if name not in found:
            return f"{name} is gone"
        if found[name] != size:
            return f"{name} has {found[name]:,} bytes, not {size:,}"
    return ""


def finished_step(out, step, key):
    """What run_step returned for OUT/STEP, or None if that folder is not there; raises PrepareError
    if it was made from another key."""
    folder = os.path.join(out, step)
    if not os.path.exists(folder):
        return None
    old, result, _ = read_record(folder)
    _refuse_other(out, step, old, key)
    return result


def remove_step(folder):
    """Remove what a step has made, to make it again; raises PrepareError where files of others are
    there too."""
    theirs = sorted(set(file_sizes(folder)) - set(read_record(folder)[2]))
    if theirs:
        raise PrepareError(
            f"{folder} must be made again, but {theirs[0]} there was not made by klang prepare; "
            "move it away"
        )
    out, step = os.path.split(folder)
    aside = os.path.join(
        out, f".{step}.{os.getpid()}.partial"
    )  # which run_step removes, should this be killed half-way
    os.rename(folder, aside)
    shutil.rmtree(aside)


def run_step(out, step, key, work):
    """Fill the folder OUT/STEP by calling work(folder), which returns a dict of facts to keep;
    returns these facts.

    The folder takes its name only when it is complete. It records the facts, the sizes of its files
    and `key`, all that they depend on.
    """
    for name in os.listdir(
        out
    ):  # what a killed run left; a new name, since its fairseq-preprocess may still be writing
        if re.fullmatch(rf"\.{step}\.\d+\.partial", name):
            shutil.rmtree(os.path.join(out, name), ignore_errors=True)
    partial = os.path.join(out, f".{step}.{os.getpid()}.partial")
    os.mkdir(partial)
    result = work(partial)
    write_json(
        os.path.join(partial, RECORD), {"key": key, "result": result, "files": file_sizes(partial)}
    )
    os.rename(partial, os.path.join(out, step))
    return result


def make_out(out):
    """The absolute path of the folder --out, made if it is not there; raises PrepareError if it is
    a file."""
    out = os.path.abspath(str(out))
    if os.path.exists(out) and not os.path.isdir(out):
        raise PrepareError(f"--out {out} is a file; name a folder")
    os.makedirs(out, exist_ok=True)
    return out


def prepare(inputs, out, options, source=None):
    """Prepare parallel text below the folder `out`.

    inputs: {split: prefix}, splits named train, valid, test, test1, ...; a prefix is the path
        without `.de` or `.de.gz`.
    options: PrepareOptions. source: facts on where the text comes from, kept in prepare.json.

    Each step fills a folder that takes its name only when it is complete, so a run that was killed
    goes on where it stopped, and a folder made from other text or options is refused, never
    overwritten. A folder that has lost a file, or part of one, is made again, with those that were
    made from it. Returns the content of OUT/prepare.json: options, versions, line counts,
    vocabulary sizes and SHA-256 of inputs and dictionaries. Raises PrepareError.
    """
    paths = {
        split: [find_text(str(prefix), lang) for lang in options.langs]
        for split, prefix in inputs.items()
    }
    out = make_out(out)
    with hold(out, "--out"):
        return prepare_held(paths, out, options, source)


def prepare_held(paths, out, options, source=None):
    """What `prepare` does, for who holds the folder `out`. paths: {split: [source file, target
    file]}."""
    job = _Job(options, paths, out)
    folders = {step: os.path.join(out, step) for step in STEPS}
    done = {step: finished_step(out, step, job.key(step)) for step in STEPS}
    done = {step: result for step, result in done.items() if result is not None}
    for number, step in enumerate(STEPS):
        lost = damage(folders[step]) if step in done else ""
        if lost:
            again = [later for later in STEPS[number:] if later in done]
            say(f"{folders[step]} is damaged: {lost}; made again: {', '.join(again)}")
            for later in reversed(
                again
            ):  # the damaged one last, so that a kill here leaves it to be found
                remove_step(folders[later])
                del done[later]
            break
    missing = [step for step in STEPS if step not in done]
    if missing and STEPS.index(missing[0]) < len(done):
        later = ", ".join(
            folders[step] for step in done if STEPS.index(step) > STEPS.index(missing[0])
        )
        raise PrepareError(
            f"{folders[missing[0]]} is gone but what was made from it is there; delete {later} "
            "too, or choose another --out"
        )

    summary = os.path.join(out, "prepare.json")
    if len(done) == len(STEPS) and os.path.exists(summary):
        say(f"{out} is already prepared")
        with _open(summary) as stream:
            return json.load(stream)
    with contextlib.suppress(FileNotFoundError):
        os.remove(summary)  # it would describe folders that are about to be made anew

    results = {}
    for number, step in enumerate(STEPS, 1):
        if step in done:
            say(f"[{number}/{len(STEPS)}] {step}: already done")
            results[step] = done[step]
            continue
        say(f"[{number}/{len(STEPS)}] {step}: {_DOES[step]}")
        results[step] = run_step(out, step, job.key(step), getattr(job, step))

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
    }
    if source:
        report["source"] = source
    for result in results.values():
        report.update(result)
    write_json(summary, report)
    return report


_DOES = {
    "raw": "read and check the text",
    "tok": "tokenise and lower-case",
    "subword": "split into units",
    "bin": "binarise with fairseq-preprocess",
}


def multi30k_inputs(folder):
    """{split: prefix} for a folder that holds Multi30k task 1 under its published file names."""
    if not os.path.isdir(folder):
        raise PrepareError(
            f"--from {folder} is no folder; it must hold train.de.gz, val.de.gz, "
            "test_2016_flickr.de.gz, ..."
        )
    return {split: os.path.join(folder, name) for split, name in MULTI30K.items()}


def text_inputs(train, valid, tests):
    """{split: prefix} for any parallel text; the test sets become test, test1, test2, ..."""
    inputs = {"train": train, "valid": valid}
    for number, prefix in enumerate(tests):
        inputs[f"test{number or ''}"] = prefix
    return inputs
