"""fairseq-klang, a fairseq user directory: importing it registers the tasks, models and criterions,
and does nothing else."""

import logging

from .version import __version__

# fairseq asks for tensorboardX in the log whenever it is imported, even by a command that writes no
# log.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

try:
    import fairseq  # noqa: F401
except ImportError as error:
    # The losses, the scores and `klang doctor` work without it.
    logging.getLogger(__name__).warning(
        f"fairseq-klang needs fairseq ({error}): pip install 'fairseq-klang[fairseq]'"
    )
else:
    from . import compat

    compat.allow_checkpoint_globals()

    from . import criterions, models, tasks  # noqa: F401

__all__ = ["__version__"]
