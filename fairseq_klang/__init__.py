"""fairseq-klang, a fairseq user directory.

Importing it registers the tasks, models and criterions where fairseq is loaded already, as it is in
each of fairseq's own commands, and does nothing else. The losses, the scores and the command
`klang` thus start without fairseq.
"""

import logging
import sys

from .errors import KlangError
from .version import __version__

__all__ = ["__version__", "register"]

# fairseq asks for tensorboardX in the log whenever it is imported, even by a command that writes no
# log.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def register() -> None:
    """Register the tasks, models and criterions with fairseq; a second call changes nothing.

    For a program that imports this package before fairseq. Raises KlangError, with the fix, where
    fairseq cannot be imported.
    """
    try:
        import fairseq  # noqa: F401
    except ImportError as error:
        raise KlangError(
            f"fairseq-klang needs fairseq ({error}): pip install 'fairseq-klang[fairseq]'"
        ) from None
    from . import compat

    compat.allow_checkpoint_globals()

    from . import criterions, models, tasks  # noqa: F401


if "fairseq" in sys.modules:
    register()
