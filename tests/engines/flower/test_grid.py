"""A run over a grid equals the run on one machine; lost, slow and dishonest nodes only cost their uploads."""

import json

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from PIL import Image
from tests.engines.flower.grid import FakeGrid, FakeNode, at_sites, run_with, site_folders
from tests.small import SMALL, digest
from tests.suite.clock import Clock

import fedssl
from fedssl.config import load
from fedssl.engines.flower import messages, nodes, server
from fedssl.errors import ConfigError, RunError
from fedssl.rundir import RunDir
from fedssl.tensorfile import load_tensors

CASES = [("simclr", "fedavg"), ("byol", "fedema"), ("moco-v2", "fedavg")]
CASES += [("byol", "fedper"), ("byol", "featarc")]
QUEUE = {"moco-v2": {"objective.queue": 32}}

BASE = {**SMALL, "partition": {"scheme": "classes", "clients": 3, "classes": 4}, "views": {"flip": 0.0}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(nodes, "GRID_RUNS", 0.01)


def site_nodes(tmp_path, config, named=True):
    """Nodes at sites with the images of a local federation; nodes without a name are asked for it."""
    found = []
    for client, folder in enumerate(site_folders(config, tmp_path / "data")):
        state = tmp_path / "state" / f"site-{client}"
        about = {"data": str(folder), "state": str(state), "name": f"site-{client}"}
        found.append(FakeNode(500 - client, about, f"site-{client}" if named else ""))
    return found


def tensors(run, round):
    return load_tensors(run / "checkpoints" / f"round-{round:06d}.safetensors")[0]


def assert_same_server(first, second, round):
    """Compare the server's state after a round bit by bit."""
    mine, theirs = tensors(first, round), tensors(second, round)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "method", "named"), [*((*case, True) for case in CASES), ("byol", "fedema", False)]
)
def test_sites_with_separate_folders_give_the_same_bits(tmp_path, objective, method, named):
    keys = {"objective": objective, "method": method, **QUEUE.get(objective, {})}
    local = fedssl.run(BASE, out=tmp_path / "local", quiet=True, **keys)
    grid = FakeGrid(site_nodes(tmp_path, load(BASE), named))
    run_with(grid, at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    assert_same_server(tmp_path / "grid", local.path, 3)
    if method in ("fedavg", "fedema"):
        assert digest(tmp_path / "grid") == digest(local)


def test_sixteen_bits_on_the_wire_are_the_same_everywhere(tmp_path):
    keys = {"objective": "byol", "method": "fedema", "wire.dtype": "float16"}
    local = fedssl.run(BASE, out=tmp_path / "local", quiet=True, **keys)
    exact = fedssl.run(BASE, out=tmp_path / "exact", quiet=True, **{**keys, "wire.dtype": "float32"})
    grid = FakeGrid(site_nodes(tmp_path, load(BASE)))
    run_with(grid, at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    assert digest(tmp_path / "grid") == digest(local) != digest(exact)
    assert 0.5 < local.metrics[0]["bytes_up"] / exact.metrics[0]["bytes_up"] < 0.52  # counters stay int64


def test_bytes_in_the_metrics_are_those_that_are_sent(tmp_path):
    grid = FakeGrid(site_nodes(tmp_path, load(BASE)))
    run_with(grid, at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1), tmp_path / "grid")
    (line,) = fedssl.Run(tmp_path / "grid").metrics
    trained = [m for m in grid.down if m.metadata.message_type == messages.TRAIN]
    for sent, counted in ((trained, line["bytes_down"]), (grid.up[:3], line["bytes_up"])):
        size = sum(len(data) for message in sent for data in messages.read_tensors(message.content))
        assert counted < size < 1.5 * counted  # names and shapes come on top


# --- what leaves a site ---------------------------------------------------------------------------


def test_no_image_and_no_private_tensor_leaves_a_site(tmp_path):
    keys = {"objective": "byol", "method": "fedavg"}  # every client keeps a target network of its own
    grid = FakeGrid(site_nodes(tmp_path, load(BASE)))
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], **keys)
    run_with(grid, config, tmp_path / "grid")
    sent = b"".join(data for reply in grid.up for data in messages.read_tensors(reply.content))
    texts = "".join(json.dumps(messages.read_text(reply.content)) for reply in grid.up)
    # The last memory of each: in round 1, after a single step, a target's statistics are those uploaded.
    kept = {file.parent: file for file in sorted((tmp_path / "state").rglob("round-*.safetensors"))}.values()
    assert len(kept) >= 3
    for file in kept:
        memory, _ = load_tensors(file)
        assert memory
        for name, value in memory.items():
            assert name.startswith("target.")
            if value.is_floating_point() and value.numel() > 8:
                assert value.numpy().tobytes() not in sent
    assert "png" not in texts
    for reply in grid.up:
        for data in messages.read_tensors(reply.content):
            assert not any(name.startswith("target.") for name in messages.wire.unpack(data, 1 << 30))


