"""Run one recipe of examples/iwslt14/recipes.ini: train, translate, score; one run folder holds all
that comes out.

    recipe.py A10 --data DATA/bin                               train, translate (beam 5 and
    greedy), score recipe.py A10 --data DATA/bin --seed 2 --device cuda        another seed, on a
    GPU recipe.py README --data DATA/bin --loss softbleu            another criterion, all else the
    same recipe.py B0 --data DATA/bin --max-epoch 2 --lr 0.001       every further flag goes to
    fairseq-train and overrides the recipe's recipe.py A10 --data DATA/bin --dry-run
        print the commands recipe.py --list                                            the recipes

The run folder gets settings.json (recipe, commands, versions, hashes of data and dictionaries),
train.log (JSON rows), train.out, checkpoints/, gen.SUBSET.beam5.out, gen.SUBSET.greedy.out,
scores.json (validation BLEU of each epoch, test scores) and report/ (the criterion's curves, as
klang report draws them).

Killed at any point and started again with the same command, a run goes on where it stopped: what is
complete is kept, and fairseq resumes from its last checkpoint, bit for bit. That is the end of the
last epoch, unless
--save-interval-updates N is appended.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import glob
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

import torch
from tqdm import tqdm

from .. import register
from ..analysis.curves import write_report
from ..errors import KlangError, exit_status
from ..files import git_hash, read_json, sha256, versions, write_json
from . import plan as plans
from .plan import BEAMS, Plan, RecipeError, difference, flag_value, shell

# -- the run folder --------------------------------------------------------------------------------


def open_folder(plan, reference):
    """Make or reopen the run folder; returns its settings.

    One of other settings starts anew where nothing was trained in it, as after a mistyped flag.
    Raises RecipeError for any other folder of other settings, and for a folder that is none of a
    recipe.
    """
    path = os.path.join(plan.out, "settings.json")
    settings, key = read_json(path), plan.key()
    if (
        settings is None
        and os.path.isdir(plan.out)
        and set(os.listdir(plan.out)) - {"lock", "settings.json.partial"}
    ):
        raise RecipeError(
            f"--out {plan.out} holds files but no settings.json, so it is no run folder; choose "
            "another"
        )
    found = difference(settings["key"], key) if settings else None
    if found:
        told = "{} was made with other settings ({}: {}; now {})".format(plan.out, *found)
        folder = glob.escape(plan.out)
        if glob.glob(os.path.join(folder, "checkpoints", "*.pt")) or glob.glob(
            os.path.join(folder, "gen.*.out")
        ):
            raise RecipeError(f"{told}; choose another --out, or delete that folder")
        print(f"{told}, but nothing was trained in it: it starts anew", flush=True)
        for name in ("trained", "train.log", "train.out", "generate.log", "scores.json"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(plan.out, name))
        settings = None
    start = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "git": git_hash(),
        "threads": torch.get_num_threads(),
        "versions": dict(versions("numpy", "sacrebleu"), torch=torch.__version__),
    }
    settings = settings or {"starts": []}
    recipe = plan.recipe
    settings.update(
        recipe={
            "about": recipe.about,
            "note": recipe.note,
            "source": recipe.source if plan.loss == recipe.loss else "",
            "source_epochs": recipe.source_epochs if plan.loss == recipe.loss else [],
            "source_data": recipe.data,
        },
        overrides=plan.extra,
        key=key,
        data={
            name: value for name, value in dataclasses.asdict(plan.data).items() if name != "files"
        },
        commands=plan.commands(reference),
        starts=settings["starts"] + [start],
    )
    write_json(path, settings)
    return settings


@contextlib.contextmanager
def lock(folder, patience=30):
    """Hold the run folder; yields the lock's file descriptor, which the commands inherit, so that
    it outlives a killed runner.

    Raises RecipeError when another process still has it after `patience` seconds.
    """
    import fcntl

    with open(os.path.join(folder, "lock"), "w") as stream:
        for second in range(patience + 1):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if second == patience:
                    raise RecipeError(
                        f"{folder} is in use by another process; wait for it, or end it"
                    ) from None
                time.sleep(1)
        yield stream.fileno()


# -- running ---------------------------------------------------------------------------------------


def _die_with_parent():
    """On Linux a command ends with the runner, even when that is killed: two trainings must not
    share a folder."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def execute(command, output, log, descriptor, follow):
    """Run a fairseq command: its standard output to the file `output` (appended), its errors to
    `log`; `follow` sees each line.

    Raises RecipeError, with the last line of the log, where the command fails.
    """
    module = {"fairseq-train": "fairseq_cli.train", "fairseq-generate": "fairseq_cli.generate"}[
        command[0]
    ]
    with open(output, "ab") as out, open(log, "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *command[1:]],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(os.environ, PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1"),
            pass_fds=[descriptor],
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        try:
            for line in process.stdout:
                out.write(line)
                out.flush()
                follow(line.decode("utf-8", "replace"))
            status = process.wait()
        finally:
            process.kill()  # does nothing to one that has ended
    if status:
        with open(log, encoding="utf-8", errors="replace") as stream:
            lines = [line.strip() for line in stream if line.strip()] or ["nothing was said"]
        raise RecipeError(
            f"{command[0]} ended with status {status}: {lines[-1]} (all of it: {log})"
        )


