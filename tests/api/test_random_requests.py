"""Whatever is sent, with whatever key: no route fails, and none shows or changes what is another tenant's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientError, ClientTimeout
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from yarl import URL

from later.api.routes import ROUTES, Route
from later.core.api_keys import Scope, make_key_text
from later.core.retry import Failure, SettleTarget, Verdict
from later.store.key_book import KeyBook
from later.store.types import ClaimRequest, Settlement
from tests.api.api_fixture import ApiFixture
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.api.random_requests import UUID, RandomRequest, random_requests
from tests.builders import NOW

SECRET = "omega-secret"
"""A text in all that is the tenant omega's but for a UUID and a topic, which callers guess. No caller sends it."""
OWN_TOPIC = f"omega/{SECRET}-topic"
OWN_ID = f"{SECRET}-id"


class Tenants:
    """The API with keys and two tenants, and callers by name. Omega has tasks in every state, a policy and a job."""

    def __init__(self, runner: asyncio.Runner, keyed_api: KeyedApi) -> None:
        self._runner = runner
        self._keyed = keyed_api
        self.api: ApiFixture = keyed_api.api
        self._authorization: dict[str, str | None] = {}
        self.shown: tuple[Any, ...] = ()
        self._stored_keys: Any = None
        """The keys as the store dumps them."""

    @property
    def routes(self) -> list[Route]:
        return [*self.api.http.app[ROUTES]]

    async def start(self) -> None:
        add = self._keyed.add_key
        keys = {
            "omega": await add(*Scope, namespace="omega"),
            "unbound": await add(*Scope),
            "root": self._keyed.root,
            "alpha": await add(*Scope, namespace="alpha"),
            **{f"alpha, {scope}": await add(scope, namespace="alpha") for scope in Scope},
            "omega, limited": await add(*Scope, namespace="omega", rate=0.0001),
            "ended": await add(*Scope, namespace="omega", expires_at=1),
            "revoked": await add(*Scope, namespace="omega"),
            "unknown": make_key_text(),
        }
        await self._keyed.revoke(keys["revoked"])
        other_digit = "0" if keys["omega"][-1] != "0" else "1"
        self._authorization = {
            **{name: f"Bearer {key}" for name, key in keys.items()},
            "none": None,
            "mistyped": f"Bearer {keys['omega'][:-1]}{other_digit}",
            "id of a key": f"Bearer {keys['omega'][:14]}",
            "two keys": f"Bearer {keys['alpha']}, Bearer {keys['omega']}",
            "other scheme": f"Basic {keys['omega']}",
            "empty": "Bearer ",
            "garbage": "Bearer \xff",
        }
        assert (await self._as("omega", "GET", "/whoami"))[0] == 200
        self._stored_keys = await self.api.redis.dump(self.api.keys.api_keys)

    async def fill(self) -> None:
        """Empty the store but for the keys, and let both tenants have tasks; only omega's have its mark."""
        await self.api.redis.flushall()
        await self.api.redis.restore(self.api.keys.api_keys, 0, self._stored_keys)
        await self._create("alpha", "alpha/order", "alpha/other", "a", "plain")
        await self._create("omega", "omega/order", OWN_TOPIC, OWN_ID, SECRET)
        for topic in ("alpha/other", OWN_TOPIC):
            claims = await self._claim(topic)
            mark = SECRET if topic == OWN_TOPIC else "plain"
            failure = Failure(1, "exhausted", 500, f"answered {mark}", NOW, None, 1)
            dead = Verdict(SettleTarget.DEAD, NOW, failure)
            await self.api.store.tasks.settle([Settlement(claims[0], dead, None)])
        self.shown = await self.what_omega_sees()

    async def send(self, request: RandomRequest) -> tuple[int, bytes]:
        """Return the status, and all of the answer as bytes."""
        headers = {**request.headers, "Connection": "close"}  # a server may close after a body that cannot be read
        authorization = self._authorization[request.caller]
        if authorization is not None:
            headers["Authorization"] = authorization
        url = URL(f"{self.api.http.make_url('/')}{request.path[1:]}", encoded=True)
        session, timeout = self.api.http.session, ClientTimeout(10)
        async with session.request(request.method, url, data=request.body, headers=headers, timeout=timeout) as answer:
            head = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
            return answer.status, head.encode() + await answer.read()

    async def what_omega_sees(self) -> tuple[Any, ...]:
        """Return all that is omega's, as the API shows it to omega."""
        queries = [{"id": id} for id in (OWN_ID, f"{OWN_ID}-2", f"{OWN_ID}-3", UUID)]
        return (
            await self._as("omega", "POST", "/query/batch", queries),
            await self._as("omega", "GET", "/topics"),
            await self._as("omega", "GET", f"/topics/{OWN_TOPIC.replace('/', '%2F')}/policy"),
            await self._as("omega", "GET", f"/jobs/{SECRET}"),
            await self._as("omega", "GET", "/jobs"),
        )

    async def _create(self, caller: str, *names: str) -> None:
        topic, other_topic, id, mark = names
        task = {"callback": f"http://{mark}.h/", "content": mark, "headers": {"X-Y": mark}, "delay": 60}
        tasks = [
            {**task, "topic": topic, "id": id},
            {**task, "topic": other_topic, "id": f"{id}-2", "delay": 0},
            {**task, "topic": other_topic, "id": f"{id}-3", "delay": 0},
            *([{**task, "topic": topic, "id": UUID}] if caller == "omega" else []),
        ]
        status, answer = await self._as(caller, "POST", f"/create/batch?job={mark}", tasks)
        assert (status, answer.get("created")) == (200, len(tasks)), answer
        path = f"/topics/{other_topic.replace('/', '%2F')}/policy"
        assert (await self._as(caller, "PATCH", path, {"retry": 3}))[0] == 200

    async def _claim(self, topic: str) -> list[Any]:
        requests = [ClaimRequest(topic, shard.index, 9) for shard in self.api.keys.shards]
        results: list[Any] = await self.api.store.tasks.claim(requests, NOW, NOW + 30_000)
        return [claim for result in results for claim in result.claims]

    async def _as(self, caller: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        key = (self._authorization[caller] or "").removeprefix("Bearer ")
        status, answer, _ = await self._keyed.call(method, path, key, body)
        return status, answer

    def run(self, function: Callable[[], Any]) -> Any:
        return self._runner.run(function())


@pytest.fixture(scope="module")
def tenants() -> Iterator[Tenants]:
    with asyncio.Runner() as runner:
        stack, seconds, root = AsyncExitStack(), Seconds(), make_key_text()
        api = runner.run(stack.enter_async_context(keyed(root, seconds)))
        tenants = Tenants(runner, KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds))
        runner.run(tenants.start())
        yield tenants
        runner.run(stack.aclose())


