"""Standard fairseq commands with --user-dir, as a user types them: every architecture and
criterion, resume, and refusals."""

import json
import os
import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_klang.checkpoints.reading import load_checkpoint
from helpers.running import (
    SPLITS,
    TINY_LSTM,
    TINY_TRANSFORMER,
    USER_DIR,
    binarise,
    run,
    spawn,
    train_arguments,
    train_in_two_processes,
)

ARCHITECTURES = {
    "transformer_dualhead": TINY_TRANSFORMER,
    "lstm_dualhead": TINY_LSTM,
    "lstm_dualhead --decoder-attention 0": TINY_LSTM,
    "transformer": TINY_TRANSFORMER,
    "lstm": TINY_LSTM,
}
CRITERIONS = {
    "restricted_softbleu": ["--label-smoothing", "0.1", "--sb-topk", "3"],
    "label_smoothed_cross_entropy": ["--label-smoothing", "0.1"],
}


def train(
    data,
    save_dir,
    *more,
    architecture="transformer_dualhead",
    criterion="restricted_softbleu",
    check=True,
    command=run,
):
    arguments = train_arguments(
        data,
        save_dir,
        "--arch",
        *architecture.split(),
        *ARCHITECTURES[architecture],
        "--criterion",
        criterion,
        *more,
    )
    return command("fairseq_cli.train", *arguments, check=check)


def generate(
    data,
    checkpoint,
    *more,
    subset="test",
    check=True,
    module="fairseq_cli.generate",
    command=run,
    **options,
):
    return command(
        module,
        data,
        *("--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--gen-subset", subset),
        *("-s", "de", "-t", "en", "--required-batch-size-multiple", "1", "--max-len-b", "20"),
        *more,
        check=check,
        **options,
    )


def hypotheses(output):
    return {int(i): text for i, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.M)}


def rows(result, split):
    """The JSON rows that fairseq logs for `split`."""
    found = re.findall(rf"INFO \| {split} \| (\{{.*\}})", result.stderr + result.stdout)
    return [json.loads(row) for row in found]


