"""The device that a run trains on."""

from __future__ import annotations

import torch

from fedssl.errors import ConfigError


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for bfloat16; others only emulate it."""
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def find_device(name: str) -> torch.device:
    """Find a device by its name; `auto` prefers CUDA, then MPS, then the CPU."""
    if name != "auto":
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def deal_devices(name: str, workers: int) -> list[str]:
    """The device of each worker process: several GPUs take turns.

    Args:
        name: `device` of the config. With a number (`cuda:1`), all workers share that device.
        workers: number of worker processes.
    """
    several = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name not in ("auto", "cuda") or several < 2:
        return [name] * workers
    return [f"cuda:{worker % several}" for worker in range(workers)]
