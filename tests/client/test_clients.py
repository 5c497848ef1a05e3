"""The clients of applications: each test runs with the sync and with the async one, with prepared answers."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from later.client import AsyncClient, Client, aio, draft, policy_check, sync
from later.client.aio_session import AioSession
from later.core import forks
from later.core.api_keys import make_key_text
from later.core.errors import (
    CallFailed,
    ConfigError,
    NotKnown,
    Refused,
    Unavailable,
)
from tests.client.api_servers import StubAnswer, StubRequest, problem, stub_server
from tests.client.both_clients import open_client

CALLBACK = "http://127.0.0.1:8888/success"
LIMIT_TEXT = "Exceeds max allowed delivery delay of 900000 milliseconds"


# Policies before sending


class CountedApi:
    """A stub in front of the API that counts creates and reads of policies."""

    def __init__(self, applied: dict[str, Any], create: StubAnswer | None = None) -> None:
        self.applied = applied
        self.create = create or StubAnswer(200, {"id": "a", "created": True})
        self.requests: list[str] = []

    def answer(self, request: StubRequest) -> StubAnswer:
        self.requests.append(request.path)
        if not request.path.startswith("/create"):
            return StubAnswer(200, {name: {"value": v, "level": "topic"} for name, v in self.applied.items()})
        if request.path == "/create":
            return self.create
        return StubAnswer(200, {"results": [{"id": id, "created": True} for id in request.ids]})


def test_a_policy_that_refuses_is_read_anew_before_a_create_is_refused(kind: str) -> None:
    api = CountedApi({"max_delay": 900})
    with stub_server(api.answer) as server, open_client(kind, server.url) as client:
        client.create("order", callback=CALLBACK, delay=5)
        assert api.requests == ["/topics/order/policy?applied=true", "/create"]
        api.applied = {"max_delay": 0}
        assert client.create("order", callback=CALLBACK, delay=901).id == "a"
        assert api.requests[2:] == ["/topics/order/policy?applied=true", "/create"]
        api.applied = {"max_delay": 60}
        client.create("order", callback=CALLBACK, delay=901)  # the policy that is kept allows it, the daemon has to say
        assert api.requests[4:] == ["/create"]


def test_a_refusal_is_by_a_policy_that_was_just_read(kind: str) -> None:
    api = CountedApi({"max_delay": 900})
    with stub_server(api.answer) as server, open_client(kind, server.url) as client:
        for _ in range(2):
            with pytest.raises(Refused, match=LIMIT_TEXT):
                client.create("order", callback=CALLBACK, delay=901)
    assert api.requests == ["/topics/order/policy?applied=true"] * 2


def test_a_time_is_sent_that_another_clock_may_allow(kind: str) -> None:
    api = CountedApi({"max_delay": 900})
    with stub_server(api.answer) as server, open_client(kind, server.url) as client:
        assert client.create("order", callback=CALLBACK, at=datetime.now(UTC) + timedelta(seconds=930)).id == "a"
        with pytest.raises(Refused, match=LIMIT_TEXT):
            client.create("order", callback=CALLBACK, at=datetime.now(UTC) + timedelta(seconds=1100))


def test_a_policy_is_kept_for_a_minute(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    api = CountedApi({})
    for module in (sync, aio):
        monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    with stub_server(api.answer) as server, open_client(kind, server.url) as client:
        for at in (1000.0, 1059.0, 1061.0):
            now[0] = at
            client.create("order", callback=CALLBACK)
    assert [path.partition("?")[0] for path in api.requests] == [
        *("/topics/order/policy", "/create", "/create", "/topics/order/policy", "/create")
    ]


def test_a_daemon_that_does_not_say_its_policies_has_the_only_word(kind: str) -> None:
    with (
        stub_server(lambda r: StubAnswer(200, {"id": "a"}) if r.path == "/create" else problem(403)) as server,
        open_client(kind, server.url) as client,
    ):
        assert [client.create("order", delay=10**9).id for _ in range(2)] == ["a", "a"]
        assert [request.path for request in server.requests].count("/create") == 2
        assert len(server.requests) == 3


def test_the_policies_of_a_limited_number_of_topics_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_check, "MAX_KEPT", 2)
    kept = policy_check.AppliedPolicies()
    for number in range(3):
        kept.keep(f"t{number}", None, 0)
    assert [kept.find(f"t{number}", 1)[0] for number in range(3)] == [False, True, True]


def test_threads_may_keep_policies_of_more_topics_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_check, "MAX_KEPT", 1)
    kept = policy_check.AppliedPolicies()

    def keep_many(name: str) -> None:
        for number in range(1000):
            kept.keep(f"{name}{number}", None, 0)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(keep_many, "abcd"))
    finally:
        sys.setswitchinterval(interval_s)


# Failures


@pytest.fixture
def impatient(kind: str) -> Iterator[Any]:
    """Return a function that opens a client without the check, which does not wait for long."""
    opened = []

    def open_one(url: str, patience: float = 5) -> Client:
        context = open_client(kind, url, patience=patience, check=False)
        opened.append(context)
        return context.__enter__()

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


def test_a_create_is_sent_again_under_the_same_id(impatient: Any) -> None:
    lost = StubAnswer(200, {"id": "a", "created": True}, cut=True)
    with stub_server(lost, problem(503, retry_after="0"), StubAnswer(200, {"id": "a", "created": False})) as server:
        assert impatient(server.url).create("order", callback=CALLBACK).created is True
    assert len({request.body for request in server.requests}) == 1
    assert len(server.requests) == 3


def test_a_call_that_cannot_be_repeated_is_not(impatient: Any) -> None:
    with stub_server(StubAnswer(200, {"redriven": 1}, cut=True)) as server:
        with pytest.raises(Unavailable) as error:
            impatient(server.url).redrive(id="a")
        assert len(server.requests) == 1
    assert error.value.unknown


def test_a_redrive_goes_on_with_what_had_died_when_it_began(impatient: Any) -> None:
    """The daemon's clock may be ahead, so the first call leaves the time to it."""
    answers = [StubAnswer(200, {"redriven": 5000, "more": True}), StubAnswer(200, {"redriven": 2})]
    with stub_server(*answers) as server:
        assert impatient(server.url).redrive(topic="order") == 5002
        bodies = [json.loads(request.body) for request in server.requests]
    assert [body.keys() - {"topic", "limit"} for body in bodies] == [set(), {"died_before"}]