@pytest.mark.parametrize("criterion", CRITERIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_train_validate_generate_interactive(joined_data, tmp_path, architecture, criterion):
    check_four_commands(joined_data, tmp_path, architecture, criterion, run)


@pytest.mark.slow
def test_four_commands_in_processes_of_their_own(joined_data, tmp_path):
    check_four_commands(joined_data, tmp_path, "transformer_dualhead", "restricted_softbleu", spawn)


def check_four_commands(joined_data, tmp_path, architecture, criterion, command):
    """Train, validate, generate and interactive, each by `command`."""
    trained = train(
        joined_data,
        tmp_path,
        "--max-epoch",
        "1",
        *CRITERIONS[criterion],
        architecture=architecture,
        criterion=criterion,
        command=command,
    )
    # Sizes are no multiples of 8; every sentence is there all the same.
    updates = rows(trained, "train_inner")
    assert len(updates) > 1
    assert rows(trained, "valid")[-1]["epoch"] == 1
    if criterion == "restricted_softbleu":
        assert 0 < float(rows(trained, "valid")[-1]["valid_sb"]) < 1
    checkpoint = tmp_path / "checkpoint_last.pt"
    generated = generate(joined_data, checkpoint, subset="valid", command=command)
    assert sorted(hypotheses(generated.stdout)) == list(range(SPLITS["valid"]))
    validated = command(
        "fairseq_cli.validate",
        joined_data,
        "--user-dir",
        USER_DIR,
        "--path",
        checkpoint,
        "--task",
        "translation",
        "--cpu",
        "--max-tokens",
        "300",
        "--required-batch-size-multiple",
        "1",
        "--log-format",
        "json",
    )
    (row,) = rows(validated, "valid")
    # The same sentences as in training's own validation, so the same loss.
    name = "loss" if "loss" in row else "valid_loss"
    assert float(row[name]) == float(rows(trained, "valid")[-1]["valid_loss"])
    interactive = generate(
        joined_data,
        checkpoint,
        module="fairseq_cli.interactive",
        stdin="au bv\ncw\n",
        command=command,
    )
    assert sorted(hypotheses(interactive.stdout)) == [0, 1]


def test_whole_splits_are_used(joined_data, tmp_path):
    """Sentences trained on and validated on, counted from the logs, are the sizes of the splits."""
    trained = train(joined_data, tmp_path, "--max-epoch", "1", *CRITERIONS["restricted_softbleu"])
    inner = rows(trained, "train_inner")
    assert sum(float(row["bsz"]) for row in inner) == SPLITS["train"]
    assert float(rows(trained, "valid")[-1]["valid_bsz"]) == SPLITS["valid"]


def test_splits_of_7_and_1014_sentences(tmp_path):
    """The sizes at which fairseq's main branch drops everything, or six sentences."""
    data = binarise(tmp_path, joined=True, splits={"train": 7, "valid": 1014, "test": 7})
    trained = train(data, tmp_path / "run", "--max-epoch", "1", *CRITERIONS["restricted_softbleu"])
    (row,) = rows(trained, "train")
    assert float(row["train_bsz"]) * float(row["train_num_updates"]) == pytest.approx(7)
    valid = rows(trained, "valid")[-1]
    output = generate(
        data,
        tmp_path / "run" / "checkpoint_last.pt",
        "--max-len-b",
        "5",
        "--beam",
        "1",
        subset="valid",
    ).stdout
    assert sorted(hypotheses(output)) == list(range(1014))
    assert float(valid["valid_wpb"]) > 0


def test_separate_dictionaries_and_sharing_flags(separate_data, tmp_path):
    train(separate_data, tmp_path / "a", "--max-update", "1")
    train(separate_data, tmp_path / "b", "--max-update", "1", "--share-decoder-input-output-embed")
    refused = train(separate_data, tmp_path / "c", "--share-all-embeddings", check=False)
    assert refused.returncode == 1
    assert (
        refused.stderr.strip()
        .splitlines()[-1]
        .startswith("fairseq-klang: error: --share-all-embeddings needs a joined")
    )
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("architecture", ["transformer_dualhead", "lstm_dualhead"])
def test_resume_is_bit_for_bit_like_training_straight_through(joined_data, tmp_path, architecture):
    # fairseq's main branch forms its batches once, from a seed that holds the first epoch's number:
    # without this flag a resumed run, whose first epoch is another, trains on other batches.
    options = [
        "--update-epoch-batch-itr",
        "True",
        "--dropout",
        "0.1",
        "--label-smoothing",
        "0.1",
        "--sb-topk",
        "3",
    ]
    options += ["--sb-alpha", "0.2", "--sb-alpha-step", "0.3"]
    train(
        joined_data, tmp_path / "through", "--max-epoch", "3", *options, architecture=architecture
    )
    train(
        joined_data, tmp_path / "stopped", "--max-epoch", "1", *options, architecture=architecture
    )
    resumed = train(
        joined_data, tmp_path / "stopped", "--max-epoch", "3", *options, architecture=architecture
    )
    assert [float(row["train_sb_alpha"]) for row in rows(resumed, "train")] == [0.5, 0.8]
    through, stopped = (
        load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("through", "stopped")
    )
    assert through["model"].keys() == stopped["model"].keys()
    for name, tensor in through["model"].items():
        if not name.endswith(
            "._float_tensor"
        ):  # 0.12.2 saves one uninitialised number that only tells a device
            assert torch.equal(tensor, stopped["model"][name]), name


def test_bleu_validation_writes_checkpoints_that_load_safely(joined_data, tmp_path):
    options = [
        "--eval-bleu",
        "--eval-bleu-args",
        '{"beam": 2}',
        "--eval-bleu-detok",
        "space",
        "--best-checkpoint-metric",
        "bleu",
        "--maximize-best-checkpoint-metric",
        *CRITERIONS["restricted_softbleu"],
    ]
    trained = train(joined_data, tmp_path, "--max-epoch", "1", *options)
    assert "valid_bleu" in rows(trained, "valid")[-1]
    resumed = train(joined_data, tmp_path, "--max-epoch", "2", *options)
    assert [row["epoch"] for row in rows(resumed, "train")] == [2]
    assert sorted(
        hypotheses(generate(joined_data, tmp_path / "checkpoint_best.pt").stdout)
    ) == list(range(SPLITS["test"]))


def test_decode_heads_in_generation(joined_data, tmp_path):
    train(joined_data, tmp_path, "--max-epoch", "2", *CRITERIONS["restricted_softbleu"])
    checkpoint = tmp_path / "checkpoint_last.pt"
    task = ["--task", "translation_dualhead"]
    plain = generate(joined_data, checkpoint).stdout
    outputs = {
        head: generate(joined_data, checkpoint, *task, "--decode-head", head).stdout
        for head in ("ce", "sb", "mix")
    }
    scores = {head: re.findall(r"^H-.*$", output, re.M) for head, output in outputs.items()}
    assert scores["ce"] == re.findall(r"^H-.*$", plain, re.M)
    assert scores["sb"] != scores["ce"] and scores["mix"] not in (scores["ce"], scores["sb"])
    only_ce = generate(
        joined_data, checkpoint, *task, "--decode-head", "mix", "--decode-mix", "1.0"
    ).stdout
    assert hypotheses(only_ce) == hypotheses(plain)
    overridden = generate(
        joined_data, checkpoint, "--model-overrides", "{'decode_head': 'sb'}"
    ).stdout
    assert re.findall(r"^H-.*$", overridden, re.M) == scores["sb"]
    refused = generate(
        joined_data, checkpoint, *task, "--decode-head", "mix", "--decode-mix", "2", check=False
    )
    assert (
        refused.returncode == 1
        and "--decode-mix is 2.0; it must be between 0 and 1" in refused.stderr
    )


def test_init_from_another_head_count_criterion_and_architecture(
    joined_data, separate_data, tmp_path
):
    task = ["--task", "translation_dualhead"]
    train(
        joined_data,
        tmp_path / "single",
        "--max-epoch",
        "1",
        architecture="transformer",
        criterion="cross_entropy",
    )
    checkpoint = tmp_path / "single" / "checkpoint_last.pt"
    dual = train(
        joined_data,
        tmp_path / "dual",
        "--max-update",
        "1",
        *task,
        "--init-from",
        checkpoint,
        "--decoder-layers",
        "2",
    )
    log = dual.stderr + dual.stdout
    assert "--init-from: loaded encoder.layers.0.fc1.weight" in log
    assert "--init-from: loaded decoder.sb_projection.weight" in log
    assert "--init-from: new decoder.layers.1.fc1.weight" in log
    assert "optimiser, schedule, epoch and best metric start afresh" in log
    assert float(rows(dual, "train")[0]["train_num_updates"]) == 1
    # From two heads to one, and into another vocabulary.
    single = train(
        separate_data,
        tmp_path / "back",
        "--max-update",
        "1",
        *task,
        "--init-from",
        tmp_path / "dual" / "checkpoint_last.pt",
        architecture="transformer",
        criterion="label_smoothed_cross_entropy",
    )
    log = single.stderr + single.stdout
    assert "--init-from: skipped decoder.sb_projection.weight" in log
    # Every German word is in the joined dictionary too; the rows go by word.
    known = len(Dictionary.load(str(separate_data / "dict.de.txt")))
    assert f"--init-from: matched encoder.embed_tokens.weight ({known} of {known} rows)" in log
    # A model trained this way is an ordinary one: it generates without the first checkpoint.
    os.remove(checkpoint)
    assert (
        len(
            hypotheses(
                generate(joined_data, tmp_path / "dual" / "checkpoint_last.pt", *task).stdout
            )
        )
        == SPLITS["test"]
    )
    assert (
        len(hypotheses(generate(joined_data, tmp_path / "dual" / "checkpoint_last.pt").stdout))
        == SPLITS["test"]
    )
    missing = train(joined_data, tmp_path / "none", *task, "--init-from", checkpoint, check=False)
    assert missing.returncode == 1 and missing.stderr.strip().splitlines()[-1].endswith(
        "does not exist"
    )


def refusal(result):
    """The last line of a command that must have failed without a traceback."""
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


def test_bad_input_gets_one_line(joined_data, tmp_path):
    assert "--sb-alpha is -1.0; it must be" in refusal(
        train(joined_data, tmp_path / "a", "--sb-alpha", "-1", check=False)
    )
    unknown = train(joined_data, tmp_path / "b", "--sb-form", "product", check=False)
    assert unknown.returncode == 2 and re.search(
        r"invalid choice: 'product'.*linear.*power.*exp.*add.*interpolate.*log", unknown.stderr
    )
    adaptive = ["--adaptive-softmax-cutoff", "10,20"]
    for architecture in ("transformer_dualhead", "transformer"):
        line = refusal(
            train(joined_data, tmp_path / "c", *adaptive, architecture=architecture, check=False)
        )
        assert "--adaptive-softmax-cutoff cannot be combined" in line
    task = ["--task", "translation_dualhead"]
    line = refusal(train(tmp_path / "nowhere", tmp_path / "d", *task, check=False))
    assert "does not exist" in line
    (tmp_path / "empty").mkdir()
    line = refusal(train(tmp_path / "empty", tmp_path / "d", *task, check=False))
    assert "holds no dictionary" in line
    metric = ["--best-checkpoint-metric", "bleu"]
    assert "add --eval-bleu" in refusal(train(joined_data, tmp_path / "d", *metric, check=False))


def test_a_loss_that_is_not_finite_stops_training_and_names_the_update(joined_data, tmp_path):
    train(joined_data, tmp_path, "--max-epoch", "1", *CRITERIONS["restricted_softbleu"])
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    line = refusal(
        train(
            joined_data,
            tmp_path,
            "--max-epoch",
            "3",
            "--reset-lr-scheduler",
            "--reset-optimizer",
            "--lr",
            "1e30",
            check=False,
        )
    )
    update = int(re.search(r"not finite \(nan or inf\) at update (\d+)", line).group(1))
    assert (
        update == load_checkpoint(tmp_path / "crash.pt")["optimizer_history"][-1]["num_updates"] + 1
    )
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


@pytest.mark.parametrize("architecture", ["transformer_dualhead", "transformer"])
def test_a_checkpoint_cut_short_is_named_and_left_alone(joined_data, tmp_path, architecture):
    train(joined_data, tmp_path, "--max-update", "1", architecture=architecture)
    whole = (tmp_path / "checkpoint_last.pt").read_bytes()
    (tmp_path / "checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    line = refusal(train(joined_data, tmp_path, architecture=architecture, check=False))
    assert "checkpoint_last.pt was cut short" in line
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == whole[: len(whole) // 2]


def test_choosing_checkpoints_by_loss_is_warned_about(joined_data, tmp_path):
    trained = train(joined_data, tmp_path, "--max-update", "1")
    assert "nll gets worse as BLEU improves" in trained.stderr + trained.stdout


def test_a_pickle_that_would_run_code_is_refused(joined_data, tmp_path):
    train(joined_data, tmp_path, "--max-update", "1")
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=True)

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'attacked'}",)

    state["extra_state"]["surprise"] = Attack()
    torch.save(state, path)
    result = generate(joined_data, path, check=False)
    assert result.returncode != 0 and "posix.system" in result.stderr
    from fairseq_klang.checkpoints.reading import CheckpointError

    with pytest.raises(CheckpointError, match="could run code"):
        load_checkpoint(path)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "quantised",
    [[], ["--qat-bits", "8", "--qat-gradient-bits", "8", "--qat-start-update", "1"]],
    ids=["float", "qat"],
)
def test_two_processes_equal_one(joined_data, tmp_path, quantised):
    """legacy_ddp over gloo, the flags that train in several CPU processes; same losses as
    --update-freq 2."""
    common = [
        *CRITERIONS["restricted_softbleu"],
        "--max-update",
        "3",
        "--dropout",
        "0",
        "--max-tokens",
        "100",
        *quantised,
    ]
    single = train(joined_data, tmp_path / "one", *common, "--update-freq", "2")
    arguments = train_arguments(
        joined_data,
        tmp_path / "two",
        "--arch",
        "transformer_dualhead",
        *TINY_TRANSFORMER,
        "--criterion",
        "restricted_softbleu",
        *common,
    )
    found = train_in_two_processes(arguments)
    expected = rows(single, "train_inner")
    for key in ("loss", "nll_loss", "sb", "sb_p1", "sb_candidates", "gnorm"):
        assert [row[key] for row in found] == [row[key] for row in expected], key


