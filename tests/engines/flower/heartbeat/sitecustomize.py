"""Python runs this first in processes that have this folder in PYTHONPATH: sites that report more often.

Flower misses a site after two intervals without a heartbeat, which are 30 seconds each. Only heartbeats of
SuperNodes change: the same constant also limits how long the processes that SuperNodes start may take.

It also lets sites die where `tests.privacy.dies` says.
"""

import os
import sys

if "supernode" in sys.orig_argv:
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection

    seconds = int(os.environ["FEDSSL_TEST_HEARTBEAT"])
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = seconds
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = seconds

if "clientapp" in sys.orig_argv and "FEDSSL_TEST_DIES" in os.environ:
    from tests.privacy import dies

    dies.install()
