"""The access log: an event for each request or for errors, on both ways to a handler, and no secret in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from later.api.access_log import AccessLog
from later.core.api_keys import Scope, id_in_key, make_key_text
from later.core.errors import StoreDown
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.api.keyed_api import KeyedApi, Seconds, keyed

TRACE_ID = "a" * 32
SECRETS = {"Authorization": "Bearer s3cret", "X-Own": "s3cret", "baggage": "s3cret=1"}


def requests(logs: list[MutableMapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of requests, without the time that each took, which is checked."""
    events = [dict(log) for log in logs if log["event"] == "request"]
    for event in events:
        assert 0 <= event.pop("ms") < 60_000
    return events


def an_access_log(seconds: Seconds | None = None, *, logs_all: bool = True) -> AccessLog:
    return AccessLog(logs_all=logs_all, monotonic=seconds or Seconds(), add_event=add_to_log)


def add_to_log(level: int, event: str, fields: Mapping[str, object]) -> None:
    structlog.get_logger().log(level, event, **fields)


async def test_each_request_is_an_event_with_what_an_operator_asks_for() -> None:
    async with serve_api(access_log=an_access_log()) as api:
        with capture_logs() as logs:
            answer = await api.http.post(
                "/create", json=MINIMAL, headers={"traceparent": f"00-{TRACE_ID}-{'b' * 16}-00"}
            )
            await api.http.get("/topics/secret-name?s3cret=1")
        length = len(await answer.read())
    create, topic = requests(logs)
    assert create == {
        "event": "request", "log_level": "info", "method": "POST", "route": "/create", "status": 200, "bytes": length,
        "peer": "127.0.0.1", "trace_id": TRACE_ID,
    }  # fmt: skip
    assert (topic["method"], topic["route"], topic["status"]) == ("GET", "/topics/{topic}", 400)


async def test_no_path_query_header_or_body_is_logged() -> None:
    body = {**MINIMAL, "topic": "s3cret", "content": "s3cret", "headers": {"X-A": "s3cret"}, "id": "s3cret"}
    async with serve_api(access_log=an_access_log()) as api:
        with capture_logs() as logs:
            for path in ("/create", "/query?s3cret=1", "/s3cret", "/topics/s3cret/pause"):
                await api.http.post(path, json=body, headers=SECRETS)
            await api.http.request("S3CRET", "/create")
            await malformed(api)
    assert [(event["route"], event["method"]) for event in requests(logs)] == [
        ("/create", "POST"), ("/query", "POST"), ("other", "POST"), ("/topics/{topic}/pause", "POST"),
        ("other", "other"), ("other", "other"),
    ]  # fmt: skip
    assert "s3cret" not in str(logs).lower()


async def malformed(api: ApiFixture) -> None:
    """Send what is no HTTP, and read the answer."""
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    writer.write(b"s3cret s3cret s3cret\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
    writer.close()
    await writer.wait_closed()


async def test_a_key_is_named_by_its_id() -> None:
    seconds = Seconds()
    async with keyed(make_key_text(), seconds, access_log=an_access_log()) as api:
        keys = KeyedApi(api, api.store.key_book, make_key_text(), seconds)
        key = await keys.add_key(Scope.CREATE)
        with capture_logs() as logs:
            await keys.call("POST", "/create", key, MINIMAL)
    assert [event["key"] for event in requests(logs)] == [id_in_key(key)]
    assert key not in str(logs)


class TestErrors:
    async def test_only_errors_are_logged_and_not_the_answers_of_normal_work(self) -> None:
        async with serve_api(access_log=an_access_log(logs_all=False)) as api:
            with capture_logs() as logs:
                await api.post("/create", {**MINIMAL, "id": "a"})
                await api.post("/create", {**MINIMAL, "id": "a", "if_exists": "error"})
                await api.post("/query", {"id": "missing"})
                await api.post("/nowhere", {})
                await api.post("/create", {})
        assert [(event["route"], event["status"], event["log_level"]) for event in requests(logs)] == [
            ("/create", 400, "info")
        ]

    async def test_errors_of_one_status_are_logged_once_a_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = Seconds()
        async with serve_api(access_log=an_access_log(seconds, logs_all=False)) as api:
            with capture_logs() as logs:
                for _ in range(100):
                    await api.post("/create", {})
                await self.fail(api, monkeypatch)
                seconds.at += 1
                await api.post("/create", {})
                seconds.at += 1
                await api.post("/create", {})
        events = [(event["status"], event["not_logged"], event["log_level"]) for event in requests(logs)]
        assert events == [(400, 0, "info"), (503, 0, "warning"), (400, 99, "info"), (400, 0, "info")]

    async def fail(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make a call while the store is away."""

        async def be_down(*_: object) -> None:
            raise StoreDown("away")

        with monkeypatch.context() as patch:
            patch.setattr(api.client, "execute_each", be_down)
            assert (await api.post("/create", MINIMAL))[0] == 503

    async def test_calls_for_monitoring_are_not_logged(self) -> None:
        async with serve_api(access_log=an_access_log(logs_all=False)) as api:
            api.not_ready = StoreDown("away")
            with capture_logs() as logs:
                assert (await api.http.get("/readyz")).status == 503
        assert requests(logs) == []


async def test_nothing_is_logged_without_an_access_log(api: ApiFixture) -> None:
    with capture_logs() as logs:
        await api.post("/create", MINIMAL)
        await api.post("/create", {})
    assert logs == []
