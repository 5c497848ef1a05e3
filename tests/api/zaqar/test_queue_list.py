"""`GET /v2/queues`: a project's queues by name, in pages, filtered, counted."""

from __future__ import annotations

from typing import Any

import pytest

from later.api.zaqar import queue_list
from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import PROJECT, ZaqarApi
from tests.builders import a_task
from tests.cases import each_case

QUEUES = "/v2/queues"


async def make(zaqar: ZaqarApi, **queues: object) -> None:
    """Make queues with these metadata, by name."""
    for name, metadata in queues.items():
        assert (await zaqar.call("PUT", f"{QUEUES}/{name}", metadata)).status == 201


async def listed(zaqar: ZaqarApi, query: str = "") -> dict[str, Any]:
    answer = await zaqar.call("GET", f"{QUEUES}?{query}")
    assert answer.status == 200
    return dict(answer.body)


async def names(zaqar: ZaqarApi, query: str = "") -> list[str]:
    return [queue["name"] for queue in (await listed(zaqar, query))["queues"]]


async def test_a_project_without_queues_has_an_empty_list(zaqar: ZaqarApi) -> None:
    assert await listed(zaqar, "with_count=true") == {"queues": [], "links": []}


async def test_queues_are_listed_by_name_with_their_paths(zaqar: ZaqarApi) -> None:
    await make(zaqar, q2={"node": 32}, q1={"node": 31})
    assert await listed(zaqar) == {
        "queues": [{"name": "q1", "href": "/v2/queues/q1"}, {"name": "q2", "href": "/v2/queues/q2"}],
        "links": [{"rel": "next", "href": "/v2/queues?marker=q2"}],
    }


@each_case("detailed", ["True", "true", "1"])
async def test_a_detailed_list_has_the_metadata_that_each_queue_shows(zaqar: ZaqarApi, detailed: str) -> None:
    await zaqar.call("PUT", f"{QUEUES}/q1", {"node": 31, "_default_message_delay": 2})
    [queue] = (await listed(zaqar, f"detailed={detailed}"))["queues"]
    assert queue["metadata"] == (await zaqar.call("GET", queue["href"])).body
    assert queue["metadata"]["node"] == 31


async def test_other_projects_are_not_listed(zaqar: ZaqarApi, api: ApiFixture) -> None:
    await make(zaqar, q1={})
    others = [ZaqarApi(api, project=project) for project in (f"{PROJECT}0", "default", PROJECT[:-1])]
    for other in others:
        await make(other, q2={}, q3={})
        assert await names(other) == ["q2", "q3"]
        assert (await listed(other, "with_count=1"))["count"] == 2
    assert await names(zaqar) == ["q1"]


async def test_a_topic_with_tasks_is_listed_and_one_that_no_queue_can_be_is_not(
    zaqar: ZaqarApi, api: ApiFixture
) -> None:
    topics = ["pushed", "two words", "a/b", "x" * 65]
    await api.store.tasks.create([a_task(topic=f"{PROJECT}/{topic}") for topic in topics])
    assert await names(zaqar, "limit=1") == ["pushed"]
    assert (await listed(zaqar, "with_count=true"))["count"] == 1


async def test_pages_follow_their_links_to_the_end(zaqar: ZaqarApi) -> None:
    await make(zaqar, **{f"q{n}": {} for n in range(5)})
    pages = [await listed(zaqar, "limit=2&detailed=False&with_count=True")]
    while pages[-1]["links"]:
        [link] = pages[-1]["links"]
        assert link["href"].startswith("/v2/queues?limit=2&detailed=False&with_count=True&marker=")
        assert pages[-1]["count"] == 5
        pages.append((await zaqar.call("GET", link["href"])).body)
    found = [[queue["name"] for queue in page["queues"]] for page in pages]
    assert found == [["q0", "q1"], ["q2", "q3"], ["q4"], []]


