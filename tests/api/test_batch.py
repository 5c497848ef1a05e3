"""`POST /create/batch`, `/query/batch`, `/delete/batch` and the jobs that count their items."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from structlog.testing import capture_logs

from later.core.errors import LaterError, StoreFault
from later.core.task import pack_id
from later.store.keys import Bucket
from tests.api.api_fixture import (
    MINIMAL,
    Answer,
    ApiFixture,
    bad_request,
    create_bodies,
    create_result,
    id_per_shard,
    item_error,
    ok,
    serve_api,
)
from tests.api.states import STATES, put_all_states, put_task
from tests.builders import NOW
from tests.cases import each_case

NDJSON = {"Content-Type": "application/x-ndjson"}
DELAY_ERROR = {"status": 400, "detail": "delay: expected a number of seconds ≥ 0, got -5", "field": "delay"}
ID_EXPECTED = "id: expected 1 to 128 characters of A-Za-z0-9._~:-, got"
NOT_AN_ARRAY = "expected a JSON array of bodies, or lines of them with Content-Type: application/x-ndjson"
BATCHES = ["/create/batch", "/query/batch", "/delete/batch"]


def too_large(detail: str) -> Answer:
    return 413, {"type": "/problems/too-large", "title": "Content Too Large", "status": 413, "detail": detail}


class TestCreate:
    async def test_valid_items_are_stored_although_others_are_refused(self, api: ApiFixture) -> None:
        batch = [{**MINIMAL, "id": "a"}, {**MINIMAL, "delay": -5}, 5, {**MINIMAL, "id": "b", "delay": 60, "ttl": 1}]
        warning = "The task will expire before it is due and never be delivered."
        assert await api.post("/create/batch", batch) == ok(
            created=2,
            existing=0,
            refused=2,
            failed=0,
            results=[
                create_result("a"),
                {"error": DELAY_ERROR},
                item_error(400, "expected a JSON object, got a number"),
                {**create_result("b", delay=60), "warning": warning},
            ],
        )
        assert (await api.post("/query", {"id": "b"}))[0] == 200

    async def test_an_item_in_the_reserved_namespace_is_refused(self, api: ApiFixture) -> None:
        status, answer = await api.post("/create/batch", [{**MINIMAL, "topic": "later/events"}, MINIMAL])
        assert (status, answer["created"], answer["refused"]) == (200, 1, 1)
        assert answer["results"][0]["error"]["field"] == "topic"

    async def test_the_answer_is_in_the_contracts_order(self, api: ApiFixture) -> None:
        async with api.http.post("/create/batch", json=[*create_bodies("a"), {}]) as response:
            text = await response.text()
        assert text.startswith(
            '{"created":1,"existing":0,"refused":1,"failed":0,"results":[{"id":"a","due_at":"2027-01-15T08:00:00.000Z","created":true},'
            '{"error":{"status":400,"detail":"'
        )

    async def test_a_duplicate_id_in_a_batch_is_created_once(self, api: ApiFixture) -> None:
        assert await api.post("/create/batch", create_bodies("a", "a")) == ok(
            created=1, existing=1, refused=0, failed=0, results=[create_result("a"), create_result("a", False)]
        )

    async def test_generated_ids_are_returned(self, api: ApiFixture) -> None:
        _, answer = await api.post("/create/batch", [MINIMAL, MINIMAL])
        first, second = answer["results"]
        assert (first["created"], second["created"]) == (True, True)
        assert first["id"] != second["id"]

    async def test_a_batch_reports_its_earliest_due_time(self, api: ApiFixture) -> None:
        delays = [7, 2, 9]
        await api.post("/create/batch", [{**MINIMAL, "id": str(delay), "delay": delay} for delay in delays])
        await api.post("/create/batch", [{**MINIMAL, "id": "2", "delay": 1}, {**MINIMAL, "delay": -5}])
        assert api.wakes == [NOW + 2000]

    async def test_items_are_counted(self, api: ApiFixture) -> None:
        await api.post("/create/batch", [*create_bodies("a", "a", "b"), {}])
        names = ("later_tasks_created_total", "later_tasks_duplicate_total", "later_tasks_refused_total")
        assert [api.metric(name) for name in names] == [2, 1, 1]

    async def test_an_item_may_be_as_large_as_a_single_call_and_no_larger(self) -> None:
        async with serve_api(max_body=100) as api:
            overhead = len(json.dumps({**MINIMAL, "content": ""}))
            batch = [{**MINIMAL, "content": "x" * (size - overhead)} for size in (100, 101)]
            _, answer = await api.post("/create/batch", batch)
        assert (answer["created"], answer["refused"]) == (1, 1)
        assert answer["results"][1] == item_error(413, "expected a body of at most 100 bytes")


class TestBodies:
    @each_case("path", BATCHES)
    @each_case(("body", "headers"), [(b"[]", {}), (b" [ ]\n", {}), (b"", NDJSON), (b"\n \n", NDJSON)])
    async def test_an_empty_batch_has_no_results(
        self, api: ApiFixture, path: str, body: bytes, headers: dict[str, str]
    ) -> None:
        status, answer = await api.post(path, body, headers=headers)
        assert (status, answer.pop("results"), set(answer.values())) == (200, [], {0})

    @each_case("content_type", ["application/x-ndjson", "Application/X-NDJSON; charset=utf-8"])
    async def test_ndjson_is_accepted_like_an_array(self, api: ApiFixture, content_type: str) -> None:
        lines = b'\n{"id": "a"}\r\n\n  \n{"id": NaN}\n{"id": "b"} {"id": "c"}\n{"id": "d"}'
        _, answer = await api.post("/query/batch", lines, headers={"Content-Type": content_type})
        assert answer["results"] == [
            item_error(404, "no task has the id 'a'"),
            item_error(400, f"{ID_EXPECTED} nan", field="id"),
            item_error(400, "expected JSON: Extra data: line 1 column 13 (char 12)"),
            item_error(404, "no task has the id 'd'"),
        ]

    @pytest.mark.parametrize(
        ("item", "error"),
        [
            ('{"delay": NaN}', ("delay: expected a number of seconds ≥ 0, got nan", "delay")),
            (r'{"content": "\ud800, [{"}', ("content: expected Unicode text, got a lone surrogate in it", "content")),
            ('{"delay": ' + "9" * 5000 + "}", ("expected JSON, got an integer of too many digits in it", None)),
            ('{"content": "\udcff"}', ("expected UTF-8, got the byte 0xff at position 13", None)),
            ('{"retry": NaN, "content": "\udcff"}', ("expected UTF-8, got the byte 0xff at position 27", None)),
            ("NaN", ("expected a JSON object, got a number", None)),
        ],
    )
    async def test_a_malformed_item_spoils_no_other(
        self, api: ApiFixture, item: str, error: tuple[str, str | None]
    ) -> None:
        first, last = (json.dumps(good) for good in create_bodies("a", "b"))
        body = f" [ {first} ,\n{item}, {last} ] ".encode("utf-8", "surrogateescape")
        detail, field = error
        assert await api.post("/create/batch", body) == ok(
            created=2,
            existing=0,
            refused=1,
            failed=0,
            results=[
                create_result("a"),
                item_error(400, detail, **({"field": field} if field else {})),
                create_result("b"),
            ],
        )

    @each_case("path", BATCHES)
    @each_case(
        ("body", "detail"),
        [
            (b"", NOT_AN_ARRAY),
            (b"{}", NOT_AN_ARRAY),
            (b"\xef\xbb\xbf[]", NOT_AN_ARRAY),
            (b"[{}", "expected a JSON array: Expecting ',' delimiter: line 1 column 4 (char 3)"),
            (b"[{},]", "expected a JSON array: Expecting value: line 1 column 5 (char 4)"),
            (b"[{} {}]", "expected a JSON array: Expecting ',' delimiter: line 1 column 5 (char 4)"),
            (b"[{}] x", "expected a JSON array: Extra data: line 1 column 5 (char 4)"),
            (b"[tru]", "expected a JSON array: Expecting value: line 1 column 2 (char 1)"),
            (b"[" * 100_000, "expected a JSON array, got it nested too deeply"),
        ],
    )  # fmt: skip
    async def test_a_body_that_is_not_an_array_is_refused(
        self, api: ApiFixture, path: str, body: bytes, detail: str
    ) -> None:
        assert await api.post(path, body) == bad_request(detail)

    @each_case("path", BATCHES)
    async def test_ten_thousand_items_are_accepted_and_no_more(self, api: ApiFixture, path: str) -> None:
        refusal = too_large("expected at most 10000 items, got more")
        for count in (10_000, 10_001):
            array, lines = b"[" + b",".join([b"{}"] * count) + b"]", b"{}\n" * count
            answers = [await api.post(path, array), await api.post(path, lines, headers=NDJSON)]
            for status, answer in answers:
                assert (status, answer["refused"]) == (200, 10_000) if count == 10_000 else (status, answer) == refusal

    async def test_ten_thousand_tasks_are_created(self, api: ApiFixture) -> None:
        _, answer = await api.post("/create/batch", create_bodies(*map(str, range(10_000))))
        assert (answer["created"], len(answer["results"])) == (10_000, 10_000)

    @each_case("path", BATCHES)
    async def test_millions_of_items_are_never_held_in_memory(self, api: ApiFixture, path: str) -> None:
        body = b"[" + b"{}," * 1_000_000 + b"{}]"
        async with api.http.post(path, data=BytesIO(body)) as response:
            assert response.status == 413

    @each_case("path", BATCHES)
    async def test_more_than_16_mebibytes_are_413(self, api: ApiFixture, path: str) -> None:
        async with api.http.post(path, data=BytesIO(b" " * (16 * 1024 * 1024 + 1))) as response:
            answer = response.status, await response.json(content_type=None)
        assert answer == too_large("expected a body of at most 16777216 bytes")

    async def test_many_commas_in_few_items_are_accepted(self, api: ApiFixture) -> None:
        batch = [{**MINIMAL, "content": "," * 300_000}, {**MINIMAL, "content": "," * 300_000}]
        body = json.dumps(batch).encode()
        assert (await api.post("/create/batch", body))[1]["created"] == 2


class TestDryRun:
    async def test_a_dry_run_reports_refusals_and_stores_nothing(self, api: ApiFixture) -> None:
        batch = [*create_bodies("a"), {**MINIMAL, "delay": -5}]
        _, answer = await api.post("/create/batch?dry_run=true&job=j", batch)
        results = [create_result("a", False), {"error": DELAY_ERROR}]
        assert answer == {"created": 0, "existing": 0, "refused": 1, "failed": 0, "results": results}
        _, answer = await api.post("/query/batch", [{"id": "a"}])
        assert answer["missing"] == 1
        async with api.http.get("/jobs/j") as response:
            assert response.status == 404

    async def test_a_dry_run_warns_of_a_task_that_would_expire_before_it_is_due(self, api: ApiFixture) -> None:
        batch = [{**MINIMAL, "delay": 60, "ttl": 5}]
        _, preview = await api.post("/create/batch?dry_run=true", batch)
        _, answer = await api.post("/create/batch", batch)
        assert preview["results"][0]["warning"] == answer["results"][0]["warning"]

    @each_case("path", ["/create/batch", "/create/batch?dry_run=true"])
    async def test_a_header_that_imitates_one_of_ours_is_refused(self, api: ApiFixture, path: str) -> None:
        _, answer = await api.post(path, [{**MINIMAL, "headers": {"Webhook_Id": "x"}}])
        detail = 'headers: expected a header of your own, got "Webhook_Id", which later sets'
        assert answer["results"] == [{"error": {"status": 400, "detail": detail, "field": "headers"}}]

    @each_case("path", ["/create/batch?dry_run=", "/delete/batch?pending="])
    async def test_a_switch_is_true_or_false(self, api: ApiFixture, path: str) -> None:
        status, answer = await api.post(path + "yes", [])
        assert (status, answer["field"]) == (400, path.partition("?")[2][:-1])


class TestQueryAndDelete:
    async def test_each_id_is_looked_up(self, api: ApiFixture) -> None:
        await api.post("/create/batch", create_bodies("a", "b"))
        status, answer = await api.post("/query/batch", [{"id": "b"}, {"id": "x"}, {"id": " "}, {"id": "a"}, {}])
        first, *rest, last, none = answer.pop("results")
        assert (status, answer) == (200, {"found": 2, "missing": 1, "refused": 2, "failed": 0})
        assert [first, last] == [(await api.post("/query", {"id": id}))[1] for id in "ba"]
        assert [*rest, none] == [
            item_error(404, "no task has the id 'x'"),
            item_error(400, f'{ID_EXPECTED} " "', field="id"),
            item_error(400, f"{ID_EXPECTED} nothing", field="id"),
        ]

    async def test_each_id_is_deleted(self, api: ApiFixture) -> None:
        await api.post("/create/batch", create_bodies("a", "b", "c"))
        assert await api.post("/delete/batch", [{"id": "b"}, {"id": "x"}, {"id": "a"}, {"x": 1}]) == ok(
            deleted=2,
            in_flight=0,
            ended=0,
            missing=1,
            refused=1,
            failed=0,
            results=[
                {"id": "b"},
                item_error(404, "no task has the id 'x'"),
                {"id": "a"},
                item_error(400, "x: unknown field", field="x"),
            ],
        )
        _, answer = await api.post("/query/batch", [{"id": id} for id in "abc"])
        assert (answer["found"], answer["missing"]) == (1, 2)

    async def test_with_pending_only_pending_tasks_are_deleted(self, api: ApiFixture) -> None:
        await api.post("/create/batch", create_bodies("a", "b", "c"))
        shard = api.keys.shards[0]
        dead, delay = shard.bucket(Bucket.DEAD, b"order"), shard.bucket(Bucket.DELAY, b"order")
        await api.client.execute_all("test", [("ZADD", dead, NOW, pack_id("a")), ("ZREM", delay, pack_id("a"))])
        await api.client.execute("test", ("ZADD", shard.done, NOW, pack_id("z")))
        _, answer = await api.post("/delete/batch?pending=true", [{"id": id} for id in "abz"])
        ended = item_error(404, "no task has the id 'z': it has ended", ended=True)
        kept = item_error(409, "the task 'a' is dead: it is not pending")
        assert answer.pop("results") == [kept, {"id": "b"}, ended]
        counts = {"deleted": 1, "in_flight": 0, "ended": 0, "missing": 1, "kept": 1, "refused": 0, "failed": 0}
        assert answer == counts
        _, again = await api.post("/create/batch", create_bodies("z"))
        assert again["existing"] == 1

    @each_case("query", ["", "?pending=true"])
    async def test_a_delete_says_which_tasks_were_in_flight(self, api: ApiFixture, query: str) -> None:
        for state in ("delay", "unack", "error"):
            await put_task(api, state)
        _, answer = await api.post(f"/delete/batch{query}", [{"id": id} for id in ("delay", "unack", "error")])
        assert answer["results"] == [{"id": "delay"}, {"id": "unack", "in_flight": True}, {"id": "error"}]
        assert (answer["deleted"], answer["in_flight"], answer["ended"]) == (3, 1, 0)

    async def test_a_delete_forgets_ended_ids_and_counts_them(self, api: ApiFixture) -> None:
        await put_task(api, "delay")
        await api.client.execute("test", ("ZADD", api.keys.shards[0].done, NOW, pack_id("z")))
        _, answer = await api.post("/delete/batch", [{"id": id} for id in ("z", "delay", "x", "z")])
        missing = [item_error(404, f"no task has the id '{id}'") for id in "xz"]
        assert answer.pop("results") == [{"id": "z", "ended": True}, {"id": "delay"}, *missing]
        assert answer == {"deleted": 1, "in_flight": 0, "ended": 1, "missing": 2, "refused": 0, "failed": 0}
        _, again = await api.post("/create/batch", create_bodies("z"))
        assert again["created"] == 1

    async def test_a_batch_of_dead_tasks_only_is_not_a_failure(self, api: ApiFixture) -> None:
        await api.post("/create/batch", create_bodies("a"))
        dead = api.keys.shards[0].bucket(Bucket.DEAD, b"order")
        await api.client.execute("test", ("ZADD", dead, NOW, pack_id("a")))
        status, answer = await api.post("/delete/batch?pending=true", [{"id": "a"}])
        assert (status, answer["deleted"], answer["kept"]) == (200, 0, 1)

    async def test_an_id_that_has_ended_says_so(self, api: ApiFixture) -> None:
        await api.client.execute("test", ("ZADD", api.keys.shards[0].done, NOW, pack_id("a")))
        _, answer = await api.post("/query/batch", [{"id": "a"}])
        assert answer["results"] == [item_error(404, "no task has the id 'a': it has ended", ended=True)]


class TestUnavailableShard:
    async def test_only_the_items_of_the_shard_fail(self) -> None:
        async with serve_api(shards=2) as api:
            up, down = id_per_shard(api)
            api.client.shards_down = [1]
            failed = item_error(503, "the store is gone")
            assert await api.post("/create/batch", [*create_bodies(up, down), {**MINIMAL, "delay": -5}]) == ok(
                created=1, existing=0, refused=1, failed=1, results=[create_result(up), failed, {"error": DELAY_ERROR}]
            )
            assert api.metric("later_tasks_created_total") == 1
            ids = [{"id": up}, {"id": down}]
            _, answer = await api.post("/query/batch", ids)
            assert (answer["found"], answer["failed"], answer["results"][1]) == (1, 1, failed)
            _, deleted = await api.post("/delete/batch", ids)
            assert (deleted["deleted"], deleted["failed"], deleted["results"][1]) == (1, 1, failed)

    @each_case("path", BATCHES)
    async def test_a_batch_without_any_success_is_503(self, path: str) -> None:
        async with serve_api(shards=2) as api:
            _, down = id_per_shard(api)
            api.client.shards_down = [1]
            items = create_bodies(down) if path == "/create/batch" else [{"id": down}]
            async with api.http.post(path, json=[*items, {"colour": 1}]) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert (await response.json(content_type=None))["detail"] == "the store is gone"

    async def test_a_missing_task_counts_as_an_answer(self) -> None:
        async with serve_api(shards=2) as api:
            up, down = id_per_shard(api)
            api.client.shards_down = [1]
            status, answer = await api.post("/query/batch", [{"id": up}, {"id": down}])
        assert (status, answer["missing"], answer["failed"]) == (200, 1, 1)

    async def test_a_store_fault_is_reported_and_logged(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        async def create(tasks: list[object], batch: object) -> list[bool | LaterError]:
            return [True, StoreFault("the store answered an error: x")]

        monkeypatch.setattr(api.store.tasks, "create", create)
        with capture_logs() as logs:
            _, answer = await api.post("/create/batch", create_bodies("a", "b"))
        assert answer["results"] == [create_result("a"), item_error(500, "the store answered an error: x")]
        assert logs == [
            {
                "event": "batch items failed",
                "items": 1,
                "reason": "the store answered an error: x",
                "log_level": "error",
            }
        ]


class TestDeleteDryRun:
    @each_case("query", ["", "&pending=true"])
    async def test_it_answers_as_the_delete_would_and_changes_nothing(self, query: str) -> None:
        async with serve_api(shards=2) as api:
            await put_all_states(api)
            ids = [{"id": id} for id in (*STATES, "delay", "nobody's", "a/b")]
            before = await api.post("/query/batch", ids)
            preview = await api.post(f"/delete/batch?dry_run=true{query}", ids)
            assert await api.post("/query/batch", ids) == before
            assert await api.post(f"/delete/batch?dry_run=false{query}", ids) == preview
            assert (await api.post("/query/batch", ids))[1]["found"] == (1 if query else 0)

    @each_case(("query", "ended", "missing"), [("", 1, 0), ("&pending=true", 0, 1)])
    async def test_an_ended_id_stays_remembered(self, api: ApiFixture, query: str, ended: int, missing: int) -> None:
        shard = api.keys.shard_of("c")
        await api.client.execute("open", ("ZADD", shard.done, NOW + 1000, pack_id("c")))
        for _ in range(2):
            _, answer = await api.post(f"/delete/batch?dry_run=true{query}", [{"id": "c"}])
            assert (answer["ended"], answer["missing"], answer["deleted"]) == (ended, missing, 0)
