"""The Flower engine: runs in Ray simulation, and across machines.

All code that depends on Flower is in this folder. Usage reports of Flower and Ray to their makers are off,
unless the environment enables them.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray hides GPUs from processes that did not ask for one: with device=auto a client would train on the CPU.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
