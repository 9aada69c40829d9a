"""Files in order, whoever reads them."""

import threading
import time
from collections.abc import Iterator

import pytest

from fedssl.data.reading import THREADS, TIMED, prefetch, readers


@pytest.mark.parametrize(("limit", "threads"), [(60.0, {1}), (0.0, set(range(2, THREADS + 2)))])
def test_fast_reads_use_this_thread_and_slow_ones_a_pool(
    limit: float, threads: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is quick depends on the machine; here it is the limit that moves."""
    monkeypatch.setattr("fedssl.data.reading.MIN_SECONDS", limit)
    who: set[int] = set()

    def read(item: int) -> int:
        who.add(threading.get_ident())
        time.sleep(0.001)
        return item * item

    with readers() as several:
        assert several.read(read, range(60)) == [item * item for item in range(60)]
    assert len(who) in threads


@pytest.mark.parametrize("count", [0, 1, TIMED, TIMED + 1])
def test_few_files(count: int) -> None:
    with readers() as several:
        assert several.read(str, range(count)) == [str(item) for item in range(count)]


def test_errors_are_raised_at_their_position() -> None:
    with readers() as several, pytest.raises(ZeroDivisionError):
        several.read(lambda item: 1 / (item - 20), range(40))


def test_prefetched_batches_are_the_same() -> None:
    makers = []

    def batches() -> Iterator[int]:
        for number in range(5):
            makers.append(threading.get_ident())
            yield number

    assert list(prefetch(batches())) == list(range(5))
    assert threading.get_ident() not in makers


def test_an_error_while_prefetching() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = prefetch(batches())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)
