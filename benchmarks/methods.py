"""The cost of a method: a round relative to FedAvg's, or to the passes that its definition requires.

FedEMA, FedU and L-DAWA add no pass through the network to FedAvg with BYOL, only reading and writing client
memories, and measuring distances or angles. Ditto and APFL train two networks. FeatARC passes every image
through its two cluster models and the client's own model once per round, and through the chosen cluster model
once more. FedStyle passes every image and its outlines through the style model once per round, and its
infused features through a generator, the projector and a second loss (style extraction, once per client, is
over before the clock starts). These passes are made on ready-made tensors, with nothing else. Everything
takes turns.

    python benchmarks/methods.py [--encoder resnet8] [--width 16] [--steps 16] [--rounds 2]
                                 [--against fedavg,passes]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from pacing import config_of, in_turns, random_images, ratio, repeated, whole_run
from ratios import Ratio, report
from throughput import Bare
from torch import Tensor

from fedssl.config import Config
from fedssl.methods.style import build_generator
from fedssl.objectives.simclr import nt_xent

CLIENTS = 5


class Passes(Bare):
    """The passes of one round of a method with SimCLR."""

    def __init__(self, config: Config, steps: int, needs: Needs) -> None:
        super().__init__(config, CLIENTS * steps)
        self.infused, width = needs.infused, self.model.part("encoder")(self.views[0][:2]).shape[1]
        self.generator = build_generator(width, 256)
        self.second = Bare(config, CLIENTS * steps) if needs.networks == 2 else None
        self.frozen = copy.deepcopy(self.model).eval()
        self.images = torch.cat(self.views)[: config.train.batch_size]
        self.seen = CLIENTS * steps * needs.seen_a_round

    def __call__(self) -> None:
        super().__call__()
        if self.second is not None:
            self.second()
        with torch.no_grad():
            for _ in range(self.seen):
                self.frozen.part("encoder")(self.images)

    def loss(self) -> Tensor:
        if not self.infused:
            return super().loss()
        features = self.model.part("encoder")(torch.cat(self.views))
        infused = self.generator(torch.cat((features, features.detach()), dim=1))
        projector = self.model.part("projector")
        return nt_xent(projector(features), 0.5) + nt_xent(projector(infused), 0.5)


class Needs(NamedTuple):
    """The passes that the definition of a method requires."""

    networks: int = 1  # that train
    seen_a_round: int = 0  # passes of all images through a frozen network
    infused: bool = False  # FedStyle's second loss


def against_fedavg(options: argparse.Namespace, file: Path, folder: Path) -> list[Ratio]:
    rivals: dict[str, dict[str, str]] = {
        "FedEMA": {"method": "fedema"},
        "FedU": {"method": "fedu"},
        "L-DAWA": {"aggregation": "l-dawa"},
    }
    settings = {"model__encoder": options.encoder, "model__width": options.width, "objective": "byol"}
    runs = {
        name: whole_run(config_of(file, **settings, **chosen), folder / name)
        for name, chosen in {"FedAvg": {}, **rivals}.items()
    }
    seconds = in_turns(runs, options.rounds)
    return [
        Ratio(
            f"a round of {name} against FedAvg, BYOL, {options.encoder} width {options.width}",
            ratio(seconds[name], seconds["FedAvg"]),
            most=1.03,
        )
        for name in rivals
    ]


SETTINGS = {"fedstyle": {"method.style_epochs": 1}, "featarc": {"method.target": "projection"}}


def against_passes(options: argparse.Namespace, file: Path, folder: Path) -> list[Ratio]:
    needed = {
        "ditto": Needs(networks=2),
        "apfl": Needs(networks=2),
        "featarc": Needs(seen_a_round=4),
        "fedstyle": Needs(seen_a_round=2, infused=True),
    }
    ratios = []
    for name, needs in needed.items():
        settings = SETTINGS.get(name, {})
        config = config_of(
            file, model__encoder=options.encoder, model__width=options.width, method=name, **settings
        )
        plain = config_of(file, model__encoder=options.encoder, model__width=options.width)
        plays = {
            "run": whole_run(config, folder / name),
            "passes": repeated(partial(Passes, plain, options.steps, needs)),
        }
        seconds = in_turns(plays, options.rounds)
        ratios.append(
            Ratio(
                f"a round of {name} against its passes, SimCLR, {options.encoder} width {options.width}",
                ratio(seconds["run"], seconds["passes"]),
                most=1.05,
            )
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16, help="of a client in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", default="fedavg,passes")
    options = parser.parse_args()
    measures = {"fedavg": against_fedavg, "passes": against_passes}
    if unknown := set(options.against.split(",")) - set(measures):
        parser.error(f"--against {', '.join(sorted(unknown))}: there are {', '.join(measures)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        file = random_images(folder, CLIENTS * options.steps * 128)
        for name in options.against.split(","):
            report(measures[name](options, file, folder))


if __name__ == "__main__":
    main()
