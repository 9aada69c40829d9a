"""FeatARC: the assignment of clients to cluster models, the alignment loss, and the aggregation."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.small import QUEUE, SMALL, digest, small_run
from torch import nn
from torch.nn import functional as F

from fedssl.aggregation.fedavg import FedAvg as Mean
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.config import load
from fedssl.data.views import plain
from fedssl.engines.live import ServerRun
from fedssl.errors import ConfigError, RunError
from fedssl.evaluation.loaded import load_run
from fedssl.methods import featarc
from fedssl.methods.clusters import Clusters, FirstClusters, by_direction
from fedssl.methods.featarc import FeatARC, aligned_loss, targets
from fedssl.methods.method import ServerTools
from fedssl.methods.training import Batch
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.byol import BYOL
from fedssl.objectives.mae import MAE
from fedssl.objectives.moco import MoCoV2
from fedssl.objectives.objective import Objective
from fedssl.objectives.simclr import SimCLR
from fedssl.objectives.simsiam import SimSiam
from fedssl.state import Broadcast, ServerState, Upload, restore, snapshot

HEADS = ModelConfig(projector_hidden=16, projector_out=3, predictor_hidden=16)  # as wide as the features


class Narrow(nn.Module):
    """A small encoder: three features of an 8×8 image."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, stride=4)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images):
        return F.relu(self.norm(self.conv(images))).mean(dim=(2, 3))


class Images:
    """A client's images, without a data set around them."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def batch(self, positions):
        return self.x[positions], None


def images(count=6, seed=0):
    return torch.randint(
        0, 256, (count, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def a_client(objective, method, x=None, seed=0):
    """A client with a narrow model of that objective and method."""
    from tests.toys import a_client as bare

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = objective.build(Narrow(), 3, HEADS)
        model.extend(method.parts(model, lambda: SimpleNamespace(features=3), HEADS))
    client = bare(model, round=2)
    client.objective = objective
    client.images = Images(images() if x is None else x)
    client.views = type("Views", (), {"mean": 0.5, "std": 0.25})()
    return client


# --- the loss -------------------------------------------------------------------------------------


def a_batch(seed=0):
    rng = torch.Generator().manual_seed(seed)
    views = [torch.randn(6, 1, 8, 8, generator=rng) for _ in range(2)]
    return Batch(images(), views, None, rng, torch.arange(6))


@pytest.mark.parametrize("target", ["backbone", "projection"])
@pytest.mark.parametrize("objective", [SimCLR(), SimSiam(), BYOL(), SimSiam(predictor=False)], ids=repr)
def test_the_loss_is_the_objectives_and_half_the_sum_of_both_views_distances(objective, target):
    """Line 10 of Algorithm 2, recomputed with separate forward passes."""
    weight = 0.7
    client = a_client(objective, FeatARC(align=weight))
    model = client.model
    start = snapshot(model)
    loss = aligned_loss(client, weight, target)
    # What it is aligned with is not the model that meanwhile trains.
    for value in model.parameters():
        value.data += 0.05
    before = snapshot(model)
    model.train()
    batch = a_batch()
    found = loss(batch)

    restore(model, before)
    model.train()
    own = objective.loss(model, batch.views, None, batch.rng)
    restore(model, before)
    parts = [part for part in ("encoder", "projector", "predictor") if model.has(part)]
    if isinstance(objective, SimCLR):  # both views share one pass, and so their batch statistics
        p = nn.Sequential(*(model.part(name) for name in parts))(torch.cat(batch.views)).chunk(2)
    else:
        p = [nn.Sequential(*(model.part(name) for name in parts))(view) for view in batch.views]
    given = objective.build(Narrow(), 3, HEADS)
    restore(given, start)
    given.eval()
    z = given.part("encoder")(plain(batch.images, 0.5, 0.25))
    z = (given.part("projector")(z) if target == "projection" else z).detach()
    distances = [-(F.normalize(each) * F.normalize(z)).sum(1).mean() for each in p]
    expected = own + weight * (distances[0] + distances[1]) / 2
    torch.testing.assert_close(found, expected)


def test_alignment_targets_take_no_gradient_and_keep_statistics():
    client = a_client(SimCLR(), FeatARC())
    before = snapshot(client.model)
    loss = aligned_loss(client, 1.0, "projection")
    after = snapshot(client.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not targets(client, "projection").requires_grad
    client.model.train()
    loss(a_batch()).backward()
    assert all(value.grad is not None for value in client.model.part("encoder").parameters())


@pytest.mark.parametrize("target", ["backbone", "projection"])
def test_each_image_is_aligned_with_its_own_target(target):
    client = a_client(SimCLR(), FeatARC())
    loss, batch = aligned_loss(client, 1.0, target), a_batch()
    turned = batch.positions.flip(0)
    again = replace(
        batch, images=batch.images[turned], views=[v[turned] for v in batch.views], positions=turned
    )
    client.model.train()
    torch.testing.assert_close(loss(batch), loss(again))


def test_views_that_the_objective_does_not_predict_itself_are_predicted():
    """MoCo's online network only sees first views."""
    client = a_client(MoCoV2(queue=8), FeatARC())
    loss = aligned_loss(client, 1.0, "backbone")
    client.model.train()
    rows = []
    client.model.part("projector").register_forward_hook(lambda _m, _i, output: rows.append(len(output)))
    loss(a_batch())
    assert rows == [6, 6, 6]


