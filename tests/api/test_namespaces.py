"""Closed namespaces: a caller whose key is bound to one neither takes, sees nor forgets what is of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api.paging import encode_cursor
from later.core.policy import Policy
from later.core.retry import SettleTarget, Verdict
from later.core.task import pack_id
from later.store.types import ClaimRequest, Settlement
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request, create_bodies, item_error, ok, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW

UUID = "0190163d-8694-739b-aea5-966c26f8ad90"
OTHER_UUID = "5f0c6b1e-7d3a-4f6b-9a1d-2c3b4a5d6e7f"
OUTSIDE_DETAIL = "this key is for the namespace team"


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API with callers of namespaces, on an empty store of two shards."""
    async with serve_api(authorization=NamedCallers(), shards=2) as built:
        yield built


@pytest.fixture
def team(api: ApiFixture) -> Tenant:
    return Tenant(api, "team")


@pytest.fixture
def other(api: ApiFixture) -> Tenant:
    return Tenant(api, "other")


@pytest.fixture
def operator(api: ApiFixture) -> Tenant:
    return Tenant(api, "operator")


def body(topic: str, id: str | None = None, **more: Any) -> dict[str, Any]:
    return {**MINIMAL, "topic": topic, "delay": 60, **({} if id is None else {"id": id}), **more}


def outside(field: str) -> tuple[int, Any]:
    """Return the answer to a call that names something outside the namespace `team`."""
    problem = {"type": "/problems/not-allowed", "status": 403, "detail": f"{field}: {OUTSIDE_DETAIL}", "field": field}
    return 403, problem


def without_title(answer: tuple[int, Any]) -> tuple[int, Any]:
    return answer[0], {name: value for name, value in answer[1].items() if name != "title"}


def not_found(id: str, **more: Any) -> tuple[int, Any]:
    problem = {"type": "/problems/no-such-task", "status": 404, "detail": f"no task has the id {id!r}", **more}
    return 404, problem


