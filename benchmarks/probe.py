"""The fast linear probe against scikit-learn's LogisticRegression, and the kNN monitor's time and memory.

Both classifiers standardize the same float32 features and minimize the same function (C = 1/(l2·N));
scikit-learn stops at its default tolerance. They take turns, and the fastest of the repeats counts.
Features are made in two ways: independent ones, and rectified mixtures of a few factors, which are
as correlated as those of an encoder.

    python benchmarks/probe.py [--rows 10000] [--features 512] [--classes 10] [--repeat 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from ratios import Ratio, report
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedssl.evaluation import knn, linear

L2 = 1e-3


def independent(rows: int, features: int, classes: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.randint(classes, (rows,), generator=rng)
    centers = torch.randn(classes, features, generator=rng) * 0.08
    return torch.randn(rows, features, generator=rng) + centers[y], y


def correlated(rows: int, features: int, classes: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.randint(classes, (rows,), generator=rng)
    centers = torch.randn(classes, 64, generator=rng) * 0.3
    factors = torch.randn(rows, 64, generator=rng) + centers[y]
    mixing = torch.randn(64, features, generator=rng) * torch.logspace(0, -2, 64)[:, None]
    return (factors @ mixing + 0.02 * torch.randn(rows, features, generator=rng) + 0.1).relu(), y


def ours(x: Tensor, y: Tensor, test: Tensor, classes: int) -> tuple[float, Tensor]:
    start = time.perf_counter()
    probe = linear.fit(x, y, classes, l2=L2)
    seconds = time.perf_counter() - start
    assert probe.converged
    return seconds, probe.predict(test)


def theirs(x: Tensor, y: Tensor, test: Tensor) -> tuple[float, Tensor]:
    start = time.perf_counter()
    scaler = StandardScaler()
    model = LogisticRegression(C=1 / (L2 * len(x)), max_iter=5000)
    model.fit(scaler.fit_transform(x.numpy()), y.numpy())
    seconds = time.perf_counter() - start
    return seconds, torch.from_numpy(model.predict(scaler.transform(test.numpy())))


def compare(options: argparse.Namespace) -> list[Ratio]:
    ratios = []
    for make in (independent, correlated):
        rng = torch.Generator().manual_seed(0)
        x, y = make(options.rows + 2000, options.features, options.classes, rng)
        train, test, labels, truth = x[:-2000], x[-2000:], y[:-2000], y[-2000:]
        mine, sklearns = [], []
        for _ in range(options.repeat):
            seconds, predicted = ours(train, labels, test, options.classes)
            mine.append(seconds)
            seconds, reference = theirs(train, labels, test)
            sklearns.append(seconds)
        right, reference_right = (float((each == truth).double().mean()) for each in (predicted, reference))
        what = f"linear probe against scikit-learn, {make.__name__} {options.rows:,} × {options.features}"
        note = f"{min(mine):.2f} and {min(sklearns):.2f} s; accuracy {right:.4f} and {reference_right:.4f}"
        ratios.append(Ratio(what, min(mine) / min(sklearns), most=1.2, note=note))
    return ratios


def neighbours(options: argparse.Namespace) -> Ratio:
    rng = torch.Generator().manual_seed(0)
    train, test = (torch.randn(rows, options.features, generator=rng) for rows in (50_000, 10_000))
    y = torch.randint(options.classes, (50_000,), generator=rng)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    knn.predict(train, y, test, options.classes)
    note = f"{time.perf_counter() - start:.1f} s"
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return Ratio("kNN, 50,000 × 10,000: memory", megabytes, "MB", most=1024, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description="probe speed against scikit-learn")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory = neighbours(options)  # first, so that nothing else has raised the peak memory
    report([*compare(options), memory])


if __name__ == "__main__":
    main()
