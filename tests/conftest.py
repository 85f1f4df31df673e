"""The fixtures that all tests share: binarised toy data, and a log that is put back."""

import os

# Two workers on two cores: threads of one would wait for those of the other. Read when torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402

from helpers.running import (  # noqa: E402
    TINY_TRANSFORMER,
    binarise,
    log_as_it_was,
    run,
    train_arguments,
)


@pytest.fixture(autouse=True)
def log_as_before():
    """Some tests call commands that quieten the log, and others read what a training logs."""
    with log_as_it_was():
        yield


@pytest.fixture(scope="session")
def joined_data(tmp_path_factory):
    """Toy data with a joined dictionary."""
    return binarise(tmp_path_factory.mktemp("joined"), joined=True)


@pytest.fixture(scope="session")
def separate_data(tmp_path_factory):
    """Toy data with separate dictionaries."""
    return binarise(tmp_path_factory.mktemp("separate"), joined=False)


@pytest.fixture(scope="session")
def trained(joined_data, tmp_path_factory):
    """A checkpoint with a linear autoencoder, and the log of its training."""
    folder = tmp_path_factory.mktemp("trained")
    model = ("--arch", "transformer_dualhead", "--autoencoder", "linear", *TINY_TRANSFORMER)
    task = ("--task", "translation_autoencoding", "--ae-weight", "0.5")
    criterion = ("--criterion", "label_smoothed_cross_entropy")
    arguments = train_arguments(joined_data, folder, *model, *task, *criterion, "--max-epoch", "6")
    return folder / "checkpoint_last.pt", run("fairseq_cli.train", *arguments)
