"""Messages of Zaqar's API: posted, listed, read and deleted as Zaqar does, and none handed out before it is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from later.api.zaqar import message_pages
from later.core.api_keys import Scope, make_key_text
from later.core.clock import Clock
from later.core.policy import Deliver, Policy
from later.core.policy_scopes import topic_scope
from later.core.task import pack_id
from later.store import policies
from later.store.key_book import KeyBook
from later.store.keys import Bucket
from later.store.open import build_store
from later.store.policies import PolicyBook
from later.worker.requeue import Requeuer
from later.worker.shard_selector import ShardSelector
from tests.api.api_fixture import ApiFixture, fixed_clock, serve_api
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.api.test_claim_queues import reach
from tests.api.zaqar.zaqar_api import CLIENT_ID, OTHER_CLIENT_ID, PROJECT, ZaqarAnswer, ZaqarApi
from tests.builders import NOW, a_task
from tests.cases import each_case

QUEUE = "/v2/queues/q"
MESSAGES = f"{QUEUE}/messages"
TOPIC = f"{PROJECT}/q"
CALLS_OF_A_CLAIM: list[tuple[str, Any]] = [("GET", None), ("PATCH", {"ttl": 60}), ("DELETE", None)]
UNABLE = "Unable to delete"
NO_CLAIM = (403, UNABLE, "This message is claimed; it cannot be deleted without a valid claim ID.")
NOT_CLAIMED = (400, UNABLE, "A claim was specified, but the message is not currently claimed.")
NO_SUCH_CLAIM = (400, UNABLE, "The specified claim does not exist or has expired.")


class Messages(ZaqarApi):
    """Zaqar's API, called for the messages of one queue, at a time that a test sets."""

    def __init__(self, api: ApiFixture, clock: Clock, **caller: Any) -> None:
        super().__init__(api, **caller)
        self._clock = clock

    def pass_ms(self, ms: int) -> None:
        """Let the low end of the store's time be `ms` after NOW, and its high end 2 ms later."""
        self._clock.observe((NOW + ms) * 1000, -0.001, 0)

    async def post(self, *messages: dict[str, Any]) -> list[str]:
        """Post messages, which need name no body; return their ids."""
        answer = await self.call("POST", MESSAGES, {"messages": [{"body": "hello", **each} for each in messages]})
        assert answer.status == 201, answer
        ids = [href.removeprefix(f"{MESSAGES}/") for href in answer.body["resources"]]
        assert answer.headers["Location"] == f"{MESSAGES}?ids={','.join(ids)}"
        return ids

    async def list_ids(self, query: str = "echo=true") -> list[str]:
        """Return the ids of a page."""
        return ids_of(await self.call("GET", f"{MESSAGES}?{query}"))

    async def claim(self, limit: int = 10, ttl_s: int = 300) -> tuple[str, list[str]]:
        """Claim messages; return the claim's id and theirs."""
        now = await self.api.store.time.now()
        result = await self.api.store.claim_records.claim(TOPIC, ttl_s * 1000, 60_000, limit, now)
        return (result.tasks[0].claim_id if result.tasks else ""), [pulled.task.id for pulled in result.tasks]

    async def set_policy(self, **fields: Any) -> None:
        """Make the queue, and set fields of its policy."""
        await self.api.store.queues.ensure(TOPIC)
        await self.api.store.policies.change(topic_scope(TOPIC), lambda settings: settings.merge(fields))


def ids_of(answer: ZaqarAnswer) -> list[str]:
    assert answer.status == 200, answer
    return [message["id"] for message in answer.body["messages"]]


@asynccontextmanager
async def serve_messages(**options: Any) -> AsyncIterator[Messages]:
    clock = fixed_clock()
    async with serve_api(clock=clock, **options) as api:
        yield Messages(api, clock)


def another_client(messages: Messages) -> Messages:
    return Messages(messages.api, messages._clock, client_id=OTHER_CLIENT_ID)


# Posting


