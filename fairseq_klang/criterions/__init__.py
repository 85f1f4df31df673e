"""The criterions; importing this package registers them (fairseq imports a user dir's tasks and
models itself, not these)."""

from . import fused_cross_entropy, restricted_softbleu  # noqa: F401