def _bar(total, unit, name):
    form = (
        "{desc} {percentage:3.0f}%|{bar:30}| {n:.4g} of {total} {unit}, {elapsed} passed, "
        "{remaining} left{postfix}"
    )
    return tqdm(
        total=total,
        unit=unit,
        desc=name,
        bar_format=form,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        file=sys.stderr,
    )


def train(plan, descriptor):
    """Train to the end, or go on from the last checkpoint. Raises RecipeError where training saves
    no checkpoint."""
    marker = os.path.join(plan.out, "trained")
    if os.path.exists(marker) and (
        saved(plan) or all(os.path.exists(plan.output(beam)) for beam in BEAMS)
    ):
        print("training: already done", flush=True)
        return
    mend_last_checkpoint(plan.checkpoints)
    command, log = plan.train(), os.path.join(plan.out, "train.out")
    epochs = flag_value(command, "--max-epoch", "--me")
    with _bar(
        int(epochs) if epochs.isdigit() else None,
        "epochs",
        f"{plan.recipe.id} {plan.loss}, seed {plan.seed}",
    ) as bar:

        def follow(line):
            try:
                row = json.loads(line[line.index("{") :])
            except ValueError:
                return
            if "update" in row and "epoch" in row:
                if not bar.n:  # a resumed run: what was done before is no measure of speed
                    bar.initial = bar.n = int(row["epoch"]) - 1
                bar.set_postfix_str(f"loss {row.get('loss')}", refresh=False)
                bar.update(float(row["update"]) - bar.n)
            elif "valid_bleu" in row:
                bar.update(int(row["epoch"]) - bar.n)
                bar.write(
                    f"epoch {row['epoch']}: validation BLEU {row['valid_bleu']}, perplexity "
                    f"{row.get('valid_ppl')}",
                    file=sys.stderr,
                )

        execute(command, log, log, descriptor, follow)
    if not saved(plan):
        raise RecipeError(
            f"training ended without a checkpoint in {plan.checkpoints}; leave out the flag that "
            "keeps fairseq from saving"
        )
    write_json(marker, {"command": shell(command)})


def saved(plan):
    """The checkpoint to translate with: the recipe's choice, else the best, the last or the newest;
    None where there is none."""
    others = glob.glob(os.path.join(glob.escape(plan.checkpoints), "checkpoint*.pt"))
    named = [plan.translating] + [
        os.path.join(plan.checkpoints, f"checkpoint_{name}.pt") for name in ("best", "last")
    ]
    return next(
        filter(os.path.exists, named + sorted(others, key=os.path.getmtime, reverse=True)), None
    )


