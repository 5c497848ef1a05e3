"""The receiver to try callbacks with."""

from __future__ import annotations

import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

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


def test_an_event_for_operators_is_shown_by_its_type_and_data() -> None:
    body = b'{"type": "later.topic.paused", "timestamp": "2027-01-15T08:00:00.000Z", "data": {"topic": "order"}}'
    call = receiver.parse_call(make_mocked_request("POST", "/"), body)
    assert (call.topic, call.content) == ("later.topic.paused", "{'topic': 'order'}")
