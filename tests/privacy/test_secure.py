"""Secure aggregation: exact sums with any dropouts, and nothing but the sum is revealed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from fedssl.errors import RunError
from fedssl.privacy.secure import crypto
from fedssl.privacy.secure.client import Refused, SecureClient
from fedssl.privacy.secure.server import Answer, SecureSum, least
from fedssl.privacy.secure.words import Parcel

TENSORS, NUMBERS = 33, 3


class Site:
    """A client with its own integers; `dies` is the exchange before which it drops out."""

    def __init__(self, folder: Path, number: int, dies: str = "", bits: int = 64) -> None:
        rng = np.random.default_rng(number)
        self.parcel = Parcel(
            rng.integers(0, 1 << 31, TENSORS).astype(f"<u{bits // 8}"),
            rng.integers(0, 1 << 63, NUMBERS).astype("<u8"),
        )
        self.client, self.dies = SecureClient(folder / str(number), number, round=4), dies

    def answer(self, stage: str, data: bytes) -> Answer:
        number = self.client.client
        if stage == self.dies:
            return Answer(number, failure="the power failed")
        try:
            return Answer(number, self.client.answer(stage, data))
        except Refused as refused:
            return Answer(number, failure=str(refused))


class Wire:
    """Transports questions and answers, and records every byte."""

    def __init__(self, sites: dict[int, Site]) -> None:
        self.sites, self.seen = sites, list[tuple[str, int, bytes]]()

    def ask(self, stage: str, questions: Mapping[int, bytes]) -> Iterator[Answer]:
        for number, data in questions.items():
            answer = self.sites[number].answer(stage, data)
            self.seen.append((stage, number, answer.data))
            yield answer


def collect(sites: dict[int, Site], share: float = 0.66, bits: int = 64):
    wire = Wire(sites)
    keys = {number: site.client.begin(site.parcel) for number, site in sites.items()}
    summed = SecureSum(wire.ask, Parcel.zeros(TENSORS, NUMBERS, bits), share).collect(keys)
    return summed, wire


def plain_sum(sites: dict[int, Site], numbers: list[int]) -> Parcel:
    """Without masks: Python integers, cut to their bits."""
    bits = 8 * next(iter(sites.values())).parcel.tensors.itemsize
    tensors = [sum(int(sites[n].parcel.tensors[i]) for n in numbers) % 2**bits for i in range(TENSORS)]
    others = [sum(int(sites[n].parcel.numbers[i]) for n in numbers) % 2**64 for i in range(NUMBERS)]
    return Parcel(np.array(tensors, dtype=f"<u{bits // 8}"), np.array(others, dtype="<u8"))


def same(a: Parcel, b: Parcel) -> bool:
    return bool((a.tensors == b.tensors).all() and (a.numbers == b.numbers).all())


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_is_exact(bits: int, tmp_path: Path) -> None:
    sites = {number: Site(tmp_path, number, bits=bits) for number in (0, 3, 4, 9)}
    summed, _ = collect(sites, bits=bits)
    assert summed.counted == [0, 3, 4, 9]
    assert summed.lost == {}
    assert same(summed.parcel, plain_sum(sites, [0, 3, 4, 9]))


@pytest.mark.parametrize("stage", ["share", "mask", "unmask"])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_lost_client_only_misses_in_the_sum(stage: str, number: int, tmp_path: Path) -> None:
    sites = {each: Site(tmp_path, each, dies=stage if each == number else "") for each in range(5)}
    summed, _ = collect(sites)
    # After its masked upload it is in the sum already: others have shares of its seed.
    counted = [each for each in range(5) if each != number or stage == "unmask"]
    assert summed.counted == counted
    assert same(summed.parcel, plain_sum(sites, counted))
    assert list(summed.lost) == ([] if stage == "unmask" else [number])
    assert all("the power failed" in reason for reason in summed.lost.values())


def test_three_of_ten_are_lost_at_different_stages(tmp_path: Path) -> None:
    dies = {1: "share", 4: "mask", 7: "unmask"}
    sites = {each: Site(tmp_path, each, dies.get(each, "")) for each in range(10)}
    summed, _ = collect(sites)
    counted = [0, 2, 3, 5, 6, 7, 8, 9]
    assert summed.counted == counted
    assert summed.asked == 9
    assert same(summed.parcel, plain_sum(sites, counted))


def test_messages_do_not_reveal_a_clients_integers(tmp_path: Path) -> None:
    """On the wire a client's integers look random: as far from the truth as from anything else."""
    sites = {number: Site(tmp_path, number) for number in range(3)}
    _, wire = collect(sites)
    masked = {number: data for stage, number, data in wire.seen if stage == "mask"}
    for number, site in sites.items():
        sent = Parcel.from_bytes(masked[number], TENSORS, NUMBERS, 64)
        assert not (sent.tensors == site.parcel.tensors).any()
        own = site.parcel.to_bytes()
        for _, _, data in wire.seen:
            assert not any(own[at : at + 8] in data for at in range(0, len(own), 8))