def mend_last_checkpoint(folder):
    """Replace a checkpoint_last.pt that was cut short in the copying, by the file it was copied
    from.

    fairseq writes the first file of an epoch under a name of its own and then copies it,
    checkpoint_last.pt at the end, so a kill during the copying leaves a whole newer file beside the
    broken one.
    """
    last = os.path.join(folder, "checkpoint_last.pt")
    if not os.path.exists(last) or _is_whole(last):
        return
    others = [
        path
        for path in glob.glob(os.path.join(folder, "checkpoint*.pt"))
        if re.search(r"checkpoint(\d+|_\d+_\d+|_best)\.pt$", path)
    ]
    whole = sorted((path for path in others if _is_whole(path)), key=os.path.getmtime)
    if not whole:
        raise RecipeError(
            f"{last} was cut short and no other checkpoint is there; delete {folder} to train from "
            "the start"
        )
    print(f"{last} was cut short while it was copied from {whole[-1]}; copied again", flush=True)
    shutil.copyfile(whole[-1], last + ".partial")
    os.replace(last + ".partial", last)


def _is_whole(path):
    """Whether torch's archive has its directory, which is written last."""
    return zipfile.is_zipfile(path)


def average(plan):
    """Average the last epochs; says so where there are fewer than the recipe asks for. Returns how
    many were averaged, or None.

    An epoch that --max-update cuts short leaves no file of its own, so there may be none.
    """
    if not plan.recipe.average:
        return None
    from ..checkpoints.average import average_to_file, find_last

    names = glob.glob(os.path.join(glob.escape(plan.checkpoints), "checkpoint[0-9]*.pt"))
    count = min(
        sum(bool(re.search(r"checkpoint\d+\.pt$", name)) for name in names), plan.recipe.average
    )
    if count and not os.path.exists(plan.translating):
        if count < plan.recipe.average:
            print(
                f"average: {count} epochs, for no more were trained; the recipe asks for "
                f"{plan.recipe.average}",
                flush=True,
            )
        average_to_file(find_last(plan.checkpoints, epochs=count), plan.translating)
    return count or None


def generate(plan, beam, descriptor):
    """Translate the test set; the output appears only when it is complete."""
    output = plan.output(beam)
    if os.path.exists(output):
        print(f"{os.path.basename(output)}: already done", flush=True)
        return
    partial = output + ".partial"
    with contextlib.suppress(FileNotFoundError):
        os.remove(partial)
    count, seen = sentences(plan), set()
    with _bar(count, "sentences", f"{plan.subset}, {beam}") as bar:

        def follow(line):
            found = re.match(r"H-(\d+)\t", line)
            if found and found.group(1) not in seen:
                seen.add(found.group(1))
                bar.update()

        execute(
            plan.generate(beam, saved(plan)),
            partial,
            os.path.join(plan.out, "generate.log"),
            descriptor,
            follow,
        )
    if len(seen) != count:
        raise RecipeError(
            f"fairseq-generate translated {len(seen)} of the {count} sentences of {plan.subset}; "
            f"see {partial}"
        )
    os.replace(partial, output)


def sentences(plan):
    """How many sentences the test set has."""
    from fairseq.data.data_utils import load_indexed_dataset

    data = plan.data
    return len(
        load_indexed_dataset(
            os.path.join(data.folder, f"{plan.subset}.{data.source}-{data.target}.{data.target}")
        )
    )


def epoch_scores(path):
    """[{"epoch": 1, "bleu": ..., every other validation figure}] from a training log, one entry an
    epoch."""
    from ..analysis.logs import read_log

    epochs = {}
    for row in read_log(path):
        if row.split == "valid":
            epochs.setdefault(row.epoch, {"epoch": row.epoch})[row.metric] = row.value
    return [epochs[epoch] for epoch in sorted(epochs)]


def score(plan, reference, averaged):
    """Write scores.json: validation by epoch, what translated, and the test scores where there is a
    raw reference. Returns its content."""
    path = os.path.join(plan.out, "scores.json")
    digest = sha256(reference) if reference else None
    report = read_json(path)
    if report and (report["test"] or {}).get("reference_sha256") == digest:
        return report
    checkpoint = os.path.basename(saved(plan) or "") or None
    if report:  # scored before, without this reference: the checkpoints may have been removed since
        averaged, checkpoint = report["averaged_epochs"], report.get("checkpoint")
    epochs = epoch_scores(os.path.join(plan.out, "train.log"))
    report = {"epochs": epochs, "averaged_epochs": averaged, "checkpoint": checkpoint, "test": None}
    if reference:
        from ..analysis.scoring import score as klang_score

        data = plan.data
        report["test"] = {
            "subset": plan.subset,
            "reference": os.path.abspath(reference),
            "reference_sha256": digest,
            "systems": {},
        }
        for beam in BEAMS:
            found = klang_score(
                reference,
                [plan.output(beam)],
                data.target,
                subword=data.subword,
                tokenizer=data.tokenizer,
            )
            report["test"]["systems"][beam] = found.as_dict()["systems"][0]
    write_json(path, report)
    return report


