"""The errors that users meet, and how a command tells them: one clear line, never a traceback."""

import os
import sys
from typing import Any, Callable, Iterable, Optional, Tuple


class KlangError(ValueError, SystemExit):
    """Bad input. The message is one line that names the fix; `klang` prints it and exits with
    status 2.

    fairseq's own commands have no place that turns an exception into a message, but Python ends a
    SystemExit by printing its one line and exiting with status 1. As a ValueError it can still be
    caught by who calls the library.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = f"fairseq-klang: error: {message}"


class UsageError(KlangError):
    """Options or data that do not go together in one of fairseq's commands."""


Rule = Tuple[str, Any, bool, str]  # (option, value given, whether it is legal, legal values)


def check_options(rules: Iterable[Rule]) -> None:
    """Raise UsageError for the first of `rules` that is broken."""
    for option, value, legal, values in rules:
        if not legal:
            raise UsageError(f"{option} is {value}; it must be {values}")


class NotFiniteError(KlangError, FloatingPointError):
    """A loss that is nan or inf."""


def _drop_output() -> None:
    """Send what standard output still holds nowhere, so that Python does not try again to write it
    when it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_status(program: str, action: Callable[[], Optional[int]], resumes: bool = True) -> int:
    """Run `action()` as the whole of a command; returns its exit status.

    The status is what the action returns (None is 0), 2 for bad input or a file that cannot be
    used, 130 for an interrupt, and 1 where the reader of the output has gone. Errors are one line
    on standard error.
    resumes: whether the same command, run again after an interrupt, goes on from what is complete.
    """
    try:
        status = action() or 0
        print(end="", flush=True)  # a full disk is told here, not when Python ends
        return status
    except KlangError as error:
        message = str(error)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        _drop_output()
        return 1
    except OSError as error:
        message = (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else error.strerror or str(error)
        )
        try:
            print(end="", flush=True)
        except OSError:  # it was standard output that failed, on a full disk for example
            _drop_output()
            message = f"standard output: {message}"
    except KeyboardInterrupt:
        what = (
            "; what is complete is kept, run the command again to go on"
            if resumes
            else " before it was complete; run the command again from the start"
        )
        print(f"{program}: interrupted{what}", file=sys.stderr)
        return 130
    print(f"{program}: error: " + " ".join(message.split()), file=sys.stderr)
    return 2
