"""What a later answers and does, as short scenarios: each runs on a virtual clock, and on a daemon whose clock moves.

The clock must not drift from the daemon, whose place it takes in the tests of applications. So a case says nothing that
is not true of both; its name is what it shows.
"""

from __future__ import annotations

import json
from typing import Any

from later import Busy, Dead, Hold, Retry
from later.client import DueTask, Enqueued, Info
from later.client.call import Call
from later.core.errors import Conflict, Exists, NotFound, Refused
from later.core.policy_scopes import Level, namespace_scope
from tests.conformance.world import Case, World, refused

CASES: list[Case] = []


def case(scenario: Case) -> Case:
    CASES.append(scenario)
    return scenario


def reason_of(info: Info) -> tuple[str, str]:
    assert info.last_error is not None
    return info.last_error.reason, info.last_error.message


# Creating


@case
async def a_task_is_created_and_shown(world: World) -> None:
    work = await world.handler()
    enqueued = await work.enqueue({"n": 1}, delay=600, id=world.id("a"), retry=5, ttl=7200, context={"tenant": "t"})
    assert (enqueued.id, enqueued.created, enqueued.updated) == (world.id("a"), True, False)
    assert await world.minute_of(enqueued.due_at) == 10
    info = await world.info("a")
    assert (info.topic, info.state, info.content, info.callback) == (
        world.topic(), "delay", '{"n":1}', world.callback,
    )  # fmt: skip
    assert (info.attempts, info.retries_used, info.max_retry, info.last_error) == (0, 0, 5, None)
    assert (info.headers, info.context, info.dead_letter, info.died_at) == ([], ["tenant"], None, None)
    times = (info.due_at, info.execute_at, info.created_at, info.expires_at)
    assert [await world.minute_of(time) for time in times] == [10, 10, 0, 120]


@case
async def a_task_is_delivered_when_it_is_due_and_not_before(world: World) -> None:
    work = await world.handler()
    await work.enqueue("x", delay=600)
    await world.advance(8)
    assert world.runs == []
    await world.advance(4)
    assert world.runs == [(1, 10, "x")]


@case
async def a_time_is_absolute(world: World) -> None:
    work = await world.handler()
    enqueued = await work.enqueue("x", at=await world.at(30))
    assert await world.minute_of(enqueued.due_at) == 30
    await world.advance(32)
    assert world.minutes == [30]


@case
async def a_time_that_is_past_means_now(world: World) -> None:
    work = await world.handler()
    await work.enqueue("x", at=await world.at(-600))
    await world.advance(1)
    assert world.minutes == [0]


@case
async def creating_an_id_again_makes_nothing_new(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, delay=600, id=world.id("a"))
    again = await work.enqueue(2, delay=60, id=world.id("a"))
    assert (again.created, again.updated, await world.minute_of(again.due_at)) == (False, False, 10)
    await world.advance(12)
    assert world.runs == [(1, 10, 1)]


@case
async def the_id_of_a_task_that_was_done_is_remembered(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, id=world.id("a"))
    await world.advance(1)
    again = await work.enqueue(2, id=world.id("a"))
    assert (again.created, again.due_at) == (False, None)
    assert await world.has_ended(world.id("a"))
    await world.advance(1)
    assert world.attempts == [1]


@case
async def an_id_is_remembered_for_as_long_as_its_task_says(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, id=world.id("none"), remember=0)
    await work.enqueue(1, id=world.id("some"), remember=1200)
    await world.advance(10)
    assert not await world.has_ended(world.id("none"))
    assert (await work.enqueue(2, id=world.id("none"), delay=60000)).created
    assert await world.has_ended(world.id("some"))
    await world.advance(15)
    assert (await work.enqueue(2, id=world.id("some"), delay=60000)).created


@case
async def deleting_an_id_forgets_it(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, id=world.id("a"))
    await world.advance(1)
    assert (await world.client.delete(world.id("a"))).ended
    assert (await work.enqueue(2, id=world.id("a"))).created
    await world.advance(1)
    assert [run.payload for run in world.runs] == [1, 2]


@case
async def a_create_may_edit_the_task_that_waits_under_its_id(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, delay=600, id=world.id("a"), if_exists="update")
    again = await work.enqueue(2, delay=1800, id=world.id("a"), if_exists="update", retry=7)
    assert (again.created, again.updated, await world.minute_of(again.due_at)) == (False, True, 30)
    assert ((await world.info("a")).content, (await world.info("a")).max_retry) == ("2", 7)
    await world.advance(32)
    assert world.runs == [(1, 30, 2)]