class TestIds:
    async def test_an_own_id_has_the_namespace_in_front_whoever_wrote_it_there(self, team: Tenant) -> None:
        for text in ("order-1", "team/order-1"):
            status, answer = await team.post("/create", body("team/orders", text))
            assert (status, answer["id"], answer["created"]) == (200, "team/order-1", text == "order-1")
        for text in ("order-1", "team/order-1"):
            assert (await team.post("/query", {"id": text}))[1]["id"] == "team/order-1"
        assert (await team.post("/list", {"topic": "team/orders"}))[1]["tasks"][0]["id"] == "team/order-1"
        assert (await team.post("/explain", {"id": "order-1"}))[0] == 200
        assert await team.post("/delete", {"id": "order-1"}) == ok(id="team/order-1")

    async def test_the_callback_names_the_task_by_that_id(self, api: ApiFixture, team: Tenant) -> None:
        await team.post("/create", body("team/orders", "order-1", delay=0))
        [claim] = await claim_all(api, "team/orders")
        assert claim.id == claim.task.id == "team/order-1"

    async def test_uuids_stay_as_they_are_and_keep_their_16_bytes(self, api: ApiFixture, team: Tenant) -> None:
        for text, created in ((UUID, True), (f"team/{UUID}", False)):
            status, answer = await team.post("/create", body("team/orders", text))
            assert (status, answer["id"], answer["created"]) == (200, UUID, created)
        _, made = await team.post("/create", body("team/orders"))
        for id in (UUID, f"team/{UUID}", made["id"]):
            assert (await team.post("/query", {"id": id}))[1]["id"] == id.removeprefix("team/")
        assert await api.redis.hexists(api.keys.shard_of(UUID).pool, pack_id(UUID))
        assert await team.post("/delete", {"id": UUID}) == ok(id=UUID)
        assert (await team.post("/run-now", {"id": made["id"]}))[1]["id"] == made["id"]

    async def test_namespaces_never_take_each_others_ids(self, team: Tenant, other: Tenant, operator: Tenant) -> None:
        for caller, topic in ((other, "other/x"), (operator, "x"), (team, "team/x")):
            assert (await caller.post("/create", body(topic, "order-1")))[1]["created"] is True

    async def test_a_hundred_creators_in_two_namespaces_race_for_an_id_and_two_win(self, api: ApiFixture) -> None:
        names = ["team", "other"] * 50
        calls = [Tenant(api, name).post("/create", body(f"{name}/orders", "order-1")) for name in names]
        answers = [answer for _, answer in await asyncio.gather(*calls)]
        assert {answer["id"] for answer in answers if answer["created"]} == {"team/order-1", "other/order-1"}
        assert sum(answer["created"] for answer in answers) == 2
        assert sum([await api.redis.hlen(shard.pool) for shard in api.keys.shards]) == 2

    async def test_a_uuid_of_another_namespace_is_a_conflict_that_tells_nothing(
        self, team: Tenant, other: Tenant, operator: Tenant
    ) -> None:
        await other.post("/create", body("other/x", UUID))
        await operator.post("/create", body("x", OTHER_UUID))
        for uuid in (UUID, OTHER_UUID):
            status, answer = await team.post("/create", body("team/x", uuid))
            assert (status, answer["type"], answer.get("field")) == (409, "/problems/exists", "id")
            assert uuid not in str(answer)
        _, batch = await team.post("/create/batch", [body("team/x", UUID), body("team/x", "fine")])
        assert (batch["created"], batch["existing"], batch["refused"]) == (1, 0, 1)
        assert batch["results"][0]["error"]["status"] == 409

    async def test_a_namespace_of_any_characters_makes_ids_of_ascii(self, api: ApiFixture) -> None:
        """Otherwise ids of 16 bytes could be mistaken for packed UUIDs, and could not stand in a header."""
        for name, shown in (("aaaaaaaé", "aaaaaaa%C3%A9/1234567"), ("a b%", "a%20b%25/1234567")):
            caller = StrangeTenant(api, name)
            for text in ("1234567", f"{name}/1234567", shown):
                assert (await caller.post("/create", body(f"{name}/x", text)))[1]["id"] == shown
            assert (await caller.post("/query", {"id": f"{name}/1234567"}))[1]["id"] == shown

    async def test_reserved_ids_are_refused_in_creates(self, team: Tenant, operator: Tenant) -> None:
        for caller, topic in ((team, "team/x"), (operator, "x")):
            for id in ("s:a", "ev:a"):
                detail = f'expected one that does not begin with s: or ev:, got "{id}"'
                assert await caller.post("/create", body(topic, id)) == bad_request(f"id: {detail}", "id")
                assert await caller.call("POST", f"/create/batch?job={id}", []) == bad_request(f"job: {detail}", "job")

    async def test_an_unbound_key_reaches_every_task_by_its_id_and_makes_none_of_a_namespace(
        self, team: Tenant, operator: Tenant
    ) -> None:
        await team.post("/create", body("team/x", "a"))
        assert (await operator.post("/query", {"id": "team/a"}))[1]["id"] == "team/a"
        refusal = await operator.post("/create", body("team/x", "team/a"))
        assert refusal == bad_request('id: expected 1 to 128 characters of A-Za-z0-9._~:-, got "team/a"', "id")
        assert await operator.post("/delete", {"id": "team/a"}) == ok(id="team/a")


class StrangeTenant(Tenant):
    """A caller of a namespace whose name cannot stand in a header as it is."""

    def __init__(self, api: ApiFixture, namespace: str) -> None:
        super().__init__(api, f"#{namespace.encode().hex()}")


BY_ID: list[tuple[str, dict[str, Any]]] = [
    ("/query", {}),
    ("/explain", {}),
    ("/update", {"content": "x"}),
    ("/run-now", {}),
    ("/redrive", {}),
    ("/delete", {}),
]
BATCHES = ["/query/batch", "/delete/batch?dry_run=true", "/delete/batch?pending=true", "/delete/batch"]


