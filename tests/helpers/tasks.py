"""The task translation_autoencoding on a small model, without fairseq's trainer."""

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig

from fairseq_klang.criterions.restricted_softbleu import RestrictedSoftBleuConfig
from fairseq_klang.tasks.translation_autoencoding import (
    TranslationAutoencodingConfig,
    TranslationAutoencodingTask,
)
from helpers.models import batch


class Backward:
    """What a task needs of an optimiser."""

    def backward(self, loss):
        loss.backward()


def make_config(**flags):
    config = TranslationAutoencodingConfig()
    config.source_lang, config.target_lang, config.seed, config.path = "de", "en", 1, None
    for name, value in flags.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    return config


def make_task(source, target=None, **flags):
    return TranslationAutoencodingTask(make_config(**flags), source, target or source)


def criterion_of(task, name):
    config = {
        "restricted_softbleu": RestrictedSoftBleuConfig,
        "label_smoothed_cross_entropy": LabelSmoothedCrossEntropyCriterionConfig,
    }[name]()
    config.sentence_avg, config.sb_topk = False, 3
    cls = CRITERION_REGISTRY[name]
    if name == "restricted_softbleu":
        return cls(task, config)
    return cls(task, False, 0.1)


def sample_of(words, seed=0):
    net_input = batch(words, seed)
    previous = net_input["prev_output_tokens"]
    target = torch.cat((previous[:, 1:], torch.full((3, 1), words.eos())), 1)
    return {
        "id": torch.arange(3) + 10 * seed,
        "nsentences": 3,
        "ntokens": target.numel(),
        "net_input": net_input,
        "target": target,
    }