@case
async def a_create_that_edits_begins_a_new_life_after_an_end(world: World) -> None:
    work = await world.handler(Dead("never"))
    await work.enqueue(1, id=world.id("dead"))
    await world.advance(1)
    await work.enqueue(1, id=world.id("done"))
    await world.advance(1)
    for name in ("dead", "done"):
        again = await work.enqueue(2, delay=600, id=world.id(name), if_exists="update")
        assert (again.created, again.updated) == (True, False)
        info = await world.info(name)
        assert (info.state, info.attempts, info.last_error) == ("delay", 0, None)


@case
async def a_create_may_want_a_free_id(world: World) -> None:
    work = await world.handler()
    assert (await work.enqueue(1, delay=600, id=world.id("a"), if_exists="error")).created
    with refused(Exists, rf"the id '{world.id('a')}' exists: its task is due at 20\d\d-.*Z$"):
        await work.enqueue(1, id=world.id("a"), if_exists="error")
    await world.tasks.run_now(world.id("a"))
    await world.advance(1)
    with refused(Exists, "exists: its task is dead, or has ended and the id is remembered$"):
        await work.enqueue(1, id=world.id("a"), if_exists="error")


@case
async def no_create_moves_a_task_to_another_topic(world: World) -> None:
    work, other = await world.handler(), await world.handler(name="other")
    await work.enqueue(1, delay=600, id=world.id("a"))
    text = f"the task '{world.id('a')}' is of the topic '{work.topic}': no edit moves it to '{other.topic}'"
    with refused(Conflict, text):
        await other.enqueue(1, id=world.id("a"), if_exists="update")
    again = await other.enqueue(1, id=world.id("a"))
    assert (again.created, await world.minute_of(again.due_at)) == (False, 10)


@case
async def a_wrong_create_is_refused_in_the_words_of_the_daemon(world: World) -> None:
    create, topic, callback = world.client.create, world.topic(), world.callback
    for text, fields in (
        ("^topic: expected ", {"topic": "/x"}),
        ("^topic: expected another one, because the namespace later is reserved$", {"topic": "later/x"}),
        ("^callback: expected an absolute http", {"callback": "nowhere"}),
        ("^callback: expected .*, got nothing: only a topic with deliver pull", {"callback": None}),
        ("^callback: expected a URL without user:password@", {"callback": "http://a:b@c.example/"}),
        ("^delay: expected a number of seconds ≥ 0, got -5$", {"delay": -5}),
        ("^delay: expected a time at most ten years ahead, got 400000000$", {"delay": 400_000_000}),
        ("^retry: expected an integer from 0 to 1000, got 1001$", {"retry": 1001}),
        ("^ttl: expected a number of seconds > 0, got 0$", {"ttl": 0}),
        ("^id: expected .*, got \"a b\"$", {"id": "a b"}),
        ("^id: expected one that does not begin with s: or ev:, got \"s:x\"$", {"id": "s:x"}),
        ("^headers: ", {"headers": {"Host": "x"}}),
        ("^headers: ", {"headers": {"x": "y" * 5000}}),
        ("^context: ", {"context": {"x": "y" * 5000}}),
        ("^remember: expected a number of seconds ≥ 0, got -1$", {"remember": -1, "id": world.id("r")}),
        ("^if_exists: expected .*, or an id of your own with it, got \"error\"$", {"if_exists": "error"}),
    ):  # fmt: skip
        with refused(Refused, text) as error:
            await create(**{"topic": topic, "callback": callback, **fields})  # type: ignore[arg-type]  # wrong ones, too
        assert error.value.field == text[1:].partition(":")[0]


@case
async def many_are_created_with_an_answer_for_each(world: World) -> None:
    work = await world.handler()
    items = [work.item(n, id=world.id(str(n)), delay=600) for n in (1, 2, 1)] + [work.item(4, id="a b")]
    first, second, again, wrong = await world.tasks.enqueue_many(items)
    assert isinstance(first, Enqueued)
    assert isinstance(second, Enqueued)
    assert isinstance(again, Enqueued)
    assert (first.created, second.created, again.created) == (True, True, False)
    assert isinstance(wrong, Refused)
    assert wrong.field == "id"
    found = await world.client.query_many([world.id("1"), world.id("3")])
    assert isinstance(found[0], Info)
    assert isinstance(found[1], NotFound)
    deleted = await world.client.delete_many([world.id("1"), world.id("1")])
    assert not isinstance(deleted[0], Exception)
    assert isinstance(deleted[1], NotFound)


# Looking and changing