def test_it_aligns_features_where_there_is_no_projector():
    mae, config = MAE(decoder_width=8, decoder_depth=1, decoder_heads=1), ModelConfig(patch=4)
    from timm.models.vision_transformer import VisionTransformer

    encoder = VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=0, embed_dim=8, depth=1, num_heads=1,
        class_token=False, global_pool="avg", fc_norm=False,
    )  # fmt: skip
    model = mae.build(encoder, 8, config)
    model.extend(FeatARC().parts(model, None, config))  # type: ignore[arg-type]
    client = a_client(SimCLR(), FeatARC())
    client.model, client.objective = model, mae
    batch = a_batch()
    one = Batch(batch.images, batch.views[:1], None, torch.Generator().manual_seed(3), batch.positions)
    found = aligned_loss(client, 1.0, "projection")(one)
    own = mae.loss(model, one.views, None, torch.Generator().manual_seed(3))
    z = encoder(plain(one.images, 0.5, 0.25))
    torch.testing.assert_close(found, own - F.cosine_similarity(encoder(one.views[0]), z).mean())


def test_the_alignment_by_hand():
    """One image with feature (3, 4) in the cluster model; the head doubles and swaps: z = (8, 6).

    It gives (2, 0) and (0, 2) for two views, or (2, 0) twice: cosines 3/5, 4/5 or 4/5, 3/5 with z.
    """

    class Swap(nn.Module):
        def forward(self, x):
            return 2 * x.flip(1)

    class Given(Objective):
        def loss(self, model, views, labels, rng):
            return model.part("projector")(torch.cat(list(views))).sum() * 0

    client = a_client(SimCLR(), FeatARC())
    client.model, client.objective = Model(encoder=Part(nn.Flatten()), projector=Part(Swap())), Given()
    client.images = Images(torch.tensor([3, 4], dtype=torch.uint8).reshape(1, 1, 1, 2))
    client.views = SimpleNamespace(mean=0.0, std=1 / 255)  # pixels are features
    x, y = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    expected = {"backbone": {"xx": -0.6, "xy": -0.7}, "projection": {"xx": -0.8, "xy": -0.7}}
    for target, z in (("backbone", [[3.0, 4.0]]), ("projection", [[8.0, 6.0]])):
        assert targets(client, target).tolist() == z
        for name, views in (("xx", [x, x]), ("xy", [x, y])):
            batch = Batch(client.images.x, views, None, torch.Generator(), torch.tensor([0]))
            assert float(aligned_loss(client, 1.0, target)(batch)) == pytest.approx(expected[target][name])