def summary(plan, report, reason):
    """What a run found, in a few lines."""
    lines = []
    scored = [epoch for epoch in report["epochs"] if "bleu" in epoch]
    if scored:
        best = max(scored, key=lambda epoch: epoch["bleu"])
        lines.append(
            f"validation BLEU by epoch: {' '.join('{:.2f}'.format(epoch['bleu']) for epoch in scored)} "
            f"(best: epoch {best['epoch']})"
        )
    for beam, system in report["test"]["systems"].items() if report["test"] else ():
        lines.append(
            f"{plan.subset}, {beam}: {system['bleu_tok']['score']:.2f} tokenised, "
            f"{system['bleu_lc']['score']:.2f} sacreBLEU lower-cased, "
            f"{system['chrf']['score']:.2f} chrF"
        )
    if not report["test"]:
        lines.append(reason)
    recipe = plan.recipe
    if plan.loss == recipe.loss:
        lines.append(
            "in the source: "
            + (
                recipe.source
                or " ".join(f"{value:.2f}" for value in recipe.source_epochs) + " by epoch"
            )
        )
    return "\n".join(lines + [f"all of it: {plan.out}"])


def run(plan, reference):
    """Do what the plan says, from where it stopped; returns the content of scores.json."""
    seen = torch.cuda.device_count() if plan.device == "cuda" else plan.gpus
    if not seen:
        raise RecipeError("--device is cuda, but no GPU can be seen; use --device cpu")
    if seen < plan.gpus:
        raise RecipeError(f"--gpus is {plan.gpus}, but only {seen} can be seen; ask for no more")
    if os.path.exists(plan.out) and not os.path.isdir(plan.out):
        raise RecipeError(f"--out {plan.out} is a file; name a folder")
    os.makedirs(plan.out, exist_ok=True)
    with lock(plan.out) as descriptor:
        open_folder(plan, reference)
        train(plan, descriptor)
        averaged = average(plan)
        used = saved(plan)
        if used not in (None, plan.translating):
            why = (
                "no epoch was trained to its end"
                if plan.recipe.average
                else "there was no validation"
            )
            print(
                f"{why}: {os.path.basename(used)} translates in place of "
                f"{os.path.basename(plan.translating)}",
                flush=True,
            )
        for beam in BEAMS:
            generate(plan, beam, descriptor)
        report = score(plan, reference, averaged)
        if not os.path.exists(os.path.join(plan.out, "report", "curves.png")):
            write_report([plan.out], os.path.join(plan.out, "report"))
        return report


# -- the command line ------------------------------------------------------------------------------


class _List(argparse.Action):
    def __call__(self, root, *_):
        print(plans.list_recipes(plans.read_table()))
        root.exit()


def parser():
    """The arguments of this script; what it does not know is meant for fairseq-train."""
    usage = "recipe.py ID --data DIR [options] [flags of fairseq-train]"
    root = argparse.ArgumentParser(
        prog="recipe.py",
        usage=usage,
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument(
        "id", metavar="ID", help="a recipe, such as A10 (--list shows them); comes first"
    )
    root.add_argument(
        "--list", action=_List, nargs=0, help="list the recipes with the source's figures, and end"
    )
    root.add_argument(
        "--data", metavar="DIR", help="what klang prepare or fairseq-preprocess wrote"
    )
    root.add_argument(
        "-s", "--source-lang", metavar="LANG", help="default: found in the data folder"
    )
    root.add_argument(
        "-t", "--target-lang", metavar="LANG", help="default: found in the data folder"
    )
    root.add_argument(
        "--ref",
        metavar="FILE",
        help="raw reference of the test set (default: raw/ of a folder made by klang prepare)",
    )
    root.add_argument(
        "--subset", default="test", metavar="NAME", help="what to translate (default: test)"
    )
    root.add_argument(
        "--tokenizer",
        choices=("moses", "none"),
        help="moses: the text is Moses tokens (default: as klang prepare says, or moses)",
    )
    root.add_argument("--loss", metavar="NAME", help="ce or softbleu (default: the recipe's own)")
    root.add_argument("--seed", type=int, metavar="N", help="default: the recipe's")
    root.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where a GPU can be seen"
    )
    root.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="GPUs that share each batch of the recipe (default: 1)",
    )
    root.add_argument("--out", metavar="DIR", help="run folder (default: runs/ID-LOSS-seedN)")
    root.add_argument(
        "--generate-flags",
        default="",
        metavar="'FLAGS'",
        help=(
            "further flags of fairseq-generate, in one argument, joined by =: "
            "--generate-flags='--lenpen 0.8'"
        ),
    )
    root.add_argument("--dry-run", action="store_true", help="print the commands and end")
    return root


