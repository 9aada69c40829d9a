import torch

from fedssl.engines.memory import MemoryStore
from fedssl.state import ClientMemory


def memory(value, size=4):
    return ClientMemory({"w": torch.full((size,), float(value))}, {"round": value})


def test_a_client_without_memory_has_an_empty_one(tmp_path):
    assert MemoryStore(tmp_path, 1).load(3, 0) == ClientMemory()


def test_memories_can_be_loaded_by_another_process(tmp_path):
    MemoryStore(tmp_path, 1).save(3, 7, memory(1.5))
    loaded = MemoryStore(tmp_path, 1).load(3, 7)
    assert torch.equal(loaded.state["w"], memory(1.5).state["w"])
    assert loaded.values == {"round": 1.5}


def test_the_cache_stays_within_its_bound(tmp_path):
    store = MemoryStore(tmp_path, 1)
    quarter = 2**18 // 4  # floats in a quarter of a megabyte
    for client in range(10):
        store.save(client, 1, memory(client, quarter))
        assert store._cached_bytes <= 2**20
    assert len(store._cache) == 4
    assert all(float(store.load(client, 1).state["w"][0]) == client for client in range(10))


def test_rewinding_deletes_memories_newer_than_the_checkpoint(tmp_path):
    store = MemoryStore(tmp_path, 1)
    for number in (1, 2, 4):
        store.save(0, number, memory(number))
    store.save(1, 5, memory(5))
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "0" / "round-abc.safetensors").touch()
    store = MemoryStore(tmp_path, 1)
    store.rewind(3)
    assert [store.has(0, number) for number in (1, 2, 4)] == [True, True, False]
    assert not store.has(1, 5)


def test_pruning_keeps_what_the_checkpoint_and_later_rounds_need(tmp_path):
    store = MemoryStore(tmp_path, 1)
    for number in (1, 2, 4):
        store.save(0, number, memory(number))
    store.sync({0: 2})
    store.prune(checkpoint=3)
    assert sorted(file.name for file in (tmp_path / "0").iterdir()) == [
        "round-000002.safetensors",
        "round-000004.safetensors",
    ]


def test_a_discarded_memory_is_gone_from_disk_and_cache(tmp_path):
    store = MemoryStore(tmp_path, 1)
    store.save(0, 1, memory(1))
    store.save(0, 2, memory(2))
    store.discard(0, 2)
    assert float(store.load(0, 1).state["w"][0]) == 1
    assert store.oldest(0) == 1
