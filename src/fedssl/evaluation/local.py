"""Local test: each client's model on test images with the client's own mix of classes (Dec-SSL, C.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from torch import nn

from fedssl.data.images import ImageSet
from fedssl.evaluation.clients import apply_shift_of, labeled, linear_scores, of_same_style, parts_of
from fedssl.evaluation.linear import LinearProbe
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.models import digest
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scores import Scores, mean_scores, score
from fedssl.evaluation.subset import same_class_mix
from fedssl.models.tuned import Tuned


class Local(Protocol):
    """A linear probe of each client's model, tested on test images with the client's class proportions.

    A client's model is its personal one or its cluster's if the method has these, else the global one. Its
    test images are the largest random sample of the test split (of its domains, if there are any) with the
    class proportions of its training images, with the client's shift. The result is the mean over clients.
    """

    train: Literal["all", "own"] = Field(
        "all",
        description="training images of the probe: those of all clients, each with its client's shift, or "
        "the client's own",
    )

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, test = labeled(run)
        seen = apply_shifts(run, train)
        shared = SharedProbes(run.prober(seen, test))
        scores, untrained, rows = [], [], []
        for client, part in enumerate(parts_of(run)):
            if not len(part):
                continue
            images = local_test(run, train.subset(part), of_same_style(train, test, part), client)
            own = run.models.of_client(run.server, run.memory_rounds, client).module
            pair = []
            for encoder in (own, run.models.untrained()):
                if self.train == "all":
                    pair.append(shared.score(encoder, images))
                else:
                    pair.append(linear_scores(run.prober(seen.subset(part), images), encoder))
            scores.append(pair[0])
            untrained.append(pair[1])
            numbers = {"accuracy": pair[0].accuracy, "untrained": pair[1].accuracy}
            rows.append({"client": client, "images": len(images), **numbers})
        model = f"{run.models.kind_of_client}, mean of {len(rows)} clients"
        found = entry("local", model, shared.prober, mean_scores(scores), mean_scores(untrained))
        source = "all clients' train" if self.train == "all" else "each client's own train"
        return {**found, "images": f"{train.name}: {source}, its class mix of test", "clients": rows}


def local_test(run: LoadedRun, own: ImageSet, test: ImageSet, client: int) -> ImageSet:
    """The test images of a client whose training images are `own`."""
    assert own.y is not None
    assert test.y is not None
    return apply_shift_of(client, run, test.subset(same_class_mix(test.y, own.y, run.config.seed, client)))


def apply_shifts(run: LoadedRun, train: ImageSet) -> ImageSet:
    """Apply to the training images the shift of their clients."""
    if run.trained.shift.name == "none":
        return train
    x = train.x.clone()
    for client, part in enumerate(parts_of(run)):
        x[part] = apply_shift_of(client, run, train.subset(part)).x
    return replace(train, x=x)


class SharedProbes:
    """Fits one linear probe per distinct encoder."""

    def __init__(self, prober: Prober) -> None:
        self.prober = prober
        self.known: dict[str, LinearProbe] = {}

    def score(self, encoder: nn.Module, test: ImageSet) -> Scores:
        """Scores of an encoder's probe on these test images."""
        prober = replace(self.prober, test=test)
        if isinstance(encoder, Tuned):  # fits its tuned part and its probe together
            return linear_scores(prober, encoder)
        key = digest(encoder)
        if key not in self.known:
            self.known[key] = prober.linear_probe(prober.features(encoder, prober.train))
        assert test.y is not None
        predicted = self.known[key].predict(prober.features(encoder, test))
        return score(predicted, test.y, test.classes)
