"""The checks before training: what they refuse, what they leave alone."""

import logging
import os
from argparse import Namespace

import pytest
import torch
from fairseq import options
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_klang.checks.preflight import (
    _warn_once,
    check_bleu,
    check_checkpoint_metric,
    check_data_folder,
    check_restore_file,
    check_training,
)
from fairseq_klang.errors import UsageError
from fairseq_klang.tasks.translation_autoencoding import TranslationAutoencodingTask
from fairseq_klang.tasks.translation_dualhead import TranslationDualHeadTask
from helpers.models import dictionary
from helpers.tasks import make_config


def task_of(**options):
    config = TranslationConfig()
    config.source_lang, config.target_lang = "de", "en"
    vars(config).update(options)
    return TranslationTask(config, dictionary(3), dictionary(3))


def options_of(folder, metric):
    return Namespace(
        save_dir=str(folder), restore_file="checkpoint_last.pt", best_checkpoint_metric=metric
    )


def test_data_folders_that_cannot_work_are_refused(tmp_path, separate_data):
    check_data_folder(str(separate_data))
    check_data_folder(f"{separate_data}:/nowhere")  # fairseq reads the first one first
    with pytest.raises(UsageError, match="does not exist; make it with klang prepare"):
        check_data_folder(str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"holds no dictionary \(dict.LANG.txt\)"):
        check_data_folder(str(tmp_path))
    for task in (TranslationDualHeadTask, TranslationAutoencodingTask):
        with pytest.raises(UsageError, match="does not exist; make it with klang prepare"):
            task.setup_task(make_config(data=str(tmp_path / "none")))


@pytest.mark.parametrize("architecture", ["transformer_dualhead", "lstm_dualhead"])
def test_parsing_arguments_touches_no_file(tmp_path, architecture):
    words = [str(tmp_path / "none"), "--arch", architecture, "--save-dir", str(tmp_path / "run")]
    options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    assert os.listdir(tmp_path) == []


def test_a_bleu_that_nothing_measures_is_refused_before_training(tmp_path):
    message = "--best-checkpoint-metric is bleu, but no BLEU is measured; add --eval-bleu"
    with pytest.raises(UsageError, match=message):
        check_training(options_of(tmp_path, "bleu"), task_of())
    check_bleu(task_of(eval_bleu=True), "bleu")
    check_bleu(task_of(), "loss")
    check_bleu(FairseqTask(Namespace()), "bleu")  # whose metrics are its own
    check_training(options_of(tmp_path, "loss"), task_of())
    check_training(Namespace(), task_of())  # of fairseq-hydra-train


@pytest.mark.parametrize("language, warned", [("zh_CN", True), ("ja", True), ("de", False)])
def test_a_target_that_bleu_cannot_be_measured_in_is_told_once(caplog, language, warned):
    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # by the model, and by the criterion
            check_bleu(task_of(eval_bleu=True, target_lang=language), "loss")
        check_bleu(task_of(target_lang=language), "loss")
    assert caplog.text.count("score with fairseq-generate and klang score") == warned


def test_checkpoints_cut_anywhere_are_refused_and_whole_ones_pass(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": {"weight": torch.zeros(1000)}}, path)
    whole = path.read_bytes()
    check_restore_file(str(tmp_path), "checkpoint_last.pt")
    for size in (0, 2, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="was cut short while written"):
            check_restore_file(str(tmp_path), "checkpoint_last.pt")
        with pytest.raises(UsageError, match="was cut short while written"):
            check_restore_file(str(tmp_path / "other"), str(path))
    check_restore_file(str(tmp_path), "checkpoint_none.pt")


@pytest.mark.parametrize(
    "metric, maximise, warning",
    [
        ("loss", False, "nll gets worse as BLEU improves"),
        ("ppl", False, "nll gets worse as BLEU improves"),
        ("bleu", False, "the worst is kept"),
        ("bleu", True, ""),
    ],
)
def test_warnings_about_the_best_checkpoint(caplog, metric, maximise, warning):
    with caplog.at_level(logging.WARNING):
        check_checkpoint_metric(metric, maximise)
    assert warning in caplog.text and bool(caplog.text) == bool(warning)
