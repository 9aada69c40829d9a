"""Server optimizers for any rule, with w_g − aggregate as the gradient (Reddi et al. 2021)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fedssl.aggregation.rule import check, is_counter, sum_type
from fedssl.options import Options
from fedssl.state import State

MOMENTUM, FIRST, SECOND, STEPS = "momentum/", "adam.first/", "adam.second/", "adam.steps"

USED_BY = {"momentum": ("sgd",), "beta1": ("adam",), "beta2": ("adam",), "eps": ("adam",)}


class ServerOptimizer(Options):
    """The server optimizer. `sgd` with lr=1 and momentum=0 returns the aggregate, like `none`."""

    optimizer: Literal["none", "sgd", "adam"] = Field(
        "none", description="none: the aggregate is the next model"
    )
    lr: float = Field(1.0, gt=0, description="initial learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    beta1: float = Field(0.9, ge=0, lt=1, description="adam: decay of the first moment")
    beta2: float = Field(0.99, ge=0, lt=1, description="adam: decay of the second moment")
    eps: float = Field(1e-8, gt=0, description="adam: added to the root of the second moment")
    decay: float = Field(1.0, gt=0, le=1, description="factor of the learning rate after every round")

    average: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the rounds, counted from the end, whose global models are averaged into the "
        "final model; 0: no averaging",
    )

    @field_validator("lr", "momentum", "beta1", "beta2", "eps", "decay")
    @classmethod
    def _has_effect(cls, value: float, info: ValidationInfo) -> float:
        chosen, key = info.data.get("optimizer", "none"), str(info.field_name)
        if value != cls.model_fields[key].default and chosen not in USED_BY.get(key, ("sgd", "adam")):
            raise ValueError(f"has no effect with optimizer={chosen}")
        return value

    @torch.no_grad()
    def step(
        self,
        previous: State,
        aggregate: State,
        memory: State,
        round: int,
        statistics: frozenset[str] = frozenset(),
    ) -> tuple[State, State]:
        """Compute the next global state.

        Args:
            previous: the global state before the round.
            aggregate: the result of the aggregation rule.
            memory: the optimizer's tensors of earlier rounds; others are passed on.
            round: number of the round, from 1.
            statistics: names of normalization statistics, which are taken from the aggregate, like counters.

        Returns:
            The next global state and the next memory.
        """
        check(previous, aggregate, "aggregate")
        lr = self.lr * self.decay ** (round - 1)
        memory = dict(memory)
        steps = 0
        if self.optimizer == "adam":
            memory[STEPS] = memory[STEPS] + 1 if STEPS in memory else torch.tensor(1)
            steps = int(memory[STEPS])
        state = {}
        for name, old in previous.items():
            new = aggregate[name]
            if self.optimizer == "none" or is_counter(old) or name in statistics:
                state[name] = new.clone()
            elif self.optimizer == "sgd" and not self.momentum:
                state[name] = old.lerp(new, lr)  # exactly the aggregate at lr=1
            else:
                wide = old.to(sum_type(old))
                gradient = wide - new
                move = (
                    self._adam(name, gradient, memory, steps)
                    if self.optimizer == "adam"
                    else self._momentum(name, gradient, memory)
                )
                state[name] = wide.sub(move, alpha=lr).to(old.dtype)
        return state, memory

    def _momentum(self, name: str, gradient: Tensor, memory: State) -> Tensor:
        known = memory.get(MOMENTUM + name)
        memory[MOMENTUM + name] = gradient if known is None else gradient.add(known, alpha=self.momentum)
        return memory[MOMENTUM + name]

    def _adam(self, name: str, gradient: Tensor, memory: State, steps: int) -> Tensor:
        first = memory.get(FIRST + name, torch.zeros_like(gradient)).lerp(gradient, 1 - self.beta1)
        second = memory.get(SECOND + name, torch.zeros_like(gradient)).lerp(gradient.square(), 1 - self.beta2)
        memory[FIRST + name], memory[SECOND + name] = first, second
        root = second.div(1 - self.beta2**steps).sqrt_().add_(self.eps)
        return first.div(1 - self.beta1**steps).div_(root)
