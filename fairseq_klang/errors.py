"""The errors that users meet, and how a command tells them: one clear line, never a traceback."""
import os
import sys


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


def exit_status(program, action):
    """Run `action()` as the whole of a command; returns its exit status.

    That is what the action returns (None is 0), 2 for bad input or a file that cannot be used, 130 for an interrupt, and
    1 where the reader of the output has gone. Errors are one line on standard error.
    """
    try:
        return action() or 0
    except KlangError as error:
        message = str(error)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except KeyboardInterrupt:
        print(f"{program}: interrupted; what is complete is kept, run the command again to go on", file=sys.stderr)
        return 130
    print(f"{program}: error: " + " ".join(message.split()), file=sys.stderr)
    return 2