def test_a_create_whose_id_must_be_new_is_not_repeated(impatient: Any) -> None:
    """It may have made its task, and would find that."""
    with stub_server(StubAnswer(200, {"id": "a", "created": True}, cut=True)) as server:
        client = impatient(server.url)
        with pytest.raises(Unavailable) as error:
            client.create("order", id="a", if_exists="error")
        with pytest.raises(Unavailable):
            client.create_many([draft("order", id="a", if_exists="error")])
        assert len(server.requests) == 2
    assert error.value.unknown


def test_a_batch_sends_again_only_what_failed(impatient: Any) -> None:
    def fail_second(request: StubRequest) -> StubAnswer:
        results: list[dict[str, Any]] = [{"id": id, "created": True} for id in request.ids]
        results[1] = {"error": {"status": 503, "detail": "away"}}
        return StubAnswer(200, {"results": results})

    def create(request: StubRequest) -> StubAnswer:
        return StubAnswer(200, {"results": [{"id": id, "created": True} for id in request.ids]})

    with stub_server(fail_second, create) as server:
        drafts = [draft("order", id=id) for id in "abc"]
        assert [result.id for result in impatient(server.url).create_many(drafts)] == ["a", "b", "c"]
    assert [request.ids for request in server.requests] == [["a", "b", "c"], ["b"]]


