"""A site that dies at one exchange of secure aggregation, for `dropouts`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedssl.privacy.secure.client import SecureClient

DIES = "FEDSSL_TEST_DIES"  # STAGE:FILE in the environment of a site's processes


def install() -> None:
    """When it is asked for STAGE, the site writes FILE and hangs until it is killed."""
    last, marker = os.environ[DIES].split(":", 1)
    answer = SecureClient.answer

    def answer_until_dead(self: SecureClient, stage: str, data: bytes) -> bytes:
        if stage == last:
            Path(marker).touch()
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.2)
            os._exit(1)
        return answer(self, stage, data)

    SecureClient.answer = answer_until_dead  # type: ignore[method-assign]
