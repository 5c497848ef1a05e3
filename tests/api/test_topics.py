"""The calls that show topics, and the policies of topics and namespaces: read, set, refused by name, obeyed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from later.core.policy import DEFAULT_POLICY, POLICY_FIELDS, Policy, format_policy
from later.core.policy_scopes import FOLLOW_UP_FIELDS, Policies, namespace_scope
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task
from later.store.holds import hold_entry
from later.store.keys import Bucket
from later.store.policies import PolicyBook
from later.store.types import Claim, ClaimRequest, ClaimResult, Settlement
from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, bad_request, ok, serve_api
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.round_trips import count_round_trips

LOW = NOW - 2
"""The low end of the store's time, which decides whether a task is due."""
NO_LIMITS = {"held": "no", "paused": False, "rate": None, "concurrency": None, "deliver": "push"}
NO_TASKS = {"delay": 0, "unack": 0, "error": 0, "dead": 0, "due": 0, "oldest_lateness_s": None, **NO_LIMITS}
SCOPE_PATHS = ["/topics/order", "/topics/shop%2Forder", "/namespaces/shop", "/namespaces/default"]
FAILURE = Failure(1, "status", 500, "answered 500", NOW, None, 1)
NAMESPACE = "a string of 1 to 255 bytes without control characters or a /"
CALLBACK = "an absolute http or https URL of at most 2048 characters"

SETTABLE: list[tuple[str, Any, Any]] = [
    ("default_delay", 15, 0),
    ("max_delay", 900, 0.001),
    ("delay_mode", "queue", "honor"),
    ("delays", False, True),
    ("ttl", 60.5, 0),
    ("timeout", 120, 1),
    ("retry", 1000, 0),
    ("retry_base", 0, 1.5),
    ("retry_cap", 60, 0),
    ("retry_jitter", 0.5, 1),
    ("ack", "code", "status"),
    ("rate", 0.5, 1_000_000),
    ("concurrency", 7, 0),
    ("paused", True, False),
    ("ramp", 0, 3600),
    ("dead_keep", 86_400, 0),
    ("sign", "topic", "off"),
    ("deliver", "pull", "push"),
    ("callback", "http://127.0.0.1:9/a?b=c", "https://shop.example/"),
    ("claim_lease", 43_200, 1),
    ("max_claims", 5, 0),
    ("dead_to", "shop/failed", "shop/lost"),
    ("dead_ttl", 3600, 0),
    ("remember", 900, 604_800),
    ("on_dead", "shop/dead", "shop/lost"),
    ("on_done", "shop/done", "shop/audit"),
    ("durability", "disk", "replica"),
]
"""Each field with two different values."""


async def applied(api: ApiFixture, scope_path: str) -> dict[str, Any]:
    """Return the value and the level of every field."""
    status, answer = await api.get(f"{scope_path}/policy?applied=true")
    assert status == 200
    return {name: (field["value"], field["level"]) for name, field in answer.items()}


async def create(api: ApiFixture, **fields: Any) -> Answer:
    return await api.post("/create", {**MINIMAL, **fields})


