"""The aggregation rule and server optimizer of a run."""

from __future__ import annotations

from fedssl.aggregation.products import on_products
from fedssl.aggregation.rule import Rule
from fedssl.config import Config
from fedssl.errors import ConfigError
from fedssl.methods.boundary import Boundary
from fedssl.methods.method import ENCODER, ServerTools
from fedssl.models.adapters import factor_names
from fedssl.models.model import Model


def server_tools(config: Config, model: Model) -> ServerTools:
    shared = set(Boundary.of(config.method, model).travels)
    return ServerTools(
        rule=_rule(config, model),
        optimizer=config.server,
        statistics=model.statistics() & shared,
        parameters=frozenset(model.parameters_under(ENCODER)) & shared,
    )


def _rule(config: Config, model: Model) -> Rule:
    """The aggregation rule; with `train.lora_mean=product`, applied to the products of adapters."""
    rule, train = config.aggregation, config.train
    if not train.lora or train.lora_mean != "product":
        return rule
    refused = {
        f"engine.name={config.engine.name}": not config.engine.has_server,
        "aggregation.client_side=true": getattr(rule, "client_side", False),
        f"server.optimizer={config.server.optimizer}": config.server.optimizer != "none",
        "the section privacy": config.privacy.on,
    }
    for setting, wrong in refused.items():
        if wrong:
            raise ConfigError(
                f"train.lora_mean=product multiplies the factors of every upload at the server, which "
                f"{setting} does not allow; use train.lora_mean=freeze-a"
            )
    shared = set(Boundary.of(config.method, model).travels)
    return on_products(rule, [pair for pair in factor_names(model) if shared.issuperset(pair)])