def test_a_mask_is_uniform(tmp_path: Path) -> None:
    """The highest bit of masked zeros is set half of the time (n = 20,000: within 5 standard deviations)."""
    folder = tmp_path / "0"
    sites = {number: Site(tmp_path, number) for number in range(3)}
    for site in sites.values():
        site.parcel = Parcel.zeros(20_000, 0, 64)
    wire = Wire(sites)
    keys = {number: site.client.begin(site.parcel) for number, site in sites.items()}
    total = SecureSum(wire.ask, Parcel.zeros(20_000, 0, 64), 1.0).collect(keys).parcel
    assert not total.tensors.any()
    (sent,) = (
        np.frombuffer(data, "<u8") for stage, number, data in wire.seen if (stage, number) == ("mask", 0)
    )
    assert abs((sent >> np.uint64(63)).mean() - 0.5) < 5 * 0.5 / np.sqrt(20_000)
    assert not folder.exists()  # secrets are deleted


def test_too_few_clients_stay(tmp_path: Path) -> None:
    sites = {each: Site(tmp_path, each, dies="mask" if each < 2 else "") for each in range(4)}
    with pytest.raises(
        RunError, match=r"2 clients have sent a masked upload, and 3 are needed.*power failed"
    ):
        collect(sites)
    with pytest.raises(RunError, match="needs 3 clients in a round, and 2 have trained"):
        collect({each: Site(tmp_path, each) for each in range(2)})


@pytest.mark.parametrize(
    ("clients", "share", "expected"), [(3, 0.66, 2), (10, 0.66, 7), (10, 1.0, 10), (50, 0.66, 33)]
)
def test_the_number_of_clients_that_must_stay(clients: int, share: float, expected: int) -> None:
    assert least(clients, share) == expected


# --- what a client refuses --------------------------------------------------------------------------


def begun(tmp_path: Path, count: int = 4) -> tuple[dict[int, Site], dict[str, str]]:
    sites = {number: Site(tmp_path, number) for number in range(count)}
    return sites, {str(n): site.client.begin(site.parcel).hex() for n, site in sites.items()}


def shared(sites: dict[int, Site], keys: dict[str, str]) -> dict[int, bytes]:
    """The question `mask` for every client."""
    question = json.dumps({"threshold": 3, "keys": keys}).encode()
    sealed = {n: json.loads(site.client.answer("share", question)) for n, site in sites.items()}
    return {n: json.dumps({str(m): sealed[m][str(n)] for m in sites if m != n}).encode() for n in sites}


def test_an_exchange_is_answered_once_and_in_order(tmp_path: Path) -> None:
    sites, keys = begun(tmp_path)
    client = sites[0].client
    with pytest.raises(Refused, match="asked for 'mask' after 'keys'"):
        client.answer("mask", b"{}")
    questions = shared(sites, keys)
    client.answer("mask", questions[0])
    with pytest.raises(Refused, match="asked for 'mask' after 'mask'"):
        client.answer("mask", questions[0])
    everybody = json.dumps({"there": [0, 1, 2, 3], "lost": []}).encode()
    client.answer("unmask", everybody)
    with pytest.raises(Refused, match="has used them"):
        client.answer("unmask", everybody)


