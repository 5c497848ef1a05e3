"""Problem types: each error has one, and each type a page."""

from __future__ import annotations

import msgspec
import pytest

from later.api.problem_types import FAULT, PROBLEM_TYPES, problem_type
from later.core import errors
from later.core.errors import LaterError, StoreDown
from tests.api.api_fixture import MINIMAL, ApiFixture, create_bodies

NAMES = {
    "refused": 400, "no-key": 401, "not-allowed": 403, "too-often": 429, "cross-site": 403, "no-such-task": 404,
    "no-such-job": 404, "no-such-schedule": 404, "slow-body": 408, "in-flight": 409, "exists": 409, "changed": 409,
    "too-many-secrets": 409, "too-many-schedules": 409,
    "too-large": 413, "unsupported": 415, "fault": 500, "store-away": 503, "store-full": 503, "store-mismatch": 503,
    "not-durable": 503,
    "not-ready": 503, "not-alive": 503, "too-many-waiting": 503, "pushed-topic": 409, "too-many-waiters": 503,
}  # fmt: skip
"""The names, on which programs rely, and their statuses."""


def test_the_names_and_statuses_are_those_that_programs_know() -> None:
    assert {name: type.status for name, type in PROBLEM_TYPES.items()} == NAMES
    assert len({type.title for type in PROBLEM_TYPES.values()}) == len(NAMES)


async def test_each_type_has_a_page_that_says_what_to_do(api: ApiFixture) -> None:
    for type in PROBLEM_TYPES.values():
        async with api.http.get(type.reference) as response:
            assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
            text = await response.text()
        assert text.startswith(f"{type.title} ({type.status}, {type.reference})\n")
        assert "\nWhat to do: " in text
        assert all(len(line) <= 120 for line in text.splitlines())


async def test_an_unknown_type_has_no_page(api: ApiFixture) -> None:
    status, problem = await api.get("/problems/nothing")
    assert (status, problem["type"]) == (404, "about:blank")


def test_only_errors_that_no_caller_sees_are_faults() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LaterError)}
    faults = {kind.__name__ for kind in classes if problem_type(kind.__new__(kind)) is FAULT}
    of_clients = {"CallFailed", "DurabilityMissed", "HandlerExists", "LeaseLost", "NotConfigured", "Unavailable"}
    of_the_daemon = {"LaterError", "StoreFault", "ConfigError", "InputUnreadable", "MissingMaster", "UnreadableBody"}
    assert faults == of_clients | of_the_daemon


async def test_the_routes_and_the_version_are_listed(api: ApiFixture) -> None:
    status, root = await api.get("/")
    assert (status, root["name"]) == (200, "later")
    assert root["routes"][0] == {"method": "POST", "path": "/create", "query": []}
    assert {route["path"] for route in root["routes"]} >= {"/", "/version", "/problems/{name}", "/topics/{topic}"}
    assert await api.get("/version") == (200, {"version": root["version"]})


class TestUnknownOutcome:
    """`unknown` in a 503 says that the request may have been carried out."""

    @pytest.mark.parametrize("unknown", [True, False])
    async def test_a_503_says_what_the_store_knows(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch, unknown: bool
    ) -> None:
        async def fail(*_: object) -> None:
            raise StoreDown("gone", unknown=unknown)

        monkeypatch.setattr(api.client, "execute_each", fail)
        for path, body in (("/create", MINIMAL), ("/create/batch", create_bodies("a")), ("/run-now", {"id": "a"})):
            status, problem = await api.post(path, body)
            assert (status, problem["type"]) == (503, "/problems/store-away")
            assert problem.get("unknown", False) is unknown

    async def test_a_batch_says_it_of_each_item(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        async def create(*_: object, **__: object) -> list[bool | LaterError]:
            return [True, StoreDown("gone", unknown=True)]

        monkeypatch.setattr(api.store.tasks, "create", create)
        _, answer = await api.post("/create/batch", create_bodies("a", "b"))
        assert answer["results"][1] == {"error": {"status": 503, "detail": "gone", "unknown": True}}


async def test_a_problem_has_no_other_fields_than_those_documented(api: ApiFixture) -> None:
    _, problem = await api.post("/create", {**MINIMAL, "delay": -1})
    assert list(problem) == ["type", "title", "status", "detail", "field"]
    assert msgspec.json.encode(problem)


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/redrive", {"topic": "order"}), ("/topics/order/purge", {}), ("/topics/order/purge", {"reason": "exhausted"})],
)
async def test_a_503_of_a_purge_or_redrive_says_whether_it_may_have_moved_some(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, path: str, body: object, unknown: bool
) -> None:
    async def fail(*_: object) -> None:
        raise StoreDown("gone", unknown=unknown)

    for call in ("execute", "execute_all", "execute_each"):
        monkeypatch.setattr(api.client, call, fail)
    status, problem = await api.post(path, body)
    assert (status, problem.get("unknown", False)) == (503, unknown)