async def test_messages_are_tasks_of_their_queue_in_the_order_of_their_post() -> None:
    async with serve_messages(shards=16) as zaqar:
        first = await zaqar.post({"body": "hello", "ttl": 60}, *({"body": {"n": n}} for n in range(19)))
        second = await zaqar.post({"body": [1, 2]})
        assert [*map(pack_id, first + second)] == sorted(map(pack_id, first + second))
        assert (await zaqar.claim(20))[1] == first
        assert (await zaqar.claim(20))[1] == second
        _, task = await zaqar.api.post("/query", {"id": first[0]})
        assert (task["topic"], task["callback"], task["content"]) == (TOPIC, None, "hello")
        assert (await zaqar.api.post("/query", {"id": first[1]}))[1]["content"] == '{"n": 0}'
        policy = zaqar.api.store.policies.latest.settings_at(topic_scope(TOPIC)).fields
        assert policy == {"deliver": "pull", "delay_mode": "queue", "max_delay": 900}


async def test_a_message_is_shown_with_its_body_ttl_and_age() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({"body": {"event": "x"}})
        zaqar.pass_ms(5000)
        expected = {
            "id": id, "href": f"{MESSAGES}/{id}", "ttl": 3600, "age": 5, "body": {"event": "x"}, "claim_count": 0,
        }  # fmt: skip
        assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).body == expected
        assert (await zaqar.call("GET", f"{MESSAGES}?ids={id}")).body == {"messages": [expected]}
        assert (await zaqar.call("GET", f"{MESSAGES}?echo=1")).body["messages"] == [expected]


async def test_a_ttl_that_is_missing_is_that_of_the_policy() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(ttl=999)
        ids = await zaqar.post({}, {"ttl": 1_209_600})
        answer = await zaqar.call("GET", f"{MESSAGES}?ids={','.join(ids)}")
        assert [message["ttl"] for message in answer.body["messages"]] == [999, 1_209_600]


async def test_one_wrong_message_keeps_all_of_its_post_from_being_stored() -> None:
    ttl = "The TTL for a message may not exceed 1209600 seconds, and must be at least 60 seconds long."
    delay = "The Delay TTL for a message may not exceed 900 seconds,and must be at least 0 seconds long."
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"ttl": 59}, "Invalid API request", ttl),
        ({"ttl": 1_209_601}, "Invalid API request", ttl),
        ({"ttl": -1}, "Invalid API request", ttl),
        ({"delay": 901}, "Invalid API request", delay),
        ({"delay": -1}, "Invalid API request", delay),
        ({"delay": "5"}, "Invalid request body", 'The value of the "delay" field must be a int.'),
        ({"delay": True}, "Invalid request body", 'The value of the "delay" field must be a int.'),
    ]
    async with serve_messages() as zaqar:
        for default_delay in (0, 600):
            await zaqar.set_policy(default_delay=default_delay)
            for message, title, description in wrong:
                post = {"messages": [{"body": 1}, {"body": 2, **message}, {"body": 3}]}
                assert await zaqar.error("POST", MESSAGES, post) == (400, title, description), message
        assert await zaqar.list_ids("echo=true&include_delayed=true") == []
        assert zaqar.api.metric("later_tasks_refused_total") == 2 * len(wrong)


async def test_the_limit_on_delays_is_that_of_the_policy_also_in_the_sentence() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(max_delay=5.5, default_delay=1)
        await zaqar.post({"delay": 5})
        _, _, description = await zaqar.error("POST", MESSAGES, {"messages": [{"body": 1, "delay": 6}]})
        assert description.startswith("The Delay TTL for a message may not exceed 5.5 seconds,and must")
        await zaqar.set_policy(max_delay=0)
        await zaqar.post({"delay": 100_000})


async def test_a_post_of_thousands_of_messages_fits_into_an_answer() -> None:
    async with serve_messages(shards=2) as zaqar:
        answer = await zaqar.call("POST", MESSAGES, {"messages": [{"body": n} for n in range(2000)]})
        assert (answer.status, answer.headers["Location"]) == (201, MESSAGES)
        ids = [href.rpartition("/")[2] for href in answer.body["resources"]]
        assert [*map(pack_id, ids)] == sorted({*map(pack_id, ids)})
        assert len(await zaqar.list_ids("limit=20&echo=true")) == 20
        assert (await zaqar.claim(500))[1] == ids[:500]
        assert zaqar.api.metric("later_tasks_created_total") == 2000


