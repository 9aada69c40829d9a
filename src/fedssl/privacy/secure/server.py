"""The server's part of secure aggregation: relays messages, adds up, and unmasks the sum."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedssl.errors import RunError
from fedssl.privacy.secure import crypto
from fedssl.privacy.secure.client import FEWEST
from fedssl.privacy.secure.words import Parcel


@dataclass(frozen=True)
class Answer:
    """The answer of a client, or the reason why it is missing."""

    client: int
    data: bytes = b""
    failure: str = ""


# Asks each client a question and yields the answers as they arrive, including failures.
Ask = Callable[[str, Mapping[int, bytes]], Iterator[Answer]]


@dataclass
class Summed:
    """The result of a round.

    Attributes:
        parcel: the sum of what `counted` clients sent.
        counted: clients whose integers are in the sum.
        asked: number of clients that shared their secrets; each added one such part of the noise.
        lost: by client, why others are not in the sum.
    """

    parcel: Parcel
    counted: list[int]
    asked: int
    lost: dict[int, str] = field(default_factory=dict)


class SecureSum:
    """Collects one sum.

    Args:
        ask: how clients are asked.
        empty: a parcel of zeros, of the right size.
        share: `privacy.threshold`.
    """

    def __init__(self, ask: Ask, empty: Parcel, share: float) -> None:
        self.ask, self.total, self.share = ask, empty, share
        self.lost: dict[int, str] = {}

    def collect(self, keys: Mapping[int, bytes]) -> Summed:
        """Run all exchanges with the clients that announced these keys.

        Raises:
            RunError: if too few clients stay to unmask the sum.
        """
        self.threshold = least(len(keys), self.share)
        if len(keys) < FEWEST:
            raise RunError(
                f"secure aggregation needs {FEWEST} clients in a round, and {len(keys)} have trained"
            )
        shared = self._share(keys)
        counted = self._mask(shared)
        self._unmask(keys, sorted(shared), counted)
        return Summed(self.total, counted, len(shared), self.lost)

    def _share(self, keys: Mapping[int, bytes]) -> dict[int, dict[str, str]]:
        """Collect the shares that each client has encrypted for the others."""
        announced = {str(client): key.hex() for client, key in sorted(keys.items())}
        question = json.dumps({"threshold": self.threshold, "keys": announced}).encode()
        found: dict[int, dict[str, str]] = {}
        for answer in self._answers("share", dict.fromkeys(keys, question), "before it shared its secrets"):
            sealed = self._parse(answer)
            if sealed is not None and sealed.keys() == announced.keys() - {str(answer.client)}:
                found[answer.client] = sealed
            else:
                self.lost.setdefault(answer.client, "its secrets are not shared with every client")
        self._enough(len(found), "have shared their secrets")
        return found

    def _mask(self, shared: Mapping[int, dict[str, str]]) -> list[int]:
        """Add up what clients send; returns the clients in the sum."""
        questions = {
            client: json.dumps(
                {str(peer): shared[peer][str(client)] for peer in sorted(shared) if peer != client}
            ).encode()
            for client in sorted(shared)
        }
        counted = []
        total = self.total
        size = len(total.tensors), len(total.numbers), 8 * total.tensors.itemsize
        for answer in self._answers("mask", questions, "before it sent its masked upload"):
            try:
                total.add(Parcel.from_bytes(answer.data, *size))
            except ValueError as error:
                self.lost[answer.client] = str(error)
            else:
                counted.append(answer.client)
        self._enough(len(counted), "have sent a masked upload")
        return sorted(counted)

    def _unmask(self, keys: Mapping[int, bytes], shared: Sequence[int], counted: Sequence[int]) -> None:
        """Ask the remaining clients for their shares, and unmask the sum."""
        lost = [client for client in shared if client not in counted]
        question = json.dumps({"there": counted, "lost": lost}).encode()
        shares: dict[int, list[bytes]] = {client: [] for client in shared}
        helped = 0
        gone: dict[int, str] = {}
        for answer in self.ask("unmask", dict.fromkeys(counted, question)):
            revealed = None if answer.failure else self._parse(answer)
            if revealed is None or revealed.keys() != {str(client) for client in shared}:
                gone[answer.client] = answer.failure  # what it sent is in the sum all the same
                continue
            helped += 1
            for client in shared:
                shares[client].append(bytes.fromhex(revealed[str(client)]))
        self._enough(helped, "have helped to unmask the sum")
        for client in shared:
            secret = combined(shares[client][: self.threshold], client)
            if client in counted:
                self.total.mask(crypto.seed_mask(secret), -1)
            else:
                self._cancel(client, secret, keys, counted)

    def _cancel(self, client: int, secret: bytes, keys: Mapping[int, bytes], counted: Sequence[int]) -> None:
        """Remove the masks that others had agreed on with a client that dropped out."""
        own = crypto.load_private(secret)
        if crypto.public_bytes(own) != keys[client][crypto.PUBLIC :]:
            raise RunError(
                f"secure aggregation: the shares of client {client}'s key do not match its public one"
            )
        for peer in counted:
            sign = 1 if peer < client else -1  # as the peer has added it
            self.total.mask(crypto.pair_mask(own, keys[peer][crypto.PUBLIC :]), -sign)

    def _answers(self, stage: str, questions: Mapping[int, bytes], when: str) -> Iterator[Answer]:
        for answer in self.ask(stage, questions):
            if answer.failure:
                self.lost[answer.client] = f"lost {when}: {answer.failure}"
            else:
                yield answer

    def _parse(self, answer: Answer) -> dict[str, str] | None:
        """A mapping from clients to texts; None if it is something else."""
        try:
            found: Any = json.loads(answer.data)
        except (ValueError, RecursionError):
            return None
        right = isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
        return found if right else None

    def _enough(self, count: int, what: str) -> None:
        if count < self.threshold:
            reasons = "; ".join(f"client {client}: {why}" for client, why in sorted(self.lost.items())[:3])
            raise RunError(
                f"secure aggregation: {count} clients {what}, and {self.threshold} are needed "
                f"(privacy.threshold={self.share:g}){f'; {reasons}' if reasons else ''}"
            )


def least(clients: int, share: float) -> int:
    """The number of a round's clients that must stay to the end."""
    return max(FEWEST - 1, math.ceil(share * clients - 1e-9))


def combined(shares: list[bytes], client: int) -> bytes:
    try:
        return crypto.combine(shares)
    except ValueError:
        raise RunError(
            f"secure aggregation: the shares of client {client}'s secret are inconsistent"
        ) from None
