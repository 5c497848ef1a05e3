"""The packages of requirements-zaqar.txt: Zaqar's own tests and its client, in a folder of the venv of their own."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from unittest.mock import MagicMock

FOLDER = Path(sys.prefix) / "zaqar"
"""`make test-zaqar` installs them here. What `later` needs itself comes first on the path, and stays as it is."""

SWITCHES = {
    "ZAQAR_TESTS_CONFIGS_DIR": str(FOLDER / "zaqar" / "tests" / "etc"),
    "ZAQAR_TEST_MONGODB": "1",  # or the tests of queues, messages and claims skip themselves
    "ZAQARCLIENT_TEST_FUNCTIONAL": "1",
}

REPLACED_MODULES = (
    "keystonemiddleware",
    "openstack",
    "openstack.config",
    "zaqar.common.auth",
    "zaqar.notification.notifier",
    "zaqar.storage.mongodb",
)
"""Modules that the tests import for Zaqar's server, which is not started: what these need is not installed."""

WARNING_MODULES = ("zaqar.tests.unit.transport.wsgi.base", "zaqarclient.tests.queues.base")
"""Modules whose imports warn, of `cgi` for example."""


def make_importable() -> bool:
    """Let the packages be imported, and return whether they are installed."""
    if not FOLDER.is_dir():
        return False
    sys.path.append(str(FOLDER))
    os.environ.update(SWITCHES)
    for name in REPLACED_MODULES:
        sys.modules[name] = MagicMock(name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in WARNING_MODULES:
            import_module(name)
    return True
