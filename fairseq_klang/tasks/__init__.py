"""The tasks; importing this package registers them."""

from . import translation_autoencoding, translation_dualhead  # noqa: F401