@case
async def what_is_not_there_is_not_found(world: World) -> None:
    id = world.id("nothing")
    for call in (world.tasks.get, world.tasks.run_now, world.client.delete):
        with refused(NotFound, f"^no task has the id '{id}'$"):
            await call(id)
    with refused(NotFound, f"^no task has the id '{id}'$"):
        await world.client.update(id, delay=1)
    with refused(NotFound, f"^no task has the id '{id}'$"):
        await world.client.explain(id=id)
    assert not await world.tasks.cancel(id)


@case
async def a_deleted_task_is_not_delivered(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, delay=600, id=world.id("a"))
    deleted = await world.client.delete(world.id("a"))
    assert (deleted.in_flight, deleted.ended) == (False, False)
    await world.advance(12)
    assert world.runs == []
    assert not await world.has_ended(world.id("a"))


@case
async def a_task_that_waits_is_edited(world: World) -> None:
    work = await world.handler()
    await work.enqueue(1, delay=600, id=world.id("a"))
    edited = await world.client.update(world.id("a"), delay=1800, content="2", retry=1, ttl=7200)
    assert (edited.content, edited.max_retry, await world.minute_of(edited.due_at)) == ("2", 1, 30)
    assert await world.minute_of(edited.expires_at) == 120
    assert (await world.client.update(world.id("a"), ttl=None)).expires_at is None
    with refused(Refused, "^retry: expected an integer from 0 to 1000, got -1$"):
        await world.client.update(world.id("a"), retry=-1)
    with refused(Refused, "^expected something to change: "):
        await world.client.update(world.id("a"))
    await world.advance(32)
    assert world.runs == [(1, 30, 2)]


@case
async def a_dead_task_is_not_edited_and_one_that_waits_not_redriven(world: World) -> None:
    work = await world.handler(Dead("never"))
    await work.enqueue(1, id=world.id("dead"))
    await work.enqueue(1, id=world.id("waits"), delay=600)
    await world.advance(1)
    with refused(Conflict, "is dead: /redrive or /run-now bring it back, then it can be edited$"):
        await world.client.update(world.id("dead"), delay=1)
    with refused(Conflict, "is in delay, not dead: /run-now makes it due now$"):
        await world.client.redrive(id=world.id("waits"))


@case
async def a_task_runs_now_from_wherever_it_waits(world: World) -> None:
    work = await world.handler(Retry("again", after=6000), Dead("never"))
    await work.enqueue(1, delay=6000, id=world.id("a"))
    await world.tasks.run_now(world.id("a"))
    await world.advance(1)
    assert (await world.info("a")).state == "error"
    assert (await world.tasks.run_now(world.id("a"))).state == "delay"
    await world.advance(1)
    assert (await world.info("a")).state == "dead"
    assert (await world.tasks.run_now(world.id("a"))).attempts == 0
    await world.advance(1)
    assert world.attempts == [1, 2, 1]
    assert await world.has_ended(world.id("a"))


@case
async def several_tasks_run_now_by_their_ids(world: World) -> None:
    work = await world.handler()
    ids = [world.id(name) for name in ("a", "b")]
    for id in ids:
        await work.enqueue(id, delay=6000, id=id)
    found = await world.client.run_now_many([ids[0], world.id("nothing"), "a b", ids[1], ids[0]])
    assert [type(result) for result in found] == [DueTask, NotFound, Refused, DueTask, DueTask]
    assert [result.id for result in found if isinstance(result, DueTask)] == [*ids, ids[0]]
    assert [await world.minute_of(result.due_at) for result in found if isinstance(result, DueTask)] == [0, 0, 0]
    await world.advance(1)
    assert sorted(run.payload for run in world.runs) == ids


@case
async def several_dead_tasks_are_redriven_by_their_ids(world: World) -> None:
    work = await world.handler(Dead("never"), Dead("never"))
    ids = [world.id(name) for name in ("a", "b")]
    for id in ids:
        await work.enqueue(id, id=id)
    await world.advance(1)
    await work.enqueue(0, id=world.id("waits"), delay=6000)
    found = await world.client.redrive_many([*ids, world.id("waits"), world.id("nothing"), ids[0]])
    assert [type(result) for result in found] == [DueTask, DueTask, Conflict, NotFound, DueTask]
    assert "is in delay, not dead: /run-now makes it due now" in str(found[2])
    await world.advance(1)
    assert sorted(run.payload for run in world.runs) == sorted([*ids, *ids])


@case
async def ids_stand_alone_and_are_one_at_least(world: World) -> None:
    for path, fields, text in (
        ("/run-now", {"ids": []}, "^ids: expected an array of 1 to 1000 ids, got none$"),
        ("/run-now", {"id": "a", "ids": ["a"]}, "^ids: expected either an id or ids, got both$"),
        ("/redrive", {"ids": ["a"], "topic": "t"}, "^topic: expected either ids alone, or a topic, got both$"),
        ("/redrive", {"id": "a", "rate": 1}, "^rate: expected either an id alone, or a topic, got both$"),
    ):
        with refused(Refused, text):
            await world.client._send(Call(path, bytes, fields))


