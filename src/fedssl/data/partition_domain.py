"""Partition by domain: every client has images of one style."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedssl.data.partition_base import (
    SCHEME,
    Indices,
    Partition,
    Pool,
    deal_groups,
    group_by_label,
    split_evenly,
)
from fedssl.data.partition_dirichlet import fill
from fedssl.errors import DataError


class Domain(Partition):
    """One domain per client (FedStyle, appendix): client k has images of domain k // per_domain.

    With `equal`, every domain is resampled to the average size: larger ones are subsampled, and images of
    smaller ones repeat. Without it, every image is assigned exactly once. A Dirichlet(β) draw of a client's
    classes is met exactly with `equal` (by repeats), and as far as a domain's images suffice without.
    """

    scheme: str = Field("domain", description=SCHEME)
    clients: int = Field(0, ge=0, description="number of clients; 0: per_domain × the number of domains")
    per_domain: int = Field(1, ge=1, description="number of clients per domain")
    classes_beta: float | None = Field(
        None, gt=0, description="concentration (β) of a client's classes; none: IID within the domain"
    )
    equal: bool = Field(True, description="give all clients the average size, with repeated images if needed")

    def clients_for(self, pool: Pool) -> int:
        if pool.domains is None:
            raise DataError(
                "partition.scheme=domain needs the domain (style) of each image, but this data set has none: "
                "use a folder tree style/class/image, or partition.scheme=iid"
            )
        domains = len(np.unique(pool.domains))
        clients = domains * self.per_domain
        if self.clients not in (clients, 0):
            raise DataError(
                f"partition.clients={self.clients}, but {domains} domains × "
                f"partition.per_domain={self.per_domain} = {clients} clients: leave partition.clients out"
            )
        return clients

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        assert pool.domains is not None  # checked by clients_for
        styles = group_by_label(rng.permutation(pool.count), pool.domains)
        size = pool.count // (len(styles) * self.per_domain) if self.equal else None
        return [part for style in styles for part in self._deal_style(style, size, pool, rng)]

    def _deal_style(
        self, images: Indices, size: int | None, pool: Pool, rng: np.random.Generator
    ) -> list[Indices]:
        """Assign a domain's images to its clients, `size` each (None: all of them, once)."""
        if size is None and len(images) < self.per_domain:
            raise DataError(
                f"a domain of {len(images)} images is too small for "
                f"partition.per_domain={self.per_domain} clients: use fewer, or partition.equal=true"
            )
        sizes = split_evenly(len(images), self.per_domain) if size is None else np.full(self.per_domain, size)
        if self.classes_beta is None:
            return np.split(repeat_images(images, int(sizes.sum())), np.cumsum(sizes)[:-1])
        if size is None and self.per_domain == 1:
            raise DataError(
                "partition.classes_beta changes nothing if one client has all images of its domain: "
                "use partition.equal=true or partition.per_domain=2 or more"
            )
        if pool.labels is None:
            raise DataError("partition.classes_beta needs labels, but this data set has none: do not set it")
        groups = group_by_label(images, pool.labels)
        wants = rng.dirichlet(np.full(len(groups), self.classes_beta), size=self.per_domain)
        if size is None:
            return deal_groups(groups, fill(wants, sizes, np.array([len(group) for group in groups]), rng))
        amounts = fill(wants, sizes, np.full(len(groups), sizes.sum()), rng)
        wanted = amounts.sum(0)
        return deal_groups(
            [repeat_images(group, n) for group, n in zip(groups, wanted, strict=True)], amounts
        )


class Sites(Partition):
    """One client per site of the data set (folder, writer, hospital).

    Every image belongs to exactly one client. Sites with few images can be left out.
    """

    by_site: ClassVar[bool] = True

    scheme: str = Field("folder", description=SCHEME)
    clients: int = Field(0, ge=0, description="number of sites, drawn at random; 0: all")
    min_images: int = Field(1, ge=1, description="sites with fewer images are left out")

    def clients_for(self, pool: Pool) -> int:
        found = len(self._sites(pool))
        if self.clients > found:
            raise DataError(
                f"partition.clients={self.clients}, but {found} sites have at least "
                f"partition.min_images={self.min_images} images"
            )
        return self.clients or found

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        sites = self._sites(pool)
        drawn = np.sort(rng.choice(len(sites), size=self.clients_for(pool), replace=False))
        return [sites[site] for site in drawn]

    def _sites(self, pool: Pool) -> list[Indices]:
        if pool.domains is None:
            raise DataError(
                f"partition.scheme={self.scheme} needs sites, which this data set does not have: "
                "use a folder for each site, a manifest with a column `site`, or partition.scheme=iid"
            )
        every = group_by_label(np.arange(pool.count), pool.domains)
        sites = [site for site in every if len(site) >= self.min_images]
        if not sites:
            raise DataError(f"no site has partition.min_images={self.min_images} images")
        return sites


def repeat_images(images: Indices, count: int) -> Indices:
    """The first `count` images, repeated cyclically if there are fewer."""
    return np.resize(images, count)
