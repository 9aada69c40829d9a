"""Flower underneath: the same run in Ray simulation, and across machines.

All that the project knows of Flower is in this folder. Neither Flower nor Ray is told to report usage to
its makers, unless the environment says otherwise.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
