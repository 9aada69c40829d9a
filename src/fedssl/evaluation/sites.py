"""Probes at sites with labels: each trains and tests them on its own images, and sends the accuracies.

The images that a probe is tested on were not used to train the probe. The encoder has seen them without
labels, like all images of the site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.config import Config
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.engines.live import ServerRun
from fedssl.engines.measurements import one_encoder
from fedssl.engines.recalibration import recalibrates
from fedssl.engines.tasks import Measure, Outcome, Task
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.options import ProbeConfig
from fedssl.evaluation.probes import Prober
from fedssl.rng import torch_rng
from fedssl.state import Broadcast
from fedssl.statistics import mean_and_spread

# --- at a site ------------------------------------------------------------------------------------


def probe_own_images(
    encoder: nn.Module,
    untrained: nn.Module | None,
    images: ImageSet,
    config: ProbeConfig,
    data: DataConfig,
    device: torch.device,
    seed: int,
) -> dict[str, float]:
    """Accuracies of probes that are trained and tested on these images.

    Args:
        encoder: the encoder to be probed.
        untrained: the encoder before round 1, for the probes of a run's end; None: only the kNN monitor.
        images: the images of the site.
        config, data: sections of the run's config.
        device: where features are computed.
        seed: which images are for testing.

    Returns:
        Numbers by name, such as `linear.accuracy` and `linear.untrained`; `tested` images.

    Raises:
        DataError: the images have no labels, or too few.
    """
    prober = _own_prober(images, config, data, device, seed)
    tested = {"tested": float(len(prober.test))}
    if untrained is None:
        return prober.monitor(encoder) | tested
    protocols, found = final_protocols(config), tested
    before = prober.run_all(untrained, protocols)
    for protocol, scores in prober.run_all(encoder, protocols).items():
        found |= {
            f"{protocol}.accuracy": scores.accuracy,
            f"{protocol}.macro_f1": scores.macro_f1,
            f"{protocol}.untrained": before[protocol].accuracy,
        }
    return found


def _own_prober(
    images: ImageSet, config: ProbeConfig, data: DataConfig, device: torch.device, seed: int
) -> Prober:
    if images.y is None:
        raise DataError("no probe: the images have no labels (one folder for each class)")
    train, test = split(images.y, data.test_fraction, seed)
    if len(torch.unique(images.y[test])) < 2:
        raise DataError("no probe: fewer than two classes have two images or more")
    return Prober(images.subset(train), images.subset(test), data, config, device, seed)


def split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and testing: of each class with two images or more, that share (at least one)."""
    train, test = [], []
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = members[torch.randperm(len(members), generator=torch_rng(seed, "split", label))]
        held = min(max(1, round(fraction * len(members))), len(members) - 1)
        test.append(order[:held])
        train.append(order[held:])
    return torch.cat(train).sort().values, torch.cat(test).sort().values


def final_protocols(config: ProbeConfig) -> list[str]:
    """The probes of a run's end."""
    return {"linear": ["linear", "knn"], "knn": ["knn"], "none": []}[config.protocol]


# --- at the server --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What sites sent: numbers by client, and why others sent none."""

    numbers: dict[int, dict[str, float]]
    reasons: dict[int, str]

    def of(self, name: str) -> list[float]:
        return [values[name] for values in self.numbers.values()]