async def test_a_page_has_ten_queues_unless_it_says_otherwise(zaqar: ZaqarApi) -> None:
    await make(zaqar, **{f"q{n:02d}": {} for n in range(21)})
    assert len(await names(zaqar)) == 10
    assert len(await names(zaqar, "limit=20")) == 20


async def test_a_marker_need_not_exist(zaqar: ZaqarApi) -> None:
    await make(zaqar, a={}, c={})
    assert await names(zaqar, "marker=b") == ["c"]
    assert await names(zaqar, "marker=zzz") == []
    assert await names(zaqar, "marker=a%2Fb%20%C3%A4") == ["c"]


@each_case(
    "query, found",
    [
        ("name=q", ["q1", "q2", "q3", "q4"]),
        ("name=2", ["q2"]),
        ("name=q.", []),
        ("test_metadata_key1=value1", ["q1"]),
        ("name=q&test_metadata_key2=30", ["q3"]),
        ("test_metadata_key2=-30", ["q4"]),
        ("test_metadata_key2=31", []),
        ("_max_messages_post_size=2000", ["q2"]),
        ("_default_message_delay=5", ["q4"]),
        ("flag=1", []),
        ("name=q&limit=2", ["q1", "q2"]),
        ("name=q&limit=2&marker=q2", ["q3", "q4"]),
        ("name=&unknown=", ["other", "q1", "q2", "q3", "q4"]),
    ],
)
async def test_a_list_may_be_filtered_by_name_and_by_metadata(zaqar: ZaqarApi, query: str, found: list[str]) -> None:
    queues: dict[str, dict[str, object]] = {
        "q1": {"test_metadata_key1": "value1"},
        "q2": {"_max_messages_post_size": 2000},
        "q3": {"test_metadata_key2": 30},
        "q4": {"test_metadata_key2": -30, "_default_message_delay": 5, "flag": True},
        "other": {},
    }
    for name, metadata in queues.items():
        await zaqar.call("PUT", f"{QUEUES}/{name}", metadata)
    assert await names(zaqar, query) == found


async def test_a_filter_looks_at_five_hundred_queues_in_a_call(zaqar: ZaqarApi) -> None:
    await zaqar.api.store.tasks.create([a_task(topic=f"{PROJECT}/q{n:03}") for n in range(510)])
    assert await listed(zaqar, "x=1") == {
        "queues": [], "links": [{"rel": "next", "href": "/v2/queues?x=1&marker=q499"}]
    }  # fmt: skip


async def test_a_filter_that_leaves_many_out_answers_a_short_page_that_leads_on(
    zaqar: ZaqarApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_list, "SLICE", 2)
    monkeypatch.setattr(queue_list, "MAX_LOOKED_AT", 4)
    await make(zaqar, **{f"q{n}": {"even": n % 2} for n in range(9)}, r={"even": 7})
    first = await listed(zaqar, "even=7")
    assert first == {"queues": [], "links": [{"rel": "next", "href": "/v2/queues?even=7&marker=q3"}]}
    second = (await zaqar.call("GET", first["links"][0]["href"])).body
    third = (await zaqar.call("GET", second["links"][0]["href"])).body
    assert [queue["name"] for page in (second, third) for queue in page["queues"]] == ["r"]


@each_case(
    "query, error",
    [
        *(
            (f"limit={limit}", ("Invalid API request", "Limit must be at least 1 and no greater than 20."))
            for limit in ("0", "21", "-1")
        ),
        *(
            (
                f"limit={limit}",
                ("Invalid parameter", 'The "limit" parameter is invalid. The value must be an integer.'),
            )
            for limit in ("x", "1.5")
        ),
        *(
            (
                f"{name}=maybe",
                (
                    "Invalid parameter",
                    f'The "{name}" parameter is invalid. The value of the parameter must be "true" or "false".',
                ),
            )
            for name in ("detailed", "with_count")
        ),
    ],
)
async def test_a_wrong_parameter_is_refused(zaqar: ZaqarApi, query: str, error: tuple[str, str]) -> None:
    assert await zaqar.error("GET", f"{QUEUES}?{query}") == (400, *error)
