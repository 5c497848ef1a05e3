"""Zaqar's calls about one queue: made, shown, changed, purged, deleted, and refused in Zaqar's words."""

from __future__ import annotations

import json
from typing import Any

from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import BucketRange, ClaimRequest
from tests.api.api_fixture import ApiFixture
from tests.api.test_audit_records import event, recorded_events
from tests.api.zaqar.zaqar_api import PROJECT, ZaqarApi
from tests.builders import NOW, a_task
from tests.cases import each_case

JOBS, TOPIC = "/v2/queues/jobs", f"{PROJECT}/jobs"
PATCH: dict[str, str | None] = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
DEFAULTS = {
    "_default_message_delay": 0,
    "_default_message_ttl": 3600,
    "_max_claim_count": None,
    "_dead_letter_queue": None,
    "_dead_letter_queue_messages_ttl": None,
    "_max_messages_post_size": 262_144,
    "_enable_encrypt_messages": False,
}
REQUEST, BODY = (400, "Invalid API request"), (400, "Invalid request body")
DELAY = "The TTL can not exceed 900 seconds, and must be at least 0 seconds long."
TOO_LARGE = "Queue metadata is too large. Max size: 65536"
MALFORMED = "Request body could not be parsed."
RESOURCE_TYPES = "Resource types must be a sub set of {'messages', 'subscriptions'}."


async def metadata(zaqar: ZaqarApi, path: str = JOBS) -> dict[str, Any]:
    answer = await zaqar.call("GET", path)
    assert answer.status == 200
    return dict(answer.body)


async def patch(zaqar: ZaqarApi, *changes: object) -> Any:
    return await zaqar.call("PATCH", JOBS, [*changes], headers=PATCH)


def change(op: str, key: str, *value: object) -> dict[str, object]:
    """Return a change in a patch; a removal has no value."""
    return {"op": op, "path": f"/metadata/{key}", **({"value": value[0]} if value else {})}


def message(**changes: Any) -> Task:
    return a_task(topic=TOPIC, callback="", **changes)


async def sizes(api: ApiFixture) -> list[int]:
    """Return how many tasks each bucket of the queue has: delay, unack, error, dead."""
    return await api.store.dead_letters.count([BucketRange(TOPIC, bucket) for bucket in Bucket])


