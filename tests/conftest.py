"""The fixtures that all tests share: binarised toy data, and log levels that are put back."""

import logging

import pytest

from helpers.running import binarise


def loggers():
    """{name: logger} of every logger there is, the root under the name ''."""
    made = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    return {"": logging.root, **made}


@pytest.fixture(autouse=True)
def log_levels():
    """Puts back every logger's level: some tests call commands that quieten the log, and others
    read what a training logs."""
    levels, disabled = (
        {name: logger.level for name, logger in loggers().items()},
        logging.root.manager.disable,
    )
    yield
    for name, logger in loggers().items():
        logger.setLevel(levels.get(name, logging.NOTSET))
    logging.disable(disabled)


@pytest.fixture(scope="session")
def joined_data(tmp_path_factory):
    """Toy data with a joined dictionary."""
    return binarise(tmp_path_factory.mktemp("joined"), joined=True)


@pytest.fixture(scope="session")
def separate_data(tmp_path_factory):
    """Toy data with separate dictionaries."""
    return binarise(tmp_path_factory.mktemp("separate"), joined=False)
