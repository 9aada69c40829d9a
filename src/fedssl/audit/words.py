"""Describes the numbers of an audit in sentences, for people who are responsible for the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.config import Config

SIMILAR = 0.15  # of a correlation, beyond what a guess reaches


def sentences(attack: str, found: Mapping[str, Any], config: Config) -> list[str]:
    """What one attack has shown.

    Args:
        attack: its name.
        found: its numbers.
        config: the config of the run.
    """
    if "why_not" in found:
        return [str(found["why_not"])]
    return {"canaries": _canaries, "membership": _membership, "inversion": _inversion}[attack](found, config)


def _canaries(found: Mapping[str, Any], config: Config) -> list[str]:
    text = [
        f"{found['count']} artificial clients (canaries) were prepared, each with a random update, and a "
        f"coin decided for each whether it takes part; {found['taking_part']} did. The attacker sees only "
        "the final model and guesses who took part."
    ]
    bound = found["lower_bound"]
    if bound > 0:
        text.append(
            f"With 95 % confidence, ε is at least {bound:.2f} (estimate: {_interval(found, 'estimate')}). "
            "The larger ε, the more clearly a single client shows."
        )
    else:
        text.append(
            "The guesses are no better than chance would allow: no loss of privacy is shown (estimate: "
            f"ε = {_interval(found, 'estimate')})."
        )
    accountant = found["accountant"]
    if accountant is None:
        text.append(
            "The run has no differential privacy, so nothing limits what can be learned about a client. "
            f"With {found['count']} canaries the bound cannot exceed ε = {found['largest_bound']:.2f}."
        )
    elif config.privacy.by_client:
        text.append(
            f"The accountant guarantees ε ≤ {accountant:.2f} (δ = {found['delta']:g}) against every attack. "
            + (
                "The measured bound is below it, as it must be."
                if bound <= accountant
                else "The measured bound is above it: the noise is too small. Please report this."
            )
        )
    return text


def _interval(found: Mapping[str, Any], name: str) -> str:
    return f"{found[name]:.2f}, interval {found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f}"


def _membership(found: Mapping[str, Any], config: Config) -> list[str]:
    text = [
        f"The attacker has the encoder, {found['members']} training images and as many others, and guesses "
        "which are which from how similar the encoder finds several views of an image. It knows half of "
        "the answers.",
        f"It ranks a training image above another one in {_percent(found['auc'])} of pairs (95 % interval "
        f"{_percent(found['auc_low'])} to {_percent(found['auc_high'])}); guessing gives 50 %.",
    ]
    for rate in found["found"]:
        limit = rate["limit"]
        text.append(
            f"With {_percent(rate['false_alarms'])} false alarms it finds {_percent(rate['share'])} of "
            f"training images ({_percent(rate['low'])} to {_percent(rate['high'])}); guessing finds "
            f"{_percent(rate['false_alarms'])}"
            + ("." if limit is None else f", and ε allows no attack more than {_percent(limit)}.")
        )
    if found["auc_low"] > 0.5:
        text.append("Anyone with the encoder learns something about which images were used.")
    else:
        text.append("This attack learns nothing. A stronger one may.")
    return text


def _inversion(found: Mapping[str, Any], config: Config) -> list[str]:
    images = "one image" if found["images"] == 1 else f"{found['images']} images"
    text = [
        f"One client trained one step on {images}, which is the easiest case for an attacker. The attacker "
        "rebuilds the views that it trained on from what it sees of the upload. 1 is a perfect copy, and "
        f"{found['guess']:.2f} is reached without the upload, by the mean image."
    ]
    for seen in found["observers"]:
        words = {
            "upload": "From the upload in clear",
            "sum": f"From the sum over {seen.get('clients')} clients, which is what secure aggregation shows",
            "noise": f"From the upload with noise {seen.get('noise')} and clipping {seen.get('clip')} "
            "(privacy.mode=client, if the attacker knows all other uploads)",
        }[seen["name"]]
        shown = seen["similarity"] > found["guess"] + SIMILAR
        text.append(f"{words}: similarity {seen['similarity']:.2f}{', the images are recognizable' * shown}.")
    text.append(_seen_by_server(config))
    return text


def _seen_by_server(config: Config) -> str:
    privacy = config.privacy
    if privacy.secure and privacy.by_client:
        return "In this run the server sees sums with noise."
    if privacy.secure:
        return "In this run the server sees sums."
    if privacy.by_client:
        return (
            "In this run the server sees bounded updates without noise, and others only see means with noise."
        )
    if privacy.by_example:
        return "In this run clients add noise in every step, so that the server sees noisy models."
    return "In this run the server sees uploads in clear."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