class TestPolicies:
    @each_case("scope_path", SCOPE_PATHS)
    async def test_a_scope_without_settings_shows_no_fields(self, api: ApiFixture, scope_path: str) -> None:
        assert await api.get(f"{scope_path}/policy") == (200, {})
        assert await api.get(f"{scope_path}/policy?applied=false") == (200, {})

    @each_case("scope_path", SCOPE_PATHS)
    async def test_without_settings_the_daemon_applies(self, scope_path: str) -> None:
        daemon = Policy(max_delay_ms=900_000, retry=5)
        async with serve_api(policy=daemon) as api:
            assert await applied(api, scope_path) == {
                name: (value, "daemon") for name, value in format_policy(daemon).items()
            }

    def test_the_table_has_every_field(self) -> None:
        assert [field for field, _, _ in SETTABLE] == list(POLICY_FIELDS)

    @each_case(("field", "first", "second"), SETTABLE)
    async def test_a_field_is_set_shown_and_inherited(
        self, api: ApiFixture, field: str, first: Any, second: Any
    ) -> None:
        topic, namespace, daemon = (
            "/topics/shop%2Forder",
            "/namespaces/shop",
            (format_policy(DEFAULT_POLICY)[field], "daemon"),
        )
        if field in FOLLOW_UP_FIELDS:  # otherwise it is warned of
            for target in (first, second):
                await api.request("PATCH", f"/topics/{quote(target, safe='')}/policy", {"deliver": "pull"})
        assert await api.request("PATCH", f"{namespace}/policy", {field: first}) == (200, {field: first})
        assert (await applied(api, namespace))[field] == (first, "namespace")
        assert (await applied(api, topic))[field] == (first, "namespace")
        assert await api.get(f"{topic}/policy") == (200, {})
        assert await api.request("PATCH", f"{topic}/policy", {field: second}) == (200, {field: second})
        assert (await applied(api, topic))[field] == (second, "topic")
        assert (await applied(api, namespace))[field] == (first, "namespace")
        assert (await applied(api, "/topics/order"))[field] == daemon
        assert await api.request("PATCH", f"{topic}/policy", {field: None}) == (200, {})
        assert (await applied(api, topic))[field] == (first, "namespace")
        assert await api.request("DELETE", f"{namespace}/policy") == (200, {})
        assert (await applied(api, topic))[field] == daemon

    @each_case("scope_path", ["/topics/later%2Fevents", "/namespaces/later"])
    async def test_the_policies_of_the_reserved_namespace_may_be_set(self, api: ApiFixture, scope_path: str) -> None:
        assert (await api.request("PATCH", f"{scope_path}/policy", {"retry": 9}))[0] == 200
        assert (await applied(api, "/topics/later%2Fevents"))["retry"][0] == 9

    async def test_put_replaces_all_fields_and_null_inherits(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"retry": 1, "ttl": 60, "paused": True})
        answer = await api.request("PUT", "/topics/order/policy", {"ttl": None, "retry": 0, "ack": "code"})
        assert answer == (200, {"retry": 0, "ack": "code"})
        assert await api.get("/topics/order/policy") == answer

    async def test_patch_merges_and_null_removes(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"retry": 1, "ttl": 60, "paused": True})
        answer = await api.request("PATCH", "/topics/order/policy", {"ttl": None, "retry": 0, "ack": "code"})
        assert answer == (200, {"retry": 0, "ack": "code", "paused": True})
        assert await api.get("/topics/order/policy") == answer

    @each_case("method", ["PUT", "PATCH"])
    async def test_an_empty_object_changes_nothing_by_patch_and_everything_by_put(
        self, api: ApiFixture, method: str
    ) -> None:
        await api.request("PUT", "/topics/order/policy", {"retry": 1})
        remaining = {} if method == "PUT" else {"retry": 1}
        assert await api.request(method, "/topics/order/policy", {}) == (200, remaining)

    async def test_each_field_may_come_from_another_level(self) -> None:
        async with serve_api(policy=Policy(max_delay_ms=60_000)) as api:
            await api.request("PUT", "/namespaces/shop/policy", {"max_delay": 0, "retry": 1})
            await api.request("PUT", "/topics/shop%2Forder/policy", {"retry": 2})
            fields = await applied(api, "/topics/shop%2Forder")
        levels = [fields[field] for field in ("retry", "max_delay", "timeout")]
        assert levels == [(2, "topic"), (0, "namespace"), (15, "daemon")]

    async def test_topics_without_a_namespace_are_in_the_default_one(self, api: ApiFixture) -> None:
        await api.request("PUT", "/namespaces/default/policy", {"retry": 1})
        retries = [(await applied(api, f"/topics/{topic}"))["retry"] for topic in ("x", "default%2Fx%2Fy", "shop%2Fx")]
        assert retries == [(1, "namespace"), (1, "namespace"), (3, "daemon")]

    async def test_concurrent_changes_are_all_made(self, api: ApiFixture) -> None:
        fields = {field: value for field, value, _ in SETTABLE if field != "delays"}
        answers = await asyncio.gather(
            *(api.request("PATCH", "/topics/order/policy", {field: value}) for field, value in list(fields.items())[:8])
        )
        assert {status for status, _ in answers} == {200}
        assert await api.get("/topics/order/policy") == (200, dict(list(fields.items())[:8]))

    @each_case("method", ["GET", "PUT", "PATCH", "DELETE"])
    async def test_an_unavailable_store_is_503(self, api: ApiFixture, method: str) -> None:
        await api.lose_store()
        for scope_path in ("/topics/order", "/namespaces/shop"):
            status, _ = await api.request(method, f"{scope_path}/policy", {"retry": 1})
            assert status == 503

    @each_case("path", ["/topics/order/policy", "/namespaces/shop/policy"])
    async def test_other_methods_are_405(self, api: ApiFixture, path: str) -> None:
        async with api.http.post(path) as response:
            assert (response.status, response.headers["Allow"]) == (405, "DELETE,GET,HEAD,PATCH,PUT")

    async def test_a_namespace_without_policy_path_is_404(self, api: ApiFixture) -> None:
        assert (await api.get("/namespaces/shop"))[0] == 404


