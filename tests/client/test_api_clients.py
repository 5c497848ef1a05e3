"""The clients of applications, on the API itself: each test runs with the sync and with the async one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from later.client import Client, Draft, DueTask, draft
from later.client.batch_split import MAX_IDS
from later.core.clock import Clock
from later.core.errors import Exists, InFlight, LaterError, NotFound, Refused
from later.core.policy_scopes import Level, namespace_scope
from tests.client.api_servers import ApiServer, api_server
from tests.client.both_clients import open_client

CALLBACK = "http://127.0.0.1:8888/success"
_numbers = count()


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


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
    created = client.create(
        topic, "hi", callback=CALLBACK, delay="1h30m", headers={"x-a": "secret"}, retry=5, context={"tenant": "t"}
    )
    shown = client.query(created.id)
    assert (shown.topic, shown.content, shown.state, shown.max_retry) == (topic, "hi", "delay", 5)
    assert (shown.headers, shown.context) == (["x-a"], ["tenant"])
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


def test_a_create_says_what_happens_if_its_id_exists(client: Client, topic: str) -> None:
    id = topic.replace("/", ":")
    first = client.create(topic, callback=CALLBACK, delay=60, id=id, if_exists="error")
    later = client.create(topic, callback=CALLBACK, delay=120, id=id, if_exists="update")
    assert (first.created, first.updated, later.created, later.updated) == (True, False, False, True)
    with pytest.raises(Exists, match="exists: its task is due at"):
        client.create(topic, callback=CALLBACK, id=id, if_exists="error")
    taken = client.create_many([draft(topic, callback=CALLBACK, id=id, if_exists="error"), draft(topic)])
    assert [type(result) for result in taken[:1]] == [Exists]
    with pytest.raises(Refused, match="if_exists"):
        client.create(topic, callback=CALLBACK, if_exists="update")


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


def test_many_tasks_are_made_due_in_one_call(client: Client, topic: str) -> None:
    client.set_policy(topic, {"deliver": "pull"})
    ids = [client.create(topic, delay=600).id for _ in range(2)]
    before = datetime.now(UTC)
    found = client.run_now_many([ids[0], "unknown", "a b", ids[1], ids[0]])
    assert [type(result).__name__ for result in found] == ["DueTask", "NotFound", "Refused", "DueTask", "DueTask"]
    assert [result.id for result in found if isinstance(result, DueTask)] == [*ids, ids[0]]
    assert all(abs(r.due_at - before) < timedelta(seconds=30) for r in found if isinstance(r, DueTask))
    client.nack([task.lease for task in client.claim(topic, 1, wait=20)], dead=True)
    assert sorted(type(result).__name__ for result in client.redrive_many(ids)) == ["Conflict", "DueTask"]
    assert client.run_now_many([]) == client.redrive_many([]) == []


def test_more_ids_than_one_call_takes_are_sent_in_several(client: Client) -> None:
    found = client.run_now_many(f"n{n}" for n in range(MAX_IDS + 1))
    assert [str(result) for result in found] == [f"no task has the id 'n{n}'" for n in range(MAX_IDS + 1)]


def test_a_job_that_nothing_is_counted_under_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match='nothing is counted under the job "x"'):
        client.job("x")


# Policies before sending


def test_a_create_that_its_policy_would_refuse_is_not_sent_and_has_the_daemons_words(
    client: Client, topic: str, api: ApiServer, kind: str
) -> None:
    client.set_policy(topic, {"max_delay": "15m"})
    with open_client(kind, api.url, check=False) as unchecked, pytest.raises(Refused) as by_daemon:
        unchecked.create(topic, callback=CALLBACK, delay=901)
    with pytest.raises(Refused) as by_client:
        client.create(topic, callback=CALLBACK, delay=901)
    assert (by_client.value.detail, by_client.value.field) == (by_daemon.value.detail, by_daemon.value.field)
    assert by_client.value.detail == "Exceeds max allowed delivery delay of 900000 milliseconds"
    [result] = client.create_many([draft(topic, callback=CALLBACK, delay=901)])
    assert str(result) == "Exceeds max allowed delivery delay of 900000 milliseconds"
    assert client.create(topic, callback=CALLBACK, delay=900).created


def test_the_callback_of_a_task_that_consumers_claim_is_left_out(client: Client, topic: str) -> None:
    client.set_policy(topic, {"deliver": "pull"})
    assert client.query(client.create(topic, callback=CALLBACK).id).callback is None


def test_a_policy_that_was_kept_too_long_costs_no_create(client: Client, topic: str) -> None:
    drafts = [draft(topic, callback=CALLBACK), draft(topic, callback="none"), draft(topic, callback=CALLBACK)]
    client.create(topic, callback=CALLBACK)
    for callback, deliver in ((None, "pull"), (CALLBACK, "push")):
        client.set_policy(topic, {"deliver": deliver})
        assert client.query(client.create(topic, callback=CALLBACK).id).callback == callback
        client.set_policy(topic, {"deliver": "push" if callback is None else "pull"})
        client.create(topic, callback=CALLBACK)
        client.set_policy(topic, {"deliver": deliver})
        results = client.create_many(drafts)
        assert [isinstance(result, Refused) for result in results] == [False, callback is not None, False]
        for result in results[::2]:
            assert not isinstance(result, LaterError)
            assert client.query(result.id).callback == callback
