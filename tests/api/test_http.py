"""Behaviour common to all calls: paths, methods, sizes, an unavailable store, health."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from later.api.application.app import build_health_app
from later.api.authorization import Authorization
from later.api.cross_site import CrossSiteProtection
from later.api.health import HealthSource
from later.api.problem_types import PROBLEM_TYPES
from later.core.errors import LaterError, NotAlive, NotReady, StoreDown, StoreFault, StoreMismatch
from later.metrics import Exposition, Metrics
from tests.api.api_fixture import MINIMAL, ApiFixture, create_result, fixed_clock, read_answer, serve_api
from tests.builders import NOW
from tests.cases import each_case

STORE_CALLS = [
    ("/create", MINIMAL),
    ("/query", {"id": "a"}),
    ("/delete", {"id": "a"}),
    ("/create/batch", [MINIMAL]),
    ("/query/batch", [{"id": "a"}]),
    ("/delete/batch", [{"id": "a"}]),
]
MEBIBYTE = 1024 * 1024


def problem(status: int, title: str, detail: str) -> tuple[int, dict[str, Any]]:
    types = {"Not Found": "about:blank", "Method Not Allowed": "about:blank"}
    by_title = {type.title: type.reference for type in PROBLEM_TYPES.values()}
    return status, {"type": types.get(title) or by_title[title], "title": title, "status": status, "detail": detail}


def create_of_size(size: int) -> bytes:
    """Return the body of a create, of exactly this size in bytes."""
    overhead = len(json.dumps({**MINIMAL, "content": ""}))
    return json.dumps({**MINIMAL, "content": "x" * (size - overhead)}).encode()


async def stream(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 50_000):
        yield body[start : start + 50_000]


class TestPaths:
    @each_case("path", ["/creates", "/create/", "/job", "/%2e%2e/x"])
    async def test_an_unknown_path_is_404(self, api: ApiFixture, path: str) -> None:
        assert await api.post(path, {}) == problem(404, "Not Found", "there is nothing at this path")

    @each_case("path", [path for path, _ in STORE_CALLS])
    async def test_calls_take_only_post(self, api: ApiFixture, path: str) -> None:
        async with api.http.get(path) as response:
            assert response.headers["Allow"] == "POST"
            answer = response.status, await read_answer(response)
        assert answer == problem(405, "Method Not Allowed", "this path does not take GET")

    @each_case("path", ["/livez", "/readyz", "/metrics", "/jobs/a"])
    async def test_read_calls_take_only_get(self, api: ApiFixture, path: str) -> None:
        async with api.http.post(path) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")


class TestSizes:
    async def test_a_body_of_a_mebibyte_is_accepted(self, api: ApiFixture) -> None:
        assert (await api.post("/create", create_of_size(MEBIBYTE)))[0] == 200

    @each_case("path", ["/create", "/query", "/delete"])
    async def test_a_body_a_byte_larger_is_413_and_ends_the_connection(self, api: ApiFixture, path: str) -> None:
        async with api.http.post(path, data=BytesIO(create_of_size(MEBIBYTE + 1))) as response:
            assert response.headers["Connection"] == "close"
            answer = response.status, await read_answer(response)
        assert answer == problem(413, "Content Too Large", "expected a body of at most 1048576 bytes")

    async def test_the_limit_of_a_body_is_configurable(self) -> None:
        async with serve_api(max_body=200) as api:
            assert (await api.post("/create", create_of_size(200)))[0] == 200
            assert (await api.post("/create", create_of_size(201)))[0] == 413

    async def test_a_body_of_unknown_length_is_limited_too(self, api: ApiFixture) -> None:
        async with api.http.post("/create", data=stream(create_of_size(MEBIBYTE))) as response:
            assert response.status == 200
        async with api.http.post("/create", data=stream(create_of_size(MEBIBYTE + 1))) as response:
            assert response.status == 413

    @each_case(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("Identity", bytes)])
    async def test_a_compressed_body_is_limited_by_its_decompressed_size(
        self, api: ApiFixture, encoding: str, compress: Any
    ) -> None:
        for size, status in ((MEBIBYTE, 200), (MEBIBYTE + 1, 413), (20 * MEBIBYTE, 413)):
            headers = {"Content-Encoding": encoding}
            async with api.http.post(
                "/create", data=BytesIO(compress(create_of_size(size))), headers=headers
            ) as response:
                assert response.status == status

    async def test_a_body_that_is_not_compressed_as_it_says_is_refused(self, api: ApiFixture) -> None:
        detail = "expected a whole body, compressed as Content-Encoding says, if at all"
        body = create_of_size(200)
        bodies = (
            [("gzip", wrong) for wrong in (body, gzip.compress(body)[:-1], gzip.compress(body) + b"x", b"\x1f")]
            + [("deflate", wrong) for wrong in (body, zlib.compress(body)[:-1], zlib.compress(body)[2:-6], b"x")]
        )  # fmt: skip
        for encoding, wrong in bodies:
            answer = await api.post("/create", wrong, headers={"Content-Encoding": encoding})
            assert answer == problem(400, "Bad Request", detail), (encoding, wrong)

    async def test_all_forms_of_a_compressed_body_are_read(self, api: ApiFixture) -> None:
        body = create_of_size(300_000)
        bare = zlib.compressobj(wbits=-15)
        for encoding, compressed in (
            ("gzip", gzip.compress(body[:100]) + gzip.compress(body[100:])),
            ("gzip", gzip.compress(body, compresslevel=0)),
            ("deflate", zlib.compress(body)),
            ("deflate", bare.compress(body) + bare.flush()),
        ):
            assert (await api.post("/create", compressed, headers={"Content-Encoding": encoding}))[0] == 200

    async def test_no_member_of_a_gzip_costs_a_copy_of_a_long_rest(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build, sizes = zlib.decompressobj, list[int]()

        class Inflater:
            """A decompressor of zlib that notes the sizes of its input."""

            def __init__(self, window: int) -> None:
                self._wrapped = build(window)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._wrapped, name)

            def decompress(self, piece: bytes, most: int) -> bytes:
                sizes.append(len(piece))
                return self._wrapped.decompress(piece, most)

        monkeypatch.setattr(zlib, "decompressobj", Inflater)
        body = gzip.compress(b"") * 20_000 + gzip.compress(b'{"id":"a"}')
        assert (await api.post("/query", body, headers={"Content-Encoding": "gzip"}))[0] == 404
        assert max(sizes) <= 16_384 < len(body)

    async def test_a_client_that_disconnects_within_its_body_affects_no_other(self, api: ApiFixture) -> None:
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection(api.http.host, api.http.port)
            writer.write(b"POST /create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            assert (await api.post("/create", MINIMAL))[0] == 200
        assert logs == []


class TestUnavailableStore:
    @each_case(("path", "body"), STORE_CALLS)
    async def test_a_call_is_503_with_a_reason_and_retry_after(self, api: ApiFixture, path: str, body: object) -> None:
        await api.lose_store()
        async with api.http.post(path, json=body) as response:
            assert response.headers["Retry-After"] == "1"
            status, answer = response.status, await read_answer(response)
        assert answer.pop("detail").startswith("the store cannot be reached: ")
        answer.pop("unknown", None)
        assert (status, answer) == (503, {"type": "/problems/store-away", "title": "The store is away", "status": 503})

    async def test_a_job_is_503_too(self, api: ApiFixture) -> None:
        await api.lose_store()
        assert (await api.get("/jobs/a"))[0] == 503

    async def test_a_wrong_request_is_still_400(self, api: ApiFixture) -> None:
        await api.lose_store()
        assert (await api.post("/create", {"colour": 1}))[0] == 400

    async def test_a_task_that_was_not_stored_is_not_reported_as_created(self, api: ApiFixture) -> None:
        await api.lose_store()
        await api.post("/create", MINIMAL)
        assert api.wakes == []
        assert api.metric("later_tasks_created_total") == 0

    async def test_a_store_that_does_not_match_is_503(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail(*_: object) -> None:
            raise StoreMismatch("--shards 2: the store was laid out with 1")

        monkeypatch.setattr(api.client, "execute_each", fail)
        async with api.http.post("/create", json=MINIMAL) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert (await read_answer(response))["detail"] == "--shards 2: the store was laid out with 1"


class TestInternalErrors:
    async def post_to_broken_store(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Any:
        async def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(api.client, "execute_each", fail)
        body = {**MINIMAL, "content": "s3cret", "headers": {"X-A": "s3cret"}}
        with capture_logs() as logs:
            answer = await api.post("/create", body, headers={"Authorization": "s3cret"})
        assert "s3cret" not in str(logs)
        [entry] = logs
        assert (entry["event"], entry["path"], entry["exc_info"]) == ("request failed", "/create", True)
        assert answer[1]["incident"] == entry["incident"]
        return answer

    def check_fault(self, answer: Any, detail: str) -> None:
        status, body = answer
        assert len(body.pop("incident")) == 12
        assert (status, body) == problem(500, "Internal Server Error", detail)

    async def test_an_unexpected_error_is_500_and_logged(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = await self.post_to_broken_store(api, monkeypatch, ZeroDivisionError("s3cret"))
        detail = "this is a fault of later's own: its log says more"
        self.check_fault(answer, detail)

    async def test_a_store_fault_is_500_with_its_text(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = await self.post_to_broken_store(api, monkeypatch, StoreFault("task 'a' is in no bucket"))
        self.check_fault(answer, "task 'a' is in no bucket")


class TestHealth:
    async def test_a_process_that_answers_is_alive(self, api: ApiFixture) -> None:
        api.not_ready = StoreDown("the store cannot be reached")
        assert await api.get("/livez") == (200, {"status": "alive"})

    async def test_a_process_in_which_something_hangs_is_not_alive(self) -> None:
        async def is_ready() -> None:
            return None

        async def no_metrics(accept: str) -> Exposition:
            return Exposition("", "text/plain")

        async def hangs() -> NotAlive:
            return NotAlive("no tick has ended for more than a minute: delay")

        app = build_health_app(
            authorization=Authorization(),
            cross_site_protection=CrossSiteProtection(),
            metrics=Metrics(),
            health=HealthSource(why_not_ready=is_ready, exposition=no_metrics, why_not_alive=hangs),
            clock=fixed_clock(),
        )
        async with TestClient(TestServer(app)) as http, http.get("/livez") as response:
            assert (response.status, (await response.json())["type"]) == (503, "/problems/not-alive")

    async def test_it_is_ready_if_there_is_no_reason_against_it(self, api: ApiFixture) -> None:
        assert await api.get("/readyz") == (200, {"status": "ready"})

    async def test_a_clock_of_the_store_that_is_wrong_is_a_warning(self, api: ApiFixture) -> None:
        clock = api.store.clock
        clock.observe((NOW + 61_000) * 1000, 0, 0)
        status, answer = await api.get("/readyz")
        assert (status, answer["status"]) == (200, "ready")
        assert answer["warning"].startswith("the store's clock is 61 s ahead of this machine's: ")

    @each_case(
        ("error", "name"),
        [
            (StoreDown("the store cannot be reached"), "store-away"),
            (StoreFault("the store answered an error: x"), "store-away"),
            (StoreMismatch("the store has 2 shards, not 1"), "store-mismatch"),
            (NotReady("1 of 2 processes is being started"), "not-ready"),
        ],
    )
    async def test_if_it_is_not_ready_it_says_why(self, api: ApiFixture, error: LaterError, name: str) -> None:
        api.not_ready = error
        assert await api.get("/readyz") == problem(503, PROBLEM_TYPES[name].title, str(error))

    async def test_metrics_are_prometheus_text(self, api: ApiFixture) -> None:
        await api.post("/create", MINIMAL)
        async with api.http.get("/metrics") as response:
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await response.text()
        assert "\nlater_tasks_created_total 1.0\n" in text
        names = {
            "later_tasks_created_total", "later_tasks_duplicate_total", "later_tasks_refused_total",
            "later_deliveries_total", "later_retries_total", "later_topic_dead_total", "later_tasks_requeued_total",
            "later_orphan_entries_total", "later_settles_lost_total", "later_lateness_seconds",
            "later_delivery_duration_seconds", "later_delivery_slots_in_use", "later_delivery_slots",
            "later_tick_errors_total", "later_store_round_trip_duration_seconds", "later_tasks",
            "later_tasks_due", "later_oldest_due_age_seconds", "later_remembered_ids",
            "later_store_memory_bytes", "later_store_memory_max_bytes", "later_store_up",
            "later_pending_writes",
        }  # fmt: skip
        assert names <= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    async def test_requests_are_counted_by_the_template_of_their_route_and_their_status(self, api: ApiFixture) -> None:
        await api.post("/create", MINIMAL)
        await api.post("/create", {**MINIMAL, "delay": -1})
        for topic in ("order", "mail%2Fa"):
            await api.get(f"/topics/{topic}")
        await api.get("/there/is/nothing")
        await api.request("PUT", "/create", {})
        await api.post("/create?delay=5", MINIMAL)
        assert await request_counts(api) == {
            ("/create", "200"): 1,
            ("/create", "400"): 2,
            ("/topics/{topic}", "200"): 2,
            ("other", "404"): 1,
            ("other", "405"): 1,
        }

    async def test_refused_cross_site_requests_are_counted(self, api: ApiFixture) -> None:
        async with api.http.get("/topics", headers={"Sec-Fetch-Site": "cross-site"}) as response:
            assert response.status == 403
        assert await request_counts(api) == {("other", "403"): 1}

    async def test_the_time_of_requests_is_shown_by_route(self, api: ApiFixture) -> None:
        await api.post("/create", MINIMAL)
        value = api.metrics.registry.get_sample_value
        assert value("later_http_request_duration_seconds_count", {"route": "/create"}) == 1
        assert value("later_http_request_duration_seconds_count", {"route": "/topics/{topic}/policy"}) == 0
        assert value("later_http_request_duration_seconds_bucket", {"route": "/create", "le": "+Inf"}) == 1
        seconds = value("later_http_request_duration_seconds_sum", {"route": "/create"})
        assert seconds is not None
        assert 0 < seconds < 10

    async def test_metrics_are_openmetrics_if_a_scrape_asks_for_them(self, api: ApiFixture) -> None:
        accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
        async with api.http.get("/metrics", headers={"Accept": accept}) as response:
            assert response.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            text = await response.text()
        assert text.endswith("# EOF\n")
        assert "\n# TYPE later_tasks_created counter\n" in text
        assert "later_tasks_created_created" not in text

    async def test_the_workers_health_app_has_no_other_routes(self) -> None:
        async def is_ready() -> None:
            return None

        async def no_metrics(accept: str) -> Exposition:
            return Exposition("", "text/plain")

        app = build_health_app(
            authorization=Authorization(),
            cross_site_protection=CrossSiteProtection(),
            metrics=Metrics(),
            health=HealthSource(why_not_ready=is_ready, exposition=no_metrics),
            clock=fixed_clock(),
        )
        async with TestClient(TestServer(app)) as http:
            statuses = [(await http.get(path)).status for path in ("/livez", "/readyz", "/metrics", "/create")]
        assert statuses == [200, 200, 200, 404]

    async def test_metrics_that_would_be_incomplete_are_503(self) -> None:
        async def is_ready() -> None:
            return None

        async def no_metrics(accept: str) -> Exposition:
            raise NotReady("no answer within 1 s: exposition")

        app = build_health_app(
            authorization=Authorization(),
            cross_site_protection=CrossSiteProtection(),
            metrics=Metrics(),
            health=HealthSource(why_not_ready=is_ready, exposition=no_metrics),
            clock=fixed_clock(),
        )
        async with TestClient(TestServer(app)) as http, http.get("/metrics") as response:
            assert response.headers["Retry-After"] == "1"
            answer = response.status, await read_answer(response)
        assert answer == problem(503, PROBLEM_TYPES["not-ready"].title, "no answer within 1 s: exposition")


async def test_concurrent_callers_each_get_their_own_answer(api: ApiFixture) -> None:
    async with ClientSession() as session:
        url = str(api.http.make_url("/create"))

        async def create(number: int) -> Any:
            async with session.post(url, json={**MINIMAL, "id": f"n{number}", "delay": number}) as response:
                return await response.json()

        answers = await asyncio.gather(*(create(number) for number in range(100)))
    assert answers == [create_result(f"n{number}", delay=number) for number in range(100)]
    assert min(api.wakes) == NOW  # creates that are written together wake the ticker once, for the earliest
    assert api.metric("later_tasks_created_total") == 100


async def request_counts(api: ApiFixture) -> dict[tuple[str, str], float]:
    """Return the number of requests by route and code; without those that are 0."""
    samples = (sample for metric in api.metrics.registry.collect() for sample in metric.samples)
    return {
        (sample.labels["route"], sample.labels["code"]): sample.value
        for sample in samples
        if sample.name == "later_http_requests_total" and sample.value
    }
