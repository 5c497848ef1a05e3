"""`later check --verify`: a signed call that asks a receiver for its topics, with the store and the signing key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from redis import Redis

from later import Later, Signed
from later.core.policy import Sign
from later.core.signing import Master, SecretScope, derive_secret
from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of
from tests.cli.test_secrets import set_sign
from tests.servers import shared_server

MASTER = Master(bytes(range(32)))
SHOP = derive_secret(MASTER, SecretScope(Sign.NAMESPACE, "shop"), 1).text

WsgiApp = Callable[..., Iterable[bytes]]


class SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the tests' output."""


@contextmanager
def serve(app: WsgiApp) -> Iterator[str]:
    """Run a WSGI application, and return its URL."""
    server = make_server("127.0.0.1", 0, app, handler_class=SilentHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/later"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def receiver(*, secret: str | None = SHOP, ran: list[str] | None = None) -> WsgiApp:
    tasks = Later(signed=None if secret is None else Signed([secret]))

    @tasks.handler("shop/größe", aliases=["shop/old"])
    def order() -> None:
        assert ran is not None
        ran.append("ran")

    return tasks.wsgi()


def answering(status: str, *headers: tuple[str, str]) -> WsgiApp:
    def app(environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response(status, [*headers, ("Content-Length", "0")])
        return [b""]

    return app


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and the signing key, in the environment."""
    with Redis.from_url(shared_server()) as client:
        client.flushall()
    monkeypatch.setenv("LATER_REDIS", shared_server())
    monkeypatch.setenv("LATER_SIGNING_KEY", MASTER.text)
    monkeypatch.setenv("LATER_GUARD", "off")


def verify(url: str, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
    status = exit_code_of("check", url, "--verify", "--json", *options)
    return status, json.loads(capsys.readouterr().out)["receiver"]


def test_a_receiver_says_which_topics_it_handles_and_runs_nothing(capsys: Capture) -> None:
    ran: list[str] = []
    with serve(receiver(ran=ran)) as url:
        status, shown = verify(url, capsys, "--topic", "shop/größe")
        assert exit_code_of("check", url, "--verify", "--namespace", "shop") == 0
    assert status == 0
    assert shown == {
        "ok": True, "status": 204, "topics": ["shop/größe", "shop/old"], "signature": "verified",
        "signed_by": "namespace shop", "detail": "",
    }  # fmt: skip
    *_, topics, signature = capsys.readouterr().out.splitlines()
    assert topics == "the receiver handles shop/größe, shop/old"
    assert signature == "it verifies signatures: the call had that of the namespace shop"
    assert ran == []


def test_the_call_is_signed_as_the_policies_say(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(receiver(secret=derive_secret(MASTER, SecretScope(Sign.TOPIC, "shop/old"), 1).text)) as url:
        assert verify(url, capsys, "--topic", "shop/old")[1]["signature"] == "refused"
        set_sign("shop", Sign.TOPIC)
        assert verify(url, capsys, "--topic", "shop/old")[1]["signature"] == "verified"
        assert exit_code_of("check", url, "--verify", "--namespace", "shop") == 2
        assert "name one by --topic" in capsys.readouterr().err
        set_sign("shop", Sign.ORIGIN)
        assert verify(url, capsys, "--topic", "shop/old")[1]["signed_by"] == (
            f"origin {url.removesuffix('/later')} of namespace shop"
        )
        set_sign("shop", Sign.OFF)
        assert verify(url, capsys, "--topic", "shop/old")[1]["detail"].startswith(
            "the receiver answered 401: it wants signed calls, but nothing signs here"
        )
        monkeypatch.delenv("LATER_SIGNING_KEY")
        assert verify(url, capsys)[1]["signature"] == "none"


def test_a_receiver_that_verifies_nothing_is_named(capsys: Capture) -> None:
    with serve(receiver(secret=None)) as url:
        status, shown = verify(url, capsys)
        assert (status, shown["ok"], shown["signature"]) == (0, True, "ignored")
        assert exit_code_of("check", url, "--verify") == 0
        assert "anybody who reaches it can run its handlers" in capsys.readouterr().out
        status, shown = verify(url, capsys, "--topic", "shop/other")
        assert (status, shown["detail"]) == (1, "the receiver has no handler for shop/other, whose tasks would wait")


@each_case(
    "app, text",
    [
        (answering("307 Temporary Redirect", ("Location", "/later/")), "answered 307, which points to /later/"),
        (answering("404 Not Found"), "answered 404: nothing is at this path"),
        (answering("405 Method Not Allowed"), "answered 405: something is at this path, but takes no POST"),
        (answering("200 OK"), "answered 200 without later-topics"),
    ],
)
def test_what_is_no_receiver_is_told_with_what_to_do(app: WsgiApp, text: str, capsys: Capture) -> None:
    with serve(app) as url:
        status, shown = verify(url, capsys)
    assert (status, shown["ok"], text in shown["detail"]) == (1, False, True)


def test_a_receiver_that_does_not_answer_is_told(capsys: Capture) -> None:
    with serve(answering("200 OK")) as url:
        pass
    status, shown = verify(url, capsys)
    assert (status, shown["status"], shown["signature"]) == (1, None, None)
    assert shown["detail"].startswith("the receiver cannot be reached: Connection refused")


def test_nothing_is_sent_to_an_address_that_the_guard_refuses(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_GUARD", "on")
    with serve(receiver()) as url:
        assert exit_code_of("check", url, "--verify", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["called"], "receiver" in shown) == (False, False)


@each_case("options", [("--topic", "a"), ("--namespace", "a"), ("--verify", "--topic", "a", "--namespace", "a")])
def test_options_that_do_not_go_together_are_wrong_usage(options: tuple[str, ...]) -> None:
    assert exit_code_of("check", "http://127.0.0.1:9/later", *options) == 2
