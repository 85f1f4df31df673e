"""The criterions; importing this package registers them (fairseq imports a user dir's tasks and models itself, not these)."""
from . import restricted_softbleu  # noqa: F401