@case
async def tasks_are_listed_by_their_due_times(world: World) -> None:
    work = await world.handler(Dead("never"))
    await work.enqueue(0, id=world.id("0"))
    await world.advance(1)
    for n in (3, 1, 2):
        await work.enqueue(n, delay=600 * n, id=world.id(str(n)))

    async def contents(**options: Any) -> list[str | None]:
        return [info.content async for info in world.tasks.list(work, **options)]

    assert await contents() == await contents(state="pending") == ["1", "2", "3"]
    assert (await contents(state="dead"), await contents(state="error")) == (["0"], [])
    assert await contents(due_after=await world.at(15), due_before=await world.at(25)) == ["2"]
    dead = [info async for info in world.client.list(work.topic, reason="gone")]
    assert [info.content for info in dead] == ["0"]
    assert [info async for info in world.client.list(work.topic, reason="expired")] == []


@case
async def explanations_begin_with_the_greatest_obstacle(world: World) -> None:
    work = await world.handler(Dead("no such order"))
    await work.enqueue(1, delay=6000, id=world.id("a"))
    sentence = (await world.tasks.explain(world.id("a"))).sentence
    assert sentence.startswith("due in 100 min"), sentence
    assert (await world.tasks.explain(work)).sentence == "none of its tasks is due: the next is due in 100 min"
    await world.tasks.pause(work)
    assert (await world.tasks.explain(world.id("a"))).sentence == "due in 100 min; its topic is paused"
    await world.tasks.resume(work)
    await world.tasks.run_now(world.id("a"))
    await world.advance(2)
    explained = await world.tasks.explain(world.id("a"))
    assert explained.sentence == "dead because its receiver is gone: no such order"
    assert (explained.details["attempts"], explained.details["failures"], explained.details["counts"]["dead"]) == (
        1,
        1,
        1,
    )
    empty = await world.client.explain(topic=world.topic("empty"))
    assert empty.sentence == "it has no tasks"


@case
async def topics_are_counted(world: World) -> None:
    work = await world.handler(Dead("never"), Retry(after=6000))
    for n in range(4):
        await work.enqueue(n, delay=6000 if n > 1 else 0)
        await world.advance(1)
    topic = await world.client.topic(work.topic)
    assert (topic.delay, topic.unack, topic.error, topic.dead, topic.due) == (2, 0, 1, 1, 0)
    assert (topic.namespace, topic.policy["retry"], topic.oldest_lateness_s) == (
        world.topic().partition("/")[0],
        3,
        None,
    )
    assert (topic.held, topic.paused, topic.rate, topic.concurrency, topic.deliver) == ("no", False, None, None, "push")
    [listed] = [found async for found in world.client.topics(namespace=topic.namespace)]
    assert (listed.topic, listed.held, listed.paused) == (work.topic, "no", False)
    await world.tasks.pause(work)
    assert (await world.client.topic(work.topic)).paused


@case
async def a_topic_is_purged(world: World) -> None:
    work = await world.handler(Dead("never"))
    for n in range(3):
        await work.enqueue(n, delay=6000 if n else 0)
        await world.advance(1)
    assert await world.client.purge(work.topic, states=["dead"]) == 1
    assert await world.client.purge(work.topic) == 2
    assert [info async for info in world.tasks.list(work, state="pending")] == []


@case
async def a_wrong_choice_of_tasks_is_refused(world: World) -> None:
    client, topic = world.client, (await world.handler()).topic
    with refused(Refused, '^reason: expected it with the state "dead", got "error"$'):
        [info async for info in client.list(topic, state="error", reason="exhausted")]
    with refused(Refused, "^rate: expected a number of tasks a second, 0.0001 at least, got 0$"):
        await client.redrive(topic=topic, rate=0)
    with refused(Refused, '^reason: expected it with "states": ..dead.. alone, because only the dead have died$'):
        await client.purge(topic, states=["error"], reason="exhausted")
    with refused(Refused, '^states: expected none but "delay", "error" and "dead": what is in flight stays$'):
        await client.purge(topic, states=["unack"])
    with refused(Refused, '^states: expected an array of "delay", "error" and "dead", got none$'):
        await client.purge(topic, states=[])


# Attempts


