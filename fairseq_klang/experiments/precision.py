"""Does a model keep its BLEU in fewer bits? FP32, half precision, and QAT from 8 bits down to 2,
against the collision constant.

    python scripts/study_precision.py --data bpe=data/m30k word=data/m30k-word --out runs/precision
    [--seeds 1 2] [--epochs 14] python scripts/study_precision.py ... --from bpe=FLOAT.pt
    word=FLOAT.pt --epochs 2 --lr 0.001 --warmup 100

Each DIR is what klang prepare wrote. Every setting trains the same model on the same data with the
same seeds, translates the test split (beam 5), and is compared with FP32, seed by seed, over all
sentences and seeds (docs/statistics.md). With --from every setting, FP32 too, starts from the same trained float
weights. Half precision is fp16 autocast on CUDA, and bfloat16 on a CPU, where fairseq has no
autocast. fp32 and qat8 are exported to int8 and served by CTranslate2 as well: quantised after
training, and trained for it. Started again, it goes on where it stopped. Writes precision.csv,
precision.png and verdict.txt below --out.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import time

from ..analysis.significance import FEWEST_SAMPLES

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)
USER_DIR = PACKAGE
SETTINGS = ["fp32", "half"] + [f"qat{bits}" for bits in range(8, 1, -1)]
SERVED = ("fp32", "qat8")  # exported to int8
LIMIT = 0.005  # C14: a loss of less than 0.5 % of FP32's BLEU
COLUMNS = [
    "vocabulary",
    "V",
    "min_bits",
    "setting",
    "bits",
    "seeds",
    "bleu",
    "delta",
    "low",
    "high",
    "p_value",
    "lower",
    "upper",
    "megabytes",
    "seconds_per_update",
    "sentences_per_second",
]


class Study:
    """Folders, commands and markers of one study; a finished stage leaves a file, so that it is not
    done again."""

    def __init__(self, options):
        import torch
        from fairseq.dataclass.configs import DatasetConfig

        self.options, self.cuda = options, torch.cuda.is_available()
        self.resumable = (
            {"update_epoch_batch_itr": True}
            if "update_epoch_batch_itr" in DatasetConfig.__dataclass_fields__
            else {}
        )

    def run_folder(self, vocabulary, setting, seed):
        """The folder of one training."""
        return os.path.join(self.options.out, f"{vocabulary}-{setting}-seed{seed}")

    def config(self, name, data, setting, seed, folder):
        """fairseq's whole configuration; hydra, since --bf16 fails on a CPU on the command line."""
        o = self.options
        common = {
            "user_dir": USER_DIR,
            "seed": seed,
            "cpu": not self.cuda,
            "log_format": "json",
            "log_interval": 20,
            "log_file": os.path.join(folder, "train.log"),
        }
        if setting == "half":
            common["amp" if self.cuda else "bf16"] = True
        side = {
            "embed_dim": o.dim,
            "ffn_embed_dim": o.ffn,
            "layers": o.layers,
            "attention_heads": o.heads,
        }
        model = {
            "_name": "transformer_dualhead",
            "encoder": side,
            "decoder": dict(side),
            "dropout": 0.3,
        }
        if setting.startswith("qat"):
            model.update(qat_bits=int(setting[3:]), qat_start_update=o.qat_start_update)
        with open(os.path.join(data, "prepare.json"), encoding="utf-8") as stream:
            prepared = json.load(stream)["options"]
        task = {
            "_name": "translation_dualhead",
            "data": os.path.abspath(os.path.join(data, "bin")),
            "source_lang": prepared["source_lang"],
            "target_lang": prepared["target_lang"],
        }
        if name in o.start:
            task["init_from"] = os.path.abspath(o.start[name])
        bleu = {
            "eval_bleu": True,
            "eval_bleu_args": '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
            "eval_bleu_detok": "moses",
            "eval_bleu_remove_bpe": "@@ ",
        }
        return {
            "common": common,
            "checkpoint": {
                "save_dir": folder,
                "best_checkpoint_metric": "bleu",
                "maximize_best_checkpoint_metric": True,
                "no_epoch_checkpoints": True,
            },
            "task": {**task, **bleu},
            "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
            "optimizer": {"_name": "adam", "adam_betas": "(0.9, 0.98)"},
            "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": o.warmup},
            "optimization": {"max_epoch": o.epochs, "max_update": o.max_update, "lr": [o.lr]},
            "dataset": {
                "max_tokens": o.max_tokens,
                "required_batch_size_multiple": 1,
                "num_workers": 0,
                **self.resumable,
            },
            "model": model,
        }

    def train(self, name, data, setting, seed):
        """Train unless it is done; fairseq resumes from its last checkpoint."""
        folder = self.run_folder(name, setting, seed)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "study.yaml")
        text = "# @package _group_\n" + json.dumps(
            self.config(name, data, setting, seed, folder), indent=2
        )
        if os.path.exists(path) and open(path, encoding="utf-8").read() != text:
            sys.exit(
                f"study_precision: error: {folder} was made with other options; choose another "
                "--out, or remove it"
            )
        if os.path.exists(os.path.join(folder, "trained")):
            return
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        self.call(
            folder,
            "train.out",
            "fairseq_cli.hydra_train",
            "--config-dir",
            folder,
            "--config-name",
            "study",
            f"hydra.run.dir={os.path.join(folder, 'hydra')}",
        )
        open(os.path.join(folder, "trained"), "w").close()

    def call(self, folder, name, module, *arguments):
        """Run a module, its output into the file `name`; ends the study with the output's last line
        where it fails."""
        path = os.path.join(folder, name)
        with open(path + ".part", "w", encoding="utf-8") as stream:
            environment = dict(
                os.environ,
                PYTHONPATH=os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
                PYTHONIOENCODING="utf-8",
            )
            status = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
            ).returncode
        if status:
            sys.exit(
                f"study_precision: error: {module} failed in {folder}; its output is in {path}.part"
            )
        os.replace(path + ".part", path)
        return path

    def translate(self, data, folder):
        """Translate the test split with fairseq unless it is done."""
        path = os.path.join(folder, "test.out")
        if not os.path.exists(path):
            arguments = [
                os.path.join(data, "bin"),
                "--user-dir",
                USER_DIR,
                "--path",
                os.path.join(folder, "checkpoint_best.pt"),
                "--beam",
                "5",
            ]
            arguments += ["--required-batch-size-multiple", "1", "--max-tokens", "4096"] + (
                [] if self.cuda else ["--cpu"]
            )
            self.call(folder, "test.out", "fairseq_cli.generate", *arguments)
        return path

    def served(self, data, folder):
        """Export to int8 and translate the test split with CTranslate2 unless it is done; returns
        (file, bytes of the model's file)."""
        from ..quantization.export import export, load_model, sentences_of
        from ..quantization.translate import Translator

        checkpoint, model = os.path.join(folder, "checkpoint_best.pt"), os.path.join(folder, "int8")
        output = os.path.join(folder, "test.int8.out")
        if not os.path.exists(model):
            export(checkpoint, os.path.join(data, "bin"), model)
        if not os.path.exists(output):
            sentences = sentences_of(
                load_model(checkpoint, os.path.join(data, "bin"))[1], "test", 10**9
            )
            translator = Translator(model)
            begin = time.perf_counter()
            translations = translator.translate_tokens(sentences)
            speed = len(sentences) / (time.perf_counter() - begin)
            with open(output + ".part", "w", encoding="utf-8") as stream:
                stream.writelines(
                    f"H-{i}\t0\t{' '.join(tokens)}\n" for i, tokens in enumerate(translations)
                )
                stream.write(f"({speed:.2f} sentences/s)\n")
            os.replace(output + ".part", output)
        return output, os.path.getsize(os.path.join(model, "model.bin"))


