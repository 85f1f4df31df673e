"""What the package promises as a whole: names, imports in one direction, documentation of every
public thing."""

import ast
import dataclasses
import os
import re

import pytest
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

import fairseq_klang
from fairseq_klang.criterions.fused_cross_entropy import FusedCrossEntropyConfig
from fairseq_klang.criterions.restricted_softbleu import RestrictedSoftBleuConfig
from fairseq_klang.models.autoencoder import AutoencoderConfig
from fairseq_klang.quantization.qat import QatConfig
from fairseq_klang.tasks.translation_autoencoding import TranslationAutoencodingConfig
from fairseq_klang.tasks.translation_dualhead import TranslationDualHeadConfig
from helpers.running import ROOT, USER_DIR

fairseq_klang.register()


def ours(registry):
    return sorted(
        name for name, cls in registry.items() if cls.__module__.startswith("fairseq_klang")
    )


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as stream:
        return stream.read()


def sources():
    for folder, _, names in os.walk(USER_DIR):
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(folder, name)


def test_the_registered_names_are_those_of_the_design():
    assert ours(CRITERION_REGISTRY) == ["fused_cross_entropy", "restricted_softbleu"]
    assert ours(TASK_REGISTRY) == ["translation_autoencoding", "translation_dualhead"]
    assert ours(ARCH_MODEL_REGISTRY) == ["lstm_dualhead", "transformer_dualhead"] + [
        f"transformer_dualhead_b{i}" for i in range(4)
    ]


@pytest.mark.parametrize(
    "name", ours(CRITERION_REGISTRY) + ours(TASK_REGISTRY) + ours(ARCH_MODEL_REGISTRY)
)
def test_every_registered_name_is_in_the_readme(name):
    assert re.search(rf"`[^`]*\b{name}\b", readme()), name


def test_every_flag_is_in_the_readme():
    configs = (RestrictedSoftBleuConfig, FusedCrossEntropyConfig, QatConfig)
    own = {name for config in configs for name in config.__annotations__} | {
        "init_from",
        "init_dictionaries",
        "decode_head",
        "decode_mix",
    }
    assert set(TranslationDualHeadConfig.__annotations__) <= own
    own |= set(AutoencoderConfig.__annotations__) | set(
        TranslationAutoencodingConfig.__annotations__
    )
    borrowed = {
        "best_checkpoint_metric",
        "maximize_best_checkpoint_metric",
        "save_dir",
        "restore_file",
        "seed",
        "path",
    }
    for name in own - borrowed:
        assert f"--{name.replace('_', '-')}" in readme(), name


def test_the_public_names_of_the_design_exist_with_their_defaults():
    # DESIGN 6
    defaults = {
        "sb_alpha": 0.8,
        "sb_alpha_step": 0.0,
        "sb_alpha_max": None,
        "sb_form": "linear",
        "sb_beta": 0.5,
        "k_lang": 0.003,
        "sb_topk": None,
        "sb_ngrams": "true",
        "sb_decay": 0.5,
        "sb_counts": "matched",
        "sb_max_order": 4,
    }
    found = {field.name: field.default for field in dataclasses.fields(RestrictedSoftBleuConfig)}
    assert {name: found[name] for name in defaults} == defaults
    from fairseq_klang.collision import collision_size, min_bits  # noqa: F401
    from fairseq_klang.losses import combine, linear_cross_entropy, restricted_soft_bleu, soft_bleu  # noqa: F401


@pytest.mark.parametrize(
    "path", sorted(sources()), ids=lambda path: os.path.relpath(path, USER_DIR)
)
def test_every_file_says_what_it_is_for_and_imports_point_one_way(path):
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    assert ast.get_docstring(tree), "the file starts with no sentence on what it is for"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name
    folder = os.path.relpath(path, USER_DIR).split(os.sep)[0]
    if folder in ("losses", "analysis"):
        imported = [
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        ]
        imported += [
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        ]
        forbidden = ("fairseq", "criterions", "models", "tasks", "data", "cli")
        assert not [name for name in imported if name.split(".")[0] in forbidden]