WRONG: list[tuple[str, str, str]] = [
    ("default_delay", "-1", "a number of seconds from 0 to 315619200, or null to inherit, got -1"),
    ("default_delay", "1e9", "a number of seconds from 0 to 315619200, or null to inherit, got 1000000000"),
    ("max_delay", '"900"', 'a number of seconds from 0 to 31561920000, or null to inherit, got "900"'),
    ("max_delay", "true", "a number of seconds from 0 to 31561920000, or null to inherit, got true"),
    ("max_delay", "NaN", "a number of seconds from 0 to 31561920000, or null to inherit, got nan"),
    ("max_delay", "-Infinity", "a number of seconds from 0 to 31561920000, or null to inherit, got -inf"),
    ("max_delay", "1e400", "a number of seconds from 0 to 31561920000, or null to inherit, got inf"),
    ("max_delay", "9" * 400, f"a number of seconds from 0 to 31561920000, or null to inherit, got {'9' * 77}…"),
    ("delay_mode", '"hono\\ud800r"', '"honor" or "queue", or null to inherit, got "hono\\ud800r"'),
    ("delay_mode", "1", '"honor" or "queue", or null to inherit, got 1'),
    ("delays", "0", "true or false, or null to inherit, got 0"),
    ("delays", '"false"', 'true or false, or null to inherit, got "false"'),
    ("ttl", "[]", "a number of seconds from 0 to 31561920000, or null to inherit, got an array"),
    ("timeout", "0", "a number of seconds from 1 to 120, or null to inherit, got 0"),
    ("timeout", "120.001", "a number of seconds from 1 to 120, or null to inherit, got 120.001"),
    ("retry", "1.5", "an integer from 0 to 1000, or null to inherit, got 1.5"),
    ("retry", "false", "an integer from 0 to 1000, or null to inherit, got false"),
    ("retry", "1001", "an integer from 0 to 1000, or null to inherit, got 1001"),
    ("retry_base", "{}", "a number of seconds from 0 to 315619200, or null to inherit, got an object"),
    ("retry_cap", "-0.001", "a number of seconds from 0 to 315619200, or null to inherit, got -0.001"),
    ("retry_jitter", "1.1", "a number from 0 to 1, or null to inherit, got 1.1"),
    ("ack", '"Code"', '"auto", "code" or "status", or null to inherit, got "Code"'),
    ("rate", "-1", "0, or a number of deliveries a second from 0.0001 to 1000000, or null to inherit, got -1"),
    ("concurrency", "0.5", "an integer from 0 to 1000000, or null to inherit, got 0.5"),
    ("paused", "1", "true or false, or null to inherit, got 1"),
    ("ramp", '"10s"', 'a number of seconds from 0 to 315619200, or null to inherit, got "10s"'),
    ("dead_keep", "-1", "a number of seconds from 0 to 31561920000, or null to inherit, got -1"),
    ("sign", '"on"', '"off", "namespace", "topic" or "origin", or null to inherit, got "on"'),
    ("deliver", '"fetch"', '"push" or "pull", or null to inherit, got "fetch"'),
    ("callback", "5", f'{CALLBACK}, or "" for none, or null to inherit, got 5'),
    ("callback", '"ftp://h/"', f'{CALLBACK}, got "ftp://h/"'),
    ("callback", '"http://h/#x"', 'a URL without a fragment, got "http://h/#x"'),
    ("callback", '"http://u:pw@h/"', "a URL without user:password@, got one with it"),
    ("claim_lease", "0.999", "a number of seconds from 1 to 43200, or null to inherit, got 0.999"),
    ("claim_lease", "43200.001", "a number of seconds from 1 to 43200, or null to inherit, got 43200.001"),
    ("max_claims", "-1", "an integer from 0 to 1000000, or null to inherit, got -1"),
    ("dead_to", "5", 'a topic of the same namespace, or "" for none, or null to inherit, got 5'),
    ("dead_ttl", "-1", "a number of seconds from 0 to 31561920000, or null to inherit, got -1"),
    ("remember", "-1", "a number of seconds from 0 to 31561920000, or null to inherit, got -1"),
    ("on_dead", "5", 'a topic of the same namespace, or "" for none, or null to inherit, got 5'),
    ("on_done", '"a\\nb"', 'a topic of the same namespace, or "" for none, or null to inherit, got "a\\nb"'),
    ("durability", '"none"', '"primary", "disk", "replica" or "replica-disk", or null to inherit, got "none"'),
]