def test_hydra_train(joined_data, tmp_path):
    config = tmp_path / "config"
    config.mkdir()
    (config / "base.yaml").write_text(
        f"""# @package _group_
common: {{user_dir: {USER_DIR}, cpu: true, log_format: json, log_interval: 1, seed: 1}}
checkpoint: {{save_dir: {tmp_path / "run"}}}
task: {{_name: translation, data: {joined_data}, source_lang: de, target_lang: en}}
criterion: {{_name: restricted_softbleu, sb_topk: 3, label_smoothing: 0.1}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{max_update: 2, lr: [0.003]}}
dataset: {{max_tokens: 300, required_batch_size_multiple: 1, num_workers: 0}}
model:
  _name: transformer_dualhead
  encoder: {{embed_dim: 16, ffn_embed_dim: 32, layers: 1, attention_heads: 2}}
  decoder: {{embed_dim: 16, ffn_embed_dim: 32, layers: 1, attention_heads: 2}}
"""
    )
    trained = run(
        "fairseq_cli.hydra_train",
        "--config-dir",
        config,
        "--config-name",
        "base",
        f"hydra.run.dir={tmp_path / 'hydra'}",
    )
    assert "nll gets worse as BLEU improves" in trained.stdout + trained.stderr
    state = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    assert state["model"]["decoder.sb_projection.weight"].shape[1] == 16
    assert (
        len(hypotheses(generate(joined_data, tmp_path / "run" / "checkpoint_last.pt").stdout))
        == SPLITS["test"]
    )
    shutil.rmtree(tmp_path / "run")