@case
async def a_failure_is_tried_again_with_pauses_that_double_and_then_it_is_dead(world: World) -> None:
    work = await world.handler(*[ValueError("out of stock")] * 9)
    await world.policy(retry_base=600)
    await work.enqueue(1, id=world.id("a"))
    await world.advance(12)
    info = await world.info("a")
    assert (info.state, info.attempts, info.retries_used, reason_of(info)) == (
        "error", 2, 2, ("status", "ValueError: out of stock"),
    )  # fmt: skip
    assert await world.minute_of(info.due_at) == 30
    await world.advance(100)
    assert world.minutes == [0, 10, 30, 70]
    info = await world.info("a")
    assert (info.state, info.attempts, info.retries_used) == ("dead", 4, 3)
    assert reason_of(info) == ("exhausted", "4 failures, the last: ValueError: out of stock")
    assert (await world.minute_of(info.died_at), info.due_at) == (70, None)


@case
async def pauses_are_capped_and_retries_are_the_topics_or_the_tasks(world: World) -> None:
    work = await world.handler(*[ValueError()] * 9)
    await world.policy(retry_base=600, retry_cap=900, retry=4)
    await work.enqueue(1, id=world.id("a"))
    await world.advance(100)
    assert world.minutes == [0, 10, 25, 40, 55]
    await work.enqueue(2, id=world.id("b"), retry=0)
    await world.advance(100)
    assert reason_of(await world.info("b")) == ("exhausted", "1 failure: ValueError")


@case
async def a_handler_says_when_it_is_tried_again(world: World) -> None:
    work = await world.handler(Retry("no connection", after=1200), Busy("not now", after=3000), Busy("still not"))
    await world.policy(retry_base=600)
    await work.enqueue(1, id=world.id("a"), retry=1)
    await world.advance(1)
    assert reason_of(await world.info("a")) == ("status", "no connection")
    await world.advance(100)
    assert world.minutes == [0, 20, 70, 80]
    assert world.attempts == [1, 2, 3, 4]
    assert await world.has_ended(world.id("a"))


@case
async def busy_costs_no_retry(world: World) -> None:
    work = await world.handler(*[Busy(after=600)] * 5)
    await work.enqueue(1, id=world.id("a"), retry=0)
    await world.advance(45)
    info = await world.info("a")
    assert (info.state, info.attempts, info.retries_used, reason_of(info)) == ("error", 5, 0, ("status", "busy"))
    await world.advance(10)
    assert world.last.failures == 0
    assert await world.has_ended(world.id("a"))


@case
async def a_hold_keeps_the_others_of_its_topic_waiting_too(world: World) -> None:
    work = await world.handler(Hold(1800, "rate limit"))
    other = await world.handler(name="other")
    await world.policy(ramp=0)
    for handler in (work, other):
        await handler.enqueue("first")
        await handler.enqueue("second", delay=600)
    await world.advance(20)
    assert [(run.minute, run.payload) for run in world.runs] == [(0, "first"), (0, "first"), (10, "second")]
    await world.advance(20)
    assert sorted((run.minute, run.payload) for run in world.runs[3:]) == [(30, "first"), (30, "second")]


@case
async def a_handler_lets_its_task_die(world: World) -> None:
    work = await world.handler(Dead("no such order"))
    await work.enqueue(1, id=world.id("a"))
    await world.advance(1)
    info = await world.info("a")
    assert (info.state, info.attempts, reason_of(info)) == ("dead", 1, ("gone", "no such order"))
    again = await work.enqueue(2, id=world.id("a"))
    assert (again.created, again.due_at) == (False, None)


@case
async def what_cannot_be_read_and_what_nobody_handles_says_so(world: World) -> None:
    await world.handler()
    await world.tasks.enqueue(world.topic(), "{", id=world.id("garbage"), retry=0)
    await world.tasks.enqueue(world.topic("nobody"), "{}", id=world.id("nobody"), retry=0)
    await world.advance(0.1)
    assert reason_of(await world.info("garbage")) == (
        "exhausted", "1 failure: DecodeError: Input data was truncated",
    )  # fmt: skip
    assert reason_of(await world.info("nobody")) == ("status", f"no handler for {world.topic('nobody')} in this app")
    assert await world.tasks.cancel(world.id("nobody"))


@case
async def a_handler_sees_its_task(world: World) -> None:
    work = await world.handler(ValueError())
    await world.policy(retry_base=600)
    await work.enqueue({"n": [1]}, delay=600, id=world.id("a"), context={"tenant": "grün"})
    await world.advance(30)
    assert world.runs == [(1, 10, {"n": [1]}), (2, 20, {"n": [1]})]
    task = world.last
    assert (task.id, task.topic, task.attempt, task.failures, task.retries_left) == (
        world.id("a"), work.topic, 2, 1, 2,
    )  # fmt: skip
    assert task.context == {"tenant": "grün"}
    assert [await world.minute_of(time) for time in (task.due_at, task.created_at)] == [10, 0]
    assert (task.headers["later-attempt"], task.headers["webhook-id"]) == ("2", task.id)