def test_a_sites_memories_are_pruned_and_its_encoder_delivered(tmp_path):
    grid = FakeGrid(site_nodes(tmp_path, load(BASE)))
    keys = {"objective": "byol", "method": "fedema", "rounds": 4}
    run_with(grid, at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    for client in range(3):
        (place,) = (tmp_path / "state" / f"site-{client}" / "runs").iterdir()
        rounds = sorted(int(file.stem[-6:]) for file in (place / "memories" / str(client)).iterdir())
        assert rounds[-1] == 4
        assert 1 not in rounds
        state, _ = load_tensors(place / "encoder.safetensors")
        assert json.loads((place / "encoder.json").read_text())["trained"] == f"client {client}"
        assert state.keys() == load_tensors(tmp_path / "grid" / "encoder.safetensors")[0].keys()


def test_a_site_that_lost_its_disk_starts_as_a_new_client(tmp_path):
    class Forgetful(FakeNode):
        def answer(self, message):
            for file in (tmp_path / "state" / "site-1").rglob("round-*.safetensors"):
                file.unlink()
            return super().answer(message)

    found = site_nodes(tmp_path, load(BASE))
    found[1] = Forgetful(77, found[1].context.node_config, "site-1")
    keys = {"objective": "byol", "method": "fedema"}
    run_with(FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    for line in fedssl.Run(tmp_path / "grid").metrics:
        assert line["failed"] == []
        lost = [client["client"] for client in line["clients"] if client.get("memory_lost")]
        assert lost == ([1] if line["round"] > 1 else [])


def test_a_site_lost_after_the_last_round_does_not_hold_up_the_result(tmp_path):
    """`participation.min_clients` is for rounds: without the fix the server waits for the site forever."""

    class LeavesAtLast(FakeNode):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.message_type == messages.TRAIN and message.metadata.group_id == "2":
                self.online = False
            return reply

    found = site_nodes(tmp_path, load(BASE))
    found[1] = LeavesAtLast(77, found[1].context.node_config, "site-1")
    keys = {"rounds": 2, "participation.min_clients": 3, "engine.patience": 0.2}
    notes = run_with(
        FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid"
    )
    assert (tmp_path / "grid" / "result.json").exists()
    assert [len(line["clients"]) for line in fedssl.Run(tmp_path / "grid").metrics] == [3, 3]
    assert any("without site-1" in note for note in notes.said)


def test_a_site_that_does_not_confirm_the_result_does_not_hold_it_up(tmp_path, monkeypatch):
    class SilentAtLast(FakeNode):
        def answer(self, message):
            self.silent = message.metadata.message_type == messages.TRAIN
            return super().answer(message)

    monkeypatch.setattr(server, "EXCHANGE", 0.2)
    found = site_nodes(tmp_path, load(BASE))
    found[1] = SilentAtLast(77, found[1].context.node_config, "site-1")
    notes = run_with(
        FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1), tmp_path / "grid"
    )
    assert (tmp_path / "grid" / "result.json").exists()
    assert any("client 1 did not get the result: timed out" in note for note in notes.said)


# --- nodes that come and go -----------------------------------------------------------------------


class Scripted(FakeNode):
    """Runs a script before it answers in a round."""

    def __init__(self, node, script):
        super().__init__(node.info.node_id, node.context.node_config, node.info.name)
        self.script = script

    def answer(self, message):
        if message.metadata.message_type == messages.TRAIN:
            spoiled = self.script(self, int(message.metadata.group_id), message)
            if spoiled is not None:
                return spoiled
        return super().answer(message)


def three_sites(tmp_path, script):
    found = site_nodes(tmp_path, load(BASE))
    found[1] = Scripted(found[1], script)
    return found


def failures(out):
    return [
        (line["round"], failure["client"], failure["reason"])
        for line in fedssl.Run(out).metrics
        for failure in line["failed"]
    ]


def test_a_node_that_leaves_and_returns_misses_only_its_rounds(tmp_path):
    from flwr.app.error import Error

    def script(node, round, message):
        if round == 2:
            node.online = False
            return Message(Error(3, "the node is not available"), reply_to=message)
        return None

    found = three_sites(tmp_path, script)

    class Returning(FakeGrid):
        def push_messages(self, pushed):
            if pushed and pushed[0].metadata.group_id == "3":
                found[1].online = True  # too late for round 3, in time for round 4
                found[1].restart()
            return super().push_messages(pushed)

    out = tmp_path / "grid"
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=4, **{"participation.min_clients": 2})
    run_with(Returning(found), config, out)
    ((round, client, reason),) = failures(out)
    assert (round, client) == (2, 1)
    assert reason.startswith("lost: the site did not fetch its task")
    took_part = [[client["client"] for client in line["clients"]] for line in fedssl.Run(out).metrics]
    assert took_part == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2]]
    assert absent(out) == [(3, 1, "not connected")]