class SiteProbes:
    """Asks the sites of a run for probes while they are connected."""

    def __init__(self, config: Config, live: ServerRun, names: Sequence[str]) -> None:
        self.config, self.live, self.names = config, live, names

    @staticmethod
    def of(config: Config, live: ServerRun) -> SiteProbes | None:
        """None where no site is asked.

        Raises:
            ConfigError: accuracies cannot be asked for in this run.
        """
        if not config.probe.at_sites:
            return None
        if config.engine.sees_clients:
            raise ConfigError(
                "probe.at_sites=true is for `fedssl server`; in a simulation, use "
                "`fedssl eval RUN --protocol local protocol.train=own`"
            )
        if config.privacy.on or config.privacy.by_example:
            raise ConfigError(
                "probe.at_sites=true: accuracies would leave the sites without the noise and masks of the "
                "section privacy"
            )
        return SiteProbes(config, live, tuple(getattr(config.engine, "sites", ())))

    def monitor(self) -> dict[str, float]:
        """The kNN monitor: mean and spread over sites; nothing if no site has labels."""
        answers = self._ask("monitor", ("knn", "feature_std"))
        if not answers.numbers:
            return {}
        mean, spread = mean_and_spread(answers.of("knn"))
        found = {"site_knn": mean, "site_feature_std": mean_and_spread(answers.of("feature_std"))[0]}
        return found if spread is None else found | {"site_knn_spread": spread}

    def final(self) -> list[dict[str, Any]]:
        """Entries of result.json: each probe of the run's end, mean and spread over sites."""
        protocols = final_protocols(self.config.probe)
        names = [
            f"{protocol}.{what}" for protocol in protocols for what in ("accuracy", "macro_f1", "untrained")
        ]
        answers = self._ask("probes", names) if protocols else Answers({}, {})
        return [self._entry(protocol, answers) for protocol in protocols] if answers.numbers else []

    def _entry(self, protocol: str, answers: Answers) -> dict[str, Any]:
        accuracy, spread = mean_and_spread(answers.of(f"{protocol}.accuracy"))
        untrained, _ = mean_and_spread(answers.of(f"{protocol}.untrained"))
        count, tested = len(answers.numbers), sum(answers.of("tested"))
        return {
            "protocol": f"{protocol} at sites",
            "model": "global" if one_encoder(self.live.runner) else "each site's own",
            "images": f"own images of {count} {'site' if count == 1 else 'sites'}: {tested:.0f} test",
            "accuracy": accuracy,
            "spread": spread,
            "macro_f1": mean_and_spread(answers.of(f"{protocol}.macro_f1"))[0],
            "untrained": untrained,
            "gain": accuracy - untrained,
            "per_class": [],
            "confusion": [],
            "sites": [
                {
                    "site": self._name(client),
                    "images": int(values["tested"]),
                    "accuracy": values[f"{protocol}.accuracy"],
                    "untrained": values[f"{protocol}.untrained"],
                }
                for client, values in answers.numbers.items()
            ],
            "left_out": [
                {"site": self._name(client), "reason": reason} for client, reason in answers.reasons.items()
            ],
        }

    def _name(self, client: int) -> str:
        return self.names[client]

    def _ask(self, measure: Measure, names: Sequence[str]) -> Answers:
        live, number = self.live, self.config.rounds + 1
        server, shared = live.server, one_encoder(live.runner)
        fresh = live.recalibration.of(server.model) if shared and recalibrates(self.config) else {}
        model = {**server.model, **fresh}
        tasks = [
            Task(
                number,
                client,
                Broadcast(model)
                if shared
                else self.config.method.broadcast(server.seen_by(client), client, number),
                live.memory_rounds.get(client, 0),
                measure=measure,
            )
            for client in range(live.federation.clients)
        ]
        return read_answers(list(live.ask(tasks)), names)


def read_answers(outcomes: Sequence[Outcome], names: Sequence[str]) -> Answers:
    """Check what sites sent: shares from 0 to 1, but for the spread of features and the number of images."""
    numbers: dict[int, dict[str, float]] = {}
    reasons: dict[int, str] = {}
    for outcome in outcomes:
        values: Mapping[str, float] = {} if outcome.upload is None else outcome.upload.values
        wanted = {name: float(values.get(name, math.nan)) for name in (*names, "tested")}
        if outcome.upload is None:
            reasons[outcome.client] = outcome.failure or "no answer"
        elif not all(math.isfinite(value) and 0 <= value <= _largest(name) for name, value in wanted.items()):
            reasons[outcome.client] = "sent numbers that cannot be accuracies"
        else:
            numbers[outcome.client] = wanted
    return Answers(dict(sorted(numbers.items())), dict(sorted(reasons.items())))


def _largest(name: str) -> float:
    return math.inf if name in ("tested", "feature_std") else 1.0
