"""Data sets, partitions, client shifts and views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedssl.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTITIONS = Registry(
    "partition",
    {
        "iid": "fedssl.data.partitions:IID",
        "classes": "fedssl.data.partitions:Classes",
        "dirichlet": "fedssl.data.partitions:Dirichlet",
        "dirichlet-bounded": "fedssl.data.partitions:DirichletBounded",
        "dirichlet-equal": "fedssl.data.partitions:DirichletEqual",
        "skew": "fedssl.data.partitions:Skew",
        "one-class": "fedssl.data.partitions:OneClass",
        "domain": "fedssl.data.partitions:Domain",
    },
)

SHIFTS = Registry(
    "shift",
    {
        "none": "fedssl.data.shifts:Shift",
        "rotation": "fedssl.data.shifts:Rotation",
    },
)

DATASETS = Registry(
    "data set",
    {
        "digits": "fedssl.data.embedded:digits",
        "mnist5k": "fedssl.data.embedded:mnist5k",
        "npz": "fedssl.data.npz:load",
        "folder": "fedssl.data.folder:load",
        "cifar10": "fedssl.data.torchvision:cifar10",
        "cifar100": "fedssl.data.torchvision:cifar100",
        "mnist": "fedssl.data.torchvision:mnist",
        "fashion-mnist": "fedssl.data.torchvision:fashion_mnist",
        "usps": "fedssl.data.torchvision:usps",
        "svhn": "fedssl.data.torchvision:svhn",
        "stl10": "fedssl.data.torchvision:stl10",
        "celeba": "fedssl.data.torchvision:celeba",
        "huggingface": "fedssl.data.huggingface:load",
    },
)


def partition(
    labels: Sequence[int] | NDArray[np.int64],
    scheme: str = "iid",
    clients: int | None = None,
    seed: int = 0,
    domains: Sequence[int] | NDArray[np.int64] | None = None,
    **options: Any,
) -> list[NDArray[np.int64]]:
    """Index arrays, one a client: a pure function of labels, scheme, options and seed."""
    import numpy as np

    from fedssl.options import choose

    given = options if clients is None else {"clients": clients, **options}
    rule = choose(PARTITIONS, {"scheme": scheme, **given}, "partition", key="scheme")
    as_array = np.asarray(labels, dtype=np.int64)
    parts: list[NDArray[np.int64]] = rule.split(
        as_array, seed, None if domains is None else np.asarray(domains, dtype=np.int64)
    )
    return parts
