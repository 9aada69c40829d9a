"""A client's side of a run's privacy settings: converts its upload into what it sends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.privacy.fold import bounded_parcel, noise_in_steps
from fedssl.privacy.guard import SumGuard
from fedssl.privacy.secure.client import SecureClient
from fedssl.privacy.secure.words import Parcel
from fedssl.privacy.stream import derive_key, run_secret
from fedssl.privacy.terms import Terms
from fedssl.privacy.update import (
    KEYS,
    WITHIN,
    bounded_update,
    clipped,
    reported_values,
    weighted_update,
    withheld,
)
from fedssl.state import State, Upload

if TYPE_CHECKING:
    from fedssl.config import Config

SECRET_FILE = "privacy-secret"


class Protector:
    """Converts uploads into what may leave a client.

    Args:
        config: the run's config.
        terms: the terms of the run.
        folder: where clients keep their memories.
    """

    def __init__(self, config: Config, terms: Terms, folder: Path) -> None:
        self.config, self.terms, self.folder = config, terms, folder

    def protect(
        self, upload: Upload, previous: State, round: int, values: Mapping[str, float], views: int
    ) -> Upload:
        """Convert the upload of a client into what it sends.

        Args:
            upload: the upload without privacy settings.
            previous: the model that it received, without what stays on the client.
            round: the round.
            values: the numbers of the broadcast.
            views: views that it has trained on.

        Returns:
            A bounded difference, or two public keys if masked integers follow; without the values that depend
            on the client's images.

        Raises:
            ValueError: if the update is not finite or has a number beyond `privacy.bound`.
        """
        terms, privacy = self.terms, self.terms.privacy
        assert isinstance(self.config.aggregation, ScaledSum)  # checked before the run begins
        rule = terms.rule_at(self.config.aggregation, round)
        if not privacy.by_client:
            update, masses = weighted_update(terms, rule, previous, upload)
            numbers = terms.encode_numbers(
                np.array([*masses.values(), *reported_values(terms, upload, views)])
            )
            parcel = Parcel(terms.grid(privacy.clip).encode(update), numbers)
            return withheld(upload, self._announce(upload.client, round, parcel))
        clip = terms.clip(values)
        update, within = bounded_update(terms, rule, previous, upload, clip)
        if not privacy.secure:
            state = {
                name: value.float() for name, value in terms.layout.unflatten(clipped(update, clip)).items()
            }
            return withheld(upload, state, {WITHIN: float(within)} if privacy.quantile else {})
        parcel = bounded_parcel(terms, update, clip)
        if privacy.quantile:
            parcel.numbers += terms.encode_numbers(np.array([0.5 if within else -0.5]))
        return withheld(upload, self._announce(upload.client, round, parcel, clip))

    def clip(self, values: Mapping[str, float]) -> float | None:
        """The clipping norm in force; None where updates are not clipped."""
        return self.terms.clip(values) if self.terms.privacy.by_client else None

    def guard(self) -> SumGuard:
        """The server's side of the same settings."""
        return SumGuard(self.config, self.terms, self._secret())

    def secure_client(self, client: int, round: int) -> SecureClient:
        """The client's part of the exchanges of a round."""
        return SecureClient(self.folder / str(client) / "secure", client, round)

    def _announce(self, client: int, round: int, parcel: Parcel, clip: float | None = None) -> State:
        noise = None
        if clip is not None:
            noise = {**noise_in_steps(self.terms, clip), "key": self._noise_key(client, round).hex()}
        keys = self.secure_client(client, round).begin(parcel, noise)
        return {KEYS: torch.frombuffer(bytearray(keys), dtype=torch.uint8)}

    def _noise_key(self, client: int, round: int) -> bytes:
        """The key of this client's share of the noise.

        At a site, a round that is repeated after a server crash may start from another global model. With the
        same noise, the difference of both uploads would contain no noise, so sites draw new noise every time.
        """
        if is_secret(self.config) and not self.config.engine.sees_clients:
            return derive_key(self._secret(), os.urandom(16).hex())
        return derive_key(self._secret(), round, "noise", client)

    def _secret(self) -> bytes:
        return run_secret(is_secret(self.config), self.config.seed, self.folder.parent / SECRET_FILE)


def is_secret(config: Config) -> bool:
    """Whether noise comes from a random secret, so that it cannot be repeated and removed."""
    random = config.privacy.random
    return random == "secret" or (random == "auto" and not config.engine.sees_clients)