class TestMaking:
    async def test_a_queue_is_made_once(self, zaqar: ZaqarApi) -> None:
        made, again = await zaqar.call("PUT", JOBS), await zaqar.call("PUT", JOBS)
        assert (made.status, made.body, made.headers["Location"]) == (201, None, JOBS)
        assert (again.status, again.body, again.headers["Location"]) == (204, None, JOBS)

    async def test_a_queue_is_seen_by_topics_show_with_its_policy(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS, {"_default_message_delay": 2})
        status, topic = await api.get(f"/topics/{PROJECT}%2Fjobs")
        assert status == 200
        written = {"deliver": "pull", "delay_mode": "queue", "max_delay": 900, "default_delay": 2}
        assert written.items() <= topic["policy"].items()
        status, topics = await api.get(f"/topics?namespace={PROJECT}")
        assert [topic["topic"] for topic in topics["topics"]] == [TOPIC]

    async def test_a_queue_of_the_default_project_is_a_topic_without_a_namespace(self, api: ApiFixture) -> None:
        await ZaqarApi(api, project="default").call("PUT", JOBS)
        assert api.store.policies.latest.topics == ["jobs"]

    async def test_metadata_come_back_as_they_were_put(self, zaqar: ZaqarApi) -> None:
        written = {
            "messages": {"ttl": 600},
            "node": 31,
            "none": None,
            "_default_message_ttl": 300,
            "_other": [1.5, "ä"],
        }
        assert (await zaqar.call("PUT", JOBS, written)).status == 201
        assert await metadata(zaqar) == {**DEFAULTS, **written}

    async def test_the_metadata_of_a_queue_that_is_there_stay(self, zaqar: ZaqarApi) -> None:
        await zaqar.call("PUT", JOBS, {"node": 31})
        assert (await zaqar.call("PUT", JOBS, {"node": 32, "_default_message_delay": 5})).status == 204
        assert await metadata(zaqar) == {**DEFAULTS, "node": 31}

    async def test_metadata_may_have_64_kib(self, zaqar: ZaqarApi) -> None:
        most = {"padding": "x" * (65_536 - len('{"padding": ""}'))}
        assert (await zaqar.call("PUT", JOBS, most)).status == 201
        assert (await metadata(zaqar))["padding"] == most["padding"]
        too_much = json.dumps({"padding": most["padding"] + "x"}).encode()
        assert await zaqar.error("PUT", JOBS, too_much) == (*REQUEST, TOO_LARGE)
        assert await zaqar.error("PUT", JOBS, b"x" * 900_000) == (*REQUEST, TOO_LARGE)

    @each_case(
        "body, error",
        [
            (b"{", (*BODY, MALFORMED)),
            (b".", (*BODY, MALFORMED)),
            (b"  ", (*BODY, MALFORMED)),
            (b"31", (*BODY, MALFORMED)),
            (b"[]", (*BODY, "Document type not supported.")),
            (b'{"n": 9223372036854775808}', (*BODY, "JSON contains integer that is too large.")),
            ({"_default_message_delay": 901}, (*REQUEST, DELAY)),
            ({"_default_message_delay": -1}, (*REQUEST, DELAY)),
            ({"_default_message_delay": "5"}, (*REQUEST, "_default_message_delay must be integer.")),
            ({"_default_message_delay": 5.5}, (*REQUEST, "_default_message_delay must be integer.")),
            ({"_max_claim_count": "123"}, (*REQUEST, "_max_claim_count must be integer.")),
            (
                {"_enable_encrypt_messages": True},
                (*REQUEST, "_enable_encrypt_messages must be false: messages are not encrypted."),
            ),
        ],
    )
    async def test_wrong_metadata_are_refused(self, zaqar: ZaqarApi, body: object, error: tuple[Any, ...]) -> None:
        assert await zaqar.error("PUT", "/v2/queues/wrong", body) == error
        assert (await zaqar.call("HEAD", "/v2/queues/wrong")).status == 404
        await zaqar.call("PUT", JOBS)
        assert await zaqar.error("PUT", JOBS, body) == error

    async def test_the_limit_of_a_delay_is_the_topics_max_delay(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS)
        await api.request("PATCH", f"/topics/{PROJECT}%2Fjobs/policy", {"max_delay": 3600})
        sentence = "The TTL can not exceed 3600 seconds, and must be at least 0 seconds long."
        assert await zaqar.error("PUT", JOBS, {"_default_message_delay": 3601}) == (*REQUEST, sentence)
        answer = await patch(zaqar, change("add", "_default_message_delay", 3601))
        assert (answer.status, answer.body["description"]) == (400, sentence)
        assert (await patch(zaqar, change("add", "_default_message_delay", 3600))).status == 200


