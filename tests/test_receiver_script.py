"""The receiver to try callbacks with."""

from __future__ import annotations

import socket

import pytest
from aiohttp import web

from scripts import receiver


def test_the_receiver_says_which_port_it_got(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports: list[int] = []

    def serve(app: web.Application, *, sock: socket.socket, **options: object) -> None:
        ports.append(sock.getsockname()[1])

    monkeypatch.setattr(web, "run_app", serve)
    monkeypatch.setattr("sys.argv", ["receiver.py", "--port", "0"])
    receiver.main()
    assert ports != [0]
    assert capsys.readouterr().out.splitlines()[0] == f"receiving on http://127.0.0.1:{ports[0]}"