def test_patience_ends(impatient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s = itertools.count(step=12)
    for module in (sync, aio):
        monkeypatch.setattr(module, "monotonic_s", lambda: next(passed_s))
    with stub_server(problem(503, "the store is away")) as server:
        with pytest.raises(Unavailable, match="the store is away") as error:
            impatient(server.url, 40).query("a")
        assert len(server.requests) == 2
    assert (error.value.status, error.value.unknown) == (503, False)


def test_a_pause_that_is_longer_than_the_patience_is_not_waited_for(impatient: Any) -> None:
    with stub_server(problem(429, "later", retry_after="60")) as server:
        with pytest.raises(Unavailable) as error:
            impatient(server.url).query("a")
        assert len(server.requests) == 1
    assert error.value.retry_after_ms == 60_000


def test_a_failure_stays_unknown_once_an_answer_was_lost(impatient: Any) -> None:
    """The attempts after it were certainly not carried out, but that one may have been."""
    lost = StubAnswer(200, b"{}  ", cut=True)
    with stub_server(lost, problem(503, retry_after="60")) as server, pytest.raises(Unavailable) as error:
        impatient(server.url).create("order", callback=CALLBACK)
    assert (error.value.status, error.value.unknown) == (503, True)


def test_a_refused_connection_is_known_to_have_done_nothing(impatient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sync, aio):
        monkeypatch.setattr(module, "pause", lambda *_: None)
    with stub_server() as server:
        pass
    with pytest.raises(Unavailable, match="did not answer") as error:
        impatient(server.url).create("order", callback=CALLBACK)
    assert (error.value.status, error.value.unknown) == (None, False)


def test_a_redirect_is_not_followed(impatient: Any) -> None:
    with stub_server(StubAnswer(307)) as server:
        with pytest.raises(CallFailed, match="answered 307"):
            impatient(server.url).query("a")
        assert len(server.requests) == 1


def test_the_environment_names_no_proxy(impatient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:1")
    with stub_server(StubAnswer(200, {"id": "a"})) as server:
        assert impatient(server.url).delete("a").id == "a"


def test_a_text_that_is_no_key_is_refused_without_being_shown(kind: str) -> None:
    with pytest.raises(ConfigError) as error, open_client(kind, "http://127.0.0.1:1", key="secret"):
        pass
    assert "secret" not in str(error.value)


def test_a_key_is_sent_with_each_call(kind: str) -> None:
    key = make_key_text()
    with stub_server(StubAnswer(200, {"id": "a"})) as server, open_client(kind, server.url, key=key) as client:
        client.delete("a")
        assert server.requests[0].authorization == f"Bearer {key}"


def test_a_call_without_a_key_may_not_be_known(impatient: Any) -> None:
    with stub_server(problem(401, "no key")) as server, pytest.raises(NotKnown, match="no key"):
        impatient(server.url).query("a")


@pytest.mark.parametrize("url", ["", "later.internal:8080", "ftp://a/", "http://u:p@a/", "http://a/?x"])
def test_a_url_that_is_none_is_refused_at_once(kind: str, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^expected a"), open_client(kind, url):
        pass


# Threads, loops and forks


def test_threads_have_a_connection_each_and_keep_it() -> None:
    with stub_server(StubAnswer(200, {"id": "a"}), protocol="HTTP/1.1") as server, Client(server.url) as client:

        def delete_twice() -> None:
            for _ in range(2):
                client.delete("a")

        threads = [threading.Thread(target=delete_twice) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (server.connections, len(server.requests)) == (3, 6)


def test_a_client_serves_one_loop_after_another() -> None:
    async def delete() -> str:
        async with client:
            return (await client.delete("a")).id

    with stub_server(StubAnswer(200, {"id": "a"})) as server:
        client = AsyncClient(server.url)
        assert [asyncio.run(delete()) for _ in range(2)] == ["a", "a"]


def test_a_child_process_forgets_the_connections_of_its_parent() -> None:
    with stub_server(StubAnswer(200, {"id": "a"}), protocol="HTTP/1.1") as server, Client(server.url) as client:
        client.delete("a")
        [connection] = client._connections
        forks._call_all()
        client.delete("a")
        assert server.connections == 2
        connection.close()


async def test_a_child_process_forgets_the_sessions_of_its_parent() -> None:
    with stub_server(StubAnswer(200, {"id": "a"}), protocol="HTTP/1.1") as server:
        async with AsyncClient(server.url) as client:
            await client.delete("a")
            [state] = client._loops.values()
            assert isinstance(state.session, AioSession)
            connector = state.session._session.connector
            forks._call_all()
            await client.delete("a")
        assert server.connections == 2
        assert connector is not None
        await connector.close()


# Both are the same


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    def methods(cls: type) -> dict[str, Any]:
        return {name: value for name, value in vars(cls).items() if not name.startswith("_") and callable(value)}

    sync_methods, async_methods = methods(Client), methods(AsyncClient)
    assert {*sync_methods} - {"close"} == {*async_methods} - {"aclose"}
    for name in {*sync_methods} & {*async_methods}:
        signatures = [inspect.signature(cls[name]) for cls in (sync_methods, async_methods)]
        assert signatures[0].parameters == signatures[1].parameters, name
        returned = [str(signature.return_annotation) for signature in signatures]
        assert returned[0] == returned[1].removeprefix("Async"), name
        assert inspect.iscoroutinefunction(async_methods[name]) == (
            name not in ("list", "topics", "schedules", "forget_connections")
        ), name


def test_both_clients_have_the_same_options_but_for_the_batches_of_a_loop() -> None:
    options = [dict(inspect.signature(cls).parameters) for cls in (Client, AsyncClient)]
    del options[1]["coalesce"]
    assert options[0] == options[1]
