"""Evaluation protocols: `fedssl eval RUN --protocol NAME`, or your own class, `./file.py:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.errors import ConfigError
from fedssl.evaluation import PROTOCOLS
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.options import Choice, choose
from fedssl.rundir import RunDir
from fedssl.threads import with_threads

SECTIONS = ("data", "probe", "semi", "detection", "device", "protocol")


class Protocol(Choice):
    """Base class of protocols. Override `evaluate`; fields are options `protocol.KEY=value`."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        """Evaluate a run.

        Args:
            run: the run. `run.measure(function)` applies a function to every trained encoder,
                `run.models.untrained()` is the encoder before training, and `run.prober()` has images,
                features and probes.

        Returns:
            Numbers by name, as JSON can store them. They are printed and appended to evaluations.jsonl.
        """
        raise TypeError(f"{type(self).__name__} does not define evaluate(run)")


def evaluate(directory: RunDir, protocol: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Run one protocol and append what it finds to the run's evaluations.jsonl.

    Args:
        directory: the run's folder.
        protocol: a name in `fedssl list protocols`, or `./file.py:Class`.
        overrides: config keys of an evaluation (data.*, probe.*, …), what the method allows, and the
            protocol's own options as `protocol.KEY`.
    """
    of_method = [f"method.{key}" for key in directory.config().method.when_evaluated]
    for key in overrides:
        if key.split(".")[0] not in SECTIONS and key not in of_method:
            known = ", ".join([*(f"{name}.*" if name != "device" else name for name in SECTIONS), *of_method])
            raise ConfigError(f"{key} has no meaning in an evaluation: only {known}")
    own = {key.split(".", 1)[1]: value for key, value in overrides.items() if key.startswith("protocol.")}
    chosen: Protocol = choose(PROTOCOLS, {**own, "name": protocol}, "protocol")
    keys = {key: value for key, value in overrides.items() if not key.startswith("protocol.")}
    with with_threads(0):
        found = chosen.evaluate(load_run(directory, keys))
    found = {"protocol": protocol, **found, "overrides": dict(overrides)}
    directory.append_evaluation(found)
    return found
