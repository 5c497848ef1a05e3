"""Fixtures: a stub of the API, a clean environment, and clocks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest

from tests.cli.api_stub import NOW_S, ApiStub, StubHandler
from tests.environment import HAS_SERVER

collect_ignore = (
    []
    if HAS_SERVER
    else [
        *(
            f"test_{command}.py"
            for command in [
                "audit",
                "check",
                "check_verify",
                "cluster",
                "daemon",
                "doctor",
                "exports",
                "keys",
                "move",
                "secrets",
                "status",
            ]
        ),
        "test_program.py",
        "bulk",
    ]
)
"""Tests that load the commands of the server or of Spark."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiStub]:
    """A stub of the API, at LATER_URL."""
    api = ApiStub()
    server = HTTPServer(("127.0.0.1", 0), type("BoundHandler", (StubHandler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("LATER_URL", api.url)
    yield api
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a command asked for; none is made."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory without later.toml, and no variable LATER_…"""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LATER_")]:
        monkeypatch.delenv(name)


if HAS_SERVER:
    import structlog

    @pytest.fixture(autouse=True)
    def unchanged_log() -> Iterator[None]:
        """The configuration of the log, restored after a command has set it up."""
        configuration = structlog.get_config()
        yield
        structlog.configure(**configuration)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time that relative times count from."""
    monkeypatch.setattr("later.cli.times.time.time", lambda: NOW_S)
    return NOW_S