def split_flags(text):
    """The words of --generate-flags. Raises RecipeError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RecipeError(
            f"--generate-flags is {text!r}: {str(error).lower()}; write the flags as for a shell"
        ) from None


def check_flags(plan):
    """Let fairseq's own parsers read the commands, so that a mistyped flag is told now and not
    after the training. Raises RecipeError."""
    register()
    from fairseq import options

    with tempfile.TemporaryDirectory() as folder:
        train = plan.train()
        train[train.index("--save-dir") + 1] = folder  # parsing makes it
        for parse, words in (
            (options.get_training_parser, train),
            (options.get_generation_parser, plan.generate("beam5")),
        ):
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    options.parse_args_and_arch(parse(), input_args=words[1:])
            except KlangError:
                raise
            except SystemExit:  # argparse
                raise RecipeError(
                    f"{words[0]} refuses its flags: "
                    f"{said.getvalue().strip().rpartition('error: ')[2]}"
                ) from None


def make_plan(args, extra):
    """(Plan, reference or None, why there is none) from parsed arguments. Raises RecipeError."""
    recipe = plans.find_recipe(plans.read_table(), args.id)
    if not args.data:
        raise RecipeError("--data DIR is needed: what klang prepare or fairseq-preprocess wrote")
    data = plans.read_data(
        args.data, args.source_lang, args.target_lang, args.tokenizer, args.subset
    )
    device = args.device
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    loss = args.loss or recipe.loss
    seed = recipe.seed if args.seed is None else args.seed
    out = os.path.abspath(args.out or os.path.join("runs", f"{recipe.id}-{loss}-seed{seed}"))
    plan = Plan(
        recipe,
        data,
        out,
        loss,
        seed,
        device,
        args.gpus,
        args.subset,
        extra,
        split_flags(args.generate_flags),
    )
    if args.ref and not os.path.isfile(args.ref):
        raise RecipeError(f"--ref {args.ref} does not exist")
    reference = args.ref or plans.find_reference(data, args.subset)
    reason = (
        f"no test scores: there is no raw reference beside {data.folder}, and one rebuilt from ids "
        "would not be comparable; "
        "give --ref FILE to score what was translated"
    )
    return plan, reference, reason


def command(argv):
    """Plan and run one recipe, or only print its commands."""
    args, extra = parser().parse_known_args(argv)
    plan, reference, reason = make_plan(args, extra)
    check_flags(plan)
    if args.dry_run:
        print("\n".join(plan.commands(reference).values()))
        print("\n".join(plan.notes()), file=sys.stderr)
        if not reference:
            print(reason, file=sys.stderr)
        return 0
    print(
        f"{plan.recipe.id} ({plan.recipe.about}), {plan.loss}, seed {plan.seed}, {plan.device}: "
        f"{plan.out}"
    )
    print("\n".join(plan.notes()), flush=True)
    print(summary(plan, run(plan, reference), reason))
    return 0


def main(argv=None):
    """Run a recipe; returns the exit status: 0, 2 (bad input or a command that failed), 130
    (interrupted)."""
    for name in ("fairseq.data.data_utils", "fairseq.tasks", "fairseq.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return exit_status("recipe", lambda: command(argv))


if __name__ == "__main__":
    sys.exit(main())
