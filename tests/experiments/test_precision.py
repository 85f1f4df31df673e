"""klang study precision: verdicts, sizes and rows, and a whole study of tiny models."""

import pytest
import torch

from fairseq_klang import cli
from fairseq_klang.analysis.significance import paired_bootstrap, score_of, sentence_statistics
from fairseq_klang.analysis.tables import Row, read_rows
from fairseq_klang.experiments import precision as study
from fairseq_klang.experiments.plan import read_data
from fairseq_klang.files import write_json
from helpers.recipes import error_of
from helpers.running import SPLITS, TINY_TRANSFORMER, toy_pairs


def rows_of(setting, delta, lower, upper, bleu=30.0):
    settings = dict(vocabulary="bpe", V=8000, min_bits=5, setting=setting, bits=0)
    run = f"bpe {setting}"
    bounds = dict(settings, above=lower, below=upper)
    rows = [Row(run, "bleu_lc", bleu + delta, settings=settings)]
    if setting != "fp32":
        difference = Row(run, "bleu_lc minus fp32", delta, low=lower - 0.1, high=upper + 0.1)
        difference.settings = bounds
        rows.append(difference)
    return rows


# 0.5 % of 30 is 0.15
KEPT, LOST, UNSURE = (0.1, -0.1, 0.3), (-3.0, -3.5, -2.5), (-0.1, -0.4, 0.2)


@pytest.mark.parametrize(
    "eight, five, four, first, second",
    [
        (KEPT, KEPT, LOST, "supported", "supported"),
        (LOST, LOST, LOST, "refuted", "refuted"),
        (UNSURE, KEPT, KEPT, "undecided", "refuted"),
        (KEPT, UNSURE, LOST, "supported", "undecided"),
        (KEPT, KEPT, UNSURE, "supported", "undecided"),
    ],
)
def test_verdicts(eight, five, four, first, second):
    rows = rows_of("fp32", 0.0, 0.0, 0.0)
    for bits, values in ((8, eight), (5, five), (4, four)):
        rows += rows_of(f"qat{bits}", *values)
    one, two = study.verdicts(rows)
    assert f"INT8 training loses less than 0.5 % of BLEU, which is 0.15 BLEU: {first}" in one
    assert f"5 bits suffice and 4 do not: {second}" in two


def test_sizes(tmp_path):
    table = torch.randn(10, 4)
    model = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table.clone(),
        "decoder.output_projection.weight": torch.randn(10, 4),
        "decoder.sb_projection.weight": torch.randn(10, 4),
        "bias": torch.zeros(3),
    }
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": model}, path)
    # two tables of 40 values and 10 rows, and 3 values that stay float
    assert study.size_in_bits(path, 32) == (10, (80 + 3) * 4)
    assert study.size_in_bits(path, 16) == (10, (80 + 3) * 2)
    assert study.size_in_bits(path, 8) == (10, 80 + 20 * 4 + 3 * 4)
    assert study.size_in_bits(path, 2) == (10, 20 + 20 * 4 + 3 * 4)


