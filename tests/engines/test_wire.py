import pytest
import torch
from safetensors.torch import save
from tests.small import digest, small_run

from fedssl.engines.wire import (
    HEADER,
    HEADER_EACH,
    WireError,
    max_message_bytes,
    num_bytes,
    pack,
    round_to_dtype,
    unpack,
)
from fedssl.errors import RunError

STATE = {
    "encoder.weight": torch.tensor([[1.0, 1 / 3], [-65504.0, 6e-8]]),
    "encoder.count": torch.tensor(7),
    "head.bias": torch.zeros(0),
}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_messages_with_32_bits_are_exact():
    assert same(unpack(pack(STATE, "float32"), 10_000), STATE)


def test_with_16_bits_floats_are_rounded_and_counters_are_not():
    received = unpack(pack(STATE, "float16"), 10_000)
    # By hand: the half nearest to 1/3 is 1365/4096, the one nearest to 6e-8 is 2^-24.
    assert received["encoder.weight"].tolist() == [[1.0, 1365 / 4096], [-65504.0, 2**-24]]
    assert received["encoder.weight"].dtype == torch.float32
    assert received["encoder.count"].equal(torch.tensor(7))
    assert same(received, round_to_dtype(STATE, "float16"))
    assert same(round_to_dtype(received, "float16"), received)  # once is enough


def test_rounding_to_32_bits_does_not_copy():
    assert round_to_dtype(STATE, "float32") is STATE


def test_values_beyond_16_bits_are_an_error_not_an_infinity():
    with pytest.raises(RunError, match=r"w has values up to 1e\+05, too large for wire\.dtype=float16"):
        round_to_dtype({"w": torch.tensor([1.0, -1e5])}, "float16")
    sent = round_to_dtype({"w": torch.tensor([float("inf")])}, "float16")  # was so before: for others to find
    assert sent["w"].isinf().all()


def test_bytes_by_hand():
    assert num_bytes(STATE, "float32") == 4 * 4 + 8
    assert num_bytes(STATE, "float16") == 4 * 2 + 8
    assert max_message_bytes(STATE, "float32") == 24 + HEADER + 3 * HEADER_EACH
    assert len(pack(STATE, "float32")) <= max_message_bytes(STATE, "float32")


def test_too_many_bytes_are_not_parsed():
    data = pack({"w": torch.zeros(1000)}, "float32")
    with pytest.raises(WireError, match=f"{len(data):,} bytes: at most 100 are accepted"):
        unpack(data, 100)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 100,
        (1 << 60).to_bytes(8, "little") + b"{}",  # a header that claims to be an exabyte
        save({"w": torch.zeros(4)})[:-3],  # cut off
        save({"w": torch.zeros(4)}) + b"more",
        b'\x40\0\0\0\0\0\0\0{"w":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4]}}' + b"0000",
    ],
)
def test_invalid_bytes_are_refused(data):
    with pytest.raises(WireError, match="bytes that are not tensors"):
        unpack(data, 10_000)


def test_a_run_with_16_bits_counts_half_the_bytes_and_still_learns(tmp_path):
    half = small_run(tmp_path / "half", **{"wire.dtype": "float16"})
    full = small_run(tmp_path / "full")
    assert digest(half) != digest(full)
    for line, other in zip(half.metrics, full.metrics, strict=True):
        assert line["bytes_down"] == line["bytes_up"] < 0.52 * other["bytes_up"]
        assert line["loss"] == pytest.approx(other["loss"], rel=0.05)


def test_bytes_of_a_round_are_those_of_the_shared_tensors(tmp_path):
    from fedssl.tensorfile import load_tensors

    run = small_run(tmp_path / "a", rounds=1, objective="byol", **{"participation.per_round": 2})
    tensors, _ = load_tensors(run.path / "checkpoints" / "round-000001.safetensors")
    shared = sum(t.numel() * t.element_size() for name, t in tensors.items() if name.startswith("model/"))
    assert run.metrics[0]["bytes_up"] == run.metrics[0]["bytes_down"] == 2 * shared