def test_a_client_does_not_reveal_seed_and_key_of_a_peer(tmp_path: Path) -> None:
    for there, lost, message in (
        ([0, 1, 2, 3], [1], "in the sum and lost at once"),
        ([0, 1, 2], [], "in the sum and lost at once"),
        ([1, 2, 3], [0], "in the sum and lost at once"),
        ([0, 1], [2, 3], "would reveal too much"),
    ):
        sites, keys = begun(tmp_path)
        questions = shared(sites, keys)
        sites[0].client.answer("mask", questions[0])
        with pytest.raises(Refused, match=message):
            sites[0].client.answer("unmask", json.dumps({"there": there, "lost": lost}).encode())


def test_a_client_refuses_too_few_peers(tmp_path: Path) -> None:
    sites, keys = begun(tmp_path)
    two = {number: keys[number] for number in ("0", "1")}
    with pytest.raises(Refused, match="2 of 2 clients are too few"):
        sites[0].client.answer("share", json.dumps({"threshold": 2, "keys": two}).encode())
    with pytest.raises(Refused, match="2 of 4 clients are too few"):
        sites[1].client.answer("share", json.dumps({"threshold": 2, "keys": keys}).encode())
    with pytest.raises(Refused, match="does not contain its own"):
        sites[2].client.answer(
            "share", json.dumps({"threshold": 3, "keys": {**keys, "2": keys["3"]}}).encode()
        )


def test_a_share_for_another_client_is_refused(tmp_path: Path) -> None:
    sites, keys = begun(tmp_path)
    questions = shared(sites, keys)
    mixed = json.loads(questions[0])
    mixed["1"] = json.loads(questions[2])["1"]  # what client 1 encrypted for client 2
    sites[0].client.answer("mask", json.dumps(mixed).encode())
    with pytest.raises(Refused, match="not encrypted for this client"):
        sites[0].client.answer("unmask", json.dumps({"there": [0, 1, 2, 3], "lost": []}).encode())


def test_secrets_belong_to_one_owner_and_round(tmp_path: Path) -> None:
    sites, _ = begun(tmp_path)
    folder = sites[0].client.folder
    assert {file.stat().st_mode & 0o077 for file in (folder, *folder.iterdir())} == {0}
    with pytest.raises(Refused, match="of round 4, not of round 5"):
        SecureClient(folder, 0, round=5).answer("share", b"{}")
    shutil.rmtree(folder)
    with pytest.raises(Refused, match="has no secrets of this round"):
        sites[0].client.answer("share", b"{}")


@pytest.mark.parametrize(
    ("stage", "nonsense"), [("share", b"[]"), ("share", b"{}"), ("mask", b"12345"), ("unmask", b"\xff")]
)
def test_invalid_answers_are_refused(stage: str, nonsense: bytes, tmp_path: Path) -> None:
    class Vandal(Site):
        def answer(self, asked: str, data: bytes) -> Answer:
            return Answer(3, nonsense) if asked == stage else super().answer(asked, data)

    sites = {number: (Vandal if number == 3 else Site)(tmp_path, number) for number in range(5)}
    summed, _ = collect(sites)
    counted = [0, 1, 2, 3, 4] if stage == "unmask" else [0, 1, 2, 4]
    assert summed.counted == counted
    assert same(summed.parcel, plain_sum(sites, counted))


def test_shares_below_the_threshold_reveal_nothing() -> None:
    secret = crypto.new_seed()
    shares = crypto.split(secret, 3, 5)
    assert crypto.combine(shares[1:4]) == secret
    try:
        found = crypto.combine(shares[:2])
    except ValueError:
        found = b""
    assert found != secret
