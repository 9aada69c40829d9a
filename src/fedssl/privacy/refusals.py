"""Checks which settings cannot be combined; errors say what to set instead.

A guarantee only holds for what it was computed for. Settings that would tell the server more, or that need
individual uploads, are refused before the run begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.l_dawa import LDawa
from fedssl.aggregation.l_dawa_loss import LDawaLoss
from fedssl.aggregation.loss import Loss
from fedssl.aggregation.m_dawa import MDawa
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.errors import ConfigError
from fedssl.extras import require
from fedssl.privacy.accountant import epsilon, noise_for, require_accountant
from fedssl.privacy.example import check_training
from fedssl.privacy.secure.client import FEWEST
from fedssl.privacy.secure.crypto import require_secure_aggregation
from fedssl.privacy.terms import Terms
from fedssl.privacy.update import slack

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.methods.method import Aggregate

# Alternatives to methods whose server needs individual uploads.
INSTEAD = {
    "fedema": "; with a fixed method.scaler, or method.divergence=reference-code, it does not",
    "featarc": "; method.name=fedavg has one global model",
}
BOUNDED = (LDawa, MDawa)  # rules with a cosine as factor, in which all clients have equal weight


def check_config(config: Config) -> None:
    """Raise a ConfigError for settings that cannot be combined, as far as the config alone can tell."""
    privacy = config.privacy
    if privacy.mode != "none":
        require_accountant(f"privacy.mode={privacy.mode}")
        require("cryptography", "privacy", f"privacy.mode={privacy.mode}")
        _check_noise(config)
    if privacy.by_example:
        require("opacus", "privacy", "privacy.mode=example")
        check_training(config)
        _check_losses(config)
    if privacy.on or privacy.by_example:
        _check_recalibration(config)
    if privacy.secure:
        require_secure_aggregation()
    if privacy.on:
        _check_engine(config)
        _check_rule(config)
        _check_limits(config)
    if privacy.by_client:
        _check_sampling(config)

    if privacy.canaries:
        _check_canaries(config)


def _setting(config: Config) -> str:
    """The privacy setting that conflicts with another one."""
    return "privacy.mode=client" if config.privacy.by_client else "privacy.secure=true"


def _check_noise(config: Config) -> None:
    privacy = config.privacy
    if not privacy.noise:
        raise ConfigError(
            f"privacy.mode={privacy.mode} needs privacy.noise: `fedssl privacy` shows what a budget needs"
        )


def _check_recalibration(config: Config) -> None:
    if config.probe.recalibrate:
        mode = config.privacy.mode
        key = "privacy.secure=true" if mode == "none" else f"privacy.mode={mode}"
        raise ConfigError(
            "probe.recalibrate=true asks clients for statistics of their images, past the protection of "
            f"{key}: leave it out, or set model.norm=group"
        )


def _check_losses(config: Config) -> None:
    if isinstance(config.aggregation, Loss | LDawaLoss):
        raise ConfigError(
            f"aggregation.name={config.aggregation.name} weights clients by their losses, which are not "
            "covered by privacy.mode=example; use fedavg or l-dawa"
        )


def _check_engine(config: Config) -> None:
    if not config.engine.has_server:
        raise ConfigError(
            f"engine.name={config.engine.name} has no server that could sum: {_setting(config)} needs one "
            "(engine.name=local or flower); privacy.mode=example protects images without a server"
        )
    if config.method.pools_data:
        raise ConfigError(
            f"method.name={config.method.name} has all images in one place: {_setting(config)} protects "
            "clients; privacy.mode=example protects single images"
        )


def _check_rule(config: Config) -> None:
    rule, name = config.aggregation, config.aggregation.name
    if not isinstance(rule, ScaledSum) or type(rule).start is not ScaledSum.start:
        raise ConfigError(
            f"aggregation.name={name} needs individual uploads, which {_setting(config)} hides from "
            "the server; use fedavg, or l-dawa with aggregation.client_side=true"
        )
    if not isinstance(rule, FedAvg) and not rule.client_side:
        raise ConfigError(
            f"aggregation.name={name} compares individual uploads with the global model, which "
            f"{_setting(config)} hides from the server; set aggregation.client_side=true"
        )
    _check_statistics(config, rule)
    equal = isinstance(rule, FedAvg) and type(rule).known is FedAvg.known
    if config.privacy.by_client and not (equal or isinstance(rule, BOUNDED)):
        raise ConfigError(
            f"aggregation.name={name} weights clients by their images or losses, which are not covered by "
            "privacy.mode=client: all clients have equal weight; use fedavg, or l-dawa or m-dawa with "
            "aggregation.client_side=true"
        )


def _check_limits(config: Config) -> None:
    if config.participation.clip:
        raise ConfigError(
            f"participation.clip compares uploads with each other, which {_setting(config)} hides from "
            "the server: set participation.clip=0"
        )


def _check_statistics(config: Config, rule: ScaledSum) -> None:
    if config.privacy.by_client and rule.statistics == "scaled":
        raise ConfigError(
            "aggregation.statistics=scaled would scale noisy variances; with privacy.mode=client noise is "
            "added to moments: set aggregation.statistics=pooled, or method.private_norm=true, or "
            "model.norm=group"
        )


def _check_sampling(config: Config) -> None:
    if config.participation.overshoot:
        raise ConfigError(
            "participation.overshoot takes the clients that are done first; privacy.mode=client samples "
            "each client independently, as the accountant assumes: set participation.overshoot=0"
        )
    if not config.engine.sees_clients and config.checkpoint.every != 1:
        raise ConfigError(
            f"checkpoint.every={config.checkpoint.every}: at sites a round that is repeated after a crash "
            "would be released twice; privacy.mode=client needs checkpoint.every=1"
        )


def _check_canaries(config: Config) -> None:
    if config.privacy.by_example:
        raise ConfigError(
            "privacy.canaries are clients, and privacy.mode=example protects single images: their ε cannot "
            "be compared; set privacy.canaries=0"
        )
    if config.engine.name != "local":
        raise ConfigError(
            f"privacy.canaries are simulated clients, which engine.name={config.engine.name} does not have: "
            "use engine.name=local"
        )
    if config.method.pools_data:
        raise ConfigError(
            f"method.name={config.method.name} has all images in one place and no clients: "
            "set privacy.canaries=0"
        )
    if not isinstance(config.aggregation, ScaledSum):
        raise ConfigError(
            f"aggregation.name={config.aggregation.name} is not a weighted mean: canaries in it say "
            "little about ε; use fedavg or another rule that sums"
        )


# --- with the model -------------------------------------------------------------------------------


def check_terms(config: Config, terms: Terms, aggregate: Aggregate, clusters: bool) -> None:
    """Raise a ConfigError for what depends on the model and the number of clients.

    Args:
        config: the run's config.
        terms: the terms of the run.
        aggregate: what the method aggregates with.
        clusters: whether the server has several models.
    """
    _check_method(config, terms, aggregate, clusters)
    if config.privacy.by_client:
        _check_delta(terms)
        _check_budget(terms, config.rounds)
        _check_grid(terms)
        if config.privacy.secure:
            _check_small_rounds(terms, config.rounds)


def check_canaries(config: Config, shares: bool, clusters: bool) -> None:
    """Raise a ConfigError if there is no global model to look for canaries in.

    Args:
        config: the run's config.
        shares: whether clients upload anything.
        clusters: whether the server has several models.
    """
    if not shares or clusters:
        why = "has several global models" if clusters else "shares nothing"
        raise ConfigError(
            f"method.name={config.method.name} {why}: there is no single model to look for canaries in; set "
            "privacy.canaries=0"
        )


def _check_method(config: Config, terms: Terms, aggregate: Aggregate, clusters: bool) -> None:
    from fedssl.methods.method import Aggregate as Plain

    method = config.method
    if not terms.layout.shapes:
        raise ConfigError(f"method.name={method.name} shares nothing: {_setting(config)} has nothing to sum")
    if clusters or type(aggregate) is not Plain or method.relays:
        raise ConfigError(
            f"method.name={method.name} needs individual uploads on the server, which {_setting(config)} "
            f"hides{INSTEAD.get(str(method.name), '')}"
        )


def _check_delta(terms: Terms) -> None:
    if terms.privacy.delta * terms.clients >= 1:
        raise ConfigError(
            f"privacy.delta={terms.privacy.delta:g} would allow publishing all images of one of "
            f"{terms.clients} clients: set it well below {1 / terms.clients:.1g}"
        )


def _check_budget(terms: Terms, rounds: int) -> None:
    privacy = terms.privacy
    first = epsilon(terms.rate, privacy.noise, 1, privacy.delta)
    if privacy.epsilon and first > privacy.epsilon:
        needed = noise_for(privacy.epsilon, terms.rate, rounds, privacy.delta)
        raise ConfigError(
            f"privacy.epsilon={privacy.epsilon:g} does not allow a single round, which spends "
            f"{first:.4g}; for {rounds} rounds set privacy.noise={needed:g}"
        )


def _check_grid(terms: Terms) -> None:
    """Raise a ConfigError if rounding takes more than a small part of the clipping norm."""
    clip = terms.privacy.clip
    lost = slack(terms.grid(clip).step, terms.layout.size) / clip
    if lost > 0.01:
        raise ConfigError(
            f"privacy.bits={terms.privacy.bits} is too coarse for {terms.layout.size:,} numbers of "
            f"{terms.clients:,} clients: rounding would take {lost:.0%} of privacy.clip; use 64"
        )


def _check_small_rounds(terms: Terms, rounds: int) -> None:
    """Raise a ConfigError if rounds without a sum, which reveal that they had few clients, are likely."""
    from scipy.stats import binom

    chance = rounds * float(binom.cdf(FEWEST - 1, terms.clients - 1, terms.rate))
    if terms.rate < 1 and chance > terms.privacy.delta / 10:
        raise ConfigError(
            f"privacy.secure=true sums {FEWEST} clients or more, and with {terms.per_round} of "
            f"{terms.clients} per round a round may well have fewer (probability {chance:.1g} in "
            f"{rounds} rounds, privacy.delta={terms.privacy.delta:g}): raise participation.per_round"
        )
