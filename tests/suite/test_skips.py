"""The end of a test run lists skipped tests and how to install what was missing."""

from __future__ import annotations

import re

import pytest

from tests.suite.inner import output_of, start_pytest
from tests.suite.skips import Skip, how_to_get, summarize_skips
from tests.suite.waiting import wait_for_exit

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_a_page(number):
    pytest.skip("chromium is not installed: no page is opened")

def test_of_an_export():
    pytest.importorskip("onnxruntime_of_nobody")

def test_that_runs():
    pass
"""


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one-process", "xdist"])
def test_skipped_tests_are_listed_before_the_closing_line(tmp_path, words):
    (tmp_path / "test_whole_file.py").write_text("import pytest\npytest.importorskip('flwr_of_nobody')\n")
    process = start_pytest(tmp_path, TESTS, *words)
    assert wait_for_exit(process, "pytest should end") == 0, output_of(tmp_path)
    said = output_of(tmp_path)
    assert re.search(r"chromium is not installed: 3 tests skipped; .*apt-get install chromium", said), said
    assert re.search(r"onnxruntime_of_nobody is not installed: 1 test skipped; ", said), said
    assert re.search(r"flwr_of_nobody is not installed: 1 test file skipped; ", said), said
    assert re.fullmatch(r"1 passed, 5 skipped in [\d.]+s.*", said.strip().splitlines()[-1])


def test_no_summary_if_nothing_is_skipped(tmp_path):
    process = start_pytest(tmp_path, "def test_that_runs(): pass")
    assert wait_for_exit(process, "pytest should end") == 0, output_of(tmp_path)
    assert "skipped" not in output_of(tmp_path)


def test_lines_by_hand():
    skips = [
        Skip("could not import 'flwr': No module named 'flwr'", True),
        Skip("could not import 'flwr.app': No module named 'flwr'", False),
        Skip("could not import 'flwr': No module named 'flwr'", True),
        Skip("needs a GPU", False),
    ]
    assert list(summarize_skips(skips)) == [
        "flwr is not installed: 1 test and 2 test files skipped; to run them: `pip install 'fedssl[flower]'`",
        "needs a GPU: 1 test skipped",
    ]


def test_every_extra_is_known_by_its_packages():
    assert how_to_get("onnxscript") == "`pip install 'fedssl[onnx]'`"
    assert how_to_get("datasets") == "`pip install 'fedssl[huggingface]'`"
    assert how_to_get("lightly") == "`pip install 'fedssl[dev]'`"
    assert how_to_get("unheard_of") == "`pip install unheard_of`"