def test_backbone_features_need_a_projector_of_their_width():
    for objective in (SimCLR(), SimSiam(), BYOL()):
        wide = ModelConfig(projector_hidden=16, projector_out=8, predictor_hidden=16)
        model = objective.build(Narrow(), 3, wide)
        encoder = lambda: SimpleNamespace(features=3)  # noqa: E731
        with pytest.raises(ConfigError, match=r"set model\.projector_out=3 \(it is 8\), or method\.target="):
            FeatARC().parts(model, encoder, wide)
        for fits in (FeatARC(target="projection"), FeatARC(align=0.0)):
            assert fits.parts(model, encoder, wide) == {}
        assert FeatARC().parts(objective.build(Narrow(), 3, HEADS), encoder, HEADS) == {}


def test_the_command_says_which_width(tmp_path):
    with pytest.raises(ConfigError, match=r"set model\.projector_out=16 \(it is 8\)"):
        small_run(tmp_path / "run", method="featarc", **{"model.projector_out": 8})


def test_there_is_no_alignment_in_round_1(monkeypatch):
    used = []
    monkeypatch.setattr(featarc, "train_locally", lambda client, loss=None: used.append(loss))
    for number in (1, 2):
        client = a_client(SimCLR(), FeatARC())
        client.round = number
        FeatARC().train(client)
    assert used[0] is None
    assert used[1] is not None


# --- which cluster --------------------------------------------------------------------------------


def turned(client, amount):
    """The client's model with other weights in its first layer."""
    state = snapshot(client.model)
    state["encoder.conv.weight"] = state["encoder.conv.weight"] + amount
    return state


def test_a_client_takes_the_model_whose_features_are_most_like_its_own():
    method = FeatARC(clusters=3)
    client = a_client(SimCLR(), method)
    shared = method.shares(client.model)
    states = [turned(client, amount) for amount in (0.5, 0.02, -0.5)]
    models = [{name: state[name] for name in shared} for state in states]
    own = {name: value for name, value in turned(client, 0.0).items() if name.startswith("encoder.")}
    client.notes["cluster"] = 0  # it has taken part before
    log = method.receive(client, Broadcast(clusters=models), own)
    assert log["cluster"] == 1

    def features(state):
        fresh = Narrow().eval()
        fresh.load_state_dict(
            {name[8:]: value for name, value in state.items() if name.startswith("encoder.")}
        )
        return fresh(plain(client.images.x, 0.5, 0.25)).detach()

    cosines = [float(F.cosine_similarity(features(own), features(model)).mean()) for model in models]
    assert max(cosines) == pytest.approx(log["alignment"], abs=1e-6)
    assert cosines.index(max(cosines)) == 1
    # It trains the model it chose, is aligned with it, and keeps nothing of its own last model.
    after = client.model.state_dict()
    for name in shared:
        assert torch.equal(after[name], models[1][name])
    torch.testing.assert_close(targets(client, "backbone"), features(models[1]))
    given = client.model.part("projector").eval()(features(models[1])).detach()
    torch.testing.assert_close(targets(client, "projection"), given)
    assert method.reference_model(client, Broadcast(clusters=models)) is models[1]


def test_ties_choose_the_first_model_and_align_only_makes_no_choice():
    method = FeatARC(clusters=2, assignment="similarity")
    client = a_client(SimCLR(), method)
    model = {name: client.initial[name] for name in method.shares(client.model)}
    log = method.receive(client, Broadcast(clusters=[model, model]), {})
    assert log == {"cluster": 0, "alignment": pytest.approx(1.0)}
    alone = FeatARC(clusters=1)
    client = a_client(SimCLR(), alone)
    client.images = None  # would fail if features were taken
    assert alone.receive(client, Broadcast(model), {}) == {"cluster": 0}


