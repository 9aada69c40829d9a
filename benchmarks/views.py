"""Time to make the views of a batch: ours against torchvision's v2 transforms, image by image.

    python benchmarks/views.py [--batch 128] [--side 32] [--threads 2] [--repeats 5]

Both make two views of every image of the same batch with the same recipe, and take turns, so that other load
affects both. Times are the fastest of all turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from ratios import Ratio, report
from torch import Tensor
from torchvision.transforms import v2

from fedssl.data.pixels import kernel_size
from fedssl.data.view_recipes import View, build_recipe
from fedssl.data.views import Views
from fedssl.rng import torch_rng

MEAN, STD = 0.5, 0.25


def torchvision_view(view: View, side: int) -> v2.Compose:
    """The same view of one uint8 image [3, H, W]."""
    steps: list[torch.nn.Module] = []
    if view.pad:
        steps.append(v2.RandomCrop(side, padding=round(view.pad * side)))
    if view.crop_min < 1:
        steps.append(v2.RandomResizedCrop(side, (view.crop_min, view.crop_max), view.ratio))
    if view.flip:
        steps.append(v2.RandomHorizontalFlip(view.flip))
    jitter = [v2.RandomApply([v2.ColorJitter(*view.jitter)], view.jitter_p)] if any(view.jitter) else []
    grey = [v2.RandomGrayscale(view.grey)] if view.grey else []
    steps += grey + jitter if view.grey_first else jitter + grey
    if view.blur:
        steps.append(v2.RandomApply([v2.GaussianBlur(kernel_size(side), view.blur_sigma)], view.blur))
    if view.solarize:
        steps.append(v2.RandomSolarize(128, view.solarize))
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN] * 3, [STD] * 3)])


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def compare(name: str, images: Tensor, repeats: int) -> tuple[float, float]:
    """Milliseconds of ours and of torchvision's for two views of the batch."""
    side = images.shape[1]
    views, rng = Views(build_recipe(name), (side, side), 3, MEAN, STD), torch_rng(0, "benchmark")
    transforms = [torchvision_view(view, side) for view in views.views]
    single = images.permute(0, 3, 1, 2).contiguous()

    def one_by_one() -> None:
        for transform in transforms:
            torch.stack([transform(image) for image in single]).to(memory_format=torch.channels_last)

    views(images, rng)
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(milliseconds(one_by_one))
        ours += [milliseconds(lambda: views(images, rng)) for _ in range(10)]
    return min(ours), min(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description="views of a batch: ours against torchvision's v2 transforms")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # After a large block was freed, as in every training step, the allocator keeps memory for reuse
    # instead of asking the system for new pages again and again.
    torch.ones(1 << 22)
    shape = (options.batch, options.side, options.side, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch_rng(0, "images"))
    batch = f"{options.batch} images of {options.side}×{options.side}, {options.threads} threads"
    ratios = []
    for name in ("simclr", "moco-v1", "byol", "mae", "supervised"):
        ours, theirs = compare(name, images, options.repeats)
        note = f"{ours:.1f} and {theirs:.0f} ms; {2000 * options.batch / ours:,.0f} views/s"
        ratios.append(
            Ratio(f"torchvision's time for {name} views over ours, {batch}", theirs / ours, note=note)
        )
    report(ratios)


if __name__ == "__main__":
    main()
