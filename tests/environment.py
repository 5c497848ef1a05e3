"""The environment of a run: how many examples each property has, and whether the server's libraries are installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

import hypothesis

PROFILE = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "dev")
HAS_SERVER = find_spec("redis") is not None
"""False where only the library's own dependencies are installed: tests that need more are not collected then."""


def load_profile() -> None:
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
    hypothesis.settings.register_profile("dev", deadline=None)
    # For `make test`: new examples each time, but fewer. `make check` has as many as CI.
    hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
    hypothesis.settings.load_profile(PROFILE)
