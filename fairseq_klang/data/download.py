"""Fetch a file from the first of several addresses that has it whole."""

import contextlib
import http.client
import os
import shutil
import socket
import time
import urllib.error
from typing import Callable, Iterator, Sequence

from ..files import written
from .options import PrepareError
from .steps import say

ATTEMPTS = 3  # for each address, where a transfer breaks
WAIT = 2.0  # seconds before the next attempt
TIMEOUT = 30.0  # seconds without a byte


class DownloadError(PrepareError):
    """A file that cannot be fetched."""


class BrokenError(DownloadError):
    """A transfer that stopped half-way: worth another attempt."""


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    """torch.hub waits for ever without it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _fetch(url: str, path: str) -> None:
    """Fetch `url` to `path`; raises DownloadError, and BrokenError where it had begun."""
    from torch.hub import download_url_to_file

    try:
        with _timeout():
            download_url_to_file(url, path)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url}: HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"{url}: {error.reason}") from None
    except (ValueError, http.client.InvalidURL) as error:  # an address that is none
        raise DownloadError(f"{url}: {error}") from None
    except (socket.timeout, ConnectionError, http.client.HTTPException) as error:
        raise BrokenError(f"{url}: broke off ({error!r})") from None


def download(urls: Sequence[str], path: str, check: Callable[[str, str], None]) -> None:
    """Fetch a file to `path` from the first of `urls` that has it whole.

    The file takes its name only when it is checked. The caller holds the lock on its folder.

    Args:
        check: called with the fetched file and its address; raises a BrokenError for what is worth
            another attempt, a PrepareError for what is not.
    Raises:
        DownloadError: the reason of every address.
    """
    folder = f"{path}.partial"
    failures = []
    for url in urls:
        say(f"fetching {url}")
        for attempt in range(1, ATTEMPTS + 1):
            shutil.rmtree(folder, ignore_errors=True)  # also what a killed run left
            os.mkdir(folder)
            fetched = os.path.join(folder, "file")
            try:
                _fetch(url, fetched)
                check(fetched, url)
                with open(fetched, "rb") as source, written(path, "wb") as target:
                    shutil.copyfileobj(source, target)
                return
            except PrepareError as error:
                failure = str(error)
                say(f"  {failure}")
                if not isinstance(error, BrokenError):
                    break
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if attempt < ATTEMPTS:
                time.sleep(WAIT)
        failures.append(failure)
    raise DownloadError("; ".join(failures))