def absent(out):
    return [
        (line["round"], site["client"], site["reason"])
        for line in fedssl.Run(out).metrics
        for site in line.get("absent", [])
    ]


def test_late_and_lost_sites_have_clear_messages():
    """Flower: "Error: Message Unavailable - … It may have expired due to its TTL, …"."""
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode
    from flwr.server.superlink.linkstate import utils

    flowers = [value for name, value in vars(utils).items() if name.endswith("_REASON")]
    assert any("TTL" in text for text in flowers)
    for code in (
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    ):
        for reason in flowers:
            said = messages.problem(Error(code, reason))
            assert "TTL" not in said
            assert "Unavailable" not in said
    lost = messages.problem(Error(ErrorCode.MESSAGE_UNAVAILABLE, flowers[0]))
    assert lost == "lost: the site did not fetch its task, or did not answer in time"


def test_a_slow_node_is_left_out_until_it_has_answered(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    found = site_nodes(tmp_path, load(BASE))

    class Slow(FakeGrid):
        def push_messages(self, pushed):
            round = pushed[0].metadata.group_id
            found[1].silent = round == "2"
            return super().push_messages(pushed)

    out = tmp_path / "grid"
    keys = {"participation.timeout": 90.0, "participation.min_clients": 2}
    run_with(Slow(found), at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=4, **keys), out)
    assert failures(out) == [(2, 1, "timed out: no answer after participation.timeout, 90 s")]
    took_part = [[client["client"] for client in line["clients"]] for line in fedssl.Run(out).metrics]
    assert took_part == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2]]
    assert absent(out) == [(3, 1, "has not answered in an earlier round")]
    assert 90 < clock.now < 92


