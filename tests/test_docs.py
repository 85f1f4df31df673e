"""The documentation: its example code prints what the page says."""

import contextlib
import io
import os
import re

from helpers.running import ROOT


def test_the_example_of_the_loss_page_prints_what_the_page_says():
    with open(os.path.join(ROOT, "docs", "loss.md"), encoding="utf-8") as stream:
        page = stream.read()
    code = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    expected = re.search(r"```text\n(.*?)```", page, re.S).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == expected
