"""check: compares the results and speed of a device with the CPU."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedssl.commands.command import Command
from fedssl.errors import RunError

if TYPE_CHECKING:
    from fedssl.api import Run

# Relative to the distance that training covers. Rounding differences of single precision are below 0.01 per
# round, those of TF32 (which PyTorch allows in convolutions on a GPU) below 0.1; bugs give about 1.
TOLERANCE = 0.2
KEYS = {"rounds": 1, "probe.every": 0, "probe.protocol": "none", "log.tensorboard": False}


class Comparison(NamedTuple):
    """One round on two devices.

    Attributes:
        difference: distance between the two encoders.
        moved: mean distance between a client's model and the global one after training on the CPU.
    """

    difference: float
    moved: float

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE * self.moved


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="config of the test run", help="what to train")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:1, mps")


def _check(options: argparse.Namespace) -> None:
    from fedssl.config import parse_overrides
    from fedssl.engines.device import find_device

    device = str(find_device(options.device))
    first = options.words[:1]
    file = first[0] if first and "=" not in first[0] else None
    given = parse_overrides(options.words[1:] if file else options.words)
    exact = {**KEYS, **given, "train.precision": "fp32"}
    with tempfile.TemporaryDirectory() as folder:
        print(f"one round on the CPU and on {device}, in single precision")
        on_cpu = _round(file, {**exact, "device": "cpu"}, Path(folder) / "cpu")
        on_device = _round(file, {**exact, "device": device}, Path(folder) / "device")
        found = compare(on_cpu, on_device)
        _show("cpu, fp32", on_cpu)
        _show(f"{device}, fp32", on_device)
        if device.startswith("cuda"):
            mixed = {**KEYS, **given, "device": device, "train.precision": "bf16"}
            _show(f"{device}, bf16", _round(file, mixed, Path(folder) / "mixed"))
    share = found.difference / found.moved
    summary = f"the encoders differ by {share:.2%} of the distance that training covers"
    if not found.agrees:
        raise RunError(f"{summary}, more than {TOLERANCE:.0%}: {device} does not compute what the CPU does")
    print(f"ok: {summary} (limit {TOLERANCE:.0%})")


def _round(file: str | None, keys: dict[str, Any], out: Path) -> Run:
    from fedssl.api import run

    return run(file or {}, out=out, quiet=True, **keys)


def _show(what: str, run: Run) -> None:
    line = run.metrics[0]
    print(f"  {what:<14} {run.result['views_per_second']:>8,.0f} views/s   loss {line['loss']:.4f}")


def compare(one: Run, other: Run) -> Comparison:
    """Return the distance between the encoders of two runs, and how far the first one moved in training."""
    from fedssl.state import distance

    a, b = (run.encoder.state_dict() for run in (one, other))
    names = [name for name, parameter in one.encoder.named_parameters()]
    return Comparison(distance(a, b, names), one.metrics[0]["divergence"])


COMMANDS = {"check": Command("compare one round on a GPU with the CPU", _arguments, _check)}