def test_a_node_that_restarts_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "CHECK_NODES", 0.1)
    found = site_nodes(tmp_path, load(BASE))

    class Restarting(FakeGrid):
        def push_messages(self, pushed):
            ids = super().push_messages(pushed)
            if pushed[0].metadata.group_id == "2":
                found[2].silent = True
                found[2].restart()
            elif pushed[0].metadata.group_id == "3":
                found[2].silent = False
            return ids

    out = tmp_path / "grid"
    run_with(Restarting(found), at_sites(BASE, ["site-0", "site-1", "site-2"]), out)
    assert failures(out) == [(2, 2, "its node restarted during the round")]
    assert len(fedssl.Run(out).metrics[2]["clients"]) == 3


def test_the_first_to_answer_are_enough_with_an_overshoot(tmp_path):
    found = site_nodes(tmp_path, load(BASE))
    found[0].silent = True
    out = tmp_path / "grid"
    keys = {"participation.per_round": 2, "participation.overshoot": 0.5, "rounds": 1}
    run_with(FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), out)
    (line,) = fedssl.Run(out).metrics
    assert [client["client"] for client in line["clients"]] == [1, 2]
    assert line["unused"] == [0]
    assert line["failed"] == []


def test_the_server_waits_for_enough_sites_and_names_them(tmp_path):
    found = site_nodes(tmp_path, load(BASE))
    found[2].online = False

    class Late(FakeGrid):
        looks = 0

        def get_nodes(self):
            self.looks += 1
            found[2].online = self.looks > 20
            return super().get_nodes()

    keys = {"participation.min_clients": 3, "rounds": 1, "engine.patience": 0.0}
    grid = Late(found)
    notes = run_with(grid, at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    assert notes.said[0] == "waiting for site-2 (2 of 3 are connected)"
    assert not any("going on without" in said for said in notes.said)
    assert grid.looks > 20


def test_a_round_without_a_site_is_reported(tmp_path):
    found = site_nodes(tmp_path, load(BASE))
    found[2].online = False
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=2, **{"engine.patience": 0.1})
    notes = run_with(FakeGrid(found), config, tmp_path / "grid")
    assert [said for said in notes.said if "going on" in said] == [
        "going on without site-2, who may join in any later round"
    ]


def test_unknown_nodes_are_left_out_by_name(tmp_path):
    found = [*site_nodes(tmp_path, load(BASE)), FakeNode(9, {}, "site-9"), FakeNode(10, {"name": "evil"})]
    notes = run_with(
        FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1), tmp_path / "grid"
    )
    assert any("'site-9' is not a client of this run" in said for said in notes.said)
    assert any("'evil' is not a client of this run" in said for said in notes.said)
    assert len(fedssl.Run(tmp_path / "grid").metrics[0]["clients"]) == 3


def test_a_stopped_server_continues_with_the_memories_at_the_sites(tmp_path):
    keys = {"objective": "byol", "method": "fedema", "rounds": 4}
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], **keys)
    whole = fedssl.run(BASE, out=tmp_path / "local", quiet=True, **keys)

    class Stop(BaseException):
        pass

    class Stopping(FakeGrid):
        def pull_messages(self, ids):
            found = super().pull_messages(ids)  # the sites have trained, and have written their memories
            if any(self.asked[id].metadata.group_id == "3" for id in ids):
                raise Stop
            return found

    found = site_nodes(tmp_path, load(BASE))
    with pytest.raises(Stop):
        run_with(Stopping(found), config, tmp_path / "grid")
    run_with(FakeGrid(found), RunDir(tmp_path / "grid").config(), tmp_path / "grid")
    assert digest(tmp_path / "grid") == digest(whole)


# --- what is refused ------------------------------------------------------------------------------


def spoiled(*changes):
    """A script that changes an honest upload, in a different way in each of the first rounds."""

    def script(node, round, message):
        if round > len(changes):
            return None
        reply = FakeNode.answer(node, message)
        text = messages.read_text(reply.content)
        (data,) = messages.read_tensors(reply.content)
        change = changes[round - 1]
        return Message(change(text, messages.wire.unpack(data, 1 << 30)), reply_to=message)

    return script


def with_state(change):
    def changed(text, state):
        return messages.records(text, [messages.array(change(state), "float32")])

    return changed


