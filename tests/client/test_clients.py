"""The clients of applications, on the API: each test runs with the sync and with the async one."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from later.client import AsyncClient, Client, Draft, aio, connection_settings, draft, policy_check, sync
from later.core.api_keys import make_key_text
from later.core.clock import Clock
from later.core.errors import (
    CallFailed,
    ConfigError,
    InFlight,
    LaterError,
    NotFound,
    NotKnown,
    Refused,
    Unavailable,
)
from later.core.policy_scopes import Level, namespace_scope
from tests.client.api_servers import ApiServer, StubAnswer, StubRequest, api_server, problem, stub_server
from tests.client.both_clients import KINDS, open_client

CALLBACK = "http://127.0.0.1:8888/success"
LIMIT_TEXT = "Exceeds max allowed delivery delay of 900000 milliseconds"
_numbers = count()


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(api: ApiServer, kind: str) -> Iterator[Client]:
    with open_client(kind, api.url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"team/t{next(_numbers)}"


# Tasks


def test_a_task_is_created_shown_changed_and_deleted(client: Client, topic: str) -> None:
    created = client.create(topic, "hi", callback=CALLBACK, delay="1h30m", headers={"x-a": "secret"}, retry=5)
    shown = client.query(created.id)
    assert (shown.topic, shown.content, shown.state, shown.max_retry, shown.headers) == (
        *(topic, "hi", "delay", 5),
        ["x-a"],
    )
    assert shown.due_at == created.due_at
    assert shown.created_at is not None
    assert created.due_at is not None
    assert timedelta(minutes=89) < created.due_at - shown.created_at < timedelta(minutes=91)

    changed = client.update(created.id, delay=timedelta(minutes=5), content="ho")
    assert changed.content == "ho"
    assert changed.due_at is not None
    assert changed.due_at < created.due_at
    assert client.explain(id=created.id).sentence.startswith("due in")
    assert client.delete(created.id).id == created.id
    with pytest.raises(NotFound):
        client.query(created.id)


def test_an_id_that_is_created_again_says_that_it_is_there(client: Client, topic: str) -> None:
    id = topic.replace("/", ":")
    first, second = (client.create(topic, callback=CALLBACK, delay=60, id=id, remember="1d") for _ in range(2))
    assert (first.created, second.created) == (True, False)
    assert first.due_at == second.due_at


def test_a_task_that_expires_before_it_is_due_has_a_warning(client: Client, topic: str) -> None:
    warning = client.create(topic, callback=CALLBACK, delay="1h", ttl="1m").warning
    assert warning == "The task will expire before it is due and never be delivered."


def test_each_item_of_a_batch_has_an_answer_or_an_error_of_its_own(client: Client, topic: str) -> None:
    good, bad = draft(topic, callback=CALLBACK, delay=60), draft(topic, callback="ftp://x")
    created = client.create_many([good, bad, Draft(), good])
    assert [type(result).__name__ for result in created] == ["Enqueued", "Refused", "Refused", "Enqueued"]
    ids = [getattr(result, "id", "missing") for result in created]
    assert [type(result).__name__ for result in client.query_many(ids)] == ["Info", "NotFound", "NotFound", "Info"]
    assert [type(result).__name__ for result in client.delete_many(ids)] == [
        *("Deleted", "NotFound", "NotFound", "Deleted")
    ]
    assert client.create_many([]) == client.query_many([]) == []


def test_tasks_are_listed_page_by_page(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.calls.PAGE_SIZE", 2)
    ids = [client.create(topic, callback=CALLBACK, delay=60 + number).id for number in range(5)]
    assert [task.id for task in client.list(topic)] == ids
    assert [task.id for task in client.list(topic, state="pending", due_after=datetime.now(UTC))] == ids
    assert not [*client.list(topic, state="dead")]


def test_tasks_are_purged_chunk_by_chunk(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.calls.CHUNK_SIZE", 2)
    client.create_many([draft(topic, callback=CALLBACK, delay=60)] * 5)
    assert client.purge(topic, states=["delay"]) == 5
    assert client.purge(topic) == 0


def test_topics_are_paused_resumed_and_shown(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.topic_calls.PAGE_SIZE", 1)
    client.create(topic, callback=CALLBACK, delay=60)
    client.create(topic + "b", callback=CALLBACK, delay=60)
    assert client.pause(topic) is True
    assert client.topic(topic).policy["paused"] is True
    assert client.resume(topic) is False
    assert (client.topic(topic).delay, client.topic(topic).namespace) == (1, "team")
    assert {topic, topic + "b"} <= {found.topic for found in client.topics(namespace="team")}


def test_fields_of_a_policy_are_set_shown_and_removed(client: Client, topic: str) -> None:
    assert client.set_policy(topic, {"max_delay": "15m", "retry": 1}) == {"max_delay": 900, "retry": 1}
    assert client.set_policy(topic, {"retry": None}) == {"max_delay": 900}
    policy = client.policy(topic)
    assert (policy.values["max_delay"], policy.fields["retry"].level) == (900, Level.DAEMON)
    assert policy.set_on(Level.TOPIC) == {"max_delay": 900}
    assert client.unset_policy(topic, ["max_delay"]) == client.unset_policy(topic) == {}
    with pytest.raises(Refused, match="no field of a policy"):
        client.set_policy(namespace_scope("team"), {"nonsense": 1})


def test_a_consumer_claims_and_ends_tasks(client: Client, topic: str) -> None:
    client.set_policy(topic, {"deliver": "pull"})
    client.create_many([draft(topic, str(number)) for number in range(3)])
    tasks = client.claim(topic, 3, lease="1m", wait=1)
    assert [task.content for task in tasks] == ["0", "1", "2"]
    leases = [task.lease for task in tasks]
    assert client.extend(leases, "2m") == []
    assert client.ack(leases[:1]) == client.nack(leases[1:2], dead=True) == client.release(leases[2:]) == []
    assert client.ack(leases[:1]) == leases[:1]
    assert [task.state for task in client.list(topic, state="dead", reason="rejected")] == ["dead"]
    assert client.redrive(topic=topic, reason="rejected") == 1
    claimed = [*client.claim([topic], wait=20), *client.claim([topic], wait=20)]
    assert [task.attempt for task in claimed] == [1, 1]
    with pytest.raises(InFlight):
        client.update(claimed[0].id, content="x")
    with pytest.raises(LaterError):
        client.redrive(id=claimed[0].id)


def test_a_job_that_nothing_is_counted_under_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match='nothing is counted under the job "x"'):
        client.job("x")


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


def test_a_create_that_its_policy_would_refuse_is_not_sent_and_has_the_daemons_words(
    client: Client, topic: str, api: ApiServer, kind: str
) -> None:
    client.set_policy(topic, {"max_delay": "15m"})
    with open_client(kind, api.url, check=False) as unchecked, pytest.raises(Refused) as by_daemon:
        unchecked.create(topic, callback=CALLBACK, delay=901)
    with pytest.raises(Refused) as by_client:
        client.create(topic, callback=CALLBACK, delay=901)
    assert (by_client.value.detail, by_client.value.field) == (by_daemon.value.detail, by_daemon.value.field)
    assert by_client.value.detail == LIMIT_TEXT
    [result] = client.create_many([draft(topic, callback=CALLBACK, delay=901)])
    assert str(result) == LIMIT_TEXT
    assert client.create(topic, callback=CALLBACK, delay=900).created


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


def test_the_callback_of_a_task_that_consumers_claim_is_left_out(client: Client, topic: str) -> None:
    client.set_policy(topic, {"deliver": "pull"})
    assert client.query(client.create(topic, callback=CALLBACK).id).callback is None


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


def test_patience_ends(impatient: Any) -> None:
    with stub_server(problem(503, "the store is away")) as server:
        with pytest.raises(Unavailable, match="the store is away") as error:
            impatient(server.url, 0.05).query("a")
        assert len(server.requests) >= 1
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


def test_a_text_that_is_no_key_is_refused_without_being_shown(kind: str, api: ApiServer) -> None:
    with pytest.raises(ConfigError) as error, open_client(kind, api.url, key="secret"):
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


def test_a_client_serves_one_loop_after_another(api: ApiServer) -> None:
    client = AsyncClient(api.url)

    async def call() -> int:
        async with client:
            return len([topic async for topic in client.topics(namespace="nobody")])

    assert [asyncio.run(call()) for _ in range(2)] == [0, 0]


def test_a_child_process_forgets_the_connections_of_its_parent() -> None:
    with stub_server(StubAnswer(200, {"id": "a"}), protocol="HTTP/1.1") as server, Client(server.url) as client:
        client.delete("a")
        [connection] = client._connections
        connection_settings._forget_all()
        client.delete("a")
        assert server.connections == 2
        connection.close()


async def test_a_child_process_forgets_the_sessions_of_its_parent() -> None:
    with stub_server(StubAnswer(200, {"id": "a"}), protocol="HTTP/1.1") as server:
        async with AsyncClient(server.url) as client:
            await client.delete("a")
            states = list(client._loops.values())
            connector = states[0].session._session.connector
            connection_settings._forget_all()
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
            name not in ("list", "topics", "forget_connections")
        ), name


def test_both_clients_have_the_same_options_but_for_the_batches_of_a_loop() -> None:
    options = [dict(inspect.signature(cls).parameters) for cls in (Client, AsyncClient)]
    del options[1]["coalesce"]
    assert options[0] == options[1]
