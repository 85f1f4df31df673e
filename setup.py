"""Package metadata: what pip installs, the console command, and the extras that choose a
fairseq."""

import os
import re

from setuptools import find_packages, setup

HERE = os.path.dirname(os.path.abspath(__file__))


def read(*parts):
    with open(os.path.join(HERE, *parts), encoding="utf-8") as stream:
        return stream.read()


VERSION = re.search(r'^__version__ = "(.+)"', read("fairseq_klang", "version.py"), re.M).group(1)

# The module `fairseq` comes from several distributions that overwrite each other's files, so none
# of them is a hard requirement: the extra names the one that installs cleanly for each Python.
FAIRSEQ = [
    'fairseq==0.12.2; python_version < "3.11"',
    've-fairseq==0.12.3; python_version == "3.11" or python_version == "3.12"',
    'fairseq-fixed==0.12.3.1; python_version > "3.12"',
]

# Older converters still read checkpoints with the torch of fairseq 0.12.2.
EXPORT = [
    'ctranslate2==4.5.0; python_version < "3.11"',
    'ctranslate2==4.8.5; python_version >= "3.11"',
]

# Pinned, so that a release of theirs changes no verdict; types are checked against today's torch.
CHECKS = ["ruff==0.17.6", 'mypy==2.4.1; python_version >= "3.11"']

setup(
    name="fairseq-klang",
    version=VERSION,
    description=(
        "A differentiable, collision-restricted BLEU and dual-head translation models for fairseq"
    ),
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="GPL-3.0-or-later",
    python_requires=">=3.8",
    packages=find_packages(include=["fairseq_klang", "fairseq_klang.*"]),
    package_data={"fairseq_klang.experiments": ["recipes.ini"]},
    install_requires=[
        "torch>=1.12",
        "numpy",
        "sacrebleu>=2.0",
        "sacremoses",
        "subword-nmt",
        "sentencepiece",
        "tqdm",
        "scipy",
        "matplotlib",
        "filelock",
        "jinja2",
        "pandas",
        "tabulate",
    ],
    extras_require={
        "fairseq": FAIRSEQ,
        "export": EXPORT,
        "analysis": ["scikit-learn"],
        "test": ["pytest", "pytest-xdist", "hypothesis", "scikit-learn", *CHECKS, *EXPORT],
    },
    entry_points={"console_scripts": ["klang = fairseq_klang.cli:main"]},
    classifiers=[
        "License :: OSI Approved :: GNU General Public License v3 or later (GPLv3+)",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
)