@pytest.mark.parametrize("number", [1, 4])
def test_new_clients_are_assigned_round_robin_in_any_round(number):
    method = FeatARC(clusters=3)
    for id in range(7):
        client = a_client(SimCLR(), method)
        client.id, client.round = id, number
        client.images = None  # would fail if features were taken
        models = [{name: turned(client, amount)[name] for name in client.initial} for amount in (0, 1, 2)]
        assert method.receive(client, Broadcast(clusters=models), {}) == {"cluster": id % 3}
        first = client.model.state_dict()["encoder.conv.weight"]
        assert torch.equal(first, models[id % 3]["encoder.conv.weight"])


def test_cluster_models_have_different_initializations(tmp_path):
    method = {"name": "featarc", "clusters": 3}
    config = load(SMALL, {"method": method})
    server = ServerRun(config, tmp_path).server
    first = [state["encoder.conv1.weight"] for state in server.clusters]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))
    again = ServerRun(config, tmp_path).server  # the same in every process
    assert all(torch.equal(a, b["encoder.conv1.weight"]) for a, b in zip(first, again.clusters, strict=True))
    fedavg = ServerRun(load(SMALL), tmp_path).server.model
    assert all(torch.equal(value, fedavg[name]) for name, value in server.clusters[0].items())
    assert server.clusters[1].keys() == fedavg.keys()
    equal = ServerRun(load(SMALL, {"method": {**method, "assignment": "similarity"}}), tmp_path).server
    assert all(state is equal.clusters[0] for state in equal.clusters)


def test_what_stays_on_the_client():
    method = FeatARC()
    model = a_client(BYOL(), method).model
    kept, shared = method.keeps(model), method.shares(model)
    assert {name.split(".")[0] for name in shared} == {"encoder", "projector", "predictor"}
    assert {name.split(".")[0] for name in kept} == {"encoder", "target"}  # its last encoder, to compare
    assert {name.split(".")[0] for name in FeatARC(clusters=1).keeps(model)} == {"target"}


# --- the server -----------------------------------------------------------------------------------


def tools(**optimizer):
    return ServerTools(Mean(), ServerOptimizer(**optimizer), frozenset(), frozenset({"w"}))


def upload(client, value, cluster, samples=1):
    values = {} if cluster is None else {"cluster": cluster}
    return Upload(client, {"w": torch.tensor(value)}, samples, values=values)


def test_cluster_models_are_the_means_of_their_members_by_hand():
    server = ServerState(clusters=[{"w": torch.tensor([0.0])}, {"w": torch.tensor([10.0])}])
    fold = Clusters(server, 2, tools())
    for each in (upload(0, [1.0], 0), upload(3, [5.0], 1), upload(4, [4.0], 0, samples=2)):
        fold.add(each)
    models = fold.finish().clusters
    assert models[0]["w"].tolist() == [3.0]  # (1·1 + 2·4) / 3
    assert models[1]["w"].tolist() == [5.0]


def test_an_empty_cluster_keeps_its_model():
    server = ServerState(clusters=[{"w": torch.tensor([0.0])}, {"w": torch.tensor([10.0])}])
    fold = Clusters(server, 2, tools())
    fold.add(upload(0, [1.0], 0))
    assert fold.finish().clusters[1] is server.clusters[1]


def test_the_server_optimizer_has_state_per_cluster():
    """Momentum ½: after a first step of 1, a second one of 1 moves by 1.5."""
    server = ServerState(clusters=[{"w": torch.tensor([0.0])}, {"w": torch.tensor([0.0])}])
    momentum = tools(optimizer="sgd", momentum=0.5)
    for number, moved in ((2, (1.0, 2.0)), (3, (2.0, 4.0))):
        fold = Clusters(server, number, momentum)
        for cluster, value in enumerate(moved):
            fold.add(upload(cluster, [value], cluster))
        server = fold.finish()
    assert server.clusters[0]["w"].item() == pytest.approx(2.5)
    assert server.clusters[1]["w"].item() == pytest.approx(5.0)


