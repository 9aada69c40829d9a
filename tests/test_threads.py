"""Threads of PyTorch, and work that runs ahead."""

import threading
import time

import pytest
import torch

from fedssl.threads import run_ahead, with_threads


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with with_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with with_threads(0):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def ahead_threads() -> int:
    return sum(thread.name == "fedssl-ahead" for thread in threading.enumerate())


def test_items_come_in_their_order_with_the_same_random_numbers():
    def draws(rng):
        return (torch.rand(3, generator=rng) for _ in range(20))

    plain = list(draws(torch.Generator().manual_seed(1)))
    ahead = list(run_ahead(draws(torch.Generator().manual_seed(1))))
    assert all(torch.equal(a, b) for a, b in zip(plain, ahead, strict=True))
    assert ahead_threads() == 0


def test_at_most_depth_items_are_prefetched():
    made = []

    def items():
        for number in range(50):
            made.append(number)
            yield number

    for used, _ in enumerate(run_ahead(items(), depth=2), start=1):
        time.sleep(0.001)
        assert len(made) <= used + 4  # used, two that wait, one in hand, one being made
    assert made == list(range(50))


def test_an_error_is_raised_at_its_position():
    def items():
        yield 1
        raise ValueError("no second item")

    got = []
    with pytest.raises(ValueError, match="no second item"):
        got.extend(run_ahead(items()))
    assert got == [1]
    assert ahead_threads() == 0


def test_stopping_early_ends_the_thread():
    endless = iter(int, 1)
    source = run_ahead(endless)
    assert next(source) == 0
    source.close()
    assert ahead_threads() == 0


def test_no_items():
    assert list(run_ahead(())) == []
