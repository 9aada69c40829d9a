"""The model that a client starts a round with."""

import torch
from tests.toys import a_client, byol_like

from fedssl.methods.fedavg import FedAvg
from fedssl.methods.standalone import Standalone
from fedssl.state import Broadcast, restore


def dirty(model):
    """Overwrite every tensor, as if another client had been trained."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.fill_(99)


def test_a_new_client_takes_nothing_from_the_client_before():
    model = byol_like()
    client, method = a_client(model), FedAvg()
    dirty(model)
    broadcast = {
        name: torch.ones_like(value) for name, value in client.initial.items() if name in method.shares(model)
    }
    method.receive(client, Broadcast(broadcast), {})
    state = model.state_dict()
    assert state["encoder.weight"].tolist() == [1.0, 1.0]
    assert state["target.encoder.weight"].tolist() == [1.0, 1.0]  # a copy of the online network
    assert state["queue.keys"].tolist() == [0.0, 0.0]  # its first value
    assert not any((value == 99).any() for value in state.values())


def test_the_target_is_a_copy_and_never_an_alias():
    model = byol_like()
    a_client(model).start_from({}, {})
    online = {tensor.data_ptr() for tensor in model.part("encoder").parameters()}
    target = {tensor.data_ptr() for tensor in model.part("target").parameters()}
    assert not online & target


def test_fedavg_keeps_the_target_and_update_both_does_not():
    model = byol_like()
    client = a_client(model)
    shared = {name: torch.ones_like(client.initial[name]) for name in FedAvg().shares(model)}
    kept = FedAvg().keeps(model)
    assert "target.encoder.weight" in kept
    assert "queue.keys" in kept
    assert not set(kept) & set(shared)
    both = FedAvg(update_both=True)
    assert both.keeps(model) == ["queue.keys"]
    memory = {name: torch.full_like(client.initial[name], 7.0) for name in both.keeps(model)}
    both.receive(client, Broadcast(shared), memory)
    assert model.state_dict()["target.encoder.weight"].tolist() == [1.0, 1.0]


def test_standalone_shares_nothing_and_remembers_everything():
    model = byol_like()
    assert Standalone().shares(model) == []
    assert set(Standalone().keeps(model)) == set(model.state_dict())


def test_restore_names_what_a_model_does_not_have():
    import pytest

    with pytest.raises(KeyError, match="nothing"):
        restore(byol_like(), {"nothing": torch.ones(1)})
