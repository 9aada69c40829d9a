import pytest

from fedssl.config import Config, load, parse_overrides
from fedssl.errors import ConfigError


def test_a_config_survives_being_written_and_read_again(tmp_path):
    import tomli_w

    config = load(
        None, {"method.name": "fedema", "method.tau": 0.5, "participation.per_round": 0.25, "seed": 3}
    )
    file = tmp_path / "config.toml"
    file.write_text(tomli_w.dumps(config.to_dict()))
    assert load(file) == config
    assert load(file).method.tau == 0.5


def test_command_line_values_are_typed():
    parsed = parse_overrides(["train.lr=1e-3", "method.name=fedema", "rounds=3", "method.update_both=true"])
    assert parsed == {"train.lr": 1e-3, "method.name": "fedema", "rounds": 3, "method.update_both": True}


def test_a_bare_word_sets_the_main_key_of_its_section():
    config = load(None, {"objective": "byol", "method": "fedema", "data": "mnist5k", "partition": "iid"})
    assert (config.objective.name, config.method.name) == ("byol", "fedema")
    assert (config.data.name, config.partition.scheme) == ("mnist5k", "iid")


def test_count_and_share_of_clients_are_distinguished():
    assert isinstance(load(None, parse_overrides(["participation.per_round=1"])).participation.per_round, int)
    assert isinstance(
        load(None, parse_overrides(["participation.per_round=1.0"])).participation.per_round, float
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.name=simclrr", "did you mean simclr"),
        ("method.name=fedemma", "did you mean fedema"),
        ("partition.scheme=dirichlett", "did you mean dirichlet"),
        ("aggregation.name=fedavgg", "did you mean fedavg"),
        ("train.lrr=0.1", "did you mean lr"),
        ("trian.lr=0.1", "did you mean train"),
        ("method.tau=0.1", "unknown key 'method.tau' of method"),  # FedAvg has no τ: not silently ignored
        ("train.optimizer=sgdd", "did you mean sgd"),
        ("train.lr=fast", "train.lr='fast'"),
        ("rounds=0", "rounds=0"),
        ("train.batch_size=1", "train.batch_size=1"),
        ("rounds.more=1", "rounds"),
        ("method.name=./nowhere.py:Mine", "cannot be loaded"),
    ],
)
def test_wrong_keys_and_values_name_the_nearest_right_one(override, said):
    with pytest.raises(ConfigError, match=None) as caught:
        load(None, parse_overrides([override]))
    assert said in str(caught.value)


def test_a_word_without_equals_sign_is_an_error():
    with pytest.raises(ConfigError, match="not key=value"):
        parse_overrides(["rounds"])


def test_missing_and_broken_files_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="no config file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load(broken)


def test_every_key_has_a_description():
    from fedssl.commands.help import describe
    from fedssl.commands.keys import CHOICES

    text = describe()
    assert "None" not in text
    for section in Config.model_fields:
        assert section in text
    for section, registry in CHOICES.items():
        for name in registry:
            for field in registry.get(name).model_fields:
                assert f"{section}.{field}" in text


def test_a_users_method_is_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pydantic import Field\n"
        "from fedssl.methods.fedavg import FedAvg\n"
        "class Mine(FedAvg):\n"
        "    strength: float = Field(1.0, description='of it')\n"
    )
    config = load(None, {"method.name": f"{file}:Mine", "method.strength": 2.0})
    assert config.method.strength == 2.0
    assert load(config.to_dict()).method.strength == 2.0