# The end of a ttl


@case
async def a_task_that_waits_beyond_its_ttl_is_dead(world: World) -> None:
    work = await world.handler(*[ValueError("out of stock")] * 3)
    await world.policy(retry_base=1800)
    created = await work.enqueue(1, delay=6000, ttl=600, id=world.id("a"))
    assert created.warning == "The task will expire before it is due and never be delivered."
    assert (await work.enqueue(2, ttl=1200, id=world.id("b"))).warning is None
    await world.advance(30)
    assert world.minutes == [0]
    for name, attempts, minute in (("a", 0, 10), ("b", 1, 20)):
        info = await world.info(name)
        assert (info.state, info.attempts) == ("dead", attempts)
        assert reason_of(info) == ("expired", "its ttl ended before it was done")
        assert await world.minute_of(info.died_at) == minute


@case
async def a_dead_task_is_kept_for_as_long_as_its_policy_says(world: World) -> None:
    work = await world.handler(Dead("never"))
    await world.policy(dead_keep=1200)
    await work.enqueue(1, id=world.id("a"))
    await world.advance(15)
    assert (await world.info("a")).state == "dead"
    await world.advance(10)
    assert await world.has_ended(world.id("a"))


# Policies


@case
async def policies_limit_and_set_delays(world: World) -> None:
    work = await world.handler()
    await world.policy(max_delay="15m", default_delay=300)
    for options in ({"delay": 901}, {"at": await world.at(30)}):
        with refused(Refused, "^Exceeds max allowed delivery delay of 900000 milliseconds$"):
            await work.enqueue(1, **options)
    assert (await work.enqueue(1, delay=900)).created
    assert await world.minute_of((await work.enqueue(2)).due_at) == 5
    queue, now_only = await world.handler(name="queue"), await world.handler(name="now-only")
    await world.policy("queue", delay_mode="queue")
    assert await world.minute_of((await queue.enqueue(3, delay=600)).due_at) == 0
    await world.policy("now-only", delays=False)
    with refused(Refused, "^delay: expected none, for the topic's policy allows no delays$"):
        await now_only.enqueue(4, delay=600)
    assert (await now_only.enqueue(4)).created


@case
async def policies_set_what_tasks_do_not_say(world: World) -> None:
    work = await world.handler()
    await world.policy(ttl=1200, retry=9)
    await work.enqueue(1, delay=600, id=world.id("a"))
    await work.enqueue(1, delay=600, id=world.id("b"), ttl=2400, retry=1)
    assert [(await world.info(name)).max_retry for name in "ab"] == [9, 1]
    assert [await world.minute_of((await world.info(name)).expires_at) for name in "ab"] == [20, 40]


@case
async def a_topic_inherits_from_its_namespace(world: World) -> None:
    topic = world.topic()
    namespace = topic.partition("/")[0]
    await world.client.set_policy(namespace_scope(namespace), {"retry": 7, "timeout": 20})
    assert await world.client.set_policy(topic, {"retry": 8}) == {"retry": 8}
    applied = await world.tasks.policy(topic)
    assert (applied.values["retry"], applied.values["timeout"], applied.values["retry_base"]) == (8, 20, 10)
    levels = [applied.fields[field].level for field in ("retry", "timeout", "retry_base")]
    assert levels == [Level.TOPIC, Level.NAMESPACE, Level.DAEMON]
    assert await world.client.unset_policy(topic, ["retry"]) == {}
    assert (await world.tasks.policy(topic)).values["retry"] == 7


@case
async def a_wrong_policy_is_refused_as_a_whole(world: World) -> None:
    topic = world.topic()
    for text, fields in (
        ("^retri: no field of a policy; there are .*; did you mean retry", {"retri": 1}),
        ("^retry: expected an integer from 0 to 1000, or null to inherit, got 1001$", {"timeout": 20, "retry": 1001}),
        ("^dead_to: expected another topic of the namespace ", {"dead_to": topic}),
        ("^on_done: expected another topic of the namespace ", {"on_done": "default/x"}),
        ("^default_delay: expected a default_delay of at most the max_delay", {"default_delay": 20, "max_delay": 10}),
    ):
        with refused(Refused, text):
            await world.client.set_policy(topic, fields)
    applied = (await world.tasks.policy(topic)).values
    assert (applied["timeout"], applied["retry"], applied["dead_to"]) == (15, 3, None)