WITHOUT_RIGHTS = [
    "none", "unknown", "mistyped", "id of a key", "two keys", "other scheme", "empty", "garbage", "ended", "revoked",
]  # fmt: skip
OTHERS = [*["alpha"] * 20, *(f"alpha, {scope}" for scope in Scope), *WITHOUT_RIGHTS]
"""Callers that see nothing of omega's; the one that may do everything to its own namespace comes often."""
ALL = ["omega", "omega, limited", "unbound", "unbound", "root", *OTHERS]
OPEN_PATH = re.compile(r"/(console.*|version|openapi\.json|livez|readyz|problems/.*)?(\?|$)")
ZAQAR_ERROR = re.compile(rb'{"title":"[^"]+","description":"([^"\\]|\\.)+"}\Z')
ZAQAR_STATUSES = {200, 201, 204, 400, 401, 403, 404, 405, 406, 409, 503}
"""Statuses below /v2: Zaqar's clients take most others for success."""
REFUSED_HEADERS = {"Content-Encoding": 415, "Expect": 417, "Origin": 403}
"""Headers for which a request may be refused before its key is looked at."""


def check_examples(tenants: Tenants, callers: list[str], check: Callable[[RandomRequest, int, bytes], None]) -> None:
    """Send lists of random requests by these callers to a store that both tenants use, and check each answer."""

    @given(st.lists(random_requests(tenants.routes, callers), min_size=5, max_size=15))
    def send(requests: list[RandomRequest]) -> None:
        async def send_all() -> None:
            for request in requests:
                try:
                    status, answer = await tenants.send(request)
                except (ClientError, TimeoutError) as error:
                    raise AssertionError(f"no answer to {request}: {error}") from error
                check(request, status, answer)

        with capture_logs() as logs:
            tenants.run(send_all)
        assert [event for event in logs if event["log_level"] in ("error", "critical")] == []

    send()


def test_no_request_makes_a_route_fail(tenants: Tenants) -> None:
    def check(request: RandomRequest, status: int, answer: bytes) -> None:
        is_zaqar = request.path.startswith("/v2/")
        is_too_often = is_zaqar and b"this key may send" in answer
        assert status < 500 or is_too_often, (request, status, answer)
        if is_zaqar:
            assert status in ZAQAR_STATUSES, (request, status, answer)
            if status >= 400 and request.method != "HEAD":
                assert ZAQAR_ERROR.search(answer), (request, status, answer)

    tenants.run(tenants.fill)
    check_examples(tenants, ALL, check)


def test_no_caller_is_shown_or_changes_what_is_another_tenants(tenants: Tenants) -> None:
    def check(request: RandomRequest, status: int, answer: bytes) -> None:
        assert SECRET.encode() not in answer.lower(), (request, status, answer)

    tenants.run(tenants.fill)
    check_examples(tenants, OTHERS, check)
    assert tenants.run(tenants.what_omega_sees) == tenants.shown


def test_no_caller_without_a_key_that_counts_gets_further_than_the_open_routes(tenants: Tenants) -> None:
    def check(request: RandomRequest, status: int, answer: bytes) -> None:
        if OPEN_PATH.match(request.path) is None:
            refused_at_once = {REFUSED_HEADERS.get(name) for name in request.headers}
            if request.path.startswith("/v2/") and "Expect" in request.headers:
                refused_at_once.add(400)  # 417 would be a success to Zaqar's clients
            assert status in {401, 404, 405} | refused_at_once, (request, status, answer)
            assert b"no-such-task" not in answer, (request, status, answer)

    tenants.run(tenants.fill)
    check_examples(tenants, WITHOUT_RIGHTS, check)


def test_the_marks_are_shown_to_their_tenant(tenants: Tenants) -> None:
    """Otherwise the other tests would find nothing anywhere."""
    tenants.run(tenants.fill)
    assert all(SECRET in repr(answer) for answer in tenants.shown[:2])
    states = {task["state"] for task in tenants.shown[0][1]["results"]}
    assert states == {"delay", "unack", "dead"}
