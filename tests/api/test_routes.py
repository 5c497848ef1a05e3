"""The table of routes: both ways to a handler read it, and every route checks its query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yarl import URL

from later.api.authorization import NoScope
from later.api.routes import ROUTES, Route
from later.core.api_keys import Scope
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request, create_bodies, ok
from tests.cases import each_case

EXAMPLES = {
    "topic": "order", "namespace": "shop", "id": "j", "name": "refused", "queue": "jobs", "message": "m", "claim": "c",
    "path": "topics",
}  # fmt: skip


def routes(api: ApiFixture) -> list[Route]:
    return [*api.http.app[ROUTES]]


def example_path(route: Route) -> str:
    """Return a path of this route, its parameters replaced by examples."""
    path = route.template
    for name, example in EXAMPLES.items():
        path = path.replace(f"{{{name}}}", example)
    assert "{" not in path
    return path


def resources(api: ApiFixture) -> Iterator[tuple[str, str]]:
    """Yield the method and path of each of the router's routes, but HEAD, which comes with GET."""
    for route in api.http.app.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            yield route.method, route.resource.canonical


async def test_the_table_holds_every_route_of_the_router(api: ApiFixture) -> None:
    table = sorted((route.method, route.template) for route in routes(api))
    assert table == sorted(resources(api))


async def test_every_route_has_a_scope(api: ApiFixture) -> None:
    assert {type(route.scope) for route in routes(api)} <= {Scope, NoScope}
    open_paths = {route.path for route in routes(api) if route.scope is NoScope.OPEN and not route.is_page}
    about = {"/", "/version", "/openapi.json", "/problems/{name}"}
    assert open_paths == about | {"/livez", "/readyz", "/console/session"}
    assert {route.path for route in routes(api) if route.scope is Scope.METRICS} == {"/metrics"}


async def test_no_route_that_changes_something_is_open_to_readers(api: ApiFixture) -> None:
    readers = {route.path for route in routes(api) if route.method == "POST" and route.scope is Scope.READ}
    assert readers == {"/query", "/query/batch", "/list", "/explain"}
    own = [route for route in routes(api) if not route.is_zaqar and route.path != "/console/session"]
    changes = [route for route in own if route.method in ("PUT", "PATCH", "DELETE")]
    assert {route.scope for route in changes if route.also is None} == {Scope.ADMIN}
    schedules = [route for route in own if route.path.startswith("/schedules") and route.method != "GET"]
    assert [route for route in own if route.also is not None] == schedules
    assert {(route.scope, route.also) for route in schedules} == {(Scope.EDIT, Scope.CREATE)}


async def test_an_unknown_query_parameter_is_refused_and_named(api: ApiFixture) -> None:
    for route in routes(api):
        if route.is_health or route.is_zaqar or route.is_page:
            continue
        status, problem = await api.request(route.method, f"{example_path(route)}?dryrun=true", {})
        assert (status, problem["field"]) == (400, "dryrun"), route
        assert all(name in problem["detail"] for name in route.query)


async def test_a_repeated_query_parameter_is_refused_and_named(api: ApiFixture) -> None:
    detail = "job: expected it once, got it more than once"
    answer = await api.request("POST", "/create/batch?job=a&job=b", create_bodies("a"))
    assert answer == bad_request(detail, "job")
    assert (await api.post("/query", {"id": "a"}))[0] == 404


async def test_health_ignores_its_query(api: ApiFixture) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        async with api.http.get(f"{path}?probe=1&probe=2") as response:
            assert response.status == 200


@each_case(
    ("path", "body", "detail"),
    [
        ("/create?delay=3600", MINIMAL, "delay: unknown parameter, expected no parameters here"),
        ("/delete/batch?pendng=true", [{"id": "a"}], "pendng: unknown parameter, expected only pending or dry_run"),
        ("/create/batch?dryrun=true", [MINIMAL], "dryrun: unknown parameter, expected only job or run or dry_run"),
        ("/create/batch?=1", [MINIMAL], "'': unknown parameter, expected only job or run or dry_run"),
        ("/query?%0A=1", {"id": "a"}, r"\n: unknown parameter, expected no parameters here"),
    ],
)
async def test_a_misspelt_parameter_changes_nothing(api: ApiFixture, path: str, body: Any, detail: str) -> None:
    await api.post("/create", {**MINIMAL, "id": "a"})
    status, problem = await api.request("POST", path, body)
    assert (status, problem["detail"][: len(detail)]) == (400, detail)
    assert (await api.post("/query", {"id": "a"}))[0] == 200
    assert (await api.get("/topics/order"))[1]["delay"] == 1


@each_case("value", ["", "1", "True", "yes", "tru%65x"])
@each_case(
    ("method", "path"),
    [
        ("POST", "/create/batch?dry_run="),
        ("POST", "/delete/batch?pending="),
        ("POST", "/delete/batch?dry_run="),
        ("GET", "/topics/order/policy?applied="),
        ("GET", "/admin/v2/namespaces/public/shop/delayedDelivery?applied="),
    ],
)
async def test_a_switch_takes_only_true_and_false(api: ApiFixture, method: str, path: str, value: str) -> None:
    name = path.partition("?")[2][:-1]
    status, problem = await api.request(method, path + value, create_bodies("a"))
    assert (status, problem["field"]) == (400, name)
    assert (await api.post("/query", {"id": "a"}))[0] == 404


async def test_the_same_path_without_the_fast_way_answers_the_same(api: ApiFixture) -> None:
    fast = [route for route in routes(api) if route.is_fast]
    consumers = {"/claim", "/ack", "/nack", "/release", "/extend"}
    assert {route.path for route in fast} == {"/create", "/query", "/delete"} | consumers
    for body in (b"", b"[]", {"x": 1}, {"id": "nobody's"}):
        for route in fast:
            routed = f"{route.path[:-1]}%{ord(route.path[-1]):x}"
            assert await api.request("POST", route.path, body) == await api.request("POST", routed, body)


@each_case(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Encoding": "compress"}, 415),
        ({"Expect": "bla"}, 417),
        ({}, 400),
    ],
)
async def test_the_same_headers_are_refused_on_both_ways(api: ApiFixture, headers: dict[str, str], status: int) -> None:
    for route in routes(api):
        if route.is_fast:
            routed = f"{route.path[:-1]}%{ord(route.path[-1]):x}"
            url = URL(f"{api.http.make_url('/')}{routed[1:]}", encoded=True)
            for target in (api.http.make_url(route.path), url):
                async with api.http.session.post(target, data=b"{}", headers=headers) as response:
                    assert response.status == status


async def test_jobs_take_no_parameters(api: ApiFixture) -> None:
    await api.post("/create/batch?job=j", create_bodies("a"))
    assert await api.get("/jobs/j") == ok(job="j", created=1, existing=0, refused=0)
    assert (await api.get("/jobs/j?applied=true"))[0] == 400