@case
async def a_paused_topic_keeps_its_tasks_until_it_is_resumed(world: World) -> None:
    work = await world.handler()
    await world.policy(ramp=0)
    await world.tasks.pause(work)
    await work.enqueue(1, id=world.id("a"))
    await world.advance(10)
    assert ((await world.info("a")).state, world.runs) == ("delay", [])
    sentence = (await world.tasks.explain(world.id("a"))).sentence
    assert sentence.startswith("its topic is paused; due for 10 min"), sentence
    assert await world.client.resume(work.topic) is False
    await world.advance(5)
    assert world.attempts == [1]


@case
async def a_task_without_a_callback_has_that_of_its_topics_policy(world: World) -> None:
    work = await world.handler()
    await world.policy(callback=world.callback)
    created = await world.client.create(work.topic, "1")
    assert (await world.tasks.get(created.id)).callback is None
    await world.advance(1)
    assert world.attempts == [1]
    created = await world.client.create(work.topic, "1", delay=600)
    await world.client.unset_policy(work.topic)
    sentence = (await world.client.explain(id=created.id)).sentence
    assert sentence.endswith("without one it will be dead when it is due"), sentence
    await world.advance(12)
    info = await world.tasks.get(created.id)
    message = "it has no callback, and its topic's tasks are delivered (deliver push)"
    assert (info.state, info.attempts, reason_of(info)) == ("dead", 1, ("no callback", message))


@case
async def tasks_of_a_pulled_topic_have_no_callback_and_wait_for_a_consumer(world: World) -> None:
    topic = world.topic("pulled")
    await world.policy("pulled", deliver="pull")
    created = await world.tasks.enqueue(topic, "1")
    assert (await world.tasks.get(created.id)).callback is None
    with refused(Refused, "^callback: expected none, because consumers claim the topic's tasks"):
        await world.client.update(created.id, callback=world.callback)
    await world.advance(10)
    assert (await world.tasks.get(created.id)).state == "delay"
    sentence = (await world.client.explain(topic=topic)).sentence
    assert sentence.startswith("waits for a consumer (its topic has deliver pull)"), sentence


# What follows an end


@case
async def a_dead_task_moves_to_its_dead_letter_topic_and_goes_back(world: World) -> None:
    work = await world.handler(Dead("no such order"))
    letters = await world.handler(name="letters")
    await world.policy(dead_to=letters.topic)
    await world.tasks.pause(letters)
    await work.enqueue(1, id=world.id("a"))
    await world.advance(2)
    info = await world.info("a")
    assert (info.topic, info.state, info.attempts) == (letters.topic, "delay", 0)
    assert info.dead_letter is not None
    assert (info.dead_letter.topic, info.dead_letter.reason, info.dead_letter.message, info.dead_letter.attempts) == (
        work.topic, "gone", "no such order", 1,
    )  # fmt: skip
    assert reason_of(info) == ("gone", "no such order")
    sentence = (await world.tasks.explain(world.id("a"))).sentence
    assert f"it came from {work.topic}, where it died because its receiver is gone: no such order" in sentence
    assert await world.client.redrive(id=world.id("a")) == 1
    await world.advance(2)
    assert world.attempts == [1, 1]
    assert await world.has_ended(world.id("a"))


@case
async def a_dead_letter_topic_delivers_what_moved_there(world: World) -> None:
    work = await world.handler(Dead("no such order"))
    letters = await world.handler(name="letters")
    await world.policy(dead_to=letters.topic)
    await work.enqueue(1)
    await world.advance(2)
    assert [(run.attempt, run.payload) for run in world.runs] == [(1, 1), (1, 1)]
    assert world.last.topic == letters.topic


async def _end(world: World, field: str, *ends: Exception) -> dict[str, Any]:
    """Let a task end in a topic whose policy names another topic for that, and return what that gets."""
    work = await world.handler(*ends)
    follower = await world.handler(name="follower")
    await world.policy("follower", callback=world.callback, on_done=work.topic)
    await world.policy(**{field: follower.topic})
    await work.enqueue({"n": 1}, id=world.id("a"))
    await world.advance(2)
    assert [run.attempt for run in world.runs] == [1, 1]  # the end of a follow-up makes none
    content: dict[str, Any] = world.runs[1].payload
    return content


ENDED_FIELDS = {
    *("id", "topic", "execute_time", "max_retry", "has_retry", "callback", "content", "creat_time", "state"),
    *("attempts", "last_error"),
}


@case
async def a_topic_gets_a_task_for_each_dead_one_of_another(world: World) -> None:
    content = await _end(world, "on_dead", Dead("no such order"))
    assert content.keys() == ENDED_FIELDS | {"died_at", "failures"}
    assert (content["id"], content["topic"], content["state"], content["attempts"]) == (
        world.id("a"), world.topic(), "dead", 1,
    )  # fmt: skip
    assert json.loads(content["content"]) == {"n": 1}
    assert (content["last_error"]["reason"], content["last_error"]["message"]) == ("gone", "no such order")