def first_changed(change):
    def changed(state):
        name = min(name for name, value in state.items() if value.is_floating_point())
        return {**state, name: change(state[name])}

    return with_state(changed)


def with_text(**said):
    return lambda text, state: messages.records({**text, **said}, [messages.array(state, "float32")])


def bytes_of(data, count=1):
    array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    return lambda text, state: messages.records(text, [array] * count)


RUBBISH = {
    "is not finite": first_changed(lambda value: value * float("nan")),
    "has shape (1,), not": first_changed(lambda value: value.flatten()[:1].clone()),
    "global norms from the global model: participation.max_change is 10": with_state(
        lambda state: {n: v * 100 if v.is_floating_point() else v for n, v in state.items()}
    ),
    "is torch.float64, not torch.float32": first_changed(
        lambda value: value.double()[:0].new_zeros(value.shape)
    ),
    "tensors are missing, among them": with_state(lambda state: dict(list(state.items())[1:])),
    "are unexpected, among them extra": with_state(lambda state: {**state, "extra": torch.zeros(1)}),
    "bytes: at most": bytes_of(b"x" * 10_000_000),
    "bytes that are not tensors": bytes_of(b"not tensors"),
    "an answer with 2 uploads, not 1": bytes_of(b"", count=2),
    "num_samples is 1,000,000,000,000, but participation.max_images is 1,000": with_text(num_samples=10**12),
    "num_samples is -1": with_text(num_samples=-1),
    "loss is nan": with_text(loss=float("nan")),
    "mu is inf": with_text(values={"mu": float("inf")}),
    "unknown key 'evil'": with_text(evil=1),
    "values": with_text(values={f"v{number}": 1.0 for number in range(5000)}),
    "values.mu": with_text(values={"mu": 10**400}),
    "num_samples=1": with_text(num_samples=10**400),
    "values with reserved names: client": with_text(values={"client": 0}),
    "seconds=nan": with_text(seconds=float("nan")),
    "a message whose tensors are not numbered": lambda text, state: RecordDict(
        {
            "text": ConfigRecord({"json": json.dumps(text)}),
            "tensors": ArrayRecord({"x": messages.array(state, "float32")}),
        }
    ),
    "a message without text, or with too long a text": lambda text, state: RecordDict(
        {"text": ConfigRecord({"json": "[" * 2_000_000})}
    ),
    "a message with a text that is not JSON": lambda text, state: RecordDict(
        {"text": ConfigRecord({"json": "[" * 9999})}
    ),
    "a message without text": lambda text, state: RecordDict({"tensors": ArrayRecord({})}),
}


def test_invalid_uploads_are_refused_with_the_reason(tmp_path):
    """A different kind in every round of a run; in the last round the site is honest again."""
    found = three_sites(tmp_path, spoiled(*RUBBISH.values()))
    rounds = len(RUBBISH) + 1
    keys = {"rounds": rounds, "participation.max_change": 10.0, "participation.max_images": 1000}
    out = tmp_path / "grid"
    run_with(FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), out)
    refused = failures(out)
    assert [(round, client) for round, client, _ in refused] == [(round, 1) for round in range(1, rounds)]
    for (_, _, said), reason in zip(refused, RUBBISH, strict=True):
        assert reason in said
    took_part = [[client["client"] for client in line["clients"]] for line in fedssl.Run(out).metrics]
    assert took_part == [[0, 2]] * (rounds - 1) + [[0, 1, 2]]


def test_an_answer_that_flower_cannot_assemble_only_costs_its_upload(tmp_path):
    """Flower assembles a message from pieces that a site sent; its errors must not end the run."""
    found = site_nodes(tmp_path, load(BASE))

    class Broken(FakeGrid):
        def pull_messages(self, ids):
            if any(self.asked[id].metadata.dst_node_id == found[1].info.node_id for id in ids):
                raise KeyError("no such piece")
            return super().pull_messages(ids)

    out = tmp_path / "grid"
    run_with(Broken(found), at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1), out)
    assert failures(out) == [(1, 1, "cannot be read: KeyError: 'no such piece'")]
    assert [client["client"] for client in fedssl.Run(out).metrics[0]["clients"]] == [0, 2]


