"""Copies tensors from the CPU to the training device."""

from __future__ import annotations

import torch
from torch import Tensor


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a GPU through pinned memory, so that the copy is asynchronous."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