@case
async def a_topic_gets_a_task_for_each_one_of_another_that_is_done(world: World) -> None:
    content = await _end(world, "on_done")
    assert content.keys() == ENDED_FIELDS | {"done_at"}
    assert (content["id"], content["state"], content["attempts"], content["last_error"]) == (
        world.id("a"), "done", 1, None,
    )  # fmt: skip


@case
async def dead_tasks_are_redriven_with_their_retries_back(world: World) -> None:
    work = await world.handler(Dead("never"), ValueError(), Dead("never"))
    for name, retry in (("a", 3), ("b", 0), ("c", 3)):
        await work.enqueue(name, id=world.id(name), retry=retry, ttl=6000)
        await world.advance(1)
    assert await world.tasks.redrive(work, reason="exhausted") == 1
    await world.advance(1)
    assert await world.client.redrive(topic=work.topic, died_before=await world.at(-60)) == 0
    assert await world.tasks.redrive(work, died_after=await world.at(60)) == 0
    assert await world.tasks.redrive(work) == 2
    await world.advance(1)
    assert [(run.attempt, run.payload) for run in world.runs[:4]] == [(1, "a"), (1, "b"), (1, "c"), (1, "b")]
    assert sorted(run.payload for run in world.runs[4:]) == ["a", "c"]
    assert await world.tasks.redrive(work) == 0


# Schedules


@case
async def a_schedule_creates_a_task_at_each_of_its_times(world: World) -> None:
    work = await world.handler()
    put = await world.client.put_schedule(world.id("s"), work.topic, "1", every=600, callback=world.callback)
    assert (put.created, [await world.minute_of(time) for time in put.next[:3]]) == (True, [0, 10, 20])
    assert not (
        await world.client.put_schedule(world.id("s"), work.topic, "1", every=600, callback=world.callback)
    ).created
    await world.advance(25)
    assert world.runs == [(1, minute, 1) for minute in (0, 10, 20)]
    assert world.last.id.startswith(f"s:{world.id('s')}:")
    assert world.last.headers["later-scheduled"].endswith("Z")
    shown = await world.client.schedule(world.id("s"))
    assert (shown.topic, shown.every, shown.paused, shown.last_error) == (work.topic, 600, False, None)
    assert shown.last is not None
    assert await world.minute_of(shown.last.time) == 20
    assert await world.client.delete_schedule(world.id("s")) == world.id("s")
    await world.advance(25)
    assert len(world.runs) == 3


@case
async def of_the_times_that_a_pause_has_missed_the_latest_fires(world: World) -> None:
    work = await world.handler()
    start = await world.at(5)
    await world.client.put_schedule(
        world.id("s"), work.topic, "1", every=600, start=start, end=await world.at(40), callback=world.callback
    )
    assert await world.client.pause_schedule(world.id("s"))
    await world.advance(30)
    assert world.runs == []
    assert not await world.client.resume_schedule(world.id("s"))
    await world.advance(1)
    assert len(world.runs) == 1
    await world.client.run_schedule_now(world.id("s"))
    await world.advance(30)
    assert len(world.runs) == 3
    assert (await world.client.schedule(world.id("s"))).next == []
    with refused(NotFound, f"^no schedule has the id '{world.id('nothing')}'$"):
        await world.client.schedule(world.id("nothing"))


@case
async def a_firing_is_refused_as_a_create_would_be(world: World) -> None:
    work = await world.handler()
    with refused(Refused, "^cron: expected either cron or every, got neither$"):
        await world.client.put_schedule(world.id("s"), work.topic, callback=world.callback)
    with refused(Refused, "^every: expected a number of seconds ≥ 1, ten years at most, got 0.5$"):
        await world.client.put_schedule(world.id("s"), work.topic, every=0.5, callback=world.callback)
    await world.client.put_schedule(
        world.id("s"), work.topic, every=600, callback=world.callback, start=await world.at(5)
    )
    await world.policy(deliver="pull")
    await world.advance(7)
    shown = await world.client.schedule(world.id("s"))
    assert shown.last is None
    assert shown.last_error is not None
    assert shown.last_error.message.startswith("callback: expected none, because consumers claim the topic's tasks")


@case
async def the_id_of_a_schedule_has_the_characters_of_ids(world: World) -> None:
    client = world.client
    for call in (client.schedule, client.pause_schedule, client.run_schedule_now, client.delete_schedule):
        with refused(Refused, '^id: expected 1 to 128 characters of A-Za-z0-9._~:-, got "a b"$'):
            await call("a b")
