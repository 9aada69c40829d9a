"""SGD, Adam and AdamW over lists of tensors, with PyTorch's own update functions.

The classes of torch.optim import the compiler, which takes two seconds before the first step; their
functional forms do not. An optimizer lives for one round, so it needs neither groups nor a state dict.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedssl.methods.options import TrainConfig


class Optimizer:
    """Updates the parameters that received gradients in the last backward pass."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        config: TrainConfig,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        scales: list[float] | None = None,
    ) -> None:
        """Create an optimizer for one round.

        Args:
            parameters: the parameters to update.
            config: names the optimizer, with its momentum and weight decay.
            lr: the learning rate; set `lr` to change it.
            betas: of Adam.
            scales: factor of the learning rate of each parameter; None: 1.
        """
        self.parameters, self.config, self.lr, self.betas = parameters, config, lr, betas
        count = len(parameters)
        each = scales or [1.0] * count
        self._groups = {
            scale: [index for index in range(count) if each[index] == scale] for scale in dict.fromkeys(each)
        }
        self._momenta: list[Tensor | None] = [None] * count
        self._averages = [torch.zeros_like(p) for p in parameters] if config.optimizer != "sgd" else []
        self._squares = [torch.zeros_like(p) for p in parameters] if config.optimizer != "sgd" else []
        self._steps = [torch.zeros(()) for _ in parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for scale, group in self._groups.items():
            moved = [index for index in group if self.parameters[index].grad is not None]
            parameters: list[Tensor] = [self.parameters[index] for index in moved]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            update = self._sgd if self.config.optimizer == "sgd" else self._adam
            if moved:
                update(moved, parameters, gradients, scale * self.lr)

    def _sgd(self, moved: list[int], parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        momenta = [self._momenta[index] for index in moved]
        sgd(
            parameters,
            gradients,
            momenta,
            foreach=True,
            weight_decay=self.config.weight_decay,
            momentum=self.config.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for index, momentum in zip(moved, momenta, strict=True):
            self._momenta[index] = momentum

    def _adam(self, moved: list[int], parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        update = adam if self.config.optimizer == "adam" else adamw
        update(
            parameters,
            gradients,
            [self._averages[index] for index in moved],
            [self._squares[index] for index in moved],
            [],
            [self._steps[index] for index in moved],
            foreach=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.config.weight_decay,
            eps=1e-8,
            maximize=False,
        )
