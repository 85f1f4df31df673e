"""fairseq-klang, a fairseq user directory: importing it registers the tasks, models and criterions, and does nothing else."""
try:
    import fairseq  # noqa: F401
except ImportError as error:
    raise ImportError(f"fairseq-klang needs fairseq ({error}): pip install 'fairseq-klang[fairseq]'") from None

from . import compat
from .version import __version__

compat.allow_checkpoint_globals()

from . import criterions, models, tasks  # noqa: E402,F401

__all__ = ["__version__"]