class TestWhatIsOfAnotherNamespace:
    async def test_an_id_answers_what_a_missing_one_does_to_the_byte_by_as_many_commands(
        self, api: ApiFixture, team: Tenant, other: Tenant, operator: Tenant
    ) -> None:
        _, made = await other.post("/create", body("other/x"))
        for caller, topic in ((other, "other/x"), (operator, "x")):
            await caller.post("/create", body(topic, "order-1"))
        await other.post("/create", body("other/x", UUID))
        seen, missing = (
            [made["id"], UUID, "other/order-1", "order-1"],
            [OTHER_UUID, OTHER_UUID, "other/missing", "missing"],
        )
        for path, fields in BY_ID:
            for id, absent in zip(seen, missing, strict=True):
                expected, expected_commands = await sent(api, team, path, {"id": absent, **fields})
                answer, commands = await sent(api, team, path, {"id": id, **fields})
                assert answer == expected.replace(absent.encode(), id.encode()), path
                assert answer.startswith(b"404")
                assert commands == expected_commands, (path, id)
        for path in BATCHES:
            answer, commands = await sent(api, team, path, [{"id": id} for id in seen])
            expected, expected_commands = await sent(api, team, path, [{"id": id} for id in missing[1:]])
            assert answer.count(b'"status":404') == len(seen)
            assert set(commands) == set(expected_commands)
        for id in (made["id"], UUID, "order-1"):
            assert (await other.post("/query", {"id": id}))[0] == 200

    async def test_what_ended_is_remembered_for_its_namespace_alone(
        self, api: ApiFixture, team: Tenant, other: Tenant
    ) -> None:
        for id in ("order-1", UUID):
            await other.post("/create", body("other/x", id, delay=0))
        await end_all(api, "other/x")
        for id in ("order-1", UUID):
            shown = "other/order-1" if id == "order-1" else UUID
            ended = {"ended": True, "detail": f"no task has the id {shown!r}: it has ended"}
            assert without_title(await other.post("/query", {"id": id})) == not_found(id, **ended)
            shown = "team/order-1" if id == "order-1" else UUID
            for path in ("/query", "/delete"):
                assert without_title(await team.post(path, {"id": id})) == not_found(shown)
            assert (await team.post("/create", body("team/x", id)))[1]["created"] is True
            again = await other.post("/create", body("other/x", id))
            assert again == ok(id=f"other/{id}" if id == "order-1" else id, created=False)
        assert await other.post("/delete", {"id": UUID}) == ok(id=UUID, ended=True)
        assert (await team.post("/query", {"id": UUID}))[0] == 200

    async def test_a_dead_uuid_is_remembered_for_its_namespace_alone_when_it_is_removed(
        self, api: ApiFixture, team: Tenant, other: Tenant
    ) -> None:
        await other.post("/create", body("other/x", UUID, delay=0, retry=0))
        [claim] = await claim_all(api, "other/x")
        await api.store.tasks.settle([Settlement(claim, Verdict(SettleTarget.DEAD, NOW), None)])
        assert (await other.post("/create", body("other/x", UUID)))[1] == {"id": UUID, "created": False}
        assert (await team.post("/create", body("team/x", UUID)))[0] == 409
        [topic] = (await api.store.expiry.topics_with_dead(NOW, 9)).topics
        dead = await api.store.expiry.dead_tasks(topic, NOW, NOW, Policy())
        assert await api.store.expiry.sweep(dead, NOW) == [True]
        assert (await other.post("/query", {"id": UUID}))[1]["ended"] is True
        assert "ended" not in (await team.post("/query", {"id": UUID}))[1]
        assert (await other.post("/create", body("other/x", UUID)))[1] == {"id": UUID, "created": False}

    async def test_topics_and_namespaces_that_are_named_are_refused(self, team: Tenant, other: Tenant) -> None:
        await other.post("/create", body("other/x", "a"))
        for path, fields in [
            ("/create", body("other/x")),
            ("/create", body("x")),
            ("/create", body("later/x")),
            ("/list", {"topic": "other/x"}),
            ("/redrive", {"topic": "other/x"}),
            ("/explain", {"topic": "other/x"}),
        ]:
            assert without_title(await team.post(path, fields)) == outside("topic"), path
        for method, path, field in [
            ("GET", "/topics/other%2Fx", "topic"),
            ("POST", "/topics/other%2Fx/purge", "topic"),
            ("POST", "/topics/other%2Fx/pause", "topic"),
            ("POST", "/topics/other%2Fx/resume", "topic"),
            ("GET", "/topics?namespace=other", "namespace"),
            ("GET", "/topics?namespace=default", "namespace"),
            ("GET", "/history?series=done&topic=other%2Fx", "topic"),
            ("GET", "/deliveries?topic=other%2Fx", "topic"),
            *[(method, "/topics/other%2Fx/policy", "topic") for method in METHODS],
            *[(method, "/namespaces/other/policy", "namespace") for method in METHODS],
            *[(method, f"{PULSAR}/namespaces/public/other/delayedDelivery", "namespace") for method in PULSAR_METHODS],
            *[
                (method, f"{PULSAR}/persistent/public/other/x/delayedDelivery", "namespace")
                for method in PULSAR_METHODS
            ],
        ]:
            assert without_title(await team.call(method, path)) == outside(field), (method, path)
        _, batch = await team.post("/create/batch", [body("other/x"), body("team/x", "a")])
        assert (batch["created"], batch["refused"]) == (1, 1)
        assert batch["results"][0] == item_error(403, f"topic: {OUTSIDE_DETAIL}", field="topic")
        assert without_title(await team.post("/create", body("team/x", "other/a"))) == outside("id")

    async def test_an_admin_of_a_namespace_changes_its_topics_policies_and_not_its_own(self, team: Tenant) -> None:
        topic, namespace = "/topics/team%2Fx/policy", "/namespaces/team/policy"
        assert await team.call("PUT", topic, {"retry": 5}) == ok(retry=5)
        assert (await team.call("GET", f"{topic}?applied=true"))[0] == 200
        assert await team.call("POST", "/topics/team%2Fx/pause") == ok(topic="team/x", paused=True)
        assert await team.call("GET", namespace) == ok()
        pulsar = f"{PULSAR}/persistent/public/team/x/delayedDelivery"
        assert await team.call("POST", pulsar, {"active": True}) == (204, None)
        detail = "namespace: this key may change the policies of its topics, not of its namespace"
        for method in ("PUT", "PATCH", "DELETE"):
            status, answer = await team.call(method, namespace, {"retry": 5})
            assert (status, answer["detail"], answer["field"]) == (403, detail, "namespace")
        status, _ = await team.call("POST", f"{PULSAR}/namespaces/public/team/delayedDelivery", {"active": True})
        assert status == 403

    async def test_only_its_own_topics_are_listed(self, api: ApiFixture) -> None:
        topics = {"team": ["team/a", "team/b"], "other": ["other/a"], "default": ["a", "default/a/b", "z"]}
        for namespace, names in topics.items():
            for name in names:
                await Tenant(api, namespace).post("/create", body(name, "1"))
                await Tenant(api, namespace).post("/create", body(name))
        for namespace, names in topics.items():
            for query in ("", f"&namespace={namespace}"):
                assert await listed(Tenant(api, namespace), query) == sorted(names)
        for topic in ("other/a", "a", "teams/a", "tea"):
            cursor = encode_cursor(topic)
            refusal = bad_request(f'cursor: expected one of an earlier answer\'s, got "{cursor}"', "cursor")
            assert await Tenant(api, "team").get(f"/topics?cursor={cursor}") == refusal

    async def test_cursors_lead_through_ones_own_tasks_and_not_through_others(
        self, api: ApiFixture, team: Tenant, operator: Tenant
    ) -> None:
        await team.post("/create/batch", [body("team/x", f"n{n}") for n in range(5)])
        for caller in (team, operator):
            ids, cursor = list[str](), None
            while cursor or not ids:
                _, page = await caller.post("/list", {"topic": "team/x", "limit": 2, "cursor": cursor})
                ids, cursor = ids + [task["id"] for task in page["tasks"]], page["cursor"]
            assert sorted(ids) == [f"team/n{n}" for n in range(5)]
        for path, position in (("/list", f"{NOW} /other/a"), ("/redrive", f"{NOW} /other/a 0 0")):
            cursor = encode_cursor(position)
            refusal = bad_request(f'cursor: expected one of an earlier answer\'s, got "{cursor}"', "cursor")
            assert await team.post(path, {"topic": "team/x", "cursor": cursor}) == refusal
            assert (await operator.post(path, {"topic": "team/x", "cursor": cursor}))[0] == 200


