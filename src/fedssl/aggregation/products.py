"""Average the products of adapters' factors instead of the factors.

A client changes a weight by B·A. The mean of B times the mean of A is not the mean of B·A, so a rule that
averages both factors is biased. Here the rule is applied to the products, and the result is factored again by
the singular value decomposition, the best approximation of that rank. It is exact if all clients have the
same A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import PrivateAttr
from torch import Tensor

from fedssl.aggregation.rule import Fold, Rule
from fedssl.state import State, Upload

Pairs = Sequence[tuple[str, str]]  # names of A and B


class ProductRule(Rule):
    """A rule applied to products of factors; made by `on_products`."""

    _rule: Any = PrivateAttr(None)
    _pairs: Any = PrivateAttr(())

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        return ProductFold(self._rule, self._pairs, previous, statistics, round)


def on_products(rule: Rule, pairs: Pairs) -> ProductRule:
    """Apply a rule to the products B·A instead of B and A.

    Args:
        rule: the aggregation rule.
        pairs: the names of A [rank, inputs, …] and B [outputs, rank, …] of every adapter.
    """
    made = ProductRule(name=rule.name)
    made._rule, made._pairs = rule, tuple(pairs)
    return made


class ProductFold(Fold):
    """Multiplies the factors of each upload, folds the products, and factors the result."""

    def __init__(
        self, rule: Rule, pairs: Pairs, previous: State, statistics: frozenset[str], round: int | None
    ) -> None:
        super().__init__(previous, statistics)
        self.pairs = pairs
        self.products = rule.start(with_products(previous, pairs), statistics, round)

    def add(self, upload: Upload) -> None:
        super().add(upload)
        self.report[upload.client] = self.products.report[upload.client]

    def _add(self, upload: Upload) -> None:
        self.products.add(replace(upload, state=with_products(upload.state, self.pairs)))

    def _finish(self) -> State:
        return with_factors(self.products.finish(), self.previous, self.pairs)


def with_products(state: Mapping[str, Tensor], pairs: Pairs) -> State:
    """A state with B·A under the name of B, and without A."""
    left = {a for a, _ in pairs}
    products = {b: state[b].flatten(1) @ state[a].flatten(1) for a, b in pairs}
    return {name: products.get(name, value) for name, value in state.items() if name not in left}


def with_factors(state: Mapping[str, Tensor], like: Mapping[str, Tensor], pairs: Pairs) -> State:
    """The inverse of `with_products`, truncated to the ranks of `like`.

    A has orthogonal rows with the mean norm of the previous rows, so that directions in which B is zero can
    still be trained.
    """
    factors: State = {}
    for a, b in pairs:
        rank = like[a].shape[0]
        left, values, right = torch.linalg.svd(state[b].double(), full_matrices=False)
        length = like[a].double().norm() / rank**0.5
        factors[b] = (left[:, :rank] * values[:rank] / length).view_as(like[b]).to(like[b].dtype)
        factors[a] = (right[:rank] * length).view_as(like[a]).to(like[a].dtype)
    return {**state, **factors}