def test_a_site_cannot_answer_for_another_site(tmp_path):
    """An answer that names another site's question still counts for its own site."""
    found = site_nodes(tmp_path, load(BASE))
    honest = FakeGrid(site_nodes(tmp_path / "honest", load(BASE)))
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1)
    run_with(honest, config, tmp_path / "a")

    class Posing(FakeGrid):
        def pull_messages(self, ids):
            replies = super().pull_messages(ids)
            for reply in replies:
                reply.metadata.__dict__["_reply_to_message_id"] = min(self.asked)
            return replies

    run_with(Posing(found), config, tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert len(fedssl.Run(tmp_path / "b").metrics[0]["clients"]) == 3


@pytest.mark.parametrize("overshoot", [0.0, 1.0])
def test_a_node_that_leaves_early_misses_its_round(tmp_path, overshoot):
    found = site_nodes(tmp_path, load(BASE))

    class Leaving(FakeGrid):
        def push_messages(self, pushed):
            ids = super().push_messages(pushed)
            gone = [m.metadata.dst_node_id == found[1].info.node_id for m in pushed]
            return ["" if left else id for id, left in zip(ids, gone, strict=True)]

    out = tmp_path / "grid"
    keys = {"rounds": 1, "participation.overshoot": overshoot}
    if overshoot:
        keys |= {"participation.per_round": 2}
    notes = run_with(Leaving(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), out)
    (line,) = fedssl.Run(out).metrics
    assert {client["client"] for client in line["clients"]} == {0, 2}
    assert failures(out) == [(1, 1, "its node has left")]
    assert "client 1 did not get the result: its node has left" in notes.said


def test_clients_that_scale_their_own_layers_do_so_at_sites_too(tmp_path):
    keys = {"aggregation.name": "l-dawa", "aggregation.client_side": True, "rounds": 2}
    local = fedssl.run(BASE, out=tmp_path / "local", quiet=True, **keys)
    found = site_nodes(tmp_path, load(BASE))
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], **keys)
    run_with(FakeGrid(found), config, tmp_path / "grid")
    assert digest(tmp_path / "grid") == digest(local)


def test_an_upload_that_was_not_scaled_is_refused(tmp_path):
    keys = {"aggregation.name": "l-dawa", "aggregation.client_side": True, "rounds": 1}
    found = three_sites(tmp_path, spoiled(with_text(values={})))
    run_with(FakeGrid(found), at_sites(BASE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    ((_, client, said),) = failures(tmp_path / "grid")
    assert client == 1
    assert "so it was not scaled" in said


def test_a_cluster_that_does_not_exist_is_refused(tmp_path):
    def script(node, round, message):
        return spoiled(with_text(values={"cluster": 7}))(node, 1, message) if round == 2 else None

    out = tmp_path / "grid"
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], method="featarc", rounds=2)
    run_with(FakeGrid(three_sites(tmp_path, script)), config, out)
    ((_, client, said),) = failures(out)
    assert client == 1
    assert "cluster 7" in said


def test_invalid_configs_for_sites(tmp_path):
    sites = ["site-0", "site-1"]
    for keys, said in [
        ({"data.size": 0}, "set data.size and data.channels"),
        ({"objective": "supervised"}, "needs labels"),
        ({"method": "centralized"}, "all images in one place"),
        ({"method": "standalone"}, "shares nothing"),
        ({"aggregation": "fltrust"}, "its root set: set data.name and data.root"),
        ({"attack": "sign-flip"}, "engine.name=flower has no simulated clients"),
        ({"wire.max_mb": 1, "model.width": 64, "model.projector_hidden": 512}, "more than wire.max_mb=1"),
    ]:
        with pytest.raises(ConfigError, match=said):
            run_with(FakeGrid([]), at_sites(BASE, sites, **keys), tmp_path / said[:5])