class TestJobs:
    async def test_a_job_is_of_its_namespace(self, team: Tenant, other: Tenant, operator: Tenant) -> None:
        for caller, topic in ((team, "team/x"), (other, "other/x"), (operator, "x")):
            await caller.call("POST", "/create/batch?job=import&run=1", [body(topic, "a")])
        for caller, job in ((team, "team/import"), (other, "other/import"), (operator, "import")):
            for name in {"import", job.replace("/", "%2F")}:
                assert await caller.get(f"/jobs/{name}?run=1") == ok(job=job, run="1", created=1, existing=0, refused=0)
        assert (await operator.get("/jobs/team%2Fimport"))[1]["created"] == 1
        assert without_title(await team.call("POST", "/create/batch?job=other/import", [])) == outside("job")

    async def test_another_namespaces_job_is_missing_to_the_byte(self, team: Tenant, other: Tenant) -> None:
        await other.call("POST", "/create/batch?job=theirs", [body("other/x", "a")])
        expected = (await team.get("/jobs/other%2Fabsent"))[1]
        for name in ("theirs", "other%2Ftheirs"):
            status, answer = await team.get(f"/jobs/{name}")
            assert (status, answer["status"]) == (404, 404)
        assert answer == {**expected, "detail": 'nothing is counted under the job "other/theirs"'}

    async def test_a_job_counts_the_uuids_of_another_namespace_as_refused(self, team: Tenant, other: Tenant) -> None:
        await other.post("/create", body("other/x", UUID))
        for _ in range(2):
            await team.call("POST", "/create/batch?job=j", [body("team/x", UUID), body("team/x", "a"), {}])
            assert await team.get("/jobs/j") == ok(job="team/j", created=1, existing=0, refused=2)

    async def test_a_namespaces_job_is_no_run_of_a_job(self, team: Tenant, operator: Tenant) -> None:
        await operator.call("POST", "/create/batch?job=team&run=a", create_bodies("1", "2"))
        await team.call("POST", "/create/batch?job=a", [body("team/x", "1")])
        assert (await operator.get("/jobs/team?run=a"))[1]["created"] == 2
        assert (await team.get("/jobs/a"))[1]["created"] == 1


