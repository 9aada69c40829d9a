"""A client's part of secure aggregation. Its secrets are in its own folder until they are used.

Every exchange is answered once and in order: a client that masked the same numbers twice, or revealed both
the seed and the key of a peer, would reveal what the masks hide.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.privacy.secure import crypto
from fedssl.privacy.secure.words import Parcel
from fedssl.privacy.stream import Stream

FEWEST = 3  # clients of a sum: with two, each could compute the other's part from the result
STAGES = ("keys", "share", "mask", "unmask")


class Refused(Exception):
    """A request that a client does not answer, with the reason."""


class SecureClient:
    """One client in the exchanges of one round.

    Args:
        folder: for its secrets, on the client's own disk.
        client: the client's number.
        round: the round.
    """

    def __init__(self, folder: Path, client: int, round: int) -> None:
        self.folder, self.client, self.round = folder, client, round

    def begin(self, parcel: Parcel, noise: dict[str, Any] | None = None) -> bytes:
        """Store the integers to be summed, and announce two public keys.

        Args:
            parcel: the client's integers.
            noise: its share of the noise: `tensors` and `numbers` (standard deviation of the sum's noise, in
                steps) and `key`; None: no noise.

        Returns:
            The public keys, for encryption and for masks.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        encryption, masks = crypto.new_key(), crypto.new_key()
        announced = crypto.public_bytes(encryption) + crypto.public_bytes(masks)
        self._write("parcel", parcel.to_bytes())
        state = {
            "round": self.round,
            "stage": "keys",
            "size": [len(parcel.tensors), len(parcel.numbers), 8 * parcel.tensors.itemsize],
            "noise": noise,
            "encryption": crypto.private_bytes(encryption).hex(),
            "masks": crypto.private_bytes(masks).hex(),
            "announced": announced.hex(),
        }
        self._save(state)
        return announced

    def answer(self, stage: str, data: bytes) -> bytes:
        """Answer one exchange; `Refused` if it comes out of order or asks for what must stay secret."""
        answers: dict[str, Callable[[dict[str, Any], Any], bytes]] = {
            "share": self._share,
            "mask": self._mask,
            "unmask": self._unmask,
        }
        try:
            state, asked = self._load(), json.loads(data)
            if stage not in answers or STAGES.index(stage) != STAGES.index(state["stage"]) + 1:
                raise Refused(f"was asked for {stage!r} after {state['stage']!r}")
            self._save({**state, "stage": stage})  # first, so that it is not answered again
            return answers[stage]({**state, "stage": stage}, asked)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"cannot answer {stage!r}: {error}") from None

    def forget(self) -> None:
        """Delete all secrets."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- exchanges ----------------------------------------------------------------------------

    def _share(self, state: dict[str, Any], asked: Any) -> bytes:
        """Split the seed and the masks' private key among all clients, encrypted for each."""
        keys = {int(peer): bytes.fromhex(key) for peer, key in asked["keys"].items()}
        threshold = int(asked["threshold"])
        if keys.get(self.client) != bytes.fromhex(state["announced"]):
            raise Refused("the list of keys does not contain its own")
        if len(keys) < FEWEST or not len(keys) / 2 < threshold <= len(keys):
            raise Refused(f"{threshold} of {len(keys)} clients are too few to unmask a sum")
        own, seed = crypto.load_private(bytes.fromhex(state["encryption"])), crypto.new_seed()
        peers = sorted(keys)
        seeds = crypto.split(seed, threshold, len(peers))
        secrets = crypto.split(bytes.fromhex(state["masks"]), threshold, len(peers))
        sealed = {}
        for peer, of_seed, of_key in zip(peers, seeds, secrets, strict=True):
            text = json.dumps([self.round, self.client, peer, of_seed.hex(), of_key.hex()]).encode()
            if peer == self.client:
                state["own share"] = of_seed.hex()
            else:
                shared = crypto.agree(own, keys[peer][: crypto.PUBLIC])
                sealed[str(peer)] = crypto.encrypt(shared, text)
        state |= {"seed": seed.hex(), "threshold": threshold, "keys": asked["keys"]}
        self._save(state)
        return json.dumps(sealed).encode()

    def _mask(self, state: dict[str, Any], asked: Any) -> bytes:
        """The client's integers with noise and masks, for those who have shared their secrets."""
        keys = {int(peer): bytes.fromhex(key) for peer, key in state["keys"].items()}
        received = {int(peer): str(text) for peer, text in asked.items()}
        peers = sorted({*received, self.client})
        if self.client in received or not keys.keys() >= received.keys():
            raise Refused("shares of clients that announced no keys")
        if len(peers) < max(FEWEST, state["threshold"]):
            raise Refused(f"only {len(peers)} clients have shared their secrets")
        state["received"] = {str(peer): text for peer, text in received.items()}
        parcel = Parcel.from_bytes(self._read("parcel"), *state["size"])
        (self.folder / "parcel").unlink()
        if state["noise"]:
            add_noise(parcel, **state["noise"], share=1 / len(peers))
        parcel.mask(crypto.seed_mask(bytes.fromhex(state["seed"])), 1)
        own = crypto.load_private(bytes.fromhex(state["masks"]))
        for peer in received:
            parcel.mask(crypto.pair_mask(own, keys[peer][crypto.PUBLIC :]), 1 if self.client < peer else -1)
        self._save(state)
        return parcel.to_bytes()

    def _unmask(self, state: dict[str, Any], asked: Any) -> bytes:
        """Shares of the seeds of those whose integers are in the sum, and of the keys of those lost."""
        there, lost = {int(peer) for peer in asked["there"]}, {int(peer) for peer in asked["lost"]}
        peers = {int(peer) for peer in state["received"]} | {self.client}
        if there & lost or there | lost != peers or self.client not in there:
            raise Refused("a client cannot be in the sum and lost at once")
        if len(there) < max(FEWEST - 1, state["threshold"]):
            raise Refused(f"a sum of {len(there)} clients would reveal too much about each")
        own = crypto.load_private(bytes.fromhex(state["encryption"]))
        revealed = {str(self.client): state["own share"]}
        for peer, text in state["received"].items():
            announced = bytes.fromhex(state["keys"][peer])[: crypto.PUBLIC]
            opened = json.loads(crypto.decrypt(crypto.agree(own, announced), text))
            if opened[:3] != [self.round, int(peer), self.client]:
                raise Refused(f"a share of client {peer} that was meant for another client")
            revealed[peer] = opened[3 if int(peer) in there else 4]
        self.forget()
        return json.dumps(revealed).encode()

    # --- files --------------------------------------------------------------------------------

    def _load(self) -> dict[str, Any]:
        file = self.folder / "state.json"
        if not file.exists():
            raise Refused("has no secrets of this round: it was started again, or has used them")
        state: dict[str, Any] = json.loads(file.read_bytes())
        if state["round"] != self.round:
            raise Refused(f"has secrets of round {state['round']}, not of round {self.round}")
        return state

    def _save(self, state: dict[str, Any]) -> None:
        self._write("state.json", json.dumps(state).encode())

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def _write(self, name: str, data: bytes) -> None:
        temporary = self.folder / f".{name}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, self.folder / name)


def add_noise(parcel: Parcel, tensors: float, numbers: float, key: str, share: float) -> None:
    """Add a share of the sum's Gaussian noise, rounded to integers.

    Args:
        parcel: what it is added to.
        tensors: standard deviation of the total noise on tensor values, in steps of their grid.
        numbers: the same for the numbers next to them.
        key: hexadecimal key that the noise is drawn from.
        share: the share of the variance that is added here.
    """
    stream = Stream(bytes.fromhex(key))
    for words, deviation in ((parcel.tensors, tensors), (parcel.numbers, numbers)):
        if deviation:
            drawn = stream.normal(len(words)) * (deviation * math.sqrt(share))
            words += np.rint(drawn).astype(np.int64).astype(words.dtype)
