"""PIP-315's routes: Pulsar's names and units for the same policies as later's own routes."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.policy import Policy
from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, bad_request, serve_api
from tests.cases import each_case

NAMESPACE = "/admin/v2/namespaces/public/shop/delayedDelivery"
TOPIC = "/admin/v2/persistent/public/shop/order/delayedDelivery"
LEVELS = [(NAMESPACE, "/namespaces/shop/policy"), (TOPIC, "/topics/shop%2Forder/policy")]
NO_CONTENT = (204, None)
MILLISECONDS = "an integer of milliseconds from 0 to 31561920000000"

both_levels = pytest.mark.parametrize(("path", "policy_path"), LEVELS, ids=["namespace", "topic"])


def delayed_delivery(active: bool, tick_time: int, limit: int) -> Answer:
    return 200, {"active": active, "tickTime": tick_time, "maxDeliveryDelayInMillis": limit}


async def create(api: ApiFixture, topic: str = "shop/order", **fields: Any) -> Answer:
    return await api.post("/create", {**MINIMAL, "topic": topic, **fields})


async def find_limit(api: ApiFixture, topic: str) -> int:
    """Return the limit (ms) on delays that a create in this topic meets; 0 if there is no limit."""
    status, answer = await create(api, topic, delay=315_000_000)
    assert status == 200 or answer["field"] == "delay"
    return 0 if status == 200 else int(answer["detail"].split()[-2])


@both_levels
class TestOneLevel:
    async def test_nothing_set_is_null(self, api: ApiFixture, path: str, policy_path: str) -> None:
        assert await api.request("GET", path) == (200, None)
        await api.request("PUT", policy_path, {"retry": 1, "default_delay": 5})
        assert await api.request("GET", path) == (200, None)

    async def test_all_three_are_set_and_shown(self, api: ApiFixture, path: str, policy_path: str) -> None:
        body = {"active": True, "tickTime": 2000, "maxDeliveryDelayInMillis": 5001}
        assert await api.request("POST", path, body) == NO_CONTENT
        assert await api.request("GET", path) == (200, body)
        assert await api.request("GET", policy_path) == (200, {"max_delay": 5.001, "delays": True})

    @pytest.mark.parametrize(
        ("body", "shown", "fields"),
        [
            ({"active": False}, delayed_delivery(False, 1000, 0), {"delays": False}),
            ({"active": True}, delayed_delivery(True, 1000, 0), {"delays": True}),
            ({"tickTime": 7}, delayed_delivery(True, 7, 0), {}),
            ({"tickTime": 0}, delayed_delivery(True, 0, 0), {}),
            ({"maxDeliveryDelayInMillis": 5000}, delayed_delivery(True, 1000, 5000), {"max_delay": 5}),
            ({"maxDeliveryDelayInMillis": 1}, delayed_delivery(True, 1000, 1), {"max_delay": 0.001}),
            ({"maxDeliveryDelayInMillis": 5e3}, delayed_delivery(True, 1000, 5000), {"max_delay": 5}),
            ({"maxDeliveryDelayInMillis": 0}, delayed_delivery(True, 1000, 0), {"max_delay": 0}),
            (
                {"maxDeliveryDelayInMillis": 31_561_919_999_999},
                delayed_delivery(True, 1000, 31_561_919_999_999),
                {"max_delay": 31_561_919_999.999},
            ),
            (
                {"maxDeliveryDelayInMillis": 5, "active": None, "tickTime": None},
                delayed_delivery(True, 1000, 5),
                {"max_delay": 0.005},
            ),
            ({}, (200, None), {}),
        ],
    )
    async def test_only_named_fields_are_set(
        self, api: ApiFixture, path: str, policy_path: str, body: Any, shown: Answer, fields: Any
    ) -> None:
        assert await api.request("POST", path, body) == NO_CONTENT
        assert await api.request("GET", path) == shown
        assert await api.request("GET", policy_path) == (200, fields)

    async def test_unnamed_fields_stay_as_they_are(self, api: ApiFixture, path: str, policy_path: str) -> None:
        await api.request("PUT", policy_path, {"retry": 1, "max_delay": 5, "delays": False})
        await api.request("POST", path, {"tickTime": 7})
        assert await api.request("GET", path) == delayed_delivery(False, 7, 5000)
        await api.request("POST", path, {"active": True, "maxDeliveryDelayInMillis": None})
        assert await api.request("GET", path) == delayed_delivery(True, 7, 5000)
        assert await api.request("GET", policy_path) == (200, {"max_delay": 5, "delays": True, "retry": 1})

    async def test_both_apis_see_the_same_policy(self, api: ApiFixture, path: str, policy_path: str) -> None:
        await api.request("PUT", policy_path, {"max_delay": 60.5})
        assert await api.request("GET", path) == delayed_delivery(True, 1000, 60_500)
        await api.request("POST", path, {"active": False, "maxDeliveryDelayInMillis": 0})
        assert await api.request("GET", policy_path) == (200, {"max_delay": 0, "delays": False})
        await api.request("DELETE", policy_path)
        assert await api.request("GET", path) == (200, None)

    async def test_the_tick_time_survives_changes_by_the_other_api(
        self, api: ApiFixture, path: str, policy_path: str
    ) -> None:
        await api.request("POST", path, {"tickTime": 7})
        for method, body in (("PATCH", {"max_delay": 5}), ("PUT", {"retry": 1}), ("PUT", {})):
            await api.request(method, policy_path, body)
        assert await api.request("GET", path) == delayed_delivery(True, 7, 0)
        await api.request("DELETE", policy_path)
        assert await api.request("GET", path) == (200, None)

    async def test_removal_leaves_the_other_fields(self, api: ApiFixture, path: str, policy_path: str) -> None:
        await api.request("PUT", policy_path, {"retry": 1, "max_delay": 5, "delays": False})
        await api.request("POST", path, {"tickTime": 7})
        assert await api.request("DELETE", path) == NO_CONTENT
        assert await api.request("GET", path) == (200, None)
        assert await api.request("GET", policy_path) == (200, {"retry": 1})
        assert await api.request("DELETE", path) == NO_CONTENT

    @pytest.mark.parametrize(
        ("field", "text", "detail"),
        [
            ("maxDeliveryDelayInMillis", "-1", f"expected {MILLISECONDS}, got -1"),
            ("maxDeliveryDelayInMillis", "1.5", f"expected {MILLISECONDS}, got 1.5"),
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
    async def test_a_wrong_field_is_refused_by_its_pulsar_name_and_nothing_is_applied(
        self, api: ApiFixture, path: str, policy_path: str, field: str, text: str, detail: str
    ) -> None:
        given = {"active": "false", "tickTime": "9", "maxDeliveryDelayInMillis": "9", field: text}
        body = ", ".join(f'"{name}": {value}' for name, value in given.items())
        await api.request("PUT", policy_path, {"retry": 1})
        assert await api.request("POST", path, f"{{{body}}}".encode()) == bad_request(f"{field}: {detail}", field)
        assert await api.request("GET", path) == (200, None)
        assert await api.request("GET", policy_path) == (200, {"retry": 1})

    async def test_a_body_that_is_not_an_object_is_refused(self, api: ApiFixture, path: str, policy_path: str) -> None:
        for body, kind in ((b"", "nothing"), (b"null", "null"), (b"[]", "an array"), (b"5", "a number")):
            assert await api.request("POST", path, body) == bad_request(f"expected a JSON object, got {kind}")

    async def test_a_limit_below_the_default_delay_is_refused_by_its_pulsar_name(
        self, api: ApiFixture, path: str, policy_path: str
    ) -> None:
        await api.request("PUT", policy_path, {"default_delay": 10})
        assert await api.request("POST", path, {"tickTime": 7, "maxDeliveryDelayInMillis": 9999}) == bad_request(
            "maxDeliveryDelayInMillis: expected a default_delay of at most the max_delay that applies, 9.999 s, got 10",
            "maxDeliveryDelayInMillis",
        )
        assert await api.request("GET", path) == (200, None)
        assert await api.request("POST", path, {"maxDeliveryDelayInMillis": 10_000}) == NO_CONTENT

    async def test_other_methods_are_405(self, api: ApiFixture, path: str, policy_path: str) -> None:
        async with api.http.put(path, json={}) as response:
            assert (response.status, response.headers["Allow"]) == (405, "DELETE,GET,HEAD,POST")

    async def test_an_unavailable_store_is_503(self, api: ApiFixture, path: str, policy_path: str) -> None:
        await api.lose_store()
        for method in ("GET", "POST", "DELETE"):
            assert (await api.request(method, path, {"tickTime": 7}))[0] == 503

    async def test_another_tenant_is_404(self, api: ApiFixture, path: str, policy_path: str) -> None:
        for method in ("GET", "POST", "DELETE"):
            assert (await api.request(method, path.replace("public", "acme"), {"active": True}))[0] == 404
        assert await api.request("GET", path) == (200, None)

    async def test_applied_is_true_or_false(self, api: ApiFixture, path: str, policy_path: str) -> None:
        assert await api.request("GET", f"{path}?applied=false") == (200, None)
        status, answer = await api.request("GET", f"{path}?applied=yes")
        assert (status, answer["field"]) == (400, "applied")

    async def test_a_parameter_that_has_no_effect_here_is_refused(
        self, api: ApiFixture, path: str, policy_path: str
    ) -> None:
        status, answer = await api.request("GET", f"{path}?isGlobal=true")
        assert (status, answer["field"]) == (400, "isGlobal")


class TestApplied:
    @each_case("path", [NAMESPACE, TOPIC])
    async def test_without_settings_the_daemon_applies(self, path: str) -> None:
        async with serve_api(policy=Policy(max_delay_ms=900_000, delays=False)) as api:
            assert await api.request("GET", f"{path}?applied=true") == delayed_delivery(False, 1000, 900_000)

    async def test_each_field_comes_from_the_lowest_level(self) -> None:
        async with serve_api(policy=Policy(max_delay_ms=900_000)) as api:
            await api.request("POST", NAMESPACE, {"active": False, "tickTime": 7})
            assert await api.request("GET", f"{TOPIC}?applied=true") == delayed_delivery(False, 7, 900_000)
            await api.request("POST", TOPIC, {"maxDeliveryDelayInMillis": 0})
            assert await api.request("GET", f"{TOPIC}?applied=true") == delayed_delivery(False, 7, 0)
            assert await api.request("GET", TOPIC) == delayed_delivery(True, 1000, 0)
            await api.request("POST", TOPIC, {"active": True, "tickTime": 9})
            assert await api.request("GET", f"{TOPIC}?applied=true") == delayed_delivery(True, 9, 0)
            assert await api.request("GET", f"{NAMESPACE}?applied=true") == delayed_delivery(False, 7, 900_000)


class TestNames:
    @each_case(
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
    async def test_a_topic_belongs_to_its_namespace(self, api: ApiFixture, path: str, topic: str) -> None:
        full = f"/admin/v2/persistent/public/{path}/delayedDelivery"
        assert await api.request("POST", full, {"maxDeliveryDelayInMillis": 5000}) == NO_CONTENT
        assert await api.request("GET", f"/topics/{topic}/policy") == (200, {"max_delay": 5})
        assert await api.request("GET", full) == delayed_delivery(True, 1000, 5000)

    @each_case(
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
    async def test_a_bad_name_is_refused(self, api: ApiFixture, path: str, field: str) -> None:
        for method in ("GET", "POST", "DELETE"):
            status, answer = await api.request(method, f"/admin/v2/{path}/delayedDelivery", {"active": True})
            assert (status, answer["field"]) == (400, field)

    async def test_non_persistent_topics_are_404(self, api: ApiFixture) -> None:
        assert (await api.request("GET", TOPIC.replace("persistent", "non-persistent")))[0] == 404


async def set_by_pulsar(api: ApiFixture, scope: str, limit_ms: int | None) -> None:
    """Set a limit, or (None) remove it; `scope` is a namespace or, with a slash, a topic."""
    path = f"/admin/v2/{'persistent' if '/' in scope else 'namespaces'}/public/{scope}/delayedDelivery"
    method, body = ("DELETE", None) if limit_ms is None else ("POST", {"maxDeliveryDelayInMillis": limit_ms})
    assert await api.request(method, path, body) == NO_CONTENT


async def set_by_policy(api: ApiFixture, scope: str, limit_ms: int | None) -> None:
    path = f"/topics/{scope.replace('/', '%2F')}/policy" if "/" in scope else f"/namespaces/{scope}/policy"
    status, _ = await api.request("PATCH", path, {"max_delay": None if limit_ms is None else limit_ms / 1000})
    assert status == 200


class TestPip315Scenarios:
    @each_case("set_limit", [set_by_pulsar, set_by_policy])
    async def test_a_limit_on_each_level(self, set_limit: Any) -> None:
        """Set on the daemon and on a namespace, lifted for one topic, raised for another, and removed again."""
        async with serve_api(policy=Policy(max_delay_ms=60_000)) as api:
            topics = ("other", "shop/free", "shop/slow", "shop/x")

            async def limits() -> list[int]:
                shown = [(await api.request("GET", f"/topics/{t.replace('/', '%2F')}"))[1] for t in topics]
                limits_met = [await find_limit(api, topic) for topic in topics]
                assert [round(answer["policy"]["max_delay"] * 1000) for answer in shown] == limits_met
                return limits_met

            assert await limits() == [60_000, 60_000, 60_000, 60_000]
            await set_limit(api, "shop", 5000)
            assert await limits() == [60_000, 5000, 5000, 5000]
            await set_limit(api, "shop/free", 0)
            await set_limit(api, "shop/slow", 86_400_000)
            assert await limits() == [60_000, 0, 86_400_000, 5000]
            await set_limit(api, "shop/slow", None)
            assert await limits() == [60_000, 0, 5000, 5000]
            await set_limit(api, "shop", 0)
            assert await limits() == [60_000, 0, 0, 0]
            await set_limit(api, "shop", None)
            await set_limit(api, "shop/free", None)
            assert await limits() == [60_000, 60_000, 60_000, 60_000]

    @each_case("set_limit", [set_by_pulsar, set_by_policy])
    async def test_a_delay_at_the_limit_passes_and_a_millisecond_more_does_not(
        self, api: ApiFixture, set_limit: Any
    ) -> None:
        await set_limit(api, "shop/order", 5000)
        assert (await create(api, delay=5))[0] == 200
        words = "Exceeds max allowed delivery delay of 5000 milliseconds"
        assert await create(api, delay=5.001) == bad_request(words, "delay")

    async def test_a_tick_time_alone_leaves_the_limit(self, api: ApiFixture) -> None:
        await set_by_pulsar(api, "shop/order", 5000)
        await api.request("POST", TOPIC, {"tickTime": 2000})
        assert await api.request("GET", TOPIC) == delayed_delivery(True, 2000, 5000)
        assert await find_limit(api, "shop/order") == 5000

    @both_levels
    async def test_an_inactive_topic_has_no_delays(self, api: ApiFixture, path: str, policy_path: str) -> None:
        await api.request("POST", path, {"active": False, "maxDeliveryDelayInMillis": 5000})
        assert (await create(api))[0] == 200
        assert (await create(api, delay=0))[0] == 200
        status, answer = await create(api, delay=1)
        assert (status, answer["field"]) == (400, "delay")
        await api.request("POST", path, {"active": True})
        assert (await create(api, delay=1))[0] == 200