async def test_a_post_that_is_too_large_is_refused() -> None:
    async with serve_messages() as zaqar:
        post = {"messages": [{"body": "x" * 262_144}]}
        too_large = (400, "Invalid API request", "Message collection size is too large. Max size 262144")
        assert await zaqar.error("POST", MESSAGES, post) == too_large
        await zaqar.api.store.queues.create(TOPIC, {"_max_messages_post_size": 1023})
        status, title, description = await zaqar.error("POST", MESSAGES, {"messages": [{"body": "x" * 1024}]})
        assert (status, title, description) == (
            400,
            "Invalid API request",
            "Message collection size is too large. The max size for current queue is 1023. It is calculated by max "
            "size = min(max_messages_post_size_config: 262144, max_messages_post_size_queue: 1023).",
        )
        await zaqar.post({"body": "x" * 900})
    async with serve_messages(max_body=1000) as zaqar:
        assert (await zaqar.error("POST", MESSAGES, {"messages": [{"body": "x" * 1000}]}))[2].endswith("Max size 1000")


async def test_a_topic_whose_tasks_are_delivered_takes_no_messages_and_gives_none() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(deliver="push")
        post = {"messages": [{"body": 1}]}
        for method, path, body in (("POST", MESSAGES, post), ("DELETE", f"{MESSAGES}?pop=1", None)):
            status, title, _ = await zaqar.error(method, path, body)
            assert (status, title) == (409, "Resource conflict")


async def test_a_post_while_the_store_is_away_or_too_much_waits_for_it_is_503() -> None:
    enqueued = "Messages could not be enqueued. Please try again in a few seconds."
    post = {"messages": [{"body": 1}]}
    async with serve_messages(max_pending_writes=0) as zaqar:
        assert await zaqar.error("POST", MESSAGES, post) == (503, "Service temporarily unavailable", enqueued)
    async with serve_messages() as zaqar:
        await zaqar.post({})
        await zaqar.api.lose_store()
        assert await zaqar.error("POST", MESSAGES, post) == (503, "Service temporarily unavailable", enqueued)
        others = {
            ("GET", MESSAGES): "Messages could not be listed.",
            ("GET", f"{MESSAGES}?ids=a"): "Message could not be retrieved.",
            ("GET", f"{MESSAGES}/a"): "Message could not be retrieved.",
            ("DELETE", f"{MESSAGES}/a"): "Message could not be deleted.",
            ("DELETE", f"{MESSAGES}?ids=a"): "Messages could not be deleted.",
            ("DELETE", f"{MESSAGES}?pop=1"): "Messages could not be popped.",
        }
        for (method, path), failure in others.items():
            assert (await zaqar.error(method, path))[2] == f"{failure} Please try again in a few seconds."


async def test_a_post_wakes_a_claim_that_waits() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy()
        waiting = asyncio.ensure_future(zaqar.api.post("/claim", {"topic": TOPIC, "wait": 30}))
        await reach(lambda: zaqar.api.metric("later_claim_waiters") == 1)
        ids = await zaqar.post({})
        _, answer = await waiting
        assert [task["id"] for task in answer["tasks"]] == ids


# Delays


@each_case(
    "default_delay, delay, due_ms",
    [(2, None, 2000), (600, 2, 2000), (600, 0, 0), (0, 5, 0), (0, None, 0)],
)
async def test_a_message_is_handed_out_at_its_due_time_and_not_before(
    default_delay: int, delay: int | None, due_ms: int
) -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(default_delay=default_delay)
        ids = await zaqar.post({} if delay is None else {"delay": delay})
        await zaqar.set_policy(default_delay=7)  # which moves nothing that is posted
        if due_ms:
            zaqar.pass_ms(due_ms - 1)
            assert await zaqar.list_ids() == []
            assert (await zaqar.claim())[1] == []
            assert ids_of(await zaqar.call("DELETE", f"{MESSAGES}?pop=1")) == []
            assert await zaqar.list_ids("echo=true&include_delayed=true") == ids
        zaqar.pass_ms(due_ms)
        assert await zaqar.list_ids() == ids
        assert (await zaqar.claim())[1] == ids


