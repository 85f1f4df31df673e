"""Training with --qat-bits, klang export and klang translate, as a user types them, and what they
refuse."""

import io
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

import pytest
import torch
from torch import nn

from fairseq_klang import cli
from fairseq_klang.checkpoints.reading import load_checkpoint
from fairseq_klang.data.options import PrepareOptions
from fairseq_klang.data.prepare import prepare
from fairseq_klang.data.text import text_inputs
from fairseq_klang.errors import KlangError
from fairseq_klang.files import OutputError, TextError
from fairseq_klang.quantization import export as exporting
from fairseq_klang.quantization import translate as translating
from fairseq_klang.quantization.export import (
    ExportError,
    export,
    greedy,
    load_model,
    plain_transformer,
    sentences_of,
    summary,
)
from fairseq_klang.quantization.translate import TranslateError, Translator, translate_file
from helpers.damage import damaged_json
from helpers.models import SMALL, build, small
from helpers.running import (
    ROOT,
    TINY_LSTM,
    TINY_TRANSFORMER,
    USER_DIR,
    run,
    toy_pairs,
    train_arguments,
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Raw toy text prepared with BPE by klang prepare; returns the folder."""
    folder = tmp_path_factory.mktemp("prepared")
    for seed, (split, count) in enumerate({"train": 201, "valid": 33, "test": 7}.items()):
        with open(folder / f"{split}.de", "w") as de, open(folder / f"{split}.en", "w") as en:
            for source, target in toy_pairs(count, seed):
                de.write(source + "\n")
                en.write(target + "\n")
    out = folder / "with a space"
    prepare(
        text_inputs(folder / "train", folder / "valid", [folder / "test"]),
        out,
        PrepareOptions(vocab_size=60),
    )
    return out


def train(prepared, save_dir, *more, arch=("transformer_dualhead", *TINY_TRANSFORMER)):
    return run(
        "fairseq_cli.train",
        *train_arguments(
            prepared / "bin",
            save_dir,
            "--arch",
            *arch,
            "--criterion",
            "restricted_softbleu",
            "--label-smoothing",
            "0.1",
        ),
        *("--update-epoch-batch-itr", "True", "--sb-topk", "3", *more),
    )


def generate(prepared, checkpoint, *more):
    result = run(
        "fairseq_cli.generate",
        prepared / "bin",
        "--user-dir",
        USER_DIR,
        "--path",
        checkpoint,
        "--cpu",
        "-s",
        "de",
        "-t",
        "en",
        "--required-batch-size-multiple",
        "1",
        "--max-len-b",
        "20",
        *more,
    )
    return {
        int(number): (float(score), text)
        for number, score, text in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", result.stdout, re.M)
    }


@pytest.fixture(scope="module")
def runs(prepared, tmp_path_factory):
    """Folder with plain/ (float, 2 epochs), through/ (from there 2 epochs of QAT), and stopped/
    (the same with a stop between)."""
    folder = tmp_path_factory.mktemp("runs")
    train(prepared, folder / "plain", "--max-epoch", "2")
    qat = ["--qat-bits", "8", "--qat-start-update", "5"]
    for name, epochs in (("through", [4]), ("stopped", [3, 4])):
        shutil.copytree(folder / "plain", folder / name)
        for epoch in epochs:
            train(prepared, folder / name, "--max-epoch", str(epoch), *qat)
    return folder


def test_a_plain_checkpoint_starts_qat_and_a_resumed_run_is_bit_for_bit_the_same(runs):
    plain, through, stopped = (
        load_checkpoint(runs / name / "checkpoint_last.pt")
        for name in ("plain", "through", "stopped")
    )
    assert plain["model"].keys() == through["model"].keys()
    for name, tensor in through["model"].items():
        if not name.endswith(
            "._float_tensor"
        ):  # 0.12.2 saves one uninitialised number that only tells a device
            assert torch.equal(tensor, stopped["model"][name]), name
    assert (
        through["optimizer_history"][-1]["num_updates"]
        > plain["optimizer_history"][-1]["num_updates"]
        > 5
    )
    assert not torch.equal(
        through["model"]["decoder.sb_projection.weight"],
        plain["model"]["decoder.sb_projection.weight"],
    )


def test_generation_keeps_the_quantisation_and_can_leave_it(prepared, runs):
    checkpoint = runs / "through" / "checkpoint_last.pt"
    quantized = generate(prepared, checkpoint)
    plain = generate(
        prepared, checkpoint, "--model-overrides", "{'qat_bits': None, 'qat_start_update': 0}"
    )
    assert sorted(quantized) == sorted(plain) == list(range(7))
    assert quantized != plain
    model, task = load_model(checkpoint, prepared / "bin")
    assert model.quantizer.active  # told the number of updates, past --qat-start-update
    assert not hasattr(
        load_model(checkpoint, prepared / "bin", qat_bits=None, qat_start_update=0)[0], "quantizer"
    )


def klang(capsys, *arguments):
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_export_and_translate_a_qat_checkpoint(prepared, runs, tmp_path, capsys):
    checkpoint, data = runs / "through" / "checkpoint_last.pt", prepared / "bin"
    status, out, _ = klang(capsys, "export", checkpoint, "--data", data, "--out", tmp_path / "int8")
    assert (
        status == 0
        and "left out, since translation does not use them: decoder.sb_projection (1)\n" in out
    )
    assert "100.0% of 33 sentences token-identical" in out or "at a tie" in out
    record = json.loads((tmp_path / "int8" / "klang.json").read_text())
    assert record["check"]["sentences"] == 33 and record["check"]["float_logprob"] < 1e-4
    # The engine's int8 model against the model as trained: rounding is chaotic, so means.
    assert abs(record["check"]["int8_logprob"]) < 0.01
    assert record["type"] == "int8" and record["source_lang"] == "de"
    # An example to read, which the served folder does not keep.
    assert (
        f"for example: {(prepared / 'raw' / 'valid.de').read_text().splitlines()[0]}\nby fairseq : "
        in out
        and "\nexported   : " in out
    )
    assert "example" not in record["check"]

    # Raw text in, raw text out: the same as fairseq on the same sentences, undone by hand.
    model, task = load_model(checkpoint, data)
    sentences = sentences_of(task, "test", 7)
    translator = Translator(tmp_path / "int8", threads=1)
    raw = (prepared / "raw" / "test.de").read_text().splitlines()
    assert [translator.encode(line) for line in raw] == sentences
    expected = [
        " ".join(tokens).replace("@@ ", "") for tokens in translator.translate_tokens(sentences)
    ]
    found = list(translator.translate(raw))
    assert found == expected and any(found)

    # From a file and through standard input; blank lines keep their place.
    text = "\n".join(raw[:2] + ["", "  "] + raw[2:]) + "\n"
    (tmp_path / "in.de").write_text(text)
    status, out, err = klang(
        capsys,
        "translate",
        tmp_path / "int8",
        "--input",
        tmp_path / "in.de",
        "--output",
        tmp_path / "out.en",
    )
    assert (status, out) == (0, "") and "9/9" in err  # of 7 lines and 2 blank ones
    assert (tmp_path / "out.en").read_text().splitlines() == expected[:2] + ["", ""] + expected[2:]
    piped = run("fairseq_klang.cli", "translate", tmp_path / "int8", stdin=text)
    assert piped.stdout == (tmp_path / "out.en").read_text()


def test_float_export_scores_as_fairseq_does(prepared, runs, tmp_path):
    """Beyond the self-check: teacher-forced log-probabilities of the reference text, one sentence
    at a time."""
    data = prepared / "bin"
    export(
        runs / "plain" / "checkpoint_last.pt", data, tmp_path / "float32", kind="float32", count=10
    )
    model, task = load_model(runs / "plain" / "checkpoint_last.pt", data)
    sentences = sentences_of(task, "valid", 33)
    targets = [
        [task.target_dictionary[i] for i in row.tolist()[:-1]] for row in task.dataset("valid").tgt
    ]
    found = Translator(tmp_path / "float32", threads=1).score_tokens(sentences, targets)
    for sentence, target, scores in zip(sentences, targets, found):
        source, output = (
            [d.index(t) for t in tokens] + [d.eos()]
            for d, tokens in ((task.source_dictionary, sentence), (task.target_dictionary, target))
        )
        previous = torch.tensor([[task.target_dictionary.eos()] + output[:-1]])
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([len(source)]), previous)
        expected = model.get_normalized_probs(logits, log_probs=True)[0].gather(
            1, torch.tensor(output)[:, None]
        )[:, 0]
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=0, atol=1e-4)


def test_other_checkpoints_export_alike(prepared, runs, tmp_path):
    """Of fairseq 0.12.2 (some encoder tensors twice), in fp16, and with sentences from a file."""
    data, state = prepared / "bin", load_checkpoint(runs / "plain" / "checkpoint_last.pt")
    legacy = dict(
        state,
        model=dict(state["model"], **{"encoder.layers.0.in_proj_weight": torch.zeros(48, 16)}),
    )
    half = dict(state, model={name: tensor.half() for name, tensor in state["model"].items()})
    for name, changed in (("legacy", legacy), ("half", half)):
        torch.save(changed, tmp_path / f"{name}.pt")
        check, dropped = export(
            tmp_path / f"{name}.pt",
            data,
            tmp_path / name,
            kind="float32",
            text=str(prepared / "raw" / "test.de"),
        )
        assert check.sentences == 7 and dropped == ["decoder.sb_projection.weight"]
    assert os.path.getsize(tmp_path / "half" / "model.bin") == os.path.getsize(
        tmp_path / "legacy" / "model.bin"
    )


def test_a_hydra_trained_checkpoint_exports(prepared, tmp_path):
    config = tmp_path / "config"
    config.mkdir()
    (config / "base.yaml").write_text(
        f"""# @package _group_
common: {{user_dir: {USER_DIR}, cpu: true, seed: 1}}
checkpoint: {{save_dir: {tmp_path / "run"}}}
task: {{_name: translation, data: {prepared / "bin"}, source_lang: de, target_lang: en}}
criterion: {{_name: restricted_softbleu, sb_topk: 3}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{max_update: 2, lr: [0.003]}}
dataset: {{max_tokens: 300, required_batch_size_multiple: 1, num_workers: 0}}
model:
  _name: transformer_dualhead
  qat_bits: 8
  base_layers: 0  # the trainer of 0.12.2 asks for it
  encoder: {{embed_dim: 16, ffn_embed_dim: 32, layers: 1, attention_heads: 2}}
  decoder: {{embed_dim: 16, ffn_embed_dim: 32, layers: 1, attention_heads: 2}}
"""
    )
    run(
        "fairseq_cli.hydra_train",
        "--config-dir",
        config,
        "--config-name",
        "base",
        f"hydra.run.dir={tmp_path / 'hydra'}",
    )
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    assert load_model(checkpoint, prepared / "bin")[0].quantizer.bits == 8
    check, _ = export(checkpoint, prepared / "bin", tmp_path / "served", count=5)
    assert check.sentences == 5 and abs(check.int8_logprob) < 0.01


@pytest.fixture(scope="module")
def served(prepared, runs, tmp_path_factory):
    """The plain run exported in float32."""
    folder = tmp_path_factory.mktemp("served") / "model"
    export(runs / "plain" / "checkpoint_last.pt", prepared / "bin", folder, kind="float32", count=3)
    return folder


def test_an_output_ends_where_the_models_positions_end(prepared, runs, tmp_path):
    """A model of 12 target positions that never says </s>: fairseq stops after 11 words, and so
    does the export."""
    path = changed(runs, tmp_path / "short.pt", max_target_positions=12)
    state = load_checkpoint(path)
    state["model"]["decoder.layers.0.final_layer_norm.bias"] += (
        1.0  # so that every state has a large sum ...
    )
    state["model"]["decoder.output_projection.weight"][2] = -1.0  # ... which speaks against </s>
    torch.save(state, path)
    check, _ = export(path, prepared / "bin", tmp_path / "short", count=5)
    assert check.tokens == 5 * 12  # each with </s>
    assert json.loads((tmp_path / "short" / "klang.json").read_text())["max_target_tokens"] == 11
    sentence = ["au", "bv"]
    assert [
        len(Translator(tmp_path / "short", threads=1).translate_tokens([sentence], beam=beam)[0])
        for beam in (1, 5)
    ] == [11, 11]
    # A folder of a version that did not keep the limit: as before where it does not matter, one
    # line where it does.
    record = json.loads((tmp_path / "short" / "klang.json").read_text())
    del record["max_target_tokens"]
    old = Translator(tmp_path / "short", threads=1, record=record)
    assert old.max_length == translating.MAX_LENGTH
    for translate in (
        lambda: old.translate_tokens([sentence]),
        lambda: list(old.translate(["au bv"])),
        lambda: old.score_tokens([sentence], [["AU"] * 12]),
    ):
        with pytest.raises(
            TranslateError,
            match=(
                "CTranslate2 cannot translate with .* positions >= 12.*export the checkpoint again"
            ),
        ):
            translate()


def test_output_goes_straight_into_what_is_no_file(served, prepared, tmp_path):
    text = str(prepared / "raw" / "test.de")
    assert translate_file(served, text, str(tmp_path / "plain"), threads=1) == 7
    os.mkfifo(tmp_path / "fifo")
    read = []
    reader = threading.Thread(
        target=lambda: read.append((tmp_path / "fifo").read_text()), daemon=True
    )
    reader.start()
    translate_file(served, text, str(tmp_path / "fifo"), threads=1)
    reader.join(60)
    assert read == [(tmp_path / "plain").read_text()]
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)


def test_no_failure_leaves_a_partial_file(served, prepared, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        yield "a"
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate_encoded", interrupt)
    with pytest.raises(KeyboardInterrupt):
        translate_file(served, str(prepared / "raw" / "test.de"), str(tmp_path / "out"), threads=1)
    assert os.listdir(tmp_path) == []


def test_a_pipe_is_answered_by_buffer(served, prepared, monkeypatch):
    """With --buffer-size 1 the answer to a line comes while the next is not yet there."""
    lines = (prepared / "raw" / "test.de").read_text().splitlines()[:3]
    expected = list(Translator(served, threads=1).translate(lines))
    (questions, ask), (listen, answers) = os.pipe(), os.pipe()
    with open(ask, "w") as ask, open(listen) as listen:
        monkeypatch.setattr(sys, "stdin", open(questions))
        monkeypatch.setattr(sys, "stdout", open(answers, "w"))
        worker = threading.Thread(
            target=translate_file,
            args=(served,),
            kwargs=dict(buffer_size=1, threads=1),
            daemon=True,
        )
        worker.start()
        for line, answer in zip(lines, expected):
            print(line, file=ask, flush=True)
            assert select.select([listen], [], [], 60)[0], "no answer"
            assert listen.readline() == answer + "\n"
        ask.close()
        worker.join(60)
        assert not worker.is_alive()
        sys.stdin.close()
        sys.stdout.close()


def test_all_lines_of_a_file_are_looked_at_before_work(served, tmp_path, monkeypatch):
    def work(self, sentences, **options):
        raise AssertionError("translates")

    monkeypatch.setattr(Translator, "_start", work)
    (tmp_path / "long").write_text("au bv\n" * 3 + "au " * 2000 + "\n")
    for arguments in (dict(), dict(output=str(tmp_path / "out"))):
        with pytest.raises(TranslateError, match="line 4 has"):
            translate_file(served, str(tmp_path / "long"), buffer_size=1, threads=1, **arguments)


def test_translating_imports_neither_fairseq_nor_torch(served, prepared):
    code = """
import sys
from fairseq_klang.cli import main
status = main(["translate", *sys.argv[1:]])
print(status, [name for name in ("fairseq", "torch") if name in sys.modules])
"""
    text = str(prepared / "raw" / "test.de")
    result = subprocess.run(
        [sys.executable, "-c", code, str(served), "--input", text, "--output", os.devnull],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert result.stdout == "0 []\n"


MARKS = ["au bv", "\u2581", "au@@ bv", "@@ au @@", "au \u2581bv"]  # as subwords look
UNSEEN = ["", " ", "\u200b", "\ufeff\ufeff", " \u00ad\u200d\t\u2060"]


def test_text_that_looks_like_subwords_is_translated(prepared, runs, served, tmp_path):
    """It aborted both commands; an export says itself which subwords its model has."""
    (tmp_path / "in").write_text("".join(line + "\n" for line in MARKS))
    assert translate_file(served, str(tmp_path / "in"), str(tmp_path / "out"), threads=1) == 5
    lines = (tmp_path / "out").read_text().split("\n")
    assert len(lines) == 6 and all(lines[:5])
    translator = Translator(served, threads=1)
    assert translator.decode(["a@@", "b", "\u2581", "c"]) == "ab \u2581 c"
    words = dict(translator.record, prepare=dict(translator.record["prepare"], subword="word"))
    assert Translator(served, threads=1, record=words).decode(["a@@", "b"]) == "a@@ b"
    check, _ = export(
        runs / "plain" / "checkpoint_last.pt",
        prepared / "bin",
        tmp_path / "marks",
        kind="float32",
        text=str(tmp_path / "in"),
    )
    assert check.sentences == 5


def test_what_cannot_be_seen_has_no_translation(served, tmp_path):
    """Zero-width characters alone got an invented sentence."""
    (tmp_path / "in").write_text("\n".join([*UNSEEN, "au bv", "\ufeffau bv"]) + "\n", "utf-8")
    translate_file(served, str(tmp_path / "in"), str(tmp_path / "out"), threads=1)
    *unseen, plain, marked, end = (tmp_path / "out").read_text().split("\n")
    assert unseen == [""] * 5 and plain == marked and plain and not end


def test_a_full_temporary_folder_is_named(served, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: open("/dev/full", "w+"))
    text = str(prepared / "raw" / "test.de")
    with pytest.raises(TranslateError, match="No space left on device; set TMPDIR to a folder"):
        translate_file(served, text, str(tmp_path / "out"), threads=1)
    assert os.listdir(tmp_path) == []


# -- refusals --


def refused(checkpoint, data, out, **options):
    with pytest.raises(ExportError) as error:
        export(checkpoint, data, out, **options)
    assert not out.exists() and not [
        name for name in os.listdir(out.parent) if "partial" in name or "klang-export" in name
    ]
    return str(error.value)


def changed(runs, path, **arguments):
    """The plain checkpoint with other model arguments."""
    state = load_checkpoint(runs / "plain" / "checkpoint_last.pt")
    for name, value in arguments.items():
        setattr(state["cfg"]["model"], name, value)
    torch.save(state, path)
    return path


def test_what_cannot_be_exported_says_what_to_do_instead(prepared, runs, tmp_path, monkeypatch):
    data, out = prepared / "bin", tmp_path / "out"
    train(
        prepared,
        tmp_path / "lstm",
        "--max-update",
        "1",
        "--qat-bits",
        "8",
        arch=("lstm_dualhead", *TINY_LSTM),
    )
    assert "LSTMDualHeadModel: translate with fairseq-generate" in refused(
        tmp_path / "lstm" / "checkpoint_last.pt", data, out
    )
    assert "--decode-head sb" in refused(
        changed(runs, tmp_path / "sb.pt", decode_head="sb"), data, out
    )
    low = changed(runs, tmp_path / "low.pt", qat_bits=5)
    assert "trained with --qat-bits 5" in refused(low, data, out)
    export(low, data, tmp_path / "low", kind="float32", count=3)
    assert "activation-fn tanh is not supported" in refused(
        changed(runs, tmp_path / "tanh.pt", activation_fn="tanh"), data, out
    )
    plain = runs / "plain" / "checkpoint_last.pt"
    assert "no split 'dev'" in refused(plain, data, out, subset="dev")
    assert "--type is 'int4'; it must be one of float32, int8" in refused(
        plain, data, out, kind="int4"
    )
    assert "--check-sentences is 0" in refused(plain, data, out, count=0)
    with pytest.raises(ExportError, match="exists; choose another folder"):
        export(plain, data, tmp_path)
    (tmp_path / "empty").mkdir()
    assert "empty holds no dict.*.txt" in refused(plain, tmp_path / "empty", out)
    shutil.copy(data / "dict.de.txt", tmp_path / "empty")
    assert "cannot be loaded with the dictionaries in" in refused(plain, tmp_path / "empty", out)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(TranslateError, match="pip install 'fairseq-klang"):
        export(plain, data, out)


def test_a_checkpoint_that_lacks_a_part_is_refused_in_one_line(prepared, runs, tmp_path):
    """fairseq's loader ended in KeyError, TypeError, IndexError or AttributeError."""
    whole, path = load_checkpoint(runs / "plain" / "checkpoint_last.pt"), tmp_path / "part.pt"
    parts = [{"model": whole["model"]}, dict(whole, args={}), dict(whole, cfg={})]
    parts += [dict(whole, optimizer_history=value) for value in (None, [], 3)]
    parts += [dict(whole, extra_state=None), dict(whole, task_state=None)]
    for part in parts:
        torch.save(part, path)
        message = refused(path, prepared / "bin", tmp_path / "out", kind="float32")
        assert str(path) in message and "\n" not in message
        assert "name a checkpoint of fairseq-train" in message


@pytest.mark.parametrize(
    "option, given",
    [
        (
            "--no-decoder-final-norm",
            dict(
                no_decoder_final_norm=True,
                encoder_normalize_before=True,
                decoder_normalize_before=True,
            ),
        ),
        ("--decoder-output-dim", dict(decoder_output_dim=8)),
        ("--no-cross-attention", dict(no_cross_attention=True)),
        ("--cross-self-attention", dict(cross_self_attention=True)),
        ("--quant-noise-pq", dict(quant_noise_pq=0.1, quant_noise_pq_block_size=4)),
        ("--quant-noise-scalar", dict(quant_noise_scalar=0.5)),
        ("--adaptive-softmax-cutoff", dict(adaptive_softmax_cutoff="8,16")),
    ],
)
def test_options_that_ctranslate2_lacks_are_refused_by_name(option, given):
    model, task = build("transformer", **dict(SMALL["transformer_dualhead"], **given))
    with pytest.raises(
        ExportError,
        match=(
            f"CTranslate2 has no {option}, .*translate with fairseq-generate or "
            "fairseq-interactive, or train without"
        ),
    ):
        plain_transformer(model, task)


def test_other_dictionaries_are_refused(prepared, runs, tmp_path):
    plain, state = (
        runs / "plain" / "checkpoint_last.pt",
        load_checkpoint(runs / "plain" / "checkpoint_last.pt"),
    )
    torch.save(
        dict(state, task_state={"source_dictionary": "another"}), tmp_path / "other.pt"
    )  # as translation_autoencoding keeps it
    assert "was trained with another source dictionary than that in" in refused(
        tmp_path / "other.pt", prepared / "bin", tmp_path / "out"
    )
    shutil.copytree(prepared, tmp_path / "prepared")
    path = tmp_path / "prepared" / "bin" / "dict.de.txt"
    lines = path.read_text().splitlines(True)
    path.write_text("".join(lines[1::-1] + lines[2:]))  # of the same size
    with pytest.raises(
        TranslateError, match=f"{path} is not the dictionary that klang prepare wrote there"
    ):
        export(plain, tmp_path / "prepared" / "bin", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_paths_that_cannot_be(prepared, runs, tmp_path):
    plain = runs / "plain" / "checkpoint_last.pt"
    assert f"--data {tmp_path}/nope does not exist" in refused(
        plain, tmp_path / "nope", tmp_path / "out"
    )
    above = refused(plain, prepared, tmp_path / "out")
    assert f"--data {prepared} holds no dict.*.txt" in above
    assert above.endswith(f"name the folder that fairseq-train read, {prepared / 'bin'}")
    with pytest.raises(OutputError, match="/proc/served cannot be written: "):
        export(plain, prepared / "bin", "/proc/served", count=1)


def test_the_weights_left_out_are_summed_up():
    names = [
        f"source_decoder.layers.{i}.fc1.{kind}" for i in range(6) for kind in ("weight", "bias")
    ] + ["decoder.sb_projection.weight"]
    assert summary(names) == "decoder.sb_projection (1), source_decoder (12)"


def test_a_model_that_translates_otherwise_is_not_written(prepared, runs, tmp_path, monkeypatch):
    def damaged(args, weights, *rest):
        return convert(
            args,
            dict(
                weights, **{"decoder.layers.0.fc1.bias": weights["decoder.layers.0.fc1.bias"] + 1}
            ),
            *rest,
        )

    convert = exporting.convert
    monkeypatch.setattr(exporting, "convert", damaged)
    assert "does not translate as fairseq does" in refused(
        runs / "plain" / "checkpoint_last.pt", prepared / "bin", tmp_path / "out"
    )


def test_what_stands_beside_the_layers_is_left_out_and_what_stands_inside_refused():
    model, task = small("transformer_dualhead")
    task.cfg.source_lang, task.cfg.target_lang = "de", "en"
    model.source_decoder, model.decoder.source_projection = (
        nn.Linear(2, 2),
        nn.Linear(2, 2, bias=False),
    )
    dropped = plain_transformer(model, task)[2]
    assert dropped == [
        "decoder.sb_projection.weight",
        "decoder.source_projection.weight",
        "source_decoder.bias",
        "source_decoder.weight",
    ]
    model.encoder.layers[0].expert = nn.Linear(2, 2)
    with pytest.raises(ExportError, match="encoder.layers.0.expert.*train without experts"):
        plain_transformer(model, task)
    assert plain_transformer(*build("transformer", **SMALL["transformer_dualhead"]))[2] == []


def test_translate_refuses_in_one_line(prepared, runs, tmp_path, capsys):
    folder = tmp_path / "served"
    export(runs / "plain" / "checkpoint_last.pt", prepared / "bin", folder, kind="float32", count=3)
    (tmp_path / "latin").write_bytes(b"gut\nsch\xf6n\n")
    (tmp_path / "long").write_text("au bv\n" + "au " * 2000 + "\n")
    with pytest.raises(TextError, match="latin line 2 is not UTF-8"):
        translate_file(folder, str(tmp_path / "latin"), str(tmp_path / "out"))
    with pytest.raises(
        TranslateError, match=r"line 2 has \d+ tokens and the model takes 1023; split the line"
    ):
        translate_file(folder, str(tmp_path / "long"), str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))
    for arguments, message in (
        (
            [tmp_path, "--input", tmp_path / "long"],
            "holds no klang.json; name a folder that klang export wrote",
        ),
        ([folder, "--input", tmp_path / "none"], "none does not exist"),
        (
            [folder, "--input", tmp_path / "long", "--beam", "0"],
            "--beam is 0; it must be 1 to 1,000",
        ),
        (
            [folder, "--input", tmp_path / "long", "--threads", "0"],
            "--threads is 0; it must be 1 to 1,024",
        ),
    ):
        status, out, err = klang(capsys, "translate", *arguments)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1
    with open(folder / "model.bin", "ab") as stream:
        stream.write(b"!")
    with pytest.raises(TranslateError, match="model.bin is damaged: it is not what klang export"):
        Translator(folder)
    os.remove(folder / "model.bin")
    with pytest.raises(TranslateError, match="model.bin is gone; export the checkpoint again"):
        Translator(folder)
    with pytest.raises(TranslateError, match="CTranslate2 cannot load"):
        Translator(folder, record=json.loads((folder / "klang.json").read_text()))


def test_damaged_records_are_used_or_refused_in_one_line(served, tmp_path):
    shutil.copytree(served, tmp_path / "served")
    path = tmp_path / "served" / "klang.json"
    refused = 0
    copies = list(damaged_json(path.read_text(), seed=1, count=100))
    for copy in copies:
        path.write_bytes(copy)
        try:
            assert len(list(Translator(path.parent, threads=1).translate(["au", ""]))) == 2
        except KlangError as error:
            assert str(path.parent) in str(error) and "\n" not in str(error)
            refused += 1
    assert 10 < refused < 90


def test_translate_refuses_before_any_work(tmp_path, capsys, monkeypatch):
    """Even before it looks at the model, of which there is none."""
    (tmp_path / "in").write_text("au\n")
    for arguments, message in (
        (["--input", tmp_path], f"--input {tmp_path} is a folder; name a file"),
        (
            ["--input", tmp_path / "in", "--output", tmp_path],
            f"--output {tmp_path} is a folder; name a file in it",
        ),
        (
            ["--input", tmp_path / "in", "--output", f"{tmp_path}/none/out"],
            f"--output {tmp_path}/none/out: there is no folder {tmp_path}/none; make it first",
        ),
        (
            ["--input", tmp_path / "in", "--output", ""],
            "--output '' is a folder; name a file in it",
        ),
        (
            ["--input", tmp_path / "in", "--buffer-size", "0"],
            "--buffer-size is 0; it must be 1 to 1,000,000,000",
        ),
    ):
        assert klang(capsys, "translate", tmp_path / "none", *arguments) == (
            2,
            "",
            f"klang: error: {message}\n",
        )
    # Streams that the shell has closed are None.
    for name, message in (
        ("stdin", "standard input is closed; name a file with --input"),
        ("stdout", "standard output is closed; name a file with --output"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, None)
            status = cli.main(
                [
                    "translate",
                    "none",
                    *(["--input", str(tmp_path / "in")] if name == "stdout" else []),
                ]
            )
        assert (status, capsys.readouterr().err) == (2, f"klang: error: {message}\n")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        patch.setattr(sys, "stdout", io.StringIO())
        assert (
            cli.main(["translate", "none", "--input", str(tmp_path)]) == 2
            and sys.stdout.getvalue() == ""
        )


def test_a_folder_that_another_tool_prepared(prepared, runs, tmp_path):
    """Without prepare.json text is given, and comes back, as the model reads and writes it."""
    shutil.copytree(prepared / "bin", tmp_path / "bin")
    export(
        runs / "plain" / "checkpoint_last.pt",
        tmp_path / "bin",
        tmp_path / "served",
        kind="float32",
        count=3,
    )
    translator = Translator(tmp_path / "served", threads=1)
    assert (
        translator.encode("a@@ b c") == ["a@@", "b", "c"]
        and translator.decode(["a@@", "b"]) == "a@@ b"
    )


def test_greedy_puts_sentences_back_in_order(prepared, runs):
    model, task = load_model(runs / "plain" / "checkpoint_last.pt", prepared / "bin")
    sentences = sentences_of(task, "test", 7)
    together, alone = (
        greedy(model, task, sentences, batch=3),
        [greedy(model, task, [sentence])[0] for sentence in sentences],
    )
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
