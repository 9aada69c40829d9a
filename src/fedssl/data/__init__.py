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
        "label-drop": "fedssl.data.partition_labels:LabelDrop",
        "attributes": "fedssl.data.partition_labels:Attributes",
        "feature-clusters": "fedssl.data.partition_features:FeatureClusters",
        "domain": "fedssl.data.partitions:Domain",
        "folder": "fedssl.data.partition_domain:Sites",
    },
    base="fedssl.data.partition_base:Partition",
)

SHIFTS = Registry(
    "shift",
    {
        "none": "fedssl.data.shifts:Shift",
        "rotation": "fedssl.data.shifts:Rotation",
        "stylization": "fedssl.data.shift_stylization:Stylization",
        "padpaf-mnist": "fedssl.data.shift_padpaf:MNISTStyles",
        "padpaf-cifar10": "fedssl.data.shift_padpaf:CIFARStyles",
        "padpaf-new": "fedssl.data.shift_padpaf:NewStyles",
    },
    base="fedssl.data.shifts:Shift",
)

VIEWS = Registry(
    "view recipe",
    {
        "auto": "fedssl.data.view_recipes:Auto",
        "simclr": "fedssl.data.view_recipes:SimCLRViews",
        "moco-v1": "fedssl.data.view_recipes:MoCoV1Views",
        "byol": "fedssl.data.view_recipes:BYOLViews",
        "dino": "fedssl.data.view_recipes:DINOViews",
        "mae": "fedssl.data.view_recipes:MAEViews",
        "supervised": "fedssl.data.view_recipes:SupervisedViews",
        "plain": "fedssl.data.view_recipes:PlainViews",
    },
    base="fedssl.data.view_recipes:ViewRecipe",
)

DATASETS = Registry(
    "data set",
    {
        "digits": "fedssl.data.embedded:digits",
        "mnist5k": "fedssl.data.embedded:mnist5k",
        "simpson": "fedssl.papers.simpson.points:simpson",
        "simpson-cluttered": "fedssl.papers.simpson.points:simpson_cluttered",
        "npz": "fedssl.data.npz:load",
        "folder": "fedssl.data.folder:load",
        "manifest": "fedssl.data.manifest:load",
        "cifar10": "fedssl.data.torchvision:cifar10",
        "cifar100": "fedssl.data.torchvision:cifar100",
        "mnist": "fedssl.data.torchvision:mnist",
        "fashion-mnist": "fedssl.data.torchvision:fashion_mnist",
        "usps": "fedssl.data.torchvision:usps",
        "svhn": "fedssl.data.torchvision:svhn",
        "stl10": "fedssl.data.torchvision:stl10",
        "celeba": "fedssl.data.torchvision:celeba",
        "celeba-people": "fedssl.data.torchvision:celeba_people",
        "huggingface": "fedssl.data.huggingface:load",
        "omniglot": "fedssl.data.natural:omniglot",
        "office-caltech": "fedssl.data.natural:office_caltech",
        "covid-chestxray": "fedssl.data.natural:covid_chestxray",
        "femnist": "fedssl.data.natural:femnist",
        "camelyon17": "fedssl.data.natural:camelyon17",
        "inaturalist": "fedssl.data.natural:inaturalist",
        "mnist+svhn+usps": "fedssl.data.styles:load",
    },
    parameters=("config", "progress"),
)


def partition(
    labels: Sequence[int] | NDArray[np.int64],
    scheme: str = "iid",
    clients: int | None = None,
    seed: int = 0,
    domains: Sequence[int] | NDArray[np.int64] | None = None,
    features: Sequence[Sequence[float]] | NDArray[np.float32] | None = None,
    **options: Any,
) -> list[NDArray[np.int64]]:
    """Split a data set among clients.

    The result depends on the arguments alone: the same arguments give the same split.

    Args:
        labels: the class of each image [N].
        scheme: one that `fedssl list partitions` shows, or the path of a class: `./file.py:Class`.
        clients: number of clients; None takes the scheme's default.
        seed: seed of the random draws.
        domains: the domain of each image [N]; the scheme "domain" needs them.
        features: a feature vector of each image [N, D], from any encoder; the scheme "feature-clusters"
            needs them.
        options: the scheme's own options, which are the keys of the config section `partition`, such as
            `alpha` of "dirichlet".

    Returns:
        One array of image indices for each client.

    Raises:
        ConfigError: for an unknown scheme, option or value.
        DataError: for labels that cannot be split that way.

    Example:
        >>> parts = fedssl.data.partition(labels, scheme="dirichlet", clients=10, alpha=0.1, seed=0)
        >>> images_of_client_3 = images[parts[3]]
    """
    import numpy as np

    from fedssl.options import choose

    given = options if clients is None else {"clients": clients, **options}
    rule = choose(PARTITIONS, {"scheme": scheme, **given}, "partition", key="scheme")
    as_array = np.asarray(labels, dtype=np.int64)
    parts: list[NDArray[np.int64]] = rule.split(
        as_array,
        seed,
        None if domains is None else np.asarray(domains, dtype=np.int64),
        features=None if features is None else np.asarray(features, dtype=np.float32),
    )
    return parts
