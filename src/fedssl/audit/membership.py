"""The membership attack: infers from the encoder which images it was trained on.

An encoder gives views of a training image more similar features than views of other images (Liu et al. 2021).
The attacker makes views of an image, compares their features under the trained and under the untrained
encoder, and asks how much likelier these numbers are for a member. It knows the
membership of half the images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedssl.audit.bounds import Interval, auc_interval, found_at, most_found
from fedssl.audit.canaries import spent
from fedssl.data.views import Views
from fedssl.evaluation.loaded import LoadedRun
from fedssl.rng import numpy_rng, torch_rng

Floats = NDArray[np.float64]
VIEWS = 16
BATCH = 64
FALSE_ALARMS = (0.01, 0.1)


def audit_membership(run: LoadedRun, images: int) -> dict[str, Any]:
    """Attack the encoder of a run.

    Args:
        run: the run.
        images: number of members, and of other images, at least 40.

    Returns:
        AUC, the share of members found at few false alarms, and the curve; or `why_not`.
    """
    federation, seed = run.federation, run.trained.seed
    if federation.test is None or not len(federation.train):
        return {"why_not": "There are no images of the clients here, or no test images to compare with."}
    owners = np.concatenate([np.full(len(part), client) for client, part in enumerate(federation.parts)])
    owned = np.concatenate(federation.parts)
    count = min(images, len(owned), len(federation.test))
    if count < 40:
        return {"why_not": f"{count} images are too few: 40 members and 40 test images are needed."}
    rng = numpy_rng(seed, "audit", "membership")
    chosen = rng.choice(len(owned), count, replace=False)
    members = torch.cat(
        [_shifted(run, federation.train.x[int(owned[i])][None], int(owners[i])) for i in chosen]
    )
    picked = rng.choice(len(federation.test), count, replace=False)
    borrowed = owners[rng.choice(len(owned), count, replace=False)]  # clients may shift their images
    others = torch.cat(
        [
            _shifted(run, federation.test.x[int(i)][None], int(client))
            for i, client in zip(picked, borrowed, strict=True)
        ]
    )
    encoders = [next(run.models.encoders(run.server, run.memory_rounds, 1)).module, run.models.untrained()]
    known = [_statistics(run, encoders, group, name) for group, name in ((members, "in"), (others, "out"))]
    return _result(*likelihood_ratios(*known), run, seed)


def _shifted(run: LoadedRun, image: Tensor, client: int) -> Tensor:
    return run.trained.shift.apply(image, client, run.federation.clients)


def _result(members: Floats, others: Floats, run: LoadedRun, seed: int) -> dict[str, Any]:
    auc, epsilon, delta = auc_interval(members, others, seed), spent(run), run.trained.privacy.delta
    rates = []
    for share in FALSE_ALARMS:
        if share * len(others) >= 1:
            found = found_at(members, others, share)
            limit = None if epsilon is None else most_found(share, epsilon, delta)
            rates.append({"false_alarms": share, **_plain(found), "limit": limit})
    thresholds = np.quantile(others, np.linspace(1, 0, 101))
    curve = [[float((others > t).mean()), float((members > t).mean())] for t in thresholds]
    return {
        "members": len(members),
        "views": VIEWS,
        "auc": auc.value,
        "auc_low": auc.low,
        "auc_high": auc.high,
        "found": rates,
        "curve": curve,
        "epsilon": epsilon,
    }


def _plain(interval: Interval) -> dict[str, float]:
    return {"share": interval.value, "low": interval.low, "high": interval.high}


@torch.inference_mode()
def _statistics(run: LoadedRun, encoders: list[nn.Module], images: Tensor, name: str) -> Floats:
    """By image: similarity of its views and its spread, under each encoder."""
    trained, found = run.trained, []
    views = Views.of(
        run.federation.train, trained.views, trained.objective.views, trained.data.mean, trained.data.std
    )
    rng = torch_rng(trained.seed, "audit", "views", name)
    for encoder in encoders:
        encoder.eval()
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        made = [views(batch, rng, run.device)[0] for _ in range(VIEWS)]
        found.append(np.concatenate([similarities(encoder, made) for encoder in encoders], axis=1))
    return np.concatenate(found)


def similarities(encoder: nn.Module, views: list[Tensor]) -> Floats:
    """Mean and standard deviation of the cosines between all views of an image, by image."""
    features = torch.stack([nn.functional.normalize(encoder(view).flatten(1), dim=1) for view in views], 1)
    cosines = features @ features.transpose(1, 2)
    rows, columns = torch.triu_indices(len(views), len(views), offset=1)
    pairs = cosines[:, rows, columns].double().cpu().numpy()
    return np.stack([pairs.mean(1), pairs.std(1)], axis=1)


def likelihood_ratios(members: Floats, others: Floats) -> tuple[Floats, Floats]:
    """How much likelier each image's numbers are for a member, with normal distributions.

    The distributions are fitted to one half of both groups, and the other half is scored; then the halves are
    swapped.
    """
    scores = np.zeros(len(members)), np.zeros(len(others))
    for half in (0, 1):
        fitted = [_normal(group[half::2]) for group in (members, others)]
        for group, score in zip((members, others), scores, strict=True):
            rest = group[1 - half :: 2]
            score[1 - half :: 2] = _log_density(rest, *fitted[0]) - _log_density(rest, *fitted[1])
    return scores


def _normal(group: Floats) -> tuple[Floats, Floats]:
    covariance = np.atleast_2d(np.cov(group, rowvar=False))
    ridge = 1e-6 * np.trace(covariance) / len(covariance) + 1e-12
    return group.mean(0), covariance + ridge * np.eye(len(covariance))


def _log_density(points: Floats, mean: Floats, covariance: Floats) -> Floats:
    apart = points - mean
    found: Floats = -0.5 * (apart * np.linalg.solve(covariance, apart.T).T).sum(1)
    return found - 0.5 * float(np.linalg.slogdet(covariance)[1])