async def test_delayed_messages_are_not_listed_unless_asked_for_whatever_the_queues_default_is_now() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(default_delay=600)
        [late] = await zaqar.post({})
        await zaqar.set_policy(default_delay=0)
        [free] = await zaqar.post({})
        assert await zaqar.list_ids() == [free]
        assert await zaqar.list_ids("echo=true&include_delayed=1") == [free, late]
        assert (await zaqar.call("GET", f"{MESSAGES}/{late}")).status == 200


async def test_a_message_whose_ttl_ends_before_its_delay_is_never_handed_out() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy(default_delay=600)
        [id] = await zaqar.post({"delay": 900, "ttl": 60})
        zaqar.pass_ms(900_000)
        assert await zaqar.list_ids("echo=true&include_delayed=true") == []
        assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 404
        assert (await zaqar.claim())[1] == []


# Listing


async def test_pages_lead_through_all_messages_in_their_order() -> None:
    async with serve_messages(shards=16) as zaqar:
        ids = await zaqar.post(*[{}] * 20) + await zaqar.post(*[{}] * 5)
        href, pages = f"{MESSAGES}?limit=10&echo=True&include_claimed=no", []
        for _ in range(3):
            answer = await zaqar.call("GET", href)
            pages.append(ids_of(answer))
            [link] = answer.body["links"]
            href = link["href"]
            assert link["rel"] == "next"
            assert href.startswith(f"{MESSAGES}?limit=10&echo=true&include_claimed=false&marker=")
            assert not {*"{}"} & {*href}
            assert "=" not in href.partition("marker=")[2]
            await zaqar.call("DELETE", f"{MESSAGES}/{pages[-1][-1]}")  # a marker needs nothing to be there still
        assert [len(page) for page in pages] == [10, 10, 5]
        assert [id for page in pages for id in page] == ids
        assert (await zaqar.call("GET", href)).body == {"messages": [], "links": []}
        assert len(await zaqar.list_ids()) == 10


async def test_own_messages_are_listed_only_with_echo() -> None:
    async with serve_messages() as zaqar:
        own, other = await zaqar.post({}), await another_client(zaqar).post({})
        task = a_task(topic=TOPIC, callback="", created_at=NOW - 1000)
        await zaqar.api.store.tasks.create([task])
        assert await zaqar.list_ids("") == [task.id, *other]
        assert await another_client(zaqar).list_ids("echo=false") == [task.id, *own]
        assert await zaqar.list_ids("echo=true") == [task.id, *own, *other]


async def test_a_page_passes_over_two_thousand_hidden_messages_and_its_link_leads_on() -> None:
    async with serve_messages() as zaqar:
        await zaqar.set_policy()
        hidden = [a_task(topic=TOPIC, callback="", client=CLIENT_ID.bytes, created_at=NOW - 5000) for _ in range(2030)]
        await zaqar.api.store.tasks.create(hidden)
        ids = await another_client(zaqar).post({}, {}, {})
        first = await zaqar.call("GET", f"{MESSAGES}?limit=2")
        assert first.body["messages"] == []
        [link] = first.body["links"]
        second = await zaqar.call("GET", link["href"])
        assert ids_of(second) == ids[:2]
        assert ids_of(await zaqar.call("GET", second.body["links"][0]["href"])) == ids[2:]


async def test_a_page_passes_over_so_many_bytes_of_hidden_messages_and_its_link_leads_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_pages, "MAX_EXAMINED_BYTES", 10)
    async with serve_messages() as zaqar:
        await zaqar.post(*({"body": "x" * 10} for _ in range(8)))
        [id] = await another_client(zaqar).post({"body": "theirs"})
        pages = [await zaqar.call("GET", f"{MESSAGES}?limit=1")]
        while not ids_of(pages[-1]):
            [link] = pages[-1].body["links"]
            pages.append(await zaqar.call("GET", link["href"]))
        assert ids_of(pages[-1]) == [id]
        assert len(pages) == 5  # two messages are read at a time


