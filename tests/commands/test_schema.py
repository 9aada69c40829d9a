"""The published schema agrees with the config's validation."""

import json
from pathlib import Path

import jsonschema
import pytest
from tests.small import SMALL

from fedssl.commands.schema import schema
from fedssl.config import from_values, load
from fedssl.errors import ConfigError
from fedssl.methods import METHODS
from fedssl.objectives import OBJECTIVES

PUBLISHED = Path(__file__).parents[2] / "docs" / "fedssl.schema.json"


@pytest.fixture(scope="module")
def validator():
    found = schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


GOOD = [
    {},
    SMALL,
    {"data": "digits", "method": "fedema", "rounds": 3},
    {"method": {"name": "fedema", "tau": 0.5}},
    {"partition": {"clients": 4}},  # of the default scheme
    {"method": {"name": "./mine.py:Mine", "anything": 1}},
    {"aggregation": "./mine.py:Mine"},
]
BAD = [
    {"round": 3},
    {"rounds": "many"},
    {"rounds": 0},
    {"method": "fedemma"},
    {"method": {"name": "fedema", "taau": 0.5}},
    {"method": {"name": "fedavg", "tau": 0.5}},
    {"method": {"name": "fedema", "tau": 2.0}},
    {"train": {"optimizer": "sdg"}},
    {"data": {"nam": "digits"}},
]


@pytest.mark.parametrize("values", GOOD)
def test_valid_configs_match_the_schema(values, validator):
    assert list(validator.iter_errors(values)) == []
    if "./mine.py:Mine" not in str(values):
        from_values(values)


@pytest.mark.parametrize("values", BAD)
def test_invalid_configs_do_not_match_the_schema(values, validator):
    assert list(validator.iter_errors(values))
    with pytest.raises(ConfigError):
        from_values(values)


@pytest.mark.parametrize("section", ["method", "objective"])
def test_every_resolved_config_is_valid(section, validator):
    for name in {"method": METHODS, "objective": OBJECTIVES}[section]:
        resolved = json.loads(json.dumps(load({section: name}).to_dict()))
        assert list(validator.iter_errors(resolved)) == [], name


def test_the_published_file_is_up_to_date():
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == json.loads(json.dumps(schema()))
