"""Secure aggregation between processes over TLS; `python -m tests.privacy.dropouts` has ten sites."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
if sys.platform == "win32":
    pytest.skip("processes are killed by session", allow_module_level=True)

from tests.privacy.dropouts import run_with_deaths


@pytest.mark.skipif(
    "FEDSSL_DROPOUTS" not in os.environ, reason="25 processes: set FEDSSL_DROPOUTS=1 to run it"
)
def test_a_site_is_killed_before_its_masked_upload(tmp_path: Path) -> None:
    """The hardest case: others have added masks that they agreed on with it."""
    found = run_with_deaths(tmp_path, 3, ["mask"])
    assert found.counted == [0, 1]
    assert "lost before it sent its masked upload" in found.lost[2]
    assert found.error <= found.allowed
    assert found.quantisation < 1e-9
    assert found.found == 0