def size_in_bits(path, bits):
    """(V, bytes) of a checkpoint's translation model with its matrices in `bits` and a float scale
    a row, the rest in float32; 16 bits hold everything."""
    from ..checkpoints.reading import load_checkpoint

    total, seen, vocabulary = 0, set(), 0
    for name, tensor in load_checkpoint(path)["model"].items():
        content = tensor.shape, tensor.float().numpy().tobytes()
        if "sb_projection" in name or content in seen:  # a shared table counts once
            continue
        seen.add(content)
        if name == "decoder.output_projection.weight":
            vocabulary = tensor.size(0)
        if bits < 16 and tensor.dim() > 1:
            total += tensor.numel() * bits / 8 + tensor.size(0) * 4
        else:
            total += tensor.numel() * (2 if bits == 16 else 4)
    return vocabulary, total


def seconds_per_update(folder):
    """Median seconds of an update from the training log; nan for a training too short to log
    one."""
    import statistics

    from ..analysis.logs import INNER, read_log

    values = [
        1 / row.value
        for row in read_log(os.path.join(folder, "train.log"))
        if row.split == INNER and row.metric == "ups" and row.value > 0
    ]
    return statistics.median(values) if values else float("nan")


def judge(lower, upper, reference_bleu):
    """Whether a loss below LIMIT of BLEU is sure ("kept"), excluded ("lost"), or neither: a test of
    non-inferiority. lower, upper: the one-sided 95 % bounds of the difference."""
    limit = -LIMIT * reference_bleu
    return "kept" if lower > limit else "lost" if upper < limit else "undecided"


