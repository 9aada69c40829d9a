"""The encoder that a run leaves behind, on the server and at each site."""

from __future__ import annotations

from torch import nn

from fedssl.config import Config
from fedssl.data.images import ImageSet
from fedssl.models.adapters import merged_state
from fedssl.models.describe import describe_with_input
from fedssl.models.encoders import Encoder
from fedssl.rundir import RunDir


def write_encoder(
    directory: RunDir, config: Config, encoder: Encoder, trained: nn.Module, images: ImageSet, owner: str
) -> None:
    """Write encoder.safetensors and encoder.json.

    Args:
        directory: the run's folder.
        config: of the run.
        encoder: the network before training, with its description.
        trained: the network with its trained weights.
        images: what it was trained on.
        owner: whose it is, such as `global` or `client 3`.
    """
    data = config.data
    directory.write_encoder(
        {name: value.detach().cpu() for name, value in merged_state(trained).items()},
        describe_with_input(
            encoder, data.mean, data.std, images.size, images.channels, data.resize, data.window
        )
        | {"trained": owner}
        | ({"init": config.model.init} if config.model.init else {}),
    )
