"""Incompatible settings are refused before the run starts, and the message says what to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedssl import extras
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.privacy.refusals import check_config
from tests.small import SMALL, small_run

DP: dict[str, Any] = {"privacy.mode": "client", "privacy.noise": 1.0}
SECURE: dict[str, Any] = {"privacy.secure": True}
CANARIES: dict[str, Any] = {"privacy.canaries": 20}
EXAMPLE: dict[str, Any] = {"privacy.mode": "example", "privacy.noise": 1.0, "objective": "byol"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy.noise": 1.0}, r"privacy\.noise=1\.0.*no effect with privacy\.mode=none: client uses it"),
        ({"privacy.epsilon": 3.0}, r"privacy\.epsilon=3\.0.*no effect with privacy\.mode=none"),
        ({"privacy.quantile": 0.5}, r"privacy\.quantile=0\.5.*no effect"),
        ({"privacy.random": "secret"}, r"privacy\.random.*no effect"),
        ({"privacy.bits": 32}, r"privacy\.bits=32.*no effect without privacy\.secure=true"),
        ({"privacy.threshold": 0.9}, r"privacy\.threshold=0\.9.*no effect without privacy\.secure=true"),
        ({"privacy.mode": "clients"}, "did you mean client"),
        ({"privacy.clp": 1.0}, r"unknown key 'privacy\.clp'.*did you mean clip"),
    ],
)
def test_a_key_without_effect_is_an_error(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(SMALL, keys)


BY_CONFIG = [
    ({"privacy.mode": "client"}, r"needs privacy\.noise: `fedssl privacy` shows what a budget needs"),
    ({**DP, "engine.name": "gossip"}, r"engine\.name=gossip has no server.*privacy\.mode=client needs one"),
    ({**SECURE, "engine.name": "gossip"}, r"has no server that could sum: privacy\.secure=true needs one"),
    ({**DP, "method": "centralized"}, r"has all images in one place: privacy\.mode=client protects clients"),
    ({**SECURE, "method": "centralized"}, r"all images in one place: privacy\.secure=true"),
    ({**DP, "aggregation": "krum"}, r"name=krum needs individual uploads, which privacy\.mode=client"),
    (
        {**SECURE, "aggregation": "median"},
        r"name=median needs individual uploads, which privacy\.secure=true",
    ),
    ({**SECURE, "aggregation": "trimmed-mean"}, r"needs individual uploads.*use fedavg, or l-dawa with"),
    ({**DP, "aggregation": "l-dawa"}, r"compares individual uploads.*set aggregation\.client_side=true"),
    ({**SECURE, "aggregation": "loss"}, r"compares individual uploads.*set aggregation\.client_side=true"),
    *(
        (
            {**DP, "aggregation.name": rule, "aggregation.client_side": True},
            rf"name={rule} weights clients by their images or losses.*all clients have equal weight",
        )
        for rule in ("loss", "euc", "l-dawa-fedavg", "l-dawa-loss")
    ),
    ({**DP, "aggregation.statistics": "scaled"}, r"statistics=scaled would scale noisy variances"),
    (
        {**DP, "probe.recalibrate": True},
        r"recalibrate=true asks clients.*of privacy\.mode=client",
    ),
    ({**SECURE, "probe.recalibrate": True}, r"past the protection of privacy\.secure=true"),
    ({**DP, "participation.overshoot": 0.2}, r"samples each client independently.*set participation\.overs"),
    (
        {**DP, "engine.name": "flower", "engine.sites": ["a", "b"], "checkpoint.every": 2},
        r"checkpoint\.every=2: at sites a round.*needs checkpoint\.every=1",
    ),
    ({**DP, "aggregation": "fedexp"}, r"name=fedexp needs individual uploads, which privacy\.mode=client"),
    ({**DP, "participation.clip": 3.0}, r"participation\.clip compares uploads.*set participation\.clip=0"),
    ({**SECURE, "participation.clip": 3.0}, r"participation\.clip compares.*privacy\.secure=true"),
    (
        {**CANARIES, "privacy.mode": "example", "privacy.noise": 1.0, "objective": "byol"},
        r"canaries are clients, and privacy\.mode=example protects single images",
    ),
    ({**CANARIES, "engine.name": "gossip"}, r"simulated clients, which engine\.name=gossip does not have"),
    ({**CANARIES, "method": "centralized"}, r"all images in one place and no clients.*canaries=0"),
    ({**CANARIES, "aggregation": "krum"}, r"name=krum is not a weighted mean.*use fedavg"),
]


@pytest.mark.parametrize(("keys", "message"), BY_CONFIG)
def test_invalid_configs_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load(SMALL, keys))


ALLOWED = [
    DP,
    SECURE,
    {**DP, **SECURE},
    {**DP, "aggregation.name": "l-dawa", "aggregation.client_side": True},
    {**DP, "aggregation.name": "m-dawa", "aggregation.client_side": True},
    *(
        {**SECURE, "aggregation.name": rule, "aggregation.client_side": True}
        for rule in ("euc", "l-dawa-loss")
    ),
    {**DP, "aggregation.name": "fixed-norms"},
    {},
]


@pytest.mark.parametrize("keys", ALLOWED)
def test_valid_combinations_are_accepted(keys: dict[str, Any]) -> None:
    check_config(load(SMALL, keys))


BY_MODEL = [
    ({**DP, "objective": "byol", "method": "fedema"}, r"fedema needs individual uploads.*method\.scaler"),
    ({**SECURE, "objective": "byol", "method": "fedema"}, r"fedema needs individual.*privacy\.secure=true"),
    ({**DP, "method": "featarc"}, r"name=featarc needs individual uploads on the server.*fedavg"),
    ({**DP, "method": "standalone"}, r"standalone shares nothing: privacy\.mode=client has nothing to sum"),
    ({**DP, "privacy.delta": 0.3}, r"delta=0\.3 would allow publishing all images of one of 5 clients"),
    ({**DP, "privacy.epsilon": 0.5}, r"does not allow a single round, which spends.*set privacy\.noise="),
    (
        {**DP, **SECURE, "partition.clients": 10, "participation.per_round": 4},
        r"4 of 10 per round a round may well have fewer.*raise participation\.per_round",
    ),
    (
        {**DP, **SECURE, "privacy.bits": 32, "privacy.noise": 1e5},
        r"bits=32 is too coarse for [\d,]+ numbers of 5 clients: rounding would take .*; use 64",
    ),
    ({**CANARIES, "method": "featarc"}, r"name=featarc has several global models.*privacy\.canaries=0"),
    ({**CANARIES, "method": "standalone"}, r"name=standalone shares nothing: there is no single model"),
]


@pytest.mark.parametrize(("keys", "message"), BY_MODEL)
def test_settings_invalid_for_the_model_are_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        small_run(tmp_path / "run", **keys)
    assert not (tmp_path / "run").exists()  # the corrected command can use the same folder


@pytest.mark.parametrize(
    ("keys", "missing", "message"),
    [
        (DP, "dp_accounting", r"privacy\.mode=client needs dp_accounting: pip install 'fedssl\[privacy\]'"),
        (DP, "cryptography", r"needs cryptography: pip install 'fedssl\[privacy\]'"),
        (EXAMPLE, "opacus", r"privacy\.mode=example needs opacus: pip install 'fedssl\[privacy\]'"),
        (SECURE, "flwr", r"privacy\.secure=true needs flwr: pip install 'fedssl\[flower\]'"),
    ],
)
def test_a_missing_extra_is_named(
    keys: dict[str, Any], missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = extras.installed
    monkeypatch.setattr(extras, "installed", lambda package: package != missing and there(package))
    with pytest.raises(ConfigError, match=message):
        check_config(load(SMALL, keys))