async def test_without_a_key_ids_have_no_namespaces(api: ApiFixture) -> None:
    refusal = bad_request('id: expected 1 to 128 characters of A-Za-z0-9._~:-, got "team/a"', "id")
    assert await api.post("/query", {"id": "team/a"}) == refusal
    await Tenant(api, "team").post("/create/batch", [body("team/x", f"n{n}") for n in range(3)])
    _, page = await api.post("/list", {"topic": "team/x", "limit": 2})
    _, rest = await api.post("/list", {"topic": "team/x", "limit": 2, "cursor": page["cursor"]})
    assert len(page["tasks"]) + len(rest["tasks"]) == 3


METHODS = ["GET", "PUT", "PATCH", "DELETE"]
PULSAR = "/admin/v2"
PULSAR_METHODS = ["GET", "POST", "DELETE"]


async def sent(api: ApiFixture, caller: Tenant, path: str, fields: object) -> tuple[bytes, dict[str, int]]:
    """Send a request, and return the whole answer and how often the store ran each command for it."""
    await api.redis.config_resetstat()
    answer = await caller.send(path, fields)
    stats: dict[str, dict[str, int]] = await api.redis.info("commandstats")
    own = {"cmdstat_info", "cmdstat_config|resetstat"}
    return answer, {name: stat["calls"] for name, stat in stats.items() if stat["calls"] and name not in own}


async def listed(caller: Tenant, query: str) -> list[str]:
    """Return the topics that a caller sees, page by page."""
    names, cursor = list[str](), ""
    while True:
        _, page = await caller.get(f"/topics?limit=1{query}{cursor}")
        names += [topic["topic"] for topic in page["topics"]]
        if page["cursor"] is None:
            return names
        cursor = f"&cursor={page['cursor']}"


async def claim_all(api: ApiFixture, topic: str) -> list[Any]:
    requests = [ClaimRequest(topic, shard.index, 100) for shard in api.keys.shards]
    answers = await api.store.tasks.claim(requests, NOW, NOW + 30_000)
    return [claim for answer in answers if not isinstance(answer, Exception) for claim in answer.claims]


async def end_all(api: ApiFixture, topic: str) -> None:
    """Let all due tasks of a topic end, and their ids be remembered."""
    settlements = [
        Settlement(claim, Verdict(SettleTarget.DONE, NOW), NOW + 60_000) for claim in await claim_all(api, topic)
    ]
    assert await api.store.tasks.settle(settlements) == [True] * len(settlements)