def test_a_run_of_sites_is_not_resumed_as_a_simulation(tmp_path):
    config = at_sites(BASE, ["site-0"])
    RunDir.create(tmp_path / "a", config)
    with pytest.raises(RunError, match="continue it with the `fedssl server` command"):
        fedssl.resume(tmp_path / "a", quiet=True)


# --- images at sites, and at the server -----------------------------------------------------------


def a_site(tmp_path, fill):
    """Three sites; the middle one has a custom folder."""
    found = site_nodes(tmp_path, load(BASE))
    own = tmp_path / "own"
    own.mkdir()
    fill(own)
    found[1].context.node_config["data"] = str(own)
    return found


def picture(file, side=20):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((side, side + 3), 60).convert("RGB").save(file)


FOLDERS = {
    "one image": (1, lambda own: picture(own / "a.jpg")),
    "no labels, any size": (3, lambda own: [picture(own / f"{side}.png", side) for side in (5, 8, 300)]),
    "labels": (2, lambda own: [picture(own / name / "a.png") for name in ("cats", "dogs")]),
    "some broken": (1, lambda own: [picture(own / "a.png"), (own / "b.png").write_bytes(b"no image")]),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_site_may_have_any_number_of_images_with_or_without_labels(tmp_path, kind):
    count, fill = FOLDERS[kind]
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1)
    run_with(FakeGrid(a_site(tmp_path, fill)), config, tmp_path / "grid")
    (line,) = fedssl.Run(tmp_path / "grid").metrics
    assert line["failed"] == []
    assert [client["images"] for client in line["clients"]][1] == count


EMPTY = {
    "contains no images": lambda own: None,
    "none of 1 images can be read": lambda own: (own / "a.png").write_bytes(b"no image"),
    "no folder": lambda own: own.rmdir(),
}


@pytest.mark.parametrize("said", EMPTY)
def test_a_site_without_images_is_reported_and_the_others_continue(tmp_path, caplog, said):
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1)
    run_with(FakeGrid(a_site(tmp_path, EMPTY[said])), config, tmp_path / "grid")
    ((_, client, reason),) = failures(tmp_path / "grid")
    assert client == 1
    assert said in reason
    assert f"round 1: this site was left out: {reason}" in caplog.text
    assert len(fedssl.Run(tmp_path / "grid").metrics[0]["clients"]) == 2


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_server_with_labeled_images_probes(tmp_path, method):
    own = {"data.name": "digits", "data.limit": 60, "probe.every": 1, "probe.protocol": "linear"}
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=2, method=method, **own)
    run_with(FakeGrid(site_nodes(tmp_path, load(BASE))), config, tmp_path / "grid")
    run = fedssl.Run(tmp_path / "grid")
    assert [probe["protocol"] for probe in run.result["probes"]] == ["linear", "knn"]
    assert run.result["earth_movers_distance"] is None
    assert all(0 <= line["probe"]["knn"] <= 100 for line in run.metrics)
    assert sum(client["images"] for client in run.metrics[0]["clients"]) == 100  # the sites', not its own


def test_a_server_with_images_compares_uploads_with_its_own(tmp_path):
    own = {"data.name": "digits", "data.limit": 20, "aggregation": "fltrust"}
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1, **own)
    run_with(FakeGrid(site_nodes(tmp_path, load(BASE))), config, tmp_path / "grid")
    (line,) = fedssl.Run(tmp_path / "grid").metrics
    assert (len(line["clients"]), line["failed"]) == (3, [])


def test_a_server_without_images_says_why_there_are_no_probes(tmp_path):
    keys = {"rounds": 1, "probe.every": 1, "probe.protocol": "linear"}
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], **keys)
    run_with(FakeGrid(site_nodes(tmp_path, load(BASE))), config, tmp_path / "grid")
    run = fedssl.Run(tmp_path / "grid")
    assert run.result["probes"] == []
    assert run.result["why_no_probes"]
