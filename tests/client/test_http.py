"""The HTTP client: one connection for many calls, and no call sent twice."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from later.client.http import CALLS_PER_CONNECTION, ApiClient
from later.core.api_keys import make_key_text
from later.core.errors import CallFailed, ConfigError, Unavailable
from tests.client.api_servers import StubAnswer, StubServer, problem, stub_server

CERTIFICATES = Path(__file__).parents[1] / "delivery" / "certificates"
OK = StubAnswer(200, {"fine": True})
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def build_client(url: str, timeout_s: float = 5, ca: str | None = None) -> ApiClient:
    return ApiClient(url, timeout_s, lambda: 0.0, ca=ca)


@contextmanager
def keep_alive_server(*answers: StubAnswer) -> Iterator[tuple[StubServer, ApiClient]]:
    with stub_server(*answers, protocol="HTTP/1.1") as server:
        client = build_client(server.url)
        try:
            yield server, client
        finally:
            client.close()


@contextmanager
def socket_server(*serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run each function on one connection, in turn."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            for function in serve:
                connection, _ = listener.accept()
                with connection:
                    function(connection)

        thread = Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def read_request(connection: socket.socket) -> bytes:
    request = b""
    while not request.endswith(b"}"):
        request += connection.recv(65536)
    return request


def answer_once(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(ANSWER)


def test_calls_share_a_connection() -> None:
    with keep_alive_server(OK) as (server, client):
        for _ in range(3):
            assert client.ask("POST", "/create", {"topic": "order"}) == {"fine": True}
        assert server.connections == 1


def test_a_connection_is_replaced_after_some_calls() -> None:
    with keep_alive_server(OK) as (server, client):
        for _ in range(2 * CALLS_PER_CONNECTION + 1):
            client.ask("GET", "/x")
        assert server.connections == 3


def test_an_error_status_keeps_the_connection() -> None:
    with keep_alive_server(problem(404), problem(503), OK) as (server, client):
        for error in (CallFailed, Unavailable):
            with pytest.raises(error):
                client.ask("GET", "/x")
        client.ask("GET", "/x")
        assert server.connections == 1


def test_a_closed_client_opens_a_new_connection() -> None:
    with keep_alive_server(OK) as (server, client):
        client.ask("GET", "/x")
        client.close()
        client.ask("GET", "/x")
        assert server.connections == 2


def test_a_connection_is_not_used_again_after_an_answer_was_cut() -> None:
    with keep_alive_server(StubAnswer(200, b"{}....", cut=True), OK) as (server, client):
        with pytest.raises(Unavailable, match="did not answer"):
            client.ask("GET", "/x")
        assert client.ask("GET", "/x") == {"fine": True}
        assert server.connections == 2


def test_a_connection_is_not_used_again_after_a_timeout() -> None:
    def answer_late(connection: socket.socket) -> None:
        while connection.recv(65536):  # until the client gives up
            pass

    with socket_server(answer_late, answer_once) as url:
        client = build_client(url, timeout_s=0.2)
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
            client.ask("POST", "/create", {})
        assert client.ask("POST", "/create", {}) == {}
        client.close()


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    with socket_server(answer_once, answer_once) as url:
        client = build_client(url)
        assert client.ask("POST", "/create", {}) == {}
        select.select([client._connection.sock], [], [], 5)  # until the end of the connection has arrived
        assert client.ask("POST", "/create", {}) == {}
        client.close()


def test_a_call_whose_connection_ends_without_an_answer_is_not_repeated() -> None:
    requests: list[bytes] = []

    def read_and_close(connection: socket.socket) -> None:
        answer_once(connection)
        requests.append(read_request(connection))

    with socket_server(read_and_close) as url:
        client = build_client(url)
        client.ask("POST", "/create", {})
        with pytest.raises(Unavailable, match="did not answer") as failed:
            client.ask("POST", "/create", {"topic": "order"})
        client.close()
    assert failed.value.status is None
    assert len(requests) == 1


def test_a_path_that_the_daemon_does_not_have_is_named_with_its_url() -> None:
    """The URL may be that of another path of the same host."""
    with stub_server(problem(404, "there is nothing at this path")) as server:
        client = build_client(f"{server.url}/later")
        with pytest.raises(CallFailed) as error:
            client.ask("GET", "/jobs/j?run=r")
    path = f"{server.url}/later/jobs/j"
    assert str(error.value) == f"{path}: there is nothing at this path: is this the URL of later?"


def test_a_key_goes_to_the_server_alone_and_is_shown_nowhere() -> None:
    """Not to the server of a redirect either, and into no error."""
    key = make_key_text()
    seen: list[bytes] = []

    def redirect(connection: socket.socket) -> None:
        seen.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: %b/elsewhere\r\nContent-Length: 0\r\n\r\n" % url.encode())

    def end(connection: socket.socket) -> None:
        seen.append(read_request(connection))

    with socket_server(redirect, end) as url:
        client = ApiClient(url, 5, lambda: 0.0, key)
        errors = []
        for _ in range(2):
            with pytest.raises(CallFailed) as error:
                client.ask("POST", "/create", {})
            errors += [error.value, error.value.__cause__]
            client.close()
    assert [f"\r\nAuthorization: Bearer {key}\r\n".encode() in request for request in seen] == [True, True]
    assert b"/elsewhere" not in b"".join(seen)
    assert key not in f"{errors!r} {client!r} {vars(client)['_connection']!r}"


def test_an_https_api_is_called_if_its_authority_is_known() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "receiver.pem")

    def answer_by_tls(connection: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True) as tls:
            answer_once(tls)

    with socket_server(answer_by_tls, answer_by_tls) as plain_url:
        url = plain_url.replace("http", "https")
        with pytest.raises(CallFailed, match="was refused: unable to get local issuer") as caught:
            build_client(url).call("POST", "/create", b"{}")
        assert not isinstance(caught.value, Unavailable)
        client = build_client(url, ca=str(CERTIFICATES / "authority.pem"))
        assert client.call("POST", "/create", b"{}") == {}
        client.close()


def test_a_file_of_authorities_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for file, message in ((tmp_path / "missing", "cannot be read: No such file"), (empty, "expected certificates")):
        with pytest.raises(ConfigError, match=f"--ca {file}: {message}"):
            build_client("https://localhost", ca=str(file))
