"""The errors that users meet: one clear line, never a traceback."""


class KlangError(ValueError):
    """Bad input. The message is one line that names the fix; `klang` prints it and exits with status 2."""


class UsageError(KlangError, SystemExit):
    """Bad input found inside one of fairseq's own commands.

    Those have no place that turns an exception into a message, but Python ends a SystemExit by printing its one
    line and exiting with status 1; as a ValueError it can still be caught by those who call the library.
    """

    def __init__(self, message):
        super().__init__(message)
        self.code = f"fairseq-klang: error: {message}"
