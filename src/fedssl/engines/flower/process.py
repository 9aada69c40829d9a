"""Flower's long-lived processes as children that end with their parent.

    python -m fedssl.engines.flower.process superlink MAX_BYTES …    behind the gate, see `gate`
    python -m fedssl.engines.flower.process supernode …

The rest of the line is what `flower-superlink` and `flower-supernode` take.
"""

from __future__ import annotations

import sys

from flwr.supercore.app_utils import start_parent_process_monitor


def superlink(max_bytes: int) -> None:
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from fedssl.engines.flower.gate import Gate

    others = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Gate, max_bytes=max_bytes), *others())
    flower_superlink()


def supernode() -> None:
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


def main() -> None:
    parent, kind = int(sys.argv.pop(1)), sys.argv.pop(1)
    start_parent_process_monitor(parent)
    if kind == "superlink":
        superlink(int(sys.argv.pop(1)))
    else:
        supernode()


if __name__ == "__main__":
    main()