@pytest.mark.parametrize("cluster", [2, -1, 0.5, None])
def test_a_cluster_that_does_not_exist_is_an_error(cluster):
    server = ServerState(clusters=[{"w": torch.tensor([0.0])}] * 2)
    with pytest.raises(RunError, match=r"client 7 chose cluster .*, but there are 2"):
        Clusters(server, 2, tools()).add(upload(7, [1.0], cluster))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_clusters_follow_client_ids_whatever_the_order_of_arrival(order):
    moves = {2: [1.0, 0.1], 5: [0.1, 1.0], 7: [1.1, 0.0], 9: [0.0, 0.9]}
    server = ServerState(clusters=[{"w": torch.zeros(2)}] * 2)
    uploads = [upload(client, move, 0) for client, move in moves.items()]
    fold = FirstClusters(server, 1, tools())
    for place in order:
        fold.add(uploads[place])
        # The loop lets go of an upload's tensors at once.
        kept, uploads[place].state = uploads[place].state, {}
        assert kept
    first = fold.finish()
    assert [each.values["cluster"] for each in uploads] == [0, 1, 0, 1]  # clients 2, 5, 7, 9
    torch.testing.assert_close(first.clusters[0]["w"], torch.tensor([1.05, 0.05]))
    torch.testing.assert_close(first.clusters[1]["w"], torch.tensor([0.05, 0.95]))
    later = Clusters(first, 2, tools())
    for place in order:
        client, move = list(moves.items())[place]
        later.add(upload(client, move, uploads[place].values["cluster"]))
    for found, expected in zip(later.finish().clusters, first.clusters, strict=True):
        torch.testing.assert_close(found["w"], expected["w"])


def test_the_first_clusters_depend_on_directions_only():
    vectors = [torch.tensor(v) for v in ([5.0, 0.0], [0.0, 0.1], [0.1, 0.0], [0.0, 5.0], [2.0, 0.2])]
    assert by_direction(vectors, 2) == [0, 1, 0, 1, 0]
    assert by_direction(vectors, 1) == [0] * 5
    assert by_direction(vectors[:2], 3) == [0, 1]


def test_first_clusters_agree_with_scikit_learn():
    from sklearn.cluster import AgglomerativeClustering

    rng = np.random.default_rng(0)
    for clusters in (2, 3, 4):
        points = rng.normal(size=(9, 5))
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        known = AgglomerativeClustering(clusters, linkage="ward").fit_predict(unit).tolist()
        order = list(dict.fromkeys(known))
        found = by_direction([torch.from_numpy(point) for point in points], clusters)
        assert found == [order.index(label) for label in known]


# --- whole runs -----------------------------------------------------------------------------------


