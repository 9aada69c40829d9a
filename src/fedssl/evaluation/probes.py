"""Probes of an encoder on labeled images: one definition of each number."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError
from fedssl.evaluation import knn, linear
from fedssl.evaluation.features import BeforePooling, check_features, extract, feature_std
from fedssl.evaluation.linear import LinearProbe
from fedssl.evaluation.options import ProbeConfig
from fedssl.evaluation.scores import Scores, score
from fedssl.evaluation.subset import subset
from fedssl.rng import torch_rng


@dataclass(frozen=True)
class Prober:
    """Trains probes on one set of labeled images and tests them on another."""

    train: ImageSet
    test: ImageSet
    data: DataConfig
    config: ProbeConfig
    device: torch.device
    seed: int

    @staticmethod
    def why_not(train: ImageSet, test: ImageSet | None) -> str:
        """Why these images cannot be probed; empty if they can."""
        if train.y is None:
            return f"{train.name} has no labels"
        if test is None or test.y is None:
            return f"{train.name} has no labeled test split"
        return ""

    @property
    def classes(self) -> int:
        return len(self.test.classes)

    def images(self) -> str:
        """Describe the images of the probes."""
        return f"{self.train.name}: {len(self.train)} train, {len(self.test)} test"

    def run_all(
        self, encoder: nn.Module, protocols: list[str], classifier: nn.Module | None = None
    ) -> dict[str, Scores]:
        """Score `knn` and `linear` probes of the frozen encoder, or its own `classifier`, by protocol."""
        train, test = self.features(encoder, self.train), self.features(encoder, self.test)
        pooled = test
        if "classifier" in protocols and self.config.features != "pooled":
            pooled = self.features(encoder, self.test, pooled=True)
        return {
            protocol: self.score_classifier(classifier, pooled)
            if protocol == "classifier"
            else self.from_features(train, test, protocol)
            for protocol in protocols
        }

    def monitor(self, encoder: nn.Module) -> dict[str, float]:
        """Compute the numbers of a round: kNN accuracy, and the spread of features (0: collapsed)."""
        train, test = self.features(encoder, self.train), self.features(encoder, self.test)
        return {"knn": self.from_features(train, test, "knn").accuracy, "feature_std": feature_std(test)}

    def features(self, encoder: nn.Module, images: ImageSet, pooled: bool = False) -> Tensor:
        """Extract the features for probes: pooled, or the feature map before pooling (`probe.features`)."""
        if self.config.features == "map" and not pooled:
            encoder = BeforePooling(encoder)
        return extract(encoder, images, mean=self.data.mean, std=self.data.std, device=self.device)

    @torch.no_grad()
    def score_classifier(self, classifier: nn.Module | None, test: Tensor) -> Scores:
        """Score the classifier that the objective trained with its encoder (Dec-SL)."""
        if classifier is None:
            raise ConfigError("only objective.name=supervised trains a classifier: use linear or knn")
        assert self.test.y is not None
        check_features(test)
        predicted = classifier(test.to(self.device)).argmax(dim=1)
        return score(predicted, self.test.y, self.test.classes)

    def from_features(self, train: Tensor, test: Tensor, protocol: str) -> Scores:
        assert self.train.y is not None
        assert self.test.y is not None
        config = self.config
        if protocol == "knn":
            predicted = knn.predict(
                train, self.train.y, test, self.classes, k=config.neighbours, temperature=config.temperature
            )
        else:
            predicted = self.linear_probe(train).predict(test)
        return score(predicted, self.test.y, self.test.classes)

    def linear_probe(self, train: Tensor) -> LinearProbe:
        """Fit the linear classifier of `probe.form` to features of the training images."""
        assert self.train.y is not None
        config = self.config
        if config.form == "fast":
            fitted = linear.fit(train, self.train.y, self.classes, l2=config.l2)
            if not fitted.converged:
                warnings.warn(f"the linear probe did not converge at probe.l2={config.l2}", stacklevel=2)
            return fitted
        return linear.fit_epochs(
            train,
            self.train.y,
            self.classes,
            epochs=config.epochs,
            batch_size=config.batch_size,
            lr=config.lr,
            optimizer=config.optimizer,
            milestones=config.milestones,
            rng=torch_rng(self.seed, "linear probe"),
        )


def make_prober(
    train: ImageSet,
    test: ImageSet | None,
    data: DataConfig,
    config: ProbeConfig,
    device: torch.device,
    seed: int,
) -> Prober | None:
    """Build a prober on the images that `probe.limit` and `probe.labels` allow; None without labels."""
    if Prober.why_not(train, test):
        return None
    assert test is not None
    assert train.y is not None
    share = min(config.labels, config.limit / len(train) if config.limit else 1.0)
    if share < 1:
        train = train.subset(subset(train.y, share, seed))
    return Prober(train, test, data, config, device, seed)


def entry(protocol: str, model: str, prober: Prober, scores: Scores, untrained: Scores) -> dict[str, Any]:
    """The entry of one probe in result.json."""
    return {
        "protocol": protocol,
        "model": model,
        "images": prober.images(),
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "untrained": untrained.accuracy,
        "gain": scores.accuracy - untrained.accuracy,
        "per_class": scores.per_class,
        "confusion": scores.confusion,
    }
