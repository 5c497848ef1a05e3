"""Tasks for the console to show: in every state, and with names and contents that a page must take for text."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from tests.system.api_client import call, create, get, post
from tests.system.waiting import wait_until

NOBODY = "http://127.0.0.1:9/"
"""A callback where nobody answers."""
HOSTILE_TOPICS = [
    "a/b", "shop/%2F", "<img src=x onerror=document.title=1>", "\u202egnp.exe", "x" * 255, "😀",
    "'\"><script>1</script>",
    "{{constructor.constructor('document.title=1')()}}", "a?b=c&d#e", "%", "..", "a b",
]  # fmt: skip
HOSTILE_CONTENT = "</script><script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"


def fill(url: str) -> None:
    """Create tasks that wait, tasks that are dead, a paused topic, and tasks with hostile names and contents."""
    for number in range(5):
        create(url, id=f"order-{number}", topic="order", callback=NOBODY, delay=3600 + number, content='{"a": 1}')
        create(url, id=f"dead-{number}", topic="mail", callback=NOBODY, delay=0)
    for number, topic in enumerate(HOSTILE_TOPICS):
        create(url, id=f"hostile-{number}", topic=topic, callback=NOBODY, delay=7200, content=HOSTILE_CONTENT)
    create(url, id="large", topic="large", callback=NOBODY, delay=7200, content="<b>" + "x\u0001" * 100_000)
    assert call(url, "POST", "/topics/order/pause").status == 200
    wait_until(lambda: get(url, "/topics/mail").body["dead"] == 5, "five dead tasks")
    assert post(url, "/query", {"id": "large"}).status == 200


def put_waiting(url: str, topic: str, number: int) -> list[str]:
    """Create tasks that are due in an hour and later, and return their ids in that order."""
    return [create(url, topic=topic, callback=NOBODY, delay=3600 + n) for n in range(number)]


def put_dead(url: str, topic: str, number: int) -> list[str]:
    """Create tasks that die, wait until they have, and return their ids."""
    before = counts(url, topic)["dead"]
    ids = [create(url, topic=topic, callback=NOBODY, delay=0) for _ in range(number)]
    wait_until(lambda: counts(url, topic)["dead"] == before + number, "dead tasks")
    return ids


def pause(url: str, topic: str) -> None:
    """Pause a topic, so that its due tasks stay where they are, and wait until every process obeys."""
    assert call(url, "POST", f"/topics/{quote(topic, safe='')}/pause").status == 200


def counts(url: str, topic: str) -> dict[str, int]:
    """Return the numbers of a topic's tasks by state."""
    answer = get(url, f"/topics/{quote(topic, safe='')}").body
    return {state: answer[state] for state in ("delay", "unack", "error", "dead")}


def states(url: str, ids: Sequence[str]) -> list[str]:
    """Return the state of each task; "gone" if there is none."""
    results = post(url, "/query/batch", [{"id": id} for id in ids]).body["results"]
    return [result.get("state", "gone") for result in results]
