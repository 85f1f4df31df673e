"""The architectures; importing this package registers them."""

from . import lstm_dualhead, transformer_dualhead  # noqa: F401