def verdicts(rows):
    """One line for each vocabulary and claim of C14 (DESIGN 4)."""
    lines = []
    for name in dict.fromkeys(row["vocabulary"] for row in rows):
        own = {row["setting"]: row for row in rows if row["vocabulary"] == name}
        plain = own["fp32"]["bleu"]
        state = {
            setting: judge(row["lower"], row["upper"], plain)
            for setting, row in own.items()
            if setting != "fp32"
        }
        needed = own["fp32"]["min_bits"]
        if "qat8" in state:
            word = {"kept": "supported", "lost": "refuted", "undecided": "undecided"}[state["qat8"]]
            row = own["qat8"]
            lines.append(
                f"{name}: INT8 training loses less than 0.5 % of BLEU, which is {LIMIT * plain:.2f} "
                f"BLEU: {word} (FP32 {plain:.2f}, difference {row['delta']:+.2f}, 95 % "
                f"{row['low']:+.2f} to {row['high']:+.2f}, one-sided above {row['lower']:+.2f} and "
                f"below {row['upper']:+.2f}); a limit of 0.5 BLEU is "
                f"{'kept' if row['lower'] > -0.5 else 'lost' if row['upper'] < -0.5 else 'open'}"
            )
        enough, fewer = state.get(f"qat{needed}"), state.get(f"qat{needed - 1}")
        if enough and fewer:
            word = (
                "refuted"
                if enough == "lost" or fewer == "kept"
                else "supported"
                if (enough, fewer) == ("kept", "lost")
                else "undecided"
            )
            lines.append(
                f"{name}: {needed} bits suffice and {needed - 1} do not: {word} (with {needed} "
                f"BLEU is {enough}, with {needed - 1} {fewer})"
            )
    return lines


def collect(study, datas):
    """The rows of the table, over what is trained."""
    from ..analysis.hypotheses import read_hypotheses
    from ..analysis.scoring import compare, metrics
    from ..collision import min_bits
    from ..files import read_lines

    options, rows = study.options, []
    for name, data in datas.items():
        with open(os.path.join(data, "prepare.json"), encoding="utf-8") as stream:
            prepared = json.load(stream)["options"]
        lang = prepared["target_lang"]
        metric = metrics()["bleu" if prepared["keep_case"] else "bleu_lc"][0]
        kind = "none" if prepared["subword"] == "word" else prepared["subword"]
        reference = list(read_lines(os.path.join(data, "raw", f"test.{lang}")))

        def hypotheses(path):
            return read_hypotheses(
                path, len(reference), lang, subword=kind, tokenizer=prepared["tokenizer"]
            ).detokenized

        pooled = {}
        for setting in options.settings:
            folders = [study.run_folder(name, setting, seed) for seed in options.seeds]
            outputs = {setting: [study.translate(data, folder) for folder in folders]}
            bits = (
                int(setting[3:]) if setting.startswith("qat") else {"fp32": 32, "half": 16}[setting]
            )
            vocabulary, size = size_in_bits(os.path.join(folders[0], "checkpoint_best.pt"), bits)
            sizes = {setting: size}
            if setting in SERVED:
                served = [study.served(data, folder) for folder in folders]
                label = f"{setting} served"
                outputs[label], sizes[label] = [path for path, _ in served], served[0][1]
            for label, paths in outputs.items():
                pooled[label] = [hypotheses(path) for path in paths]
                difference = compare(
                    metric, pooled["fp32"], pooled[label], reference, options.samples
                )
                speeds = [
                    float(
                        re.search(
                            r"([\d.]+) sentences/s", open(path, encoding="utf-8").read()
                        ).group(1)
                    )
                    for path in paths
                ]
                bleu = sum(
                    metric.corpus_score(lines, [reference]).score for lines in pooled[label]
                ) / len(paths)
                rows.append(
                    dict(
                        zip(
                            COLUMNS,
                            (
                                name,
                                vocabulary,
                                min_bits(vocabulary),
                                label,
                                bits if label == setting else 8,
                                len(options.seeds),
                                bleu,
                                difference.delta,
                                *difference.interval,
                                difference.p_value,
                                *difference.bounds,
                            ),
                        ),
                        megabytes=sizes[label] / 1e6,
                        seconds_per_update=sum(map(seconds_per_update, folders)) / len(folders),
                        sentences_per_second=sum(speeds) / len(speeds),
                    )
                )
    return rows