def test_rows_hold_the_difference_over_all_seeds(joined_data, tmp_path):
    reference = tmp_path / "test.en"
    lines = [target for _, target in toy_pairs(30, 5)]
    reference.write_text("".join(f"{line}\n" for line in lines))
    worse = [" ".join(line.split()[:-1]) or line for line in lines]

    def output(name, text):
        path = tmp_path / name
        path.write_text("".join(f"H-{i}\t0\t{line}\n" for i, line in enumerate(text)))
        return str(path)

    data = read_data(str(joined_data), subsets=(), tokenizer="none")
    outputs = {"fp32": [lines, lines], "qat8": [worse, lines]}
    systems = [
        study.System("toy", 128, label, 8, [output(f"{label}{i}", t) for i, t in enumerate(texts)],
                     2e6, float("nan"))
        for label, texts in outputs.items()
    ]  # fmt: skip
    rows = study.rows_of(systems, {"toy": (data, str(reference))}, [1, 2], 50, {"flags": "x"})
    metric = study._metric("en")
    counted = {
        label: torch.tensor([sentence_statistics(metric, text, lines).tolist() for text in texts])
        for label, texts in outputs.items()
    }
    expected = paired_bootstrap(
        counted["fp32"].double().numpy(), counted["qat8"].double().numpy(), score_of(metric),
        samples=50,
    )  # fmt: skip
    (row,) = [row for row in rows if row.measure == "bleu_lc minus fp32"]
    assert (row.value, (row.low, row.high), row.p) == pytest.approx(
        (expected.delta, pytest.approx(expected.interval), expected.p_value)
    )
    assert (row.settings["above"], row.settings["below"]) == expected.bounds and row.n == 2
    scores = {row.run: row.value for row in rows if row.measure == "bleu_lc"}
    assert scores["toy fp32"] == pytest.approx(100)
    assert scores["toy qat8"] == pytest.approx(100 + expected.delta)
    assert all("case:lc" in row.signature for row in rows if row.measure.startswith("bleu"))
    study.draw(rows, str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def prepared(data, folder):
    """A folder as klang prepare leaves it, of binarised toy data."""
    (folder / "raw").mkdir(parents=True)
    text = "".join(target + "\n" for _, target in toy_pairs(SPLITS["test"], 2))
    (folder / "raw" / "test.en").write_text(text)
    (folder / "bin").symlink_to(data)
    options = {"subword": "word", "tokenizer": "none"}
    facts = {"lines": {"train": {"kept": SPLITS["train"]}}, "vocabulary": {}, "dictionaries": {}}
    write_json(folder / "prepare.json", dict(facts, options=options))
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_whole_study(joined_data, tmp_path, capsys):
    """bfloat16 on a CPU, trained, translated, and compared with FP32."""
    data, out = prepared(joined_data, tmp_path / "data"), tmp_path / "out"
    command = ["study", "precision", "--data", f"toy={data}", "--out", str(out), "--seeds", "1"]
    command += ["--settings", "half", "--samples", "50", "--device", "cpu"]
    command += ["--threads", "1", *TINY_TRANSFORMER, "--num-workers", "0", "--max-update", "3"]
    assert cli.main(command) == 0
    assert "toy fp32 served" in capsys.readouterr().out
    rows = read_rows(out / "precision.csv")
    assert {row.settings["setting"] for row in rows} == {"fp32", "fp32 served", "half"}
    half = torch.load(out / "toy-half-seed1" / "checkpoints" / "checkpoint_best.pt")["cfg"]
    assert half["common"]["bf16"] and not half["common"]["tpu"]


def test_the_flags_of_a_setting():
    options = study.argparse.Namespace(qat_start_update=5)
    found = [study.flags_of(name, "cpu", options) for name in ("fp32", "half", "qat3")]
    assert found == [[], ["--bf16"], ["--qat-bits", "3", "--qat-start-update", "5"]]
    assert study.flags_of("half", "cuda", options) == ["--amp"]


def test_bad_input_is_one_line(joined_data, tmp_path, capsys):
    data = prepared(joined_data, tmp_path / "data")
    start = ["study", "precision", "--data", f"toy={data}", "--out", tmp_path / "out"]
    start += ["--device", "cpu"]
    for more, message in (
        (["--settings", "qat9"], "invalid choice"),
        (["--samples", "3"], "between 40 and 100000"),
        (["--seeds", "-1"], "between 0 and"),
        (["--qat-start-update", "-1"], "0 or more"),
        (["--from", "toy=none.pt"], "there is no file none.pt"),
        (["--from", "other=none.pt"], "--data names no other"),
        (["--from", "x"], "it must be NAME=PATH"),
        (["--lr"], "expected one argument"),
    ):
        assert message in error_of(capsys, *start, *more), more
    (data / "raw" / "test.en").unlink()
    assert "has no raw/test.en" in error_of(capsys, *start)
    assert "required: --data, --out" in error_of(capsys, "study", "precision")