class TestRefusals:
    @each_case("method", ["PUT", "PATCH"])
    @each_case("path", ["/topics/order/policy", "/namespaces/shop/policy"])
    async def test_a_field_is_refused_by_name_and_nothing_is_applied(
        self, api: ApiFixture, path: str, method: str
    ) -> None:
        before = await api.request("PUT", path, {"paused": True, "ramp": 5})
        for field, text, detail in WRONG:
            body = f'{{"timeout": 30, "retry": 1, "{field}": {text}}}'.encode()
            assert await api.request(method, path, body) == bad_request(f"{field}: expected {detail}", field)
            assert await api.get(path) == before

    def test_every_field_is_in_the_table(self) -> None:
        assert {field for field, _, _ in WRONG} == POLICY_FIELDS.keys()

    async def test_an_unknown_field_is_refused_by_name(self, api: ApiFixture) -> None:
        for name in ("colour", "max_delay_ms", "tickTime", "tick_time_ms", "topic"):
            status, answer = await api.request("PUT", "/topics/order/policy", {"retry": 1, name: 1})
            assert (status, answer["field"]) == (400, name)
            assert answer["detail"].startswith(f"{name}: no field of a policy; there are default_delay, max_delay, ")
            assert answer["detail"].endswith("; did you mean max_delay?") is (name == "max_delay_ms")
        assert await api.get("/topics/order/policy") == (200, {})

    async def test_an_unknown_name_is_shown_escaped_and_short(self, api: ApiFixture) -> None:
        for body, name in ((rb'{"\ud800\n": 1}', r"\ud800\n"), (b'{"%s": 1}' % (b"x" * 100_000), "x" * 80)):
            status, answer = await api.request("PATCH", "/topics/order/policy", body)
            assert (status, answer["field"]) == (400, name)

    async def test_the_last_value_of_a_duplicate_key_counts(self, api: ApiFixture) -> None:
        assert await api.request("PUT", "/topics/order/policy", b'{"retry": "x", "retry": 1}') == (
            200,
            {"retry": 1},
        )

    @each_case(
        ("body", "detail"),
        [
            (b"", "expected a JSON object, got nothing"),
            (b"null", "expected a JSON object, got null"),
            (b'[{"op": "add"}]', "expected a JSON object, got an array"),
            (b"{", "expected JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
            (b'{"retry": ' + b"9" * 5000 + b"}", "expected JSON, got an integer of too many digits in it"),
            (b'{"retry": ' + b"[" * 100_000, "expected JSON, got it nested too deeply"),
            (b'{"ack": "\xff"}', "expected UTF-8, got the byte 0xff at position 9"),
        ],
    )
    async def test_a_body_that_is_not_an_object_is_refused(self, api: ApiFixture, body: bytes, detail: str) -> None:
        for path in ("/topics/order/policy", "/namespaces/shop/policy"):
            for method in ("PUT", "PATCH"):
                assert await api.request(method, path, body) == bad_request(detail)

    async def test_a_body_over_the_limit_is_413(self) -> None:
        async with serve_api(max_body=100) as api:
            assert (await api.request("PUT", "/topics/order/policy", b'{"retry": 1}'.ljust(100)))[0] == 200
            assert (await api.request("PUT", "/topics/order/policy", b'{"retry": 2}'.ljust(101)))[0] == 413
            assert await api.get("/topics/order/policy") == (200, {"retry": 1})

    async def test_a_default_delay_over_the_limit_is_refused(self, api: ApiFixture) -> None:
        path = "/topics/shop%2Forder/policy"
        await api.request("PUT", "/namespaces/shop/policy", {"max_delay": 60})
        for method, body, field in (
            ("PUT", {"default_delay": 60.001, "retry": 1}, "default_delay"),
            ("PATCH", {"default_delay": 10, "max_delay": 5}, "default_delay"),
        ):
            status, answer = await api.request(method, path, body)
            assert (status, answer["field"]) == (400, field)
        assert await api.get(path) == (200, {})
        assert (await api.request("PUT", path, {"default_delay": 60}))[0] == 200
        assert (await api.request("PUT", path, {"default_delay": 61, "max_delay": 0}))[0] == 200

    @each_case("query", ["applied=1", "applied=", "applied=True", "applied=true&applied=true"])
    async def test_applied_is_true_or_false(self, api: ApiFixture, query: str) -> None:
        status, answer = await api.get(f"/topics/order/policy?{query}")
        assert (status, answer["field"]) == (400, "applied")

    @each_case("method", ["GET", "PUT", "PATCH", "DELETE"])
    async def test_an_unknown_parameter_is_refused_before_anything_changes(self, api: ApiFixture, method: str) -> None:
        await api.request("PUT", "/topics/order/policy", {"retry": 1})
        answer = await api.request(method, "/topics/order/policy?field=ttl", {"retry": 2})
        expected = "only applied" if method == "GET" else "no parameters here"
        assert answer == bad_request(f"field: unknown parameter, expected {expected}", "field")
        assert await api.get("/topics/order/policy") == (200, {"retry": 1})


NAMES = [
    ("%6Frder", "order"),
    ("%C3%A9%F0%9F%98%80", "é😀"),
    ("a+b c".replace(" ", "%20"), "a+b c"),
    ("%7Ba%7D", "{a}"),
    ("100%25", "100%"),
    ("%252F", "%2F"),
    ("a%3Fb%23c", "a?b#c"),
    ("policy", "policy"),
    ("..", ".."),
]


class TestNames:
    @pytest.mark.parametrize(
        ("written", "name"), [*NAMES, ("default%2Fx", "x"), ("default%2Fx%2Fy", "default/x/y"), ("shop%2fx", "shop/x")]
    )
    async def test_a_topics_name_is_percent_encoded(self, api: ApiFixture, written: str, name: str) -> None:
        await api.request("PUT", f"/topics/{written}/policy", {"retry": 1})
        status, answer = await api.request("GET", f"/topics/{written}")
        assert (status, answer["topic"], answer["policy"]["retry"]) == (200, name, 1)
        assert await api.get("/topics") == ok(topics=[{"topic": name, **NO_TASKS}], cursor=None)

    @each_case(("written", "name"), NAMES)
    async def test_a_namespaces_name_is_percent_encoded(self, api: ApiFixture, written: str, name: str) -> None:
        await api.request("PUT", f"/namespaces/{written}/policy", {"retry": 1})
        _, answer = await api.request("GET", f"/topics/{quote(name, safe='')}%2Fx")
        assert (answer["namespace"], answer["policy"]["retry"]) == (name, 1)

    @each_case(
        "written",
        ["%2Fx", "x%2F", "a%2F%2Fb", "%2F", "a%0Ab", "%00", "%C2%85", "x" * 256, "%C3%A9" * 128, "%FF", "a%ED%A0%80"],
    )
    async def test_a_bad_topic_name_is_refused(self, api: ApiFixture, written: str) -> None:
        for path in (f"/topics/{written}", f"/topics/{written}/policy"):
            status, answer = await api.request("GET", path)
            assert (status, answer["field"]) == (400, "topic")
        for method in ("PUT", "PATCH", "DELETE"):
            status, answer = await api.request(method, f"/topics/{written}/policy", {"retry": 1})
            assert (status, answer["field"]) == (400, "topic")

    @each_case("written", ["a%2Fb", "%2F", "a%0Ab", "%7F", "x" * 256, "%FF"])
    async def test_a_bad_namespace_name_is_refused(self, api: ApiFixture, written: str) -> None:
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            status, answer = await api.request(method, f"/namespaces/{written}/policy", {"retry": 1})
            assert (status, answer["field"]) == (400, "namespace")

    async def test_the_refusal_of_a_namespace_says_what_it_takes(self, api: ApiFixture) -> None:
        answer = bad_request(f'namespace: expected {NAMESPACE}, got "a/b"', "namespace")
        assert await api.request("GET", "/namespaces/a%2Fb/policy") == answer
        assert await api.request("GET", "/topics?namespace=a/b") == answer

    async def test_a_namespace_may_have_255_bytes(self, api: ApiFixture) -> None:
        assert await api.request("PUT", f"/namespaces/{'x' * 255}/policy", {"retry": 1}) == (200, {"retry": 1})

    async def test_a_path_without_a_name_is_404(self, api: ApiFixture) -> None:
        for path in ("/topics/", "/topics//policy", "/topics/shop/order/policy", "/namespaces//policy", "/namespaces"):
            assert (await api.request("GET", path))[0] == 404


async def create_tasks(api: ApiFixture, *tasks: Task) -> None:
    assert all(answer is True for answer in await api.store.tasks.create(tasks))


async def claim(api: ApiFixture, topic: str, limit: int) -> list[Claim]:
    """Claim `limit` tasks of the topic over all shards."""
    claims: list[Claim] = []
    for shard in api.keys.shards:
        (answer,) = await api.store.tasks.claim(
            [ClaimRequest(topic, shard.index, limit - len(claims))], NOW, NOW + 30_000
        )
        assert isinstance(answer, ClaimResult)
        claims += answer.claims
        if len(claims) == limit:
            break
    return claims


async def settle(api: ApiFixture, claims: Sequence[Claim], target: SettleTarget) -> None:
    verdict = Verdict(target, NOW + 60_000, FAILURE)
    assert all(await api.store.tasks.settle([Settlement(claim, verdict, None) for claim in claims]))


async def list_pages(api: ApiFixture, query: str) -> list[list[str]]:
    """Return the names on each page, up to the last."""
    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        status, answer = await api.get(f"/topics?{query}" + (f"&cursor={cursor}" if cursor else ""))
        assert status == 200
        pages.append([topic["topic"] for topic in answer["topics"]])
        cursor = answer["cursor"]
    return pages


class TestCounts:
    @each_case("shards", [1, 4])
    async def test_a_topic_is_counted_over_shards_and_buckets(self, shards: int) -> None:
        async with serve_api(shards=shards) as api:
            await create_tasks(api, *(a_task(delay=-9) for _ in range(40)), *(a_task(delay=5) for _ in range(3)))
            claims = await claim(api, "order", 30)
            await settle(api, claims[:4], SettleTarget.ERROR)
            await settle(api, claims[4:7], SettleTarget.DEAD)
            await create_tasks(api, a_task(topic="shop/mail", execute_at=LOW - 500), a_task(topic="shop/mail"))
            order = {
                "delay": 13,
                "unack": 23,
                "error": 4,
                "dead": 3,
                "due": 10,
                "oldest_lateness_s": 8.998,
                **NO_LIMITS,
            }
            mail = {**NO_TASKS, "delay": 2, "due": 1, "oldest_lateness_s": 0.5}
            assert await api.get("/topics") == ok(
                topics=[{"topic": "order", **order}, {"topic": "shop/mail", **mail}], cursor=None
            )
            policy = format_policy(DEFAULT_POLICY)
            assert await api.get("/topics/order") == ok(topic="order", namespace="default", **order, policy=policy)
            assert await api.get("/topics/shop%2Fmail") == ok(
                topic="shop/mail", namespace="shop", **mail, policy=policy
            )

    @each_case("bucket", Bucket)
    async def test_a_topic_with_tasks_in_one_bucket_is_listed(self, bucket: Bucket) -> None:
        async with serve_api(shards=4) as api:
            await create_tasks(api, a_task())
            if bucket is not Bucket.DELAY:
                claims = await claim(api, "order", 1)
                target = {Bucket.ERROR: SettleTarget.ERROR, Bucket.DEAD: SettleTarget.DEAD}.get(bucket)
                await settle(api, claims if target else [], target or SettleTarget.DONE)
            assert await api.get("/topics") == ok(topics=[{"topic": "order", **NO_TASKS, bucket: 1}], cursor=None)

    async def test_a_topic_whose_tasks_are_done_is_not_listed(self, api: ApiFixture) -> None:
        await create_tasks(api, a_task())
        await settle(api, await claim(api, "order", 1), SettleTarget.DONE)
        assert await api.get("/topics") == ok(topics=[], cursor=None)

    async def test_a_topic_says_what_holds_its_due_tasks_and_its_limits(self) -> None:
        async with serve_api(shards=4) as api:
            late = [a_task(topic=topic, delay=-9) for topic in ("a", "b", "c", "d", "e", "f") for _ in range(3)]
            await create_tasks(api, *late)
            settings: dict[str, dict[str, Any]] = {
                "a": {"rate": 0.5},
                "b": {"concurrency": 2},
                "c": {"paused": True},
                "d": {"deliver": "pull"},
            }
            for topic, fields in settings.items():
                await api.request("PATCH", f"/topics/{topic}/policy", fields)
            await claim(api, "b", 2)
            wakes = api.store.keys.shards[2].wakes[Bucket.DELAY]
            holds = {"a": hold_entry(NOW + 2000, for_rate=True), "e": hold_entry(NOW + 9000)}
            await api.redis.zadd(wakes, holds)
            held = {"a": "rate", "b": "concurrency", "c": "pause", "d": "pull", "e": "receiver", "f": "no"}
            _, page = await api.get("/topics")
            assert {topic["topic"]: topic["held"] for topic in page["topics"]} == held
            for listed in page["topics"]:
                _, shown = await api.get(f"/topics/{listed['topic']}")
                assert {**listed, "namespace": "default", "policy": shown["policy"]} == shown
                limits: dict[str, Any] = {"rate": None, "concurrency": None, "paused": False, "deliver": "push"}
                assert {name: shown[name] for name in limits} == limits | settings.get(listed["topic"], {})

    async def test_a_paused_topic_without_due_tasks_is_held_by_nothing(self, api: ApiFixture) -> None:
        await api.request("PATCH", "/topics/order/policy", {"paused": True})
        _, topic = await api.get("/topics/order")
        assert (topic["held"], topic["paused"]) == ("no", True)

    async def test_a_page_of_topics_costs_few_round_trips(self) -> None:
        async with serve_api(shards=16) as api:
            await create_tasks(api, *(a_task(topic=f"t{number:03}") for number in range(110)))
            await api.get("/topics")
            async with count_round_trips(api.store) as round_trips:
                await api.get("/topics")
            # policies, names, and 101 topics with 4 buckets in each of 16 shards
            assert len(round_trips) <= 2 + -(-101 * 4 * 16 // 1200)

    async def test_an_unused_topic_is_shown_with_the_policy_that_would_apply(self, api: ApiFixture) -> None:
        await api.request("PUT", "/namespaces/shop/policy", {"max_delay": 900})
        policy = {**format_policy(DEFAULT_POLICY), "max_delay": 900}
        assert await api.get("/topics/shop%2Fx") == ok(topic="shop/x", namespace="shop", **NO_TASKS, policy=policy)
        assert await api.get("/topics") == ok(topics=[], cursor=None)

    async def test_default_x_is_the_same_topic_as_x(self, api: ApiFixture) -> None:
        await create(api, topic="default/x")
        assert (await api.get("/topics/default%2Fx"))[1]["topic"] == "x"
        assert (await api.get("/topics/x"))[1]["delay"] == 1

    async def test_a_topic_with_its_own_policy_is_listed_until_that_is_removed(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"retry": 1})
        assert await list_pages(api, "") == [["order"]]
        await api.request("DELETE", "/topics/order/policy")
        assert await list_pages(api, "") == [[]]

    @each_case("path", ["/topics", "/topics/order"])
    async def test_an_unavailable_store_is_503(self, api: ApiFixture, path: str) -> None:
        await api.lose_store()
        assert (await api.get(path))[0] == 503

    async def test_an_unavailable_shard_is_503(self) -> None:
        async with serve_api(shards=4) as api:
            api.client.shards_down = [2]
            assert [(await api.get(path))[0] for path in ("/topics", "/topics/order")] == [503, 503]


class TestPages:
    async def test_topics_are_sorted_by_their_bytes(self, api: ApiFixture) -> None:
        names = ["a", "B", "é", "z", "aa", "a/b", "A", "😀", "\uffee", "default/x/y"]
        await create_tasks(api, *(a_task(topic=name) for name in names))
        expected = sorted(names, key=str.encode)
        assert await list_pages(api, "") == [expected]
        assert await list_pages(api, "limit=4") == [expected[:4], expected[4:8], expected[8:]]
        assert await list_pages(api, "limit=5") == [expected[:5], expected[5:]]

    @each_case("shards", [1, 4])
    async def test_a_page_holds_a_hundred_topics_by_default(self, shards: int) -> None:
        names = [f"t{n:04}" for n in range(1005)]
        async with serve_api(shards=shards) as api:
            await create_tasks(api, *(a_task(topic=name) for name in names[::2]))
            for name in names[1:20:2]:
                await api.request("PUT", f"/topics/{name}/policy", {"retry": 1})
            used = sorted({*names[::2], *names[1:20:2]})
            assert [len(page) for page in await list_pages(api, "")] == [100, 100, 100, 100, 100, 13]
            assert await list_pages(api, "limit=1000") == [used]

    async def test_a_cursor_stays_valid_while_topics_come_and_go(self, api: ApiFixture) -> None:
        await create_tasks(api, *(a_task(topic=name) for name in "bdfh"))
        _, first = await api.get("/topics?limit=2")
        await create_tasks(api, a_task(topic="a"), a_task(topic="e"))
        await settle(api, [*await claim(api, "d", 1), *await claim(api, "f", 1)], SettleTarget.DONE)
        assert [topic["topic"] for topic in first["topics"]] == ["b", "d"]
        status, second = await api.get(f"/topics?limit=2&cursor={first['cursor']}")
        assert [topic["topic"] for topic in second["topics"]] == ["e", "h"]
        assert (status, second["cursor"]) == (200, None)

    async def test_a_cursor_after_the_last_topic_gives_an_empty_page(self, api: ApiFixture) -> None:
        await create_tasks(api, a_task(topic="a"), a_task(topic="b"))
        _, first = await api.get("/topics?limit=1")
        await settle(api, await claim(api, "b", 1), SettleTarget.DONE)
        assert await api.get(f"/topics?cursor={first['cursor']}") == ok(topics=[], cursor=None)

    async def test_a_namespace_lists_only_its_own_topics(self, api: ApiFixture) -> None:
        await create_tasks(
            api, *(a_task(topic=name) for name in ("x", "shop/a", "shop/b/c", "shopping/a", "default/x/y", "shop"))
        )
        await api.request("PUT", "/topics/shop%2Fz/policy", {"retry": 1})
        await api.request("PUT", "/namespaces/shop/policy", {"retry": 1})
        assert await list_pages(api, "namespace=shop&limit=2") == [["shop/a", "shop/b/c"], ["shop/z"]]
        assert await list_pages(api, "namespace=default") == [["default/x/y", "shop", "x"]]
        assert await list_pages(api, "namespace=nobody") == [[]]

    @each_case("limit", ["0", "-1", "1001", "", "x", "1.0", "%2B5", "+5", "1e2", "00001", "%D9%A3", "9" * 5000])
    async def test_a_limit_is_an_integer_up_to_1000(self, api: ApiFixture, limit: str) -> None:
        status, answer = await api.request("GET", f"/topics?limit={limit}")
        assert (status, answer["field"]) == (400, "limit")
        assert answer["detail"].startswith("limit: expected an integer from 1 to 1000, got ")

    @each_case("cursor", ["", "x", "!", "b3Jk ZXI", "b3JkZXI=", "_w", "w6", "%C3%A9", "b3JkZXJ"])
    async def test_a_cursor_must_be_one_that_was_given_out(self, api: ApiFixture, cursor: str) -> None:
        status, answer = await api.request("GET", f"/topics?cursor={quote(cursor, safe='%')}")
        assert (status, answer["field"]) == (400, "cursor")

    @each_case(
        ("query", "field"),
        [
            ("namespace=", "namespace"),
            ("namespace=a%0A", "namespace"),
            ("names=x", "names"),
            ("limit=1&limit=2", "limit"),
        ],
    )
    async def test_other_parameters_are_refused_by_name(self, api: ApiFixture, query: str, field: str) -> None:
        status, answer = await api.request("GET", f"/topics?{query}")
        assert (status, answer["field"]) == (400, field)

    async def test_a_query_that_is_not_utf8_is_refused(self, api: ApiFixture) -> None:
        answer = await api.request("GET", "/topics?namespace=%FF")
        assert answer == bad_request("expected a query of percent-encoded UTF-8")

    @each_case("path", ["/topics", "/topics/order"])
    async def test_topics_can_only_be_read(self, api: ApiFixture, path: str) -> None:
        async with api.http.post(path) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")


class TestCreatesObeyChangesAtOnce:
    async def test_a_create_obeys_the_limit_of_its_topic(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"max_delay": 5})
        assert (await create(api, delay=5))[0] == 200
        assert (await create(api, execute_time=NOW / 1000 + 5))[0] == 200
        words = "Exceeds max allowed delivery delay of 5000 milliseconds"
        assert await create(api, delay=5.001) == bad_request(words, "delay")
        assert await create(api, execute_time=NOW / 1000 + 5.001) == bad_request(words, "execute_time")
        assert (await create(api, topic="other", delay=6))[0] == 200

    async def test_a_topic_may_lift_the_limit_of_its_namespace(self, api: ApiFixture) -> None:
        await api.request("PUT", "/namespaces/shop/policy", {"max_delay": 5})
        await api.request("PUT", "/topics/shop%2Ffree/policy", {"max_delay": 0})
        statuses = [(await create(api, topic=topic, delay=6))[0] for topic in ("shop/x", "shop/free", "x")]
        assert statuses == [400, 200, 200]

    async def test_a_removed_limit_no_longer_applies(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"max_delay": 5, "retry": 1})
        await api.request("PATCH", "/topics/order/policy", {"max_delay": None})
        assert (await create(api, delay=6))[0] == 200

    async def test_a_create_takes_defaults_from_the_policy(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"default_delay": 15, "retry": 7, "ttl": 60})
        await create(api, id="a")
        _, task = await api.post("/query", {"id": "a"})
        assert (task["due_at"], task["max_retry"]) == ("2027-01-15T08:00:15.000Z", 7)
        assert task["expires_at"] == "2027-01-15T08:01:00.000Z"

    async def test_a_topic_without_delays_refuses_a_delay(self, api: ApiFixture) -> None:
        await api.request("PUT", "/namespaces/default/policy", {"delays": False})
        assert (await create(api))[0] == 200
        status, answer = await create(api, delay=1)
        assert (status, answer["field"]) == (400, "delay")

    async def test_a_batch_obeys_the_policy_too(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/order/policy", {"max_delay": 5})
        _, answer = await api.post("/create/batch", [{**MINIMAL, "delay": 5}, {**MINIMAL, "delay": 6}])
        assert (answer["created"], answer["refused"]) == (1, 1)


class TestPause:
    async def test_a_topic_is_paused_and_resumed_without_a_trace(self, api: ApiFixture) -> None:
        assert await api.post("/topics/order/pause", {}) == (200, {"topic": "order", "paused": True})
        assert await api.get("/topics/order/policy") == (200, {"paused": True})
        assert (await api.post("/create", MINIMAL))[0] == 200
        assert await api.post("/topics/order/resume", {}) == (200, {"topic": "order", "paused": False})
        assert await api.get("/topics/order/policy") == (200, {})

    async def test_a_pause_keeps_other_fields(self, api: ApiFixture) -> None:
        await api.request("PUT", "/topics/shop%2Forder/policy", {"rate": 5})
        await api.post("/topics/shop%2Forder/pause", {})
        assert await api.get("/topics/shop%2Forder/policy") == (200, {"rate": 5, "paused": True})

    async def test_a_topic_of_a_paused_namespace_resumes_alone(self, api: ApiFixture) -> None:
        await api.request("PUT", "/namespaces/shop/policy", {"paused": True})
        assert await api.post("/topics/shop%2Forder/resume", {}) == (200, {"topic": "shop/order", "paused": False})
        assert await api.get("/topics/shop%2Forder/policy") == (200, {"paused": False})
        assert (await api.get("/topics/shop%2Fother"))[1]["policy"]["paused"] is True

    async def test_a_topic_resumes_alone_if_its_namespace_is_paused_meanwhile(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        book = api.store.policies
        read, others = book.read, PolicyBook(api.client, api.keys, Policy(), api.store.clock.monotonic)

        async def read_before_the_pause() -> Policies:
            policies = await read()
            if not (await others.read()).settings:
                await others.change(namespace_scope("shop"), lambda before: before.merge({"paused": True}))
            return policies

        monkeypatch.setattr(book, "read", read_before_the_pause)
        assert await api.post("/topics/shop%2Forder/resume", {}) == (200, {"topic": "shop/order", "paused": False})
        assert await api.get("/topics/shop%2Forder/policy") == (200, {"paused": False})

    async def test_a_pause_takes_no_parameters_and_only_a_valid_name(self, api: ApiFixture) -> None:
        assert (await api.post("/topics/order/pause?x=1", {}))[0] == 400
        assert (await api.post("/topics/a%2F/pause", {}))[0] == 400
        assert (await api.request("GET", "/topics/order/pause"))[0] == 405