def test_one_cluster_without_alignment_is_fedavg_bit_for_bit(tmp_path):
    keys = {"objective": "byol", "rounds": 2}
    fedavg = small_run(tmp_path / "a", **keys)
    found = small_run(tmp_path / "b", method={"name": "featarc", "clusters": 1, "align": 0.0}, **keys)
    assert digest(found) == digest(fedavg)
    assert [line["loss"] for line in found.metrics] == [line["loss"] for line in fedavg.metrics]
    aligned = small_run(tmp_path / "c", method={"name": "featarc", "clusters": 1}, **keys)
    assert digest(aligned) != digest(fedavg)


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory):
    """Clients 0–2 have digits, clients 3–5 have others, turned and inverted."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("groups")
    known = load_digits()
    x = (known.images[:768] / 16 * 255).astype(np.uint8)[..., None]
    style = np.arange(len(x)) % 2
    x[style == 1] = 255 - x[style == 1].transpose(0, 2, 1, 3)
    names = {"classes": np.array([str(digit) for digit in range(10)]), "domains": np.array(["a", "b"])}
    for split, part in (("train", slice(None)), ("test", slice(0, 100))):
        np.savez(
            folder / f"groups_{split}.npz", x=x[part], y=known.target[:768][part], domain=style[part], **names
        )
    return small_run(
        folder / "run",
        method={"name": "featarc", "assignment": "similarity", "target": "projection"},
        rounds=3,
        data={"name": "npz", "root": str(folder / "groups_train.npz")},
        partition={"scheme": "domain", "per_domain": 3},
        train={"epochs": 2, "batch_size": 32, "lr": 1e-3, "optimizer": "adam"},
        probe={"protocol": "knn", "every": 0},
    )


def test_two_groups_of_clients_are_found(two_groups):
    for line in two_groups.metrics:
        assert [client["cluster"] for client in line["clients"]] == [0, 0, 0, 1, 1, 1]
        assert line["failed"] == []


def test_every_client_is_evaluated_with_its_own_cluster_and_a_model_is_probed_once(two_groups, monkeypatch):
    (knn,) = two_groups.result["probes"]
    assert knn["model"] == "cluster, mean of 6 clients"
    finished = load_run(two_groups.directory, {})
    prober = finished.prober(finished.federation.train, finished.federation.test)
    seen = []
    run_all = type(prober).run_all
    monkeypatch.setattr(
        type(prober), "run_all", lambda self, encoder, *rest: seen.append(1) or run_all(self, encoder, *rest)
    )
    (again,) = finished.models.probe(prober, ["knn"], finished.server, finished.memory_rounds, limit=10)
    assert len(seen) == 2 + 1  # two cluster models, and the untrained one
    assert again["accuracy"] == knn["accuracy"]
    one_by_one = []
    for client in range(6):
        encoder = finished.models.personal(finished.server, finished.memory_rounds, client)
        cluster = 0 if client < 3 else 1
        weight = finished.server.clusters[cluster]["encoder.conv1.weight"]
        assert torch.equal(encoder.conv1.weight, weight)
        one_by_one.append(run_all(prober, encoder, ["knn"])["knn"].accuracy)
    assert knn["accuracy"] == pytest.approx(sum(one_by_one) / 6)


@pytest.mark.parametrize("objective", ["simsiam", "moco-v2", "supervised"])
def test_any_objective_also_with_partial_participation(tmp_path, objective):
    keys = {"participation.per_round": 3, "train.epochs": 0.5, **QUEUE.get(objective, {})}
    run = small_run(tmp_path / "a", objective=objective, method="featarc", rounds=2, **keys)
    assert all(line["failed"] == [] for line in run.metrics)
    assert all(client["cluster"] in (0, 1) for line in run.metrics for client in line["clients"])


def test_options_are_checked():
    for wrong in ({"clusters": 0}, {"align": -1.0}, {"target": "head"}, {"assignment": "chance"}):
        with pytest.raises(ConfigError):
            load({"method": {"name": "featarc", **wrong}})


@pytest.mark.usefixtures("warm_workers")
def test_workers_and_a_restart_change_nothing(tmp_path):
    from fedssl import experiment
    from fedssl.listener import Listener

    class Stop(Exception):
        pass

    class StopAfterOne(Listener):
        def round(self, line):
            if line["round"] == 2:
                raise Stop

    method = {"name": "featarc", "private_norm": True}
    keys = {"method": method, "checkpoint.every": 1, "train.epochs": 0.5}
    whole = small_run(tmp_path / "whole", **keys)
    workers = small_run(tmp_path / "workers", **keys, **{"engine.workers": 2})
    with pytest.raises(Stop):
        experiment.run(load(SMALL, keys), tmp_path / "stopped", StopAfterOne())
    stopped = experiment.resume(tmp_path / "stopped", Listener())
    assert digest(whole) == digest(workers) == digest(stopped.path)
    clusters = [
        [[client["cluster"] for client in line["clients"]] for line in metrics]
        for metrics in (whole.metrics, workers.metrics, stopped.metrics())
    ]
    assert clusters[0] == clusters[1] == clusters[2]