async def test_claimed_messages_are_listed_if_asked_for_with_their_claim_at_the_end_of_their_path() -> None:
    async with serve_messages(shards=2) as zaqar:
        ids = await zaqar.post({}, {}, {})
        claim_id, [claimed] = await zaqar.claim(1)
        _, own_claim = await zaqar.api.post("/claim", {"topic": TOPIC})
        assert [task["id"] for task in own_claim["tasks"]] == [ids[1]]
        assert await zaqar.list_ids() == [ids[2]]
        answer = await zaqar.call("GET", f"{MESSAGES}?echo=true&include_claimed=true")
        hrefs = {message["id"]: message["href"] for message in answer.body["messages"]}
        assert hrefs == {
            ids[2]: f"{MESSAGES}/{ids[2]}",
            claimed: f"{MESSAGES}/{claimed}?claim_id={claim_id}",
            ids[1]: f"{MESSAGES}/{ids[1]}",
        }
        assert (await zaqar.call("GET", f"{MESSAGES}/{claimed}")).body["href"] == hrefs[claimed]
        assert [message["claim_count"] for message in answer.body["messages"]] == [0, 1, 1]


async def end_leases(zaqar: Messages) -> None:
    """Do what a worker does with leases that have ended."""
    store = zaqar.api.store
    requeuer = Requeuer(
        Bucket.UNACK,
        store=store,
        metrics=zaqar.api.metrics,
        on_requeued=lambda: None,
        shard_selector=ShardSelector(len(store.keys.shards)),
    )
    await requeuer.tick((await zaqar.api.store.time.now()).low)


async def test_a_claim_ends_with_its_lease_and_its_messages_are_claimed_again() -> None:
    async with serve_messages() as zaqar:
        id, done = await zaqar.post({}, {})
        claimed = await zaqar.call("POST", f"{QUEUE}/claims", {"ttl": 60, "grace": 60})
        href, _ = [message["href"] for message in claimed.body["messages"]]
        path = claimed.headers["Location"]
        zaqar.pass_ms(59_990)
        await end_leases(zaqar)
        assert (await zaqar.call("GET", path)).body["messages"][0]["id"] == id
        assert (await zaqar.call("POST", f"{QUEUE}/claims")).status == 204
        zaqar.pass_ms(60_010)
        assert [(await zaqar.call(method, path, body)).status for method, body in CALLS_OF_A_CLAIM] == [404, 404, 204]
        assert (await zaqar.call("DELETE", f"{MESSAGES}/{done}")).status == 204  # no claim holds it
        await end_leases(zaqar)
        assert await zaqar.error("DELETE", href) == NOT_CLAIMED
        again = await zaqar.call("POST", f"{QUEUE}/claims", {"ttl": 60, "grace": 60})
        [message] = again.body["messages"]
        assert (message["id"], message["claim_count"], again.headers["Location"] == path) == (id, 2, False)
        assert await zaqar.error("DELETE", href) == NO_SUCH_CLAIM


async def test_a_message_that_lives_on_by_the_grace_of_its_claim_does_so_when_it_is_updated() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({"ttl": 60})
        await zaqar.call("POST", f"{QUEUE}/claims", {"ttl": 60, "grace": 60})
        zaqar.pass_ms(61_000)
        await end_leases(zaqar)
        status, _ = await zaqar.api.post("/update", {"id": id, "content": "new"})
        assert status == 200
        zaqar.pass_ms(119_000)
        assert await zaqar.api.store.expiry.expired_tasks((await zaqar.api.store.time.now()).low) == []
        [message] = (await zaqar.call("POST", f"{QUEUE}/claims")).body["messages"]
        assert (message["id"], message["body"]) == (id, "new")


async def test_a_claim_lets_a_message_live_and_its_ttl_says_so() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({"ttl": 60})
        await zaqar.claim(ttl_s=300)
        zaqar.pass_ms(200_000)
        answer = await zaqar.call("GET", f"{MESSAGES}/{id}")
        assert (answer.status, answer.body["age"]) == (200, 200)
        assert 359 <= answer.body["ttl"] <= 361


@each_case(
    "query, title, description",
    [
        ("limit=0", "Invalid API request", "Limit must be at least 1 and may not be greater than 20."),
        ("limit=21", "Invalid API request", "Limit must be at least 1 and may not be greater than 20."),
        ("limit=x", "Invalid parameter", 'The "limit" parameter is invalid. The value must be an integer.'),
        *(
            (
                f"{name}=maybe",
                "Invalid parameter",
                f'The "{name}" parameter is invalid. The value of the parameter must be "true" or "false".',
            )
            for name in ("echo", "include_claimed", "include_delayed")
        ),
        (
            "ids=" + ",".join(["a"] * 21),
            "Invalid API request",
            "Limit must be at least 1 and may not be greater than 20.",
        ),
    ],
)
async def test_a_wrong_listing_is_refused(zaqar: ZaqarApi, query: str, title: str, description: str) -> None:
    assert await zaqar.error("GET", f"{MESSAGES}?{query}") == (400, title, description)


