"""What the project promises as a whole: names, imports in one direction, documentation, style."""

import ast
import dataclasses
import os
import re
import subprocess

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


def sources():
    """The package's modules, by their paths in it."""
    for folder, _, names in os.walk(USER_DIR):
        for name in names:
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, name), USER_DIR)


MODULES = sorted(sources())


def syntax(module):
    with open(os.path.join(USER_DIR, module), encoding="utf-8") as stream:
        return ast.parse(stream.read())


def tracked(*endings):
    """The files of the repository with these endings, by their paths in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    names = (name for name in listed.stdout.split("\n") if name.endswith(endings))
    return [name for name in names if os.path.isfile(os.path.join(ROOT, name))]


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as stream:
        return stream.read()


def test_the_registered_names():
    assert ours(CRITERION_REGISTRY) == ["fused_cross_entropy", "restricted_softbleu"]
    assert ours(TASK_REGISTRY) == ["translation_autoencoding", "translation_dualhead"]
    assert ours(ARCH_MODEL_REGISTRY) == ["lstm_dualhead", "transformer_dualhead"] + [
        f"transformer_dualhead_b{i}" for i in range(4)
    ]


@pytest.mark.parametrize(
    "name", ours(CRITERION_REGISTRY) + ours(TASK_REGISTRY) + ours(ARCH_MODEL_REGISTRY)
)
def test_every_registered_name_is_in_the_readme(name):
    assert re.search(rf"`[^`]*\b{name}\b", text_of("README.md")), name


def test_every_flag_is_in_the_readme_or_a_page_that_it_links():
    pages = re.findall(r"\]\(((?:docs|examples)/[\w/]+\.md)", text_of("README.md"))
    text = "\n".join(map(text_of, ["README.md", *pages]))
    configs = (
        RestrictedSoftBleuConfig,
        FusedCrossEntropyConfig,
        QatConfig,
        AutoencoderConfig,
        TranslationDualHeadConfig,
        TranslationAutoencodingConfig,
    )
    # fairseq's own options, which a config names to read them
    borrowed = "best_checkpoint_metric maximize_best_checkpoint_metric save_dir restore_file seed"
    own = {
        name
        for config in configs
        for cls in config.__mro__
        if cls.__module__.startswith("fairseq_klang")
        for name in cls.__dict__.get("__annotations__", {})
    }
    own -= {*borrowed.split(), "path"}
    flags = {f"--{name.replace('_', '-')}" for name in own}
    assert len(flags) > 30
    assert not sorted(flag for flag in flags if not re.search(rf"{flag}\b(?!-)", text))


def test_public_names_exist_with_their_defaults():
    # docs/loss.md, the table of options
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
    from fairseq_klang import collision, losses

    for name in ("combine", "linear_cross_entropy", "restricted_soft_bleu", "soft_bleu"):
        assert callable(getattr(losses, name))
    assert callable(collision.collision_size) and callable(collision.min_bits)


# -- imports ---------------------------------------------------------------------------------------

# Each part of the package imports only parts that stand before it.
ORDER = (
    "version errors compat collision files losses analysis data checkpoints learning checks "
    "quantization models criterions tasks experiments cli"
).split()
ROOT_NAMES = {"register", "__version__"}  # of the package itself, for all


def imported(module, tree):
    """The dotted names that a module imports, anywhere in it, as lists of their parts."""
    package = ["fairseq_klang", *module.split(os.sep)[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            yield from (base + [alias.name] for alias in node.names)


def violations(module, tree):
    """The imports of a module that point the wrong way."""
    part = module.split(os.sep)[0].replace(".py", "")
    if part == "__init__":  # registers everything
        return []
    below = ORDER[: ORDER.index(part)]
    wrong = []
    for names in imported(module, tree):
        if names[0] == "fairseq_klang":
            named = names[1] if len(names) > 1 else "the whole package"
            if named not in below and named != part and named not in ROOT_NAMES:
                wrong.append(named)
        elif part in ("losses", "analysis") and names[0] in ("fairseq", "fairseq_cli"):
            wrong.append(names[0])
    return wrong


@pytest.mark.parametrize(
    "module, code, expected",
    [
        ("losses/a.py", "from .. import models", ["models"]),
        ("losses/a.py", "from ..models import heads", ["models"]),
        ("losses/a.py", "from ..models.heads import x", ["models"]),
        ("losses/a.py", "import fairseq_klang.models", ["models"]),
        ("losses/a.py", "import fairseq_klang", ["the whole package"]),
        ("losses/a.py", "from fairseq_klang import models", ["models"]),
        ("losses/a.py", "def f():\n    from ..tasks import x", ["tasks"]),
        ("analysis/a.py", "import fairseq.utils", ["fairseq"]),
        ("analysis/a.py", "from fairseq_cli import train", ["fairseq_cli"]),
        ("files.py", "from .losses import x", ["losses"]),
        ("files.py", "from . import errors", []),
        ("tasks/a.py", "from . import b\nfrom .. import files, models\nimport fairseq", []),
        ("cli.py", "from .experiments import x\nfrom . import __version__", []),
    ],
)
def test_imports_that_point_the_wrong_way_are_found(module, code, expected):
    assert violations(module.replace("/", os.sep), ast.parse(code)) == expected


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    assert violations(module, syntax(module)) == []


# -- documentation and types -----------------------------------------------------------------------


def public(tree):
    """(name, definition) of a module's public functions and classes, and of the classes' methods
    that are public or make an object."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, ast.FunctionDef) and (
                    inner.name == "__init__" or not inner.name.startswith("_")
                ):
                    yield f"{node.name}.{inner.name}", inner


