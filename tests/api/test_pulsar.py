"""PIP-315's routes: Pulsar's names and units on the same policies as the routes of our own."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.policy import Policy
from tests.api.frontend import GOOD, Answer, Frontend, bad, serve_frontend

NAMESPACE = "/admin/v2/namespaces/public/shop/delayedDelivery"
TOPIC = "/admin/v2/persistent/public/shop/order/delayedDelivery"
LEVELS = [(NAMESPACE, "/namespaces/shop/policy"), (TOPIC, "/topics/shop%2Forder/policy")]
DONE = (204, None)
MILLISECONDS = "an integer of milliseconds from 0 to 31561920000000"

both_levels = pytest.mark.parametrize(("path", "native"), LEVELS, ids=["namespace", "topic"])


def told(active: bool, tick_time: int, limit: int) -> Answer:
    return 200, {"active": active, "tickTime": tick_time, "maxDeliveryDelayInMillis": limit}


async def create(frontend: Frontend, topic: str = "shop/order", **fields: Any) -> Answer:
    return await frontend.post("/create", {**GOOD, "topic": topic, **fields})


async def limit(frontend: Frontend, topic: str) -> int:
    """The limit that creates of this topic meet, in ms; 0 where there is none."""
    status, answer = await create(frontend, topic, delay=315_000_000)
    assert status == 200 or answer["field"] == "delay"
    return 0 if status == 200 else int(answer["detail"].split()[-2])


@both_levels
class TestOneLevel:
    async def test_nothing_set_is_null(self, frontend: Frontend, path: str, native: str) -> None:
        assert await frontend.ask("GET", path) == (200, None)
        await frontend.ask("PUT", native, {"retry": 1, "default_delay": 5})
        assert await frontend.ask("GET", path) == (200, None)

    async def test_all_three_are_set_and_shown(self, frontend: Frontend, path: str, native: str) -> None:
        body = {"active": True, "tickTime": 2000, "maxDeliveryDelayInMillis": 5001}
        assert await frontend.ask("POST", path, body) == DONE
        assert await frontend.ask("GET", path) == (200, body)
        assert await frontend.ask("GET", native) == (200, {"max_delay": 5.001, "delays": True})

    @pytest.mark.parametrize(
        ("body", "shown", "fields"),
        [
            ({"active": False}, told(False, 1000, 0), {"delays": False}),
            ({"active": True}, told(True, 1000, 0), {"delays": True}),
            ({"tickTime": 7}, told(True, 7, 0), {}),
            ({"tickTime": 0}, told(True, 0, 0), {}),
            ({"maxDeliveryDelayInMillis": 5000}, told(True, 1000, 5000), {"max_delay": 5}),
            ({"maxDeliveryDelayInMillis": 1}, told(True, 1000, 1), {"max_delay": 0.001}),
            ({"maxDeliveryDelayInMillis": 0}, told(True, 1000, 0), {"max_delay": 0}),
            (
                {"maxDeliveryDelayInMillis": 31_561_919_999_999},
                told(True, 1000, 31_561_919_999_999),
                {"max_delay": 31_561_919_999.999},
            ),
            (
                {"maxDeliveryDelayInMillis": 5, "active": None, "tickTime": None},
                told(True, 1000, 5),
                {"max_delay": 0.005},
            ),
            ({}, (200, None), {}),
        ],
    )
    async def test_what_is_named_is_set_and_nothing_else(
        self, frontend: Frontend, path: str, native: str, body: Any, shown: Answer, fields: Any
    ) -> None:
        assert await frontend.ask("POST", path, body) == DONE
        assert await frontend.ask("GET", path) == shown
        assert await frontend.ask("GET", native) == (200, fields)

    async def test_what_is_not_named_is_left_as_it_is(self, frontend: Frontend, path: str, native: str) -> None:
        await frontend.ask("PUT", native, {"retry": 1, "max_delay": 5, "delays": False})
        await frontend.ask("POST", path, {"tickTime": 7})
        assert await frontend.ask("GET", path) == told(False, 7, 5000)
        await frontend.ask("POST", path, {"active": True, "maxDeliveryDelayInMillis": None})
        assert await frontend.ask("GET", path) == told(True, 7, 5000)
        assert await frontend.ask("GET", native) == (200, {"max_delay": 5, "delays": True, "retry": 1})

    async def test_both_surfaces_see_the_same(self, frontend: Frontend, path: str, native: str) -> None:
        await frontend.ask("PUT", native, {"max_delay": 60.5})
        assert await frontend.ask("GET", path) == told(True, 1000, 60_500)
        await frontend.ask("POST", path, {"active": False, "maxDeliveryDelayInMillis": 0})
        assert await frontend.ask("GET", native) == (200, {"max_delay": 0, "delays": False})
        await frontend.ask("DELETE", native)
        assert await frontend.ask("GET", path) == (200, None)

    async def test_the_tick_time_outlives_what_the_other_surface_writes(
        self, frontend: Frontend, path: str, native: str
    ) -> None:
        await frontend.ask("POST", path, {"tickTime": 7})
        for method, body in (("PATCH", {"max_delay": 5}), ("PUT", {"retry": 1}), ("PUT", {})):
            await frontend.ask(method, native, body)
        assert await frontend.ask("GET", path) == told(True, 7, 0)
        await frontend.ask("DELETE", native)
        assert await frontend.ask("GET", path) == (200, None)

    async def test_removal_leaves_the_other_fields(self, frontend: Frontend, path: str, native: str) -> None:
        await frontend.ask("PUT", native, {"retry": 1, "max_delay": 5, "delays": False})
        await frontend.ask("POST", path, {"tickTime": 7})
        assert await frontend.ask("DELETE", path) == DONE
        assert await frontend.ask("GET", path) == (200, None)
        assert await frontend.ask("GET", native) == (200, {"retry": 1})
        assert await frontend.ask("DELETE", path) == DONE

    @pytest.mark.parametrize(
        ("field", "text", "detail"),
        [
            ("maxDeliveryDelayInMillis", "-1", f"expected {MILLISECONDS}, got -1"),
            ("maxDeliveryDelayInMillis", "1.0", f"expected {MILLISECONDS}, got 1"),
            ("maxDeliveryDelayInMillis", "true", f"expected {MILLISECONDS}, got true"),
            ("maxDeliveryDelayInMillis", '"5000"', f'expected {MILLISECONDS}, got "5000"'),
            ("maxDeliveryDelayInMillis", "NaN", f"expected {MILLISECONDS}, got nan"),
            ("maxDeliveryDelayInMillis", "1e400", f"expected {MILLISECONDS}, got inf"),
            ("maxDeliveryDelayInMillis", "31561920000001", f"expected {MILLISECONDS}, got 31561920000001"),
            ("maxDeliveryDelayInMillis", "9" * 400, f"expected {MILLISECONDS}, got {'9' * 77}…"),
            ("maxDeliveryDelayInMillis", "{}", f"expected {MILLISECONDS}, got an object"),
            ("tickTime", "-5", f"expected {MILLISECONDS}, got -5"),
            ("tickTime", "0.5", f"expected {MILLISECONDS}, got 0.5"),
            ("tickTime", "false", f"expected {MILLISECONDS}, got false"),
            ("active", "1", "expected true or false, got 1"),
            ("active", '"true"', 'expected true or false, got "true"'),
            ("max_delay", "5", "unknown field"),
            ("maxDeliveryDelay", "null", "unknown field"),
            (r"\ud800", "1", "unknown field"),
        ],
    )
    async def test_what_is_wrong_is_refused_by_the_callers_name_and_nothing_is_applied(
        self, frontend: Frontend, path: str, native: str, field: str, text: str, detail: str
    ) -> None:
        given = {"active": "false", "tickTime": "9", "maxDeliveryDelayInMillis": "9", field: text}
        body = ", ".join(f'"{name}": {value}' for name, value in given.items())
        await frontend.ask("PUT", native, {"retry": 1})
        assert await frontend.ask("POST", path, f"{{{body}}}".encode()) == bad(f"{field}: {detail}", field)
        assert await frontend.ask("GET", path) == (200, None)
        assert await frontend.ask("GET", native) == (200, {"retry": 1})

    async def test_a_body_that_is_no_object_is_refused(self, frontend: Frontend, path: str, native: str) -> None:
        for body, kind in ((b"", "nothing"), (b"null", "null"), (b"[]", "an array"), (b"5", "a number")):
            assert await frontend.ask("POST", path, body) == bad(f"expected a JSON object, got {kind}")

    async def test_a_limit_below_the_default_delay_is_refused_by_its_name_here(
        self, frontend: Frontend, path: str, native: str
    ) -> None:
        await frontend.ask("PUT", native, {"default_delay": 10})
        assert await frontend.ask("POST", path, {"tickTime": 7, "maxDeliveryDelayInMillis": 9999}) == bad(
            "maxDeliveryDelayInMillis: expected a default_delay of at most the max_delay that applies, 9.999 s, got 10",
            "maxDeliveryDelayInMillis",
        )
        assert await frontend.ask("GET", path) == (200, None)
        assert await frontend.ask("POST", path, {"maxDeliveryDelayInMillis": 10_000}) == DONE

    async def test_other_methods_are_not_taken(self, frontend: Frontend, path: str, native: str) -> None:
        async with frontend.http.put(path, json={}) as response:
            assert (response.status, response.headers["Allow"]) == (405, "DELETE,GET,HEAD,POST")

    async def test_a_store_that_is_away_is_503(self, frontend: Frontend, path: str, native: str) -> None:
        frontend.server.connected = False
        for method in ("GET", "POST", "DELETE"):
            assert (await frontend.ask(method, path, {"tickTime": 7}))[0] == 503

    async def test_another_tenant_is_404(self, frontend: Frontend, path: str, native: str) -> None:
        for method in ("GET", "POST", "DELETE"):
            assert (await frontend.ask(method, path.replace("public", "acme"), {"active": True}))[0] == 404
        assert await frontend.ask("GET", path) == (200, None)

    async def test_applied_is_true_or_false(self, frontend: Frontend, path: str, native: str) -> None:
        assert await frontend.ask("GET", f"{path}?applied=false") == (200, None)
        status, answer = await frontend.ask("GET", f"{path}?applied=yes")
        assert (status, answer["field"]) == (400, "applied")

    async def test_other_parameters_are_pulsars(self, frontend: Frontend, path: str, native: str) -> None:
        assert await frontend.ask("GET", f"{path}?authoritative=false&isGlobal=false") == (200, None)


class TestApplied:
    @pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
    async def test_where_nothing_is_set_the_daemon_applies(self, path: str) -> None:
        async with serve_frontend(policy=Policy(max_delay_ms=900_000, delays=False)) as frontend:
            assert await frontend.ask("GET", f"{path}?applied=true") == told(False, 1000, 900_000)

    async def test_each_field_is_the_lowest_levels(self) -> None:
        async with serve_frontend(policy=Policy(max_delay_ms=900_000)) as frontend:
            await frontend.ask("POST", NAMESPACE, {"active": False, "tickTime": 7})
            assert await frontend.ask("GET", f"{TOPIC}?applied=true") == told(False, 7, 900_000)
            await frontend.ask("POST", TOPIC, {"maxDeliveryDelayInMillis": 0})
            assert await frontend.ask("GET", f"{TOPIC}?applied=true") == told(False, 7, 0)
            assert await frontend.ask("GET", TOPIC) == told(True, 1000, 0)
            await frontend.ask("POST", TOPIC, {"active": True, "tickTime": 9})
            assert await frontend.ask("GET", f"{TOPIC}?applied=true") == told(True, 9, 0)
            assert await frontend.ask("GET", f"{NAMESPACE}?applied=true") == told(False, 7, 900_000)


class TestNames:
    @pytest.mark.parametrize(
        ("path", "topic"),
        [
            ("default/order", "order"),
            ("shop/order", "shop%2Forder"),
            ("shop/a%2Fb", "shop%2Fa%2Fb"),
            ("shop/a%2fb", "shop%2Fa%2Fb"),
            ("default/a%2Fb", "default%2Fa%2Fb"),
            ("%73hop/%C3%A9%20%7B%25%7D", "shop%2F%C3%A9%20%7B%25%7D"),
        ],
    )
    async def test_a_topic_is_of_its_namespace(self, frontend: Frontend, path: str, topic: str) -> None:
        full = f"/admin/v2/persistent/public/{path}/delayedDelivery"
        assert await frontend.ask("POST", full, {"maxDeliveryDelayInMillis": 5000}) == DONE
        assert await frontend.ask("GET", f"/topics/{topic}/policy") == (200, {"max_delay": 5})
        assert await frontend.ask("GET", full) == told(True, 1000, 5000)

    @pytest.mark.parametrize(
        ("path", "field"),
        [
            ("persistent/public/shop/a%0A", "topic"),
            ("persistent/public/shop/a%2F", "topic"),
            (f"persistent/public/shop/{'x' * 251}", "topic"),
            ("persistent/public/a%2Fb/order", "namespace"),
            ("namespaces/public/a%2Fb", "namespace"),
            ("namespaces/public/%FF", "namespace"),
        ],
    )
    async def test_a_name_that_is_none_is_refused(self, frontend: Frontend, path: str, field: str) -> None:
        for method in ("GET", "POST", "DELETE"):
            status, answer = await frontend.ask(method, f"/admin/v2/{path}/delayedDelivery", {"active": True})
            assert (status, answer["field"]) == (400, field)

    async def test_non_persistent_topics_are_none_of_ours(self, frontend: Frontend) -> None:
        assert (await frontend.ask("GET", TOPIC.replace("persistent", "non-persistent")))[0] == 404


async def through_pulsar(frontend: Frontend, place: str, limit_ms: int | None) -> None:
    """Set a limit, or (None) remove it; `place` is a namespace or, with a slash, a topic."""
    path = f"/admin/v2/{'persistent' if '/' in place else 'namespaces'}/public/{place}/delayedDelivery"
    method, body = ("DELETE", None) if limit_ms is None else ("POST", {"maxDeliveryDelayInMillis": limit_ms})
    assert await frontend.ask(method, path, body) == DONE


async def natively(frontend: Frontend, place: str, limit_ms: int | None) -> None:
    path = f"/topics/{place.replace('/', '%2F')}/policy" if "/" in place else f"/namespaces/{place}/policy"
    status, _ = await frontend.ask("PATCH", path, {"max_delay": None if limit_ms is None else limit_ms / 1000})
    assert status == 200


class TestThePipsScenarios:
    @pytest.mark.parametrize("put", [through_pulsar, natively])
    async def test_a_limit_on_each_level(self, put: Any) -> None:
        """On the daemon, on a namespace, lifted for one topic and raised for another, removed again from below."""
        async with serve_frontend(policy=Policy(max_delay_ms=60_000)) as frontend:
            topics = ("other", "shop/free", "shop/slow", "shop/x")

            async def limits() -> list[int]:
                native = [(await frontend.ask("GET", f"/topics/{t.replace('/', '%2F')}"))[1] for t in topics]
                met = [await limit(frontend, topic) for topic in topics]
                assert [round(answer["policy"]["max_delay"] * 1000) for answer in native] == met
                return met

            assert await limits() == [60_000, 60_000, 60_000, 60_000]
            await put(frontend, "shop", 5000)
            assert await limits() == [60_000, 5000, 5000, 5000]
            await put(frontend, "shop/free", 0)
            await put(frontend, "shop/slow", 86_400_000)
            assert await limits() == [60_000, 0, 86_400_000, 5000]
            await put(frontend, "shop/slow", None)
            assert await limits() == [60_000, 0, 5000, 5000]
            await put(frontend, "shop", 0)
            assert await limits() == [60_000, 0, 0, 0]
            await put(frontend, "shop", None)
            await put(frontend, "shop/free", None)
            assert await limits() == [60_000, 60_000, 60_000, 60_000]

    @pytest.mark.parametrize("put", [through_pulsar, natively])
    async def test_a_delay_as_long_as_the_limit_passes_and_a_millisecond_more_does_not(
        self, frontend: Frontend, put: Any
    ) -> None:
        await put(frontend, "shop/order", 5000)
        assert (await create(frontend, delay=5))[0] == 200
        words = "Exceeds max allowed delivery delay of 5000 milliseconds"
        assert await create(frontend, delay=5.001) == bad(words, "delay")

    async def test_a_tick_time_alone_leaves_the_limit(self, frontend: Frontend) -> None:
        await through_pulsar(frontend, "shop/order", 5000)
        await frontend.ask("POST", TOPIC, {"tickTime": 2000})
        assert await frontend.ask("GET", TOPIC) == told(True, 2000, 5000)
        assert await limit(frontend, "shop/order") == 5000

    @both_levels
    async def test_not_active_is_no_delays(self, frontend: Frontend, path: str, native: str) -> None:
        await frontend.ask("POST", path, {"active": False, "maxDeliveryDelayInMillis": 5000})
        assert (await create(frontend))[0] == 200
        assert (await create(frontend, delay=0))[0] == 200
        status, answer = await create(frontend, delay=1)
        assert (status, answer["field"]) == (400, "delay")
        await frontend.ask("POST", path, {"active": True})
        assert (await create(frontend, delay=1))[0] == 200