async def test_a_marker_that_is_none_leads_to_an_empty_page() -> None:
    async with serve_messages() as zaqar:
        await zaqar.post({}, {})
        link = (await zaqar.call("GET", f"{MESSAGES}?limit=1&echo=true")).body["links"][0]["href"]
        good = link.partition("marker=")[2]
        for marker in ("sfhlsfdjh2048", "a", good + "A", good[:-1], "ZGVhZCAxIGE", "ZGVsYXkgMWU5OTkgYQ", "%C3%A9"):
            answer = await zaqar.call("GET", f"{MESSAGES}?echo=true&marker={marker}")
            assert answer.body == {"messages": [], "links": []}, marker


# Messages by their ids


async def test_messages_are_got_by_ids_repeated_or_with_commas() -> None:
    async with serve_messages() as zaqar:
        ids = await zaqar.post({}, {}, {})
        await zaqar.set_policy(default_delay=600)
        ids += await zaqar.post({})
        for query in ("&".join(f"ids={id}" for id in ids), f"ids={','.join(ids)},none,not%2Fhere,{ids[0]},%7B"):
            assert sorted(ids_of(await zaqar.call("GET", f"{MESSAGES}?{query}"))) == ids
        assert await zaqar.error("GET", f"{MESSAGES}?ids=a,b") == (
            404, "Not found", f"No messages with IDs: ['a', 'b'] found in the queue q for project {PROJECT}.",
        )  # fmt: skip
        assert await zaqar.error("GET", f"{MESSAGES}/a") == (
            404, "Not found", f"Message a does not exist in queue q for project {PROJECT}",
        )  # fmt: skip


async def test_no_call_reaches_a_message_of_another_queue_or_project() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({})
        others = [zaqar, Messages(zaqar.api, zaqar._clock, project="other")]
        for caller, messages in zip(others, ("/v2/queues/r/messages", MESSAGES), strict=True):
            assert (await caller.call("GET", f"{messages}/{id}")).status == 404
            assert (await caller.call("GET", f"{messages}?ids={id}")).status == 404
            assert (await caller.call("GET", f"{messages}?echo=true")).body["messages"] == []
            assert (await caller.call("DELETE", f"{messages}/{id}")).status == 204
            assert (await caller.call("DELETE", f"{messages}/{id}?claim_id={'a' * 24}")).status == 204
            assert (await caller.call("DELETE", f"{messages}?ids={id}")).status == 204
            assert ids_of(await caller.call("DELETE", f"{messages}?pop=1")) == []
        assert await zaqar.list_ids() == [id]


# Deleting


async def test_a_message_is_deleted_without_a_claim_only_if_none_holds_it() -> None:
    async with serve_messages() as zaqar:
        free, claimed, leased = await zaqar.post({}, {}, {})
        for _ in range(2):
            assert (await zaqar.call("DELETE", f"{MESSAGES}/{free}")).status == 204
        assert (await zaqar.call("GET", f"{MESSAGES}/{free}")).status == 404
        await zaqar.claim(1, ttl_s=60)
        await zaqar.api.post("/claim", {"topic": TOPIC, "lease": 60})
        for id in (claimed, leased):
            assert await zaqar.error("DELETE", f"{MESSAGES}/{id}") == NO_CLAIM
            assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 200
        zaqar.pass_ms(60_000)  # the leases have ended, and no worker has requeued the tasks yet
        for id in (claimed, leased):
            assert (await zaqar.call("DELETE", f"{MESSAGES}/{id}")).status == 204
            assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 404