class TestShowing:
    async def test_head_says_whether_a_queue_is_there(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        assert (await zaqar.call("HEAD", JOBS)).status == 404
        await zaqar.call("PUT", JOBS)
        assert (await zaqar.call("HEAD", JOBS)).status == 204
        await api.store.tasks.create([a_task(topic=f"{PROJECT}/pushed")])
        assert (await zaqar.call("HEAD", "/v2/queues/pushed")).status == 204

    async def test_a_queue_that_is_not_there_shows_what_a_message_would_get(
        self, zaqar: ZaqarApi, api: ApiFixture
    ) -> None:
        assert await metadata(zaqar) == DEFAULTS
        await api.request("PATCH", f"/namespaces/{PROJECT}/policy", {"default_delay": 5})
        assert await metadata(zaqar) == {**DEFAULTS, "_default_message_delay": 5}

    async def test_a_change_of_the_policy_is_a_change_of_the_metadata(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS)
        await api.request(
            "PATCH", f"/topics/{PROJECT}%2Fjobs/policy", {"default_delay": 7, "ttl": 120, "max_claims": 4}
        )
        changed: dict[str, Any] = {"_default_message_delay": 7, "_default_message_ttl": 120, "_max_claim_count": 4}
        assert await metadata(zaqar) == {**DEFAULTS, **changed}


class TestChanging:
    async def test_a_patch_adds_replaces_and_removes_metadata(self, zaqar: ZaqarApi) -> None:
        await zaqar.call("PUT", JOBS, {"a": 1, "b": 2})
        answer = await patch(
            zaqar,
            change("add", "c", {"d": []}),
            change("replace", "a", 3),
            change("remove", "b"),
            change("replace", "_default_message_ttl", 300),
        )
        changed: dict[str, Any] = {**DEFAULTS, "a": 3, "c": {"d": []}, "_default_message_ttl": 300}
        assert (answer.status, answer.body) == (200, changed)
        assert await metadata(zaqar) == changed

    async def test_reserved_metadata_may_be_removed_whether_they_are_set_or_not(self, zaqar: ZaqarApi) -> None:
        await zaqar.call("PUT", JOBS, {"_default_message_ttl": 300, "_max_messages_post_size": 255})
        answer = await patch(zaqar, *(change("remove", key) for key in DEFAULTS))
        assert (answer.status, answer.body) == (200, DEFAULTS)

    async def test_the_whole_metadata_as_the_client_writes_them(self, zaqar: ZaqarApi) -> None:
        """`queue.metadata(new_meta=…)` removes what it saw and does not name, reserved ones too."""
        await zaqar.call("PUT", JOBS, {"type": "x", "_default_message_delay": 5})
        seen = await metadata(zaqar)
        new = {"name": "test1", "age": 13}
        changes = [*(change("add", key, value) for key, value in new.items()), *(change("remove", key) for key in seen)]
        assert (await patch(zaqar, *changes)).body == {**DEFAULTS, **new}

    @each_case("op", ["replace", "remove"])
    async def test_what_is_not_there_is_a_conflict(self, zaqar: ZaqarApi, op: str) -> None:
        await zaqar.call("PUT", JOBS)
        wanted = change(op, "key3", *([2] if op == "replace" else []))
        assert await zaqar.error("PATCH", JOBS, [change("add", "a", 1), wanted], headers=PATCH) == (
            409, "Resource conflict", f"Can't {op} non-existent object key3.",
        )  # fmt: skip
        assert await metadata(zaqar) == DEFAULTS

    @each_case("op", ["add", "replace", "remove"])
    async def test_a_queue_that_is_not_there_cannot_be_changed(self, zaqar: ZaqarApi, op: str) -> None:
        wanted = change(op, "key", *([] if op == "remove" else [1]))
        sentence = f"Queue none does not exist for project {PROJECT}"
        assert await zaqar.error("PATCH", "/v2/queues/none", [wanted], headers=PATCH) == (404, "Not found", sentence)

    @each_case(
        "body, description",
        [
            (None, "PATCH body could not be empty for update."),
            (b"{", MALFORMED),
            ({"op": "add"}, "Document type not supported."),
            ([7], "Operations must be JSON objects."),
            (
                [change("move", "a")],
                "Invalid operation: `move`. It must be one of the following: add, remove, replace.",
            ),
            (
                [{"op": "add", "path": "/a", "value": 2}],
                "Invalid JSON pointer for this resource: '/a, e.g /metadata/key'",
            ),
            ([change("add", "_default_message_delay", 901)], DELAY),
            ([change("replace", "_default_message_delay", "5")], "_default_message_delay must be integer."),
            ([change("add", "_default_message_delay", True)], "_default_message_delay must be integer."),
            ([change("add", "a", "x" * 65_536)], TOO_LARGE),
        ],
    )
    async def test_a_wrong_patch_is_refused(self, zaqar: ZaqarApi, body: object, description: str) -> None:
        await zaqar.call("PUT", JOBS)
        assert await zaqar.error("PATCH", JOBS, body, headers=PATCH) == (*BODY, description)
        assert await metadata(zaqar) == DEFAULTS

    async def test_a_patch_says_that_it_is_one(self, zaqar: ZaqarApi) -> None:
        await zaqar.call("PUT", JOBS)
        assert await zaqar.error("PATCH", JOBS, [change("add", "a", 1)]) == (
            400,
            "Invalid Content-Type",
            "Accepted media type for PATCH: {'Accept-Patch': 'application/openstack-messaging-v2.0-json-patch'}.",
        )

    async def test_a_change_of_the_default_delay_moves_no_message(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS, {"_default_message_delay": 600})
        task = message(delay=600)
        await api.store.tasks.create([task])
        await patch(zaqar, change("replace", "_default_message_delay", 0))
        [record] = await api.store.lookup.query([task.id])
        assert getattr(record, "score", None) == NOW + 600_000


class TestRemoving:
    async def test_a_deleted_queue_is_gone_with_its_messages(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS, {"node": 31, "_default_message_delay": 5})
        await fill(api)
        assert (await zaqar.call("DELETE", JOBS)).status == 204
        assert await sizes(api) == [0, 0, 0, 0]
        assert (await zaqar.call("HEAD", JOBS)).status == 404
        assert await metadata(zaqar) == DEFAULTS
        assert (await zaqar.call("PUT", JOBS)).status == 201
        assert await metadata(zaqar) == DEFAULTS

    async def test_a_queue_that_is_not_there_is_deleted_too(self, zaqar: ZaqarApi) -> None:
        answer = await zaqar.call("DELETE", "/v2/queues/none")
        assert (answer.status, answer.body) == (204, None)

    @each_case("body", [None, {"resource_types": ["messages"]}, {"resource_types": ["subscriptions", "messages"]}])
    async def test_a_purge_removes_all_messages_but_those_that_are_claimed(
        self, zaqar: ZaqarApi, api: ApiFixture, body: object
    ) -> None:
        await api.store.queues.delete(TOPIC)
        await zaqar.call("PUT", JOBS)
        await fill(api)
        assert (await zaqar.call("POST", f"{JOBS}/purge", body)).status == 204
        assert await sizes(api) == [0, 2, 0, 0]

    @each_case("body", [{"resource_types": ["subscriptions"]}, {"resource_types": []}])
    async def test_a_purge_of_subscriptions_removes_no_message(
        self, zaqar: ZaqarApi, api: ApiFixture, body: object
    ) -> None:
        await api.store.queues.delete(TOPIC)
        await fill(api)
        assert (await zaqar.call("POST", f"{JOBS}/purge", body)).status == 204
        assert await sizes(api) == [4, 2, 0, 0]

    @each_case(
        "body, error",
        [
            ({"wrong_key": ["messages"]}, (*REQUEST, 'Post body must contain key "resource_types".')),
            (["messages"], (*REQUEST, 'Post body must contain key "resource_types".')),
            ({"resource_types": ["wrong_value"]}, (*REQUEST, RESOURCE_TYPES)),
            ({"resource_types": "messages"}, (*REQUEST, RESOURCE_TYPES)),
            ({"resource_types": [["messages"]]}, (*REQUEST, RESOURCE_TYPES)),
            (b"{", (*BODY, MALFORMED)),
        ],
    )
    async def test_a_wrong_purge_is_refused(self, zaqar: ZaqarApi, body: object, error: tuple[Any, ...]) -> None:
        assert await zaqar.error("POST", f"{JOBS}/purge", body) == error


async def fill(api: ApiFixture) -> None:
    """Put four messages into the queue that wait, and two that are claimed."""
    await api.store.tasks.create([message(), message()])
    await api.store.tasks.claim([ClaimRequest(TOPIC, 0, 10, is_pull=True)], NOW, NOW + 30_000)
    await api.store.tasks.create([message(), message(), message(delay=5), message(delay=5)])


class TestRecords:
    async def test_changes_of_queues_are_recorded(self, zaqar: ZaqarApi, api: ApiFixture) -> None:
        await zaqar.call("PUT", JOBS, {"_max_claim_count": 3})
        await zaqar.call("PUT", JOBS)
        await patch(zaqar, change("add", "_max_claim_count", 4))
        await api.store.tasks.create([message(), message()])
        await zaqar.call("POST", f"{JOBS}/purge")
        await zaqar.call("DELETE", JOBS)
        about, made = (
            {"namespace": PROJECT, "topic": TOPIC},
            {"delay_mode": "queue", "deliver": "pull", "max_delay": 900},
        )
        three, four = {**made, "max_claims": 3}, {**made, "max_claims": 4}
        nothing = dict[str, Any]()
        assert await recorded_events(api) == [
            event("policy changed", **about, before=nothing, after=three),
            event("policy changed", **about, before=three, after=four),
            event("topic purged", **about, states=["error", "delay"], tasks=2),
            event("queue deleted", **about, tasks=0, before=four),
        ]


class TestWithoutStore:
    @each_case(
        "method, path, body, sentence",
        [
            ("PUT", JOBS, None, "Queue could not be created."),
            ("GET", JOBS, None, "Queue metadata could not be retrieved."),
            ("PATCH", JOBS, [change("add", "a", 1)], "Queue could not be updated."),
            ("DELETE", JOBS, None, "Queue could not be deleted."),
            ("POST", f"{JOBS}/purge", None, "Queue could not be purged."),
            ("GET", f"{JOBS}/stats", None, "Queue stats could not be read."),
            ("GET", "/v2/queues", None, "Queues could not be listed."),
        ],
    )
    async def test_each_call_says_that_it_could_not_be_carried_out(
        self, zaqar: ZaqarApi, api: ApiFixture, method: str, path: str, body: object, sentence: str
    ) -> None:
        await api.lose_store()
        headers = PATCH if method == "PATCH" else None
        assert await zaqar.error(method, path, body, headers=headers) == (
            503, "Service temporarily unavailable", f"{sentence} Please try again in a few seconds.",
        )  # fmt: skip
