import subprocess
import sys

import pytest

from fedssl.aggregation import AGGREGATIONS
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.methods import METHODS
from fedssl.registry import Registry


def test_a_name_is_loaded_on_first_use():
    registry = Registry("thing", {"good": "json:dumps", "bad": "no_such_module:thing"})
    assert registry.get("good")([1]) == "[1]"
    with pytest.raises(ConfigError, match="cannot be loaded"):
        registry.get("bad")
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        Registry("thing", {"odd": "json:nothing"}).get("odd")


def test_names_cannot_be_registered_twice():
    registry = Registry("thing", {"a": "json:dumps"})
    registry.register("b", len)
    assert registry.get("b") is len
    with pytest.raises(ConfigError, match="exists already"):
        registry.register("a", len)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigError, match="known: a, b"):
        Registry("thing", {"a": "x:y", "b": "x:y"}).get("quite different")


def test_summaries_come_from_the_source_without_an_import():
    code = (
        "import sys; from fedssl.methods import METHODS; print(METHODS.summary('fedema')); "
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "the further both diverge" in said


def test_only_the_right_kind_of_class_is_accepted(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedssl.aggregation.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n\n\nnumber = 3\n"
    )
    assert AGGREGATIONS.get(f"{file}:Mine").__name__ == "Mine"
    for name in ("Mine", "number"):
        with pytest.raises(ConfigError, match=r"must be a subclass of fedssl.methods.method.Method") as error:
            METHODS.get(f"{file}:{name}")
        said = f"it is an aggregation: aggregation.name={file}:Mine"
        assert (said in str(error.value)) == (name == "Mine")


@pytest.mark.parametrize(
    ("key", "word", "name"),
    [
        ("method.name", "FedEMA", "fedema"),
        ("objective.name", "SimCLR", "simclr"),
        ("aggregation.name", "L-DAWA", "l-dawa"),
        ("partition.scheme", "IID", "iid"),
        ("data.name", "CIFAR10", "cifar10"),
        ("data.name", "MNIST+SVHN", "mnist+svhn"),
        ("model.encoder", "ResNet18", "resnet18"),
    ],
)
def test_names_are_not_case_sensitive(key, word, name):
    section, _, main = key.partition(".")
    assert load(None, {key: word}) == load(None, {key: name})
    assert load(None, {key: word}).to_dict()[section][main] == name


def test_a_name_of_another_kind_is_explained():
    with pytest.raises(
        ConfigError, match=r"unknown method 'l-dawa': it is an aggregation: aggregation.name=l-dawa"
    ):
        METHODS.get("l-dawa")
    with pytest.raises(
        ConfigError, match=r"unknown aggregation 'knn': it is a protocol: eval --protocol=knn"
    ):
        AGGREGATIONS.get("knn")


def test_a_file_that_does_not_run_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    for _ in range(2):  # nothing of a broken module stays behind
        with pytest.raises(ConfigError, match=r"broken.py:Mine' cannot be loaded: ZeroDivisionError"):
            METHODS.get(f"{file}:Mine")
