"""The command `healthy`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of, problem_reply

ALIVE = Reply(200, {"status": "alive"})


@pytest.fixture
def unused() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def address(api: ApiStub, unused: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the stub. By default, nothing listens at the two addresses that are asked."""
    monkeypatch.setenv("LATER_LISTEN", unused)
    monkeypatch.setenv("LATER_HEALTH", unused)
    return api.url.removeprefix("http://")


@pytest.mark.parametrize("variable", ["LATER_LISTEN", "LATER_HEALTH"])
def test_a_daemon_is_asked_where_its_own_variable_says(
    variable: str, address: str, api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv(variable, address)
    api.replies = [ALIVE]

    assert exit_code_of("healthy") == 0
    assert capsys.readouterr().out == f"healthy: http://{address}/livez\n"
    assert api.calls == [("GET", "/livez")]


def test_a_daemon_that_listens_on_all_addresses_is_asked_on_loopback(
    address: str, api: ApiStub, capsys: Capture
) -> None:
    api.replies = [ALIVE]
    port = address.partition(":")[2]

    assert exit_code_of("healthy", "--listen", f"0.0.0.0:{port}") == 0
    assert capsys.readouterr().out == f"healthy: http://127.0.0.1:{port}/livez\n"


def test_nothing_that_listens_is_unhealthy(address: str, unused: str, capsys: Capture) -> None:
    assert exit_code_of("healthy") == 1
    assert capsys.readouterr().err == f"later: no daemon listens at {unused} or {unused}\n"
    assert exit_code_of("healthy", "--health", "off") == 1
    assert capsys.readouterr().err == f"later: no daemon listens at {unused}\n"


@each_case(
    ("reply", "reason"),
    [
        (problem_reply(503, "the ticker delay hangs"), "answered 503: the ticker delay hangs"),
        (Reply(404, b"<html>"), "answered 404: Not Found"),
        (Reply(500, ["detail"]), "answered 500: Internal Server Error"),
        (Reply(500, {"detail": 7}), "answered 500: Internal Server Error"),
    ],
)
def test_a_daemon_that_says_that_it_does_not_work_is_unhealthy(
    reply: Reply, reason: str, address: str, api: ApiStub, capsys: Capture
) -> None:
    api.replies = [reply]

    assert exit_code_of("healthy", "--listen", address) == 1
    assert capsys.readouterr().err == f"later: http://{address}/livez {reason}\n"


def test_one_that_works_does_not_hide_another_that_does_not(address: str, api: ApiStub) -> None:
    api.replies = [ALIVE, problem_reply(503, "the ticker delay hangs")]

    assert exit_code_of("healthy", "--listen", address, "--health", address) == 1


def test_a_daemon_that_takes_the_connection_and_does_not_answer_is_unhealthy(
    unused: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("later.cli.commands.healthy.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        address = f"127.0.0.1:{hung.getsockname()[1]}"

        assert exit_code_of("healthy", "--listen", address, "--health", unused) == 1
        assert capsys.readouterr().err == f"later: http://{address}/livez: no answer in time\n"


def test_what_is_no_http_is_unhealthy(address: str, api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of("healthy", "--listen", address, "--tls-cert", os.devnull) == 1
    assert capsys.readouterr().err.startswith(f"later: https://{address}/livez: [SSL")
