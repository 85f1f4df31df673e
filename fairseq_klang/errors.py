"""The errors that users meet: one clear line, never a traceback."""


class KlangError(ValueError, SystemExit):
    """Bad input. The message is one line that names the fix; `klang` prints it and exits with status 2.

    fairseq's own commands have no place that turns an exception into a message, but Python ends a SystemExit by
    printing its one line and exiting with status 1. As a ValueError it can still be caught by who calls the library.
    """

    def __init__(self, message):
        super().__init__(message)
        self.code = f"fairseq-klang: error: {message}"


class UsageError(KlangError):
    """Options or data that do not go together in one of fairseq's commands."""


class NotFiniteError(KlangError, FloatingPointError):
    """A loss that is nan or inf."""