def is_typed(function):
    """Whether each argument, but self and cls, and the result of a function are annotated."""
    known = function.args
    arguments = [*known.args, *known.kwonlyargs, *filter(None, (known.vararg, known.kwarg))]
    named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    return all(argument.annotation for argument in named) and (
        function.name == "__init__" or function.returns is not None
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_file_and_public_thing_says_what_it_is_for(module):
    tree = syntax(module)
    assert ast.get_docstring(tree), "the file starts with no sentence on what it is for"
    top = [name for name, node in public(tree) if "." not in name and not ast.get_docstring(node)]
    assert top == []


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_are_typed(module):
    functions = [pair for pair in public(syntax(module)) if isinstance(pair[1], ast.FunctionDef)]
    assert [name for name, function in functions if not is_typed(function)] == []


# -- style -----------------------------------------------------------------------------------------


def test_lines_have_at_most_100_characters():
    """In docs and scripts; ruff looks at Python. Not so the rows of tables, URLs and templates'
    expressions, which cannot be broken."""
    whole = re.compile(r"\s*\||.*://|.*\{[{%#]|.*\" ~ |\s+[\"\[]")
    long = [
        f"{name}:{number}"
        for name in tracked(".sh", ".ini", ".md", ".j2", ".ci/run")
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if len(line) > 100 and not whole.match(line)
    ]
    assert not long, f"{len(long)} lines: {' '.join(long)}"


def test_only_files_py_gives_files_their_names():
    """A rename over something that is no plain file destroys it; files.py decides that once."""
    renames = {("os", "replace"), ("os", "rename"), ("os", "renames"), ("shutil", "move")}
    found = []
    for module in MODULES:
        for node in ast.walk(syntax(module)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if (node.value.id, node.attr) in renames and module != "files.py":
                    found.append(f"{module}:{node.lineno}")
            elif isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
                found += [
                    f"{module}:{node.lineno}"
                    for alias in node.names
                    if (node.module, alias.name) in renames
                ]
    assert found == []


def test_no_file_names_a_page_that_readers_do_not_have():
    """Code and docs cite docs/, not the plan that the project was written from."""
    names = tracked(".py", ".sh", ".ini", ".md", ".j2", ".toml", ".cff", ".csv", "run")
    assert not [name for name in names if re.search("DE" + "SIGN|ECO" + "SYSTEM", text_of(name))]
