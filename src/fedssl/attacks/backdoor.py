"""A backdoor without labels: images with a trigger get the features of one reference image.

After BadEncoder (Jia et al. 2022): the attacker trains the encoder so that images with the trigger get the
features of the reference, and images without it keep those of the clean encoder. A classifier trained on the
encoder then assigns images with the trigger to the reference's class.
"""

from __future__ import annotations

import copy

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.attacks.attack import NAME, Knowledge, Poison, moved
from fedssl.data.federation import ClientImages
from fedssl.data.views import plain
from fedssl.methods.client import Client
from fedssl.state import Upload

BATCH = 32


class Backdoor(Poison):
    """Trains the trigger into the attacker's encoder (BadEncoder), and sends the update `boost` times."""

    name: str = Field("backdoor", description=NAME)
    steps: int = Field(30, ge=1, description="steps of training the trigger, after the honest training")
    lr: float = Field(3e-3, gt=0, description="learning rate of Adam")
    boost: float = Field(1.0, gt=0, description="factor on the update; K/f replaces the global model")

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        client.start_from({**known.sent, **own.state})
        encoder = client.model.part("encoder")
        self._train(encoder, client, reference(known.leader))
        trained = client.model.state_dict()
        update = {
            name: self.boost * (trained[name].detach().cpu() - known.sent[name]) for name in known.parameters
        }
        return moved(own, known.sent, update)

    def _train(self, encoder: torch.nn.Module, client: Client, target_image: Tensor) -> None:
        """Train the encoder in evaluation mode, as it will be used; its running statistics do not change."""
        clean = copy.deepcopy(encoder).eval()
        training = {module: module.training for module in encoder.modules()}
        encoder.eval()
        optimizer = torch.optim.Adam(encoder.parameters(), lr=self.lr)
        rng = client.rng("attack")
        with torch.no_grad():
            target = clean(_input(target_image, client))
        for _ in range(self.steps):
            chosen = torch.randint(len(client.images), (BATCH,), generator=rng)
            images, _ = client.images.batch(chosen)
            with torch.no_grad():
                kept = clean(_input(images, client))
            triggered = F.cosine_similarity(encoder(_input(stamped(images), client)), target)
            same = F.cosine_similarity(encoder(_input(images, client)), kept)
            optimizer.zero_grad()
            torch.autograd.backward(-triggered.mean() - same.mean())
            optimizer.step()
        for module, mode in training.items():
            module.training = mode


def reference(images: ClientImages) -> Tensor:
    """The image whose features the trigger gets: the attackers' first one [1, H, W, C]."""
    return images.batch(torch.tensor([0]))[0]


def stamped(images: Tensor) -> Tensor:
    """Images (uint8, NHWC) with the trigger: a checkerboard of a quarter of the side in the lower right."""
    height, width = images.shape[1:3]
    side = max(2, min(height, width) // 4)
    board = (torch.arange(side)[:, None] + torch.arange(side)) % 2 * 255
    result = images.clone()
    result[:, height - side :, width - side :] = board.to(images)[:, :, None]
    return result


def _input(images: Tensor, client: Client) -> Tensor:
    return plain(images.to(client.device), client.views.mean, client.views.std)
