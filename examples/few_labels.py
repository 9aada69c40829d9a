"""Train a classifier from a few labels per class, on top of a federated encoder.

A federation trains on unlabeled digits. The classifier on its encoder is compared with one on the untrained
encoder and with a network trained from scratch.

    python examples/few_labels.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional as F

import fedssl
from fedssl.use.finetune import Tuned, finetune


def write_digits(root: Path) -> None:
    """scikit-learn's digits as PNG files: root/train/CLASS/…, root/test/CLASS/…"""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = root / ("test" if number % 3 == 0 else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(folder / f"{number:04}.png")


def train_from_scratch(root: Path, labels: int, epochs: int) -> float:
    """Test accuracy of a small convolutional network trained only on the labeled images."""

    def read(split: str, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        files = [
            (file, int(folder.name))
            for folder in sorted((root / split).iterdir())
            for file in sorted(folder.iterdir())[:count]
        ]
        pixels = np.stack([np.asarray(Image.open(file), dtype=np.float32) / 255 for file, _ in files])
        return torch.from_numpy(pixels)[:, None], torch.tensor([label for _, label in files])

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 16, 10),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    x, y = read("train", labels)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(network(x), y))
        optimizer.step()
    x, y = read("test")
    return float((network(x).argmax(dim=1) == y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--labels", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--epochs", type=int, default=100, help="epochs of training from scratch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_digits(folder / "digits")
        data = {"name": "folder", "root": str(folder / "digits"), "channels": 1}
        run = fedssl.run(
            data=data,
            rounds=options.rounds,
            views={"flip": 0},  # mirrored digits are different characters
            probe={"every": 0, "protocol": "none"},
            engine={"threads": 1},  # small networks are slower with several threads
            out=folder / "run",
            quiet=True,
        )
        print("labels per class  on the encoder  on untrained encoder   from scratch")
        for labels in options.labels:
            tuned: Tuned = finetune(run.path, folder / "digits", folder / f"{labels}", labels=labels)
            scratch = train_from_scratch(folder / "digits", labels, options.epochs)
            print(
                f"{labels:>14}{100 * tuned.scores.accuracy:>15.1f} %"
                f"{100 * tuned.untrained.accuracy:>20.1f} %{100 * scratch:>13.1f} %"
            )


if __name__ == "__main__":
    main()