def draw(rows, path):
    """BLEU against bits for each vocabulary, and its difference to FP32 with the 95 % interval;
    min_bits marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (level, change) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    names = list(dict.fromkeys(row["vocabulary"] for row in rows))
    for color, name in enumerate(names):
        own = [row for row in rows if row["vocabulary"] == name]
        plain = next(row for row in own if row["setting"] == "fp32")
        swept = sorted(
            (
                row
                for row in own
                if row["setting"].startswith("qat") and "served" not in row["setting"]
            ),
            key=lambda row: row["bits"],
        )
        bits = [row["bits"] for row in swept]
        level.plot(
            bits,
            [row["bleu"] for row in swept],
            marker="o",
            color=f"C{color}",
            label=f"{name} (V = {plain['V']:,})",
        )
        level.axhline(plain["bleu"], color=f"C{color}", linestyle="--", linewidth=1)
        errors = [
            [row["delta"] - row["low"] for row in swept],
            [row["high"] - row["delta"] for row in swept],
        ]
        places = [
            value + 0.08 * (color - (len(names) - 1) / 2) for value in bits
        ]  # intervals side by side
        change.errorbar(
            places,
            [row["delta"] for row in swept],
            yerr=errors,
            marker="o",
            capsize=3,
            color=f"C{color}",
        )
        change.axhline(-LIMIT * plain["bleu"], color=f"C{color}", linestyle=":", linewidth=1)
        for axis in (level, change):
            axis.axvline(
                plain["min_bits"] + 0.02 * color, color=f"C{color}", linestyle=":", linewidth=1
            )
    change.set_ylim(-3, 1)
    change.axhline(0, color="black", linestyle="--", linewidth=1)
    level.set(
        xlabel="bits of weights and activations",
        ylabel="BLEU, test",
        title="dashed: FP32; dotted: ceil(log2(K_lang V))",
    )
    change.set(
        xlabel="bits of weights and activations",
        ylabel="BLEU minus FP32's, 95 % interval",
        title="horizontal dotted line: a loss of 0.5 %",
    )
    level.legend()
    figure.tight_layout()
    figure.savefig(path + ".part", format="png", dpi=130)
    os.replace(path + ".part", path)


def main(argv=None):
    """Train, translate, compare; write the table, the plot and the verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="NAME=DIR",
        help="vocabularies: a name, and the folder klang prepare wrote",
    )
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument(
        "--settings",
        nargs="+",
        default=SETTINGS,
        choices=SETTINGS,
        metavar="SETTING",
        help=f"of {' '.join(SETTINGS)}; fp32 is always there",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--from",
        dest="start",
        nargs="+",
        default=[],
        metavar="NAME=CKPT",
        help="float checkpoints of the same sizes that the trainings of a vocabulary start from",
    )
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument(
        "--max-update",
        type=int,
        default=0,
        help="stop trainings after N updates, for trials; 0 does not",
    )
    parser.add_argument("--qat-start-update", type=int, default=0)
    for name, default in (
        ("dim", 128),
        ("ffn", 256),
        ("layers", 4),
        ("heads", 4),
        ("warmup", 1000),
        ("max-tokens", 4096),
        ("samples", 1000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=0.004)
    options = parser.parse_args(argv)
    if any("=" not in item for item in options.data + options.start):
        parser.error("--data takes NAME=DIR, for example bpe=data/m30k, and --from NAME=CKPT")
    datas, options.start = (
        dict(item.split("=", 1) for item in items) for items in (options.data, options.start)
    )
    for name, checkpoint in options.start.items():
        if name not in datas or not os.path.isfile(checkpoint):
            parser.error(
                f"--from {name}={checkpoint}: "
                f"{f'there is no file {checkpoint}' if name in datas else f'--data names no {name}'}"
            )
    for name, data in datas.items():
        if not os.path.isfile(os.path.join(data, "prepare.json")):
            parser.error(f"--data {name}={data}: {data} was not made by klang prepare")
    if options.samples < FEWEST_SAMPLES:
        parser.error(f"--samples is {options.samples}; it must be {FEWEST_SAMPLES} or more")
    options.out = os.path.abspath(options.out)
    options.settings = [
        setting for setting in SETTINGS if setting == "fp32" or setting in options.settings
    ]
    import logging

    from tqdm import tqdm

    from ..errors import exit_status

    for name in ("fairseq", "fairseq_klang", "sacrebleu", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)

    def work():
        study = Study(options)
        runs = [
            (name, setting, seed)
            for seed in options.seeds
            for name in datas
            for setting in options.settings
        ]
        for name, setting, seed in tqdm(runs, desc="trainings", unit="run"):
            study.train(name, datas[name], setting, seed)
        rows = collect(study, datas)
        path = os.path.join(options.out, "precision.csv")
        with open(path + ".part", "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(path + ".part", path)
        draw(rows, os.path.join(options.out, "precision.png"))
        lines = verdicts(rows)
        with open(os.path.join(options.out, "verdict.txt"), "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in lines)
        for row in rows:
            print(
                f"{row['vocabulary']:8} {row['setting']:12} BLEU {row['bleu']:6.2f} "
                f"({row['delta']:+.2f}, 95 % {row['low']:+.2f} to {row['high']:+.2f})  "
                f"{row['megabytes']:6.1f} MB"
            )
        print("\n".join(lines))

    return exit_status("study_precision", work)


if __name__ == "__main__":
    sys.exit(main())
