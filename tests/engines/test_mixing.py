"""Mixing matrices: symmetric, doubly stochastic, connected; and how fast they lead to consensus."""

import networkx as nx
import numpy as np
import pytest

from fedssl.engines.mixing import among, connected, graph, metropolis_hastings, spectral_gap
from fedssl.errors import ConfigError
from fedssl.rng import numpy_rng

TOPOLOGIES = ("star", "cycle", "tree", "random", "complete")


def a_graph(topology, nodes, probability=0.7):
    return graph(topology, nodes, probability, numpy_rng(0, "test", nodes))


def check_mixing(weights):
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=0, atol=1e-14)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_number_of_nodes_up_to_64(topology):
    for nodes in range(1, 65):
        neighbors = a_graph(topology, nodes)
        assert not neighbors.diagonal().any()
        weights = metropolis_hastings(neighbors)
        check_mixing(weights)
        # Only neighbors exchange anything, and all of them do.
        assert ((weights > 0) == (neighbors | np.eye(nodes, dtype=bool))).all()
        # Connected, by definition and by what it is good for: 1 is a simple eigenvalue.
        assert nx.is_connected(nx.from_numpy_array(neighbors))
        assert connected(neighbors)
        assert spectral_gap(weights) > 0


def test_graphs_match_their_names():
    for nodes in (2, 3, 7, 12):
        for topology, reference in (
            ("star", nx.star_graph(nodes - 1)),
            ("cycle", nx.cycle_graph(nodes) if nodes > 2 else nx.path_graph(2)),
            ("complete", nx.complete_graph(nodes)),
        ):
            expected = nx.to_numpy_array(reference, nodelist=range(nodes)) > 0
            np.testing.assert_array_equal(a_graph(topology, nodes), expected)
    tree = nx.to_numpy_array(nx.balanced_tree(2, 3), nodelist=range(15)) > 0
    np.testing.assert_array_equal(a_graph("tree", 15), tree)


def test_weights_by_hand():
    """A path 0–1–2: degrees 1, 2, 1, so each edge weighs 1/3."""
    weights = metropolis_hastings(a_graph("star", 3)[np.ix_([1, 0, 2], [1, 0, 2])])
    np.testing.assert_allclose(weights, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3, atol=1e-15)


def test_a_complete_graph_has_uniform_weights():
    for nodes in (1, 2, 5, 64):
        np.testing.assert_allclose(metropolis_hastings(a_graph("complete", nodes)), 1 / nodes, atol=1e-15)


def test_a_random_graph_is_seeded_connected_and_as_dense_as_asked():
    drawn = [graph("random", 20, 0.7, numpy_rng(seed)) for seed in range(50)]
    assert (drawn[0] == graph("random", 20, 0.7, numpy_rng(0))).all()
    assert (drawn[0] != drawn[1]).any()
    density = np.mean([neighbors.sum() / (20 * 19) for neighbors in drawn])
    assert abs(density - 0.7) < 0.02  # 9,500 edges: 4 standard deviations
    sparse = [graph("random", 6, 0.3, numpy_rng(seed)) for seed in range(50)]
    assert all(connected(neighbors) for neighbors in sparse)


def test_a_too_small_edge_probability_is_an_error():
    with pytest.raises(ConfigError, match=r"edge_probability=0\.001: none of 1000 .* 30 nodes"):
        graph("random", 30, 0.001, numpy_rng(0))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_absent_nodes_have_no_weight_and_the_rest_is_doubly_stochastic(topology):
    neighbors, rng = a_graph(topology, 12), np.random.default_rng(0)
    for _ in range(20):
        active = np.flatnonzero(rng.random(12) < 0.6)
        weights = among(neighbors, active.tolist())
        check_mixing(weights)
        away = np.setdiff1d(np.arange(12), active)
        np.testing.assert_array_equal(weights[away], np.eye(12)[away])
        inner = metropolis_hastings(neighbors[np.ix_(active, active)])
        np.testing.assert_allclose(weights[np.ix_(active, active)], inner, atol=1e-15)


def test_spectral_gaps_have_the_order_of_the_literature():
    """Complete > random > star > cycle at 32 nodes; known closed forms for two of them."""
    gaps = {topology: spectral_gap(metropolis_hastings(a_graph(topology, 32))) for topology in TOPOLOGIES}
    assert gaps["complete"] == pytest.approx(1)
    assert gaps["complete"] > gaps["random"] > gaps["star"] > gaps["cycle"]
    assert gaps["star"] == pytest.approx(1 / 32)
    assert gaps["cycle"] == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 32)))
    assert gaps["random"] > gaps["tree"]
