"""The description of the API against a daemon: requests of every kind that it allows, and of some that it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.daemons import environment, run_daemon
from tests.system.stores import StoreServer

SETTINGS = Path(__file__).parent / "schemathesis.toml"
EXAMPLES = 8
"""Requests of each kind, for each operation."""


@pytest.fixture(scope="module")
def processes() -> int:
    """The number of processes of each daemon. One is enough: each of several answers its own requests."""
    return 1


@pytest.mark.timeout(300)
def test_what_the_description_says_is_so(folder: Path, store: StoreServer) -> None:
    # no worker: what is created has callbacks to hosts that exist
    with run_daemon("serve", folder, "--redis", store.url, "--guard", "off") as serve:
        url, log = f"{serve.url}/openapi.json", folder / "schemathesis.txt"
        options = ["run", url, "--seed", "1", "--max-examples", str(EXAMPLES)]
        with log.open("wb") as output:
            run = subprocess.run(
                [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(),
                check=False,
            )
        assert run.returncode == 0, log.read_text()[-20_000:]
