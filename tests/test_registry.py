import subprocess
import sys

import pytest

from fedssl.errors import ConfigError
from fedssl.registry import Registry


def test_a_name_is_loaded_only_when_it_is_asked_for():
    registry = Registry("thing", {"good": "json:dumps", "bad": "no_such_module:thing"})
    assert registry.get("good")([1]) == "[1]"
    with pytest.raises(ConfigError, match="cannot be loaded"):
        registry.get("bad")
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        Registry("thing", {"odd": "json:nothing"}).get("odd")


def test_names_are_taken_once():
    registry = Registry("thing", {"a": "json:dumps"})
    registry.register("b", len)
    assert registry.get("b") is len
    with pytest.raises(ConfigError, match="exists already"):
        registry.register("a", len)


def test_unknown_names_are_told_what_exists():
    with pytest.raises(ConfigError, match="known: a, b"):
        Registry("thing", {"a": "x:y", "b": "x:y"}).get("quite different")


def test_summaries_come_from_the_source_without_an_import():
    code = (
        "import sys; from fedssl.methods import METHODS; print(METHODS.summary('fedema')); "
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "the further apart" in said