async def test_a_claimed_message_is_deleted_with_its_own_claim_only() -> None:
    async with serve_messages(shards=2) as zaqar:
        ids = await zaqar.post({}, {}, {})
        (claim_a, [a]), (claim_b, [b]) = await zaqar.claim(1), await zaqar.claim(1)
        [free] = {*ids} - {a, b}
        cases = [
            (a, claim_b, NO_CLAIM),
            (a, "invalid", NO_SUCH_CLAIM),
            (a, "a" * len(claim_a), NO_SUCH_CLAIM),
            (free, claim_a, NOT_CLAIMED),
            (free, "invalid", NO_SUCH_CLAIM),
        ]
        for id, claim_id, expected in cases:
            assert await zaqar.error("DELETE", f"{MESSAGES}/{id}?claim_id={claim_id}") == expected, expected
            assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 200
        for id, claim_id in ((a, claim_a), (b, claim_b), (a, claim_a)):
            assert (await zaqar.call("DELETE", f"{MESSAGES}/{id}?claim_id={claim_id}")).status == 204
            assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 404
        assert zaqar.api.metric("later_acked_total") == 2


async def test_a_deletion_under_a_claim_reads_the_policies_if_those_that_are_known_are_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({})
        claim_id, _ = await zaqar.claim()
        other = PolicyBook(zaqar.api.client, zaqar.api.keys, Policy(), lambda: 0.0)
        await other.change(topic_scope(TOPIC), lambda settings: settings.merge({"on_done": f"{PROJECT}/ends"}))
        monkeypatch.setattr(policies, "FRESH_S", 0.0)
        assert (await zaqar.call("DELETE", f"{MESSAGES}/{id}?claim_id={claim_id}")).status == 204
        registry = zaqar.api.metrics.registry
        assert registry.get_sample_value("later_follow_ups_total", {"field": "on_done"}) == 1


async def test_a_claim_that_has_ended_deletes_nothing() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({})
        claim_id, _ = await zaqar.claim(ttl_s=60)
        zaqar.pass_ms(60_000)
        assert await zaqar.error("DELETE", f"{MESSAGES}/{id}?claim_id={claim_id}") == NOT_CLAIMED
        assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).body["href"] == f"{MESSAGES}/{id}"


async def test_messages_are_deleted_by_ids_claimed_ones_too() -> None:
    async with serve_messages() as zaqar:
        ids = await zaqar.post({}, {}, {}, {})
        await zaqar.claim(1)
        answer = await zaqar.call("DELETE", f"{MESSAGES}?ids={ids[0]},{ids[1]}&ids={ids[2]},none,%7B")
        assert answer.status == 204
        assert await zaqar.list_ids("echo=true&include_claimed=true") == ids[3:]


async def test_dead_messages_are_neither_shown_nor_deleted() -> None:
    async with serve_messages() as zaqar:
        [id] = await zaqar.post({})
        _, claimed = await zaqar.api.post("/claim", {"topic": TOPIC})
        nack = {"leases": [claimed["tasks"][0]["lease"]], "dead": True}
        assert (await zaqar.api.post("/nack", nack))[0] == 200
        assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 404
        assert await zaqar.list_ids("echo=true&include_claimed=true&include_delayed=true") == []
        for path in (f"{MESSAGES}/{id}", f"{MESSAGES}?ids={id}", f"{MESSAGES}/{id}?claim_id=x"):
            assert (await zaqar.call("DELETE", path)).status == 204
        assert (await zaqar.api.post("/query", {"id": id}))[1]["state"] == "dead"


async def test_a_message_that_dies_is_one_of_the_dead_letter_queue_as_it_was_posted() -> None:
    async with serve_messages() as zaqar:
        await zaqar.api.store.queues.create(TOPIC, {"_dead_letter_queue": "dead"})
        [id] = await zaqar.post({"body": {"n": 1.0}})
        _, claimed = await zaqar.api.post("/claim", {"topic": TOPIC})
        await zaqar.api.post("/nack", {"leases": [claimed["tasks"][0]["lease"]], "dead": True})
        assert (await zaqar.call("GET", f"{MESSAGES}/{id}")).status == 404
        zaqar.pass_ms(10)
        [message] = (await zaqar.call("GET", "/v2/queues/dead/messages?echo=true")).body["messages"]
        assert (message["id"], message["body"]) == (id, {"n": 1.0})
        assert (await zaqar.call("GET", "/v2/queues/dead/messages")).body["messages"] == []
        assert (await zaqar.call("DELETE", f"/v2/queues/dead/messages/{id}")).status == 204


