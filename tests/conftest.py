"""What all tests have: a profile of Hypothesis, few garbage collections, and the store, if it is installed."""

from __future__ import annotations

import gc
import os
import signal

from tests.environment import HAS_SERVER, load_profile

pytest_plugins = ["tests.server_fixtures"] if HAS_SERVER else []
load_profile()
# Clients trust nobody, because reading the machine's authorities takes up to 25 ms. A test of TLS names its own.
os.environ["SSL_CERT_FILE"] = os.devnull
gc.disable()


def pytest_configure() -> None:
    """Let what tests start begin with the default action of SIGHUP, as in a terminal, also if pytest runs under nohup.

    A signal that is ignored would stay ignored in them. One that is handled does not, and pytest outlives it too.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_collection_finish() -> None:
    """Keep what was collected out of garbage collections, and let few be of all objects: a tenth of the CPU."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()