@each_case(
    "query, title, description",
    [
        (
            "",
            "Invalid API request",
            'The request should have either "ids" or "pop" parameter in the request, to be able to delete.',
        ),
        (
            "ids=",
            "Invalid API request",
            'The request should have either "ids" or "pop" parameter in the request, to be able to delete.',
        ),
        ("pop=1&ids=a", "Invalid API request", "pop and id params cannot be present together in the delete request."),
        ("pop=0", "Invalid API request", "Pop value must be at least 1 and may not be greater than 20."),
        ("pop=21", "Invalid API request", "Pop value must be at least 1 and may not be greater than 20."),
        ("pop=x", "Invalid parameter", 'The "pop" parameter is invalid. The value must be an integer.'),
        (
            "ids=" + ",".join(["a"] * 21),
            "Invalid API request",
            "ids parameter should have at least 1 and not greater than 20 values.",
        ),
    ],
)
async def test_a_wrong_delete_is_refused(zaqar: ZaqarApi, query: str, title: str, description: str) -> None:
    assert await zaqar.error("DELETE", f"{MESSAGES}?{query}") == (400, title, description)


async def test_popped_messages_are_gone_and_come_in_their_order() -> None:
    async with serve_messages(shards=2) as zaqar:
        ids = await zaqar.post({"body": {"n": 1}}, {}, {})
        answer = await zaqar.call("DELETE", f"{MESSAGES}?pop=2")
        assert ids_of(answer) == ids[:2]
        first = answer.body["messages"][0]
        assert (first["href"], first["body"], first["claim_count"]) == (f"{MESSAGES}/{ids[0]}", {"n": 1}, 1)
        assert await zaqar.list_ids("echo=true&include_claimed=true") == ids[2:]
        assert ids_of(await zaqar.call("DELETE", f"{MESSAGES}?pop=20")) == ids[2:]
        assert ids_of(await zaqar.call("DELETE", f"{MESSAGES}?pop=20")) == []
        assert ids_of(await zaqar.call("DELETE", "/v2/queues/none/messages?pop=1")) == []
        await zaqar.post({})
        await zaqar.set_policy(paused=True)
        assert ids_of(await zaqar.call("DELETE", f"{MESSAGES}?pop=1")) == []


# Several processes


async def test_a_queue_that_another_process_has_made_or_deleted_is_known_at_once() -> None:
    async with serve_messages() as zaqar:
        store = zaqar.api.store
        elsewhere = build_store(store.client, store.clock, store.keys, Policy()).queues
        await elsewhere.ensure(TOPIC)
        task = a_task(topic=TOPIC, callback="", created_at=NOW - 1000)
        await store.tasks.create([task])
        assert ids_of(await zaqar.call("DELETE", f"{MESSAGES}?pop=1")) == [task.id]
        await elsewhere.delete(TOPIC)
        ids = await zaqar.post({})  # in a topic that is not pulled, it would die without a callback
        assert (await store.policies.read()).for_topic(TOPIC).deliver is Deliver.PULL
        assert await zaqar.list_ids() == ids


# Keys


async def test_each_call_needs_the_scope_of_what_it_does() -> None:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)
        scopes = (Scope.CREATE, Scope.READ, Scope.EDIT, Scope.CLAIM)
        post, read, edit, claim = [await keys.add_key(scope) for scope in scopes]

        async def status(method: str, path: str, key: str, body: Any = None) -> int:
            headers = {"Client-ID": CLIENT_ID.hex, "X-Project-Id": PROJECT, "X-Auth-Token": key}
            return (await keys.call(method, path, None, body, **headers))[0]

        one = {"messages": [{"body": 1}]}
        assert await status("POST", MESSAGES, post, one) == 201
        assert await status("POST", MESSAGES, read, one) == 403
        assert [await status("GET", MESSAGES, key) for key in (read, post)] == [200, 403]
        deletes = [f"{MESSAGES}/a", f"{MESSAGES}?ids=a", f"{MESSAGES}/a?claim_id=b", f"{MESSAGES}?pop=1"]
        assert [await status("DELETE", path, edit) for path in deletes] == [204, 204, 204, 403]
        assert [await status("DELETE", path, claim) for path in deletes] == [403, 403, 204, 200]
        assert [await status("DELETE", path, read) for path in deletes] == [403] * 4
