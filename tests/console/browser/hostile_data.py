"""Values that a page must take for text, in every place where a user can put one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import redis

from later.core.heartbeat import Heartbeat, encode_heartbeat
from later.store.keys import Keys
from tests.console.browser.sample_data import NOBODY
from tests.system.api_client import call, create, get, post
from tests.system.receivers import Receiver, status
from tests.system.waiting import wait_until

RUN = "globalThis.ran=1"
"""The script that each payload would run."""
IMAGE = f"<img src=x onerror={RUN}>"
TOPICS = {
    "slash": "a/b", "parent": "../x", "encoded": "%2F", "percent": "100%", "dot": ".", "dots": "..", "markup": IMAGE,
    "namespace of markup": f"{IMAGE}/{IMAGE}", "end of a script": f"</script><script>{RUN}", "query": "a?b=c&d#e",
    "quotes": f"'\"` onload={RUN} x=\"", "script as a URL": f"javascript:{RUN}", "from right to left": "\u202egnp.exe",
    "isolates": "\u2067\u05d0\u2066b\u200f", "letters from right to left": "\u05d0\u05d1 1 \u05d2",
    "unseen": "a\u200bb", "emoji": "\U0001f600", "long": "w" * 255, "plus": "a+b %20c", "prototype": "__proto__",
    "template": "${" + RUN + "}{{" + RUN + "}}",
}  # fmt: skip
IDS = [".", "..", "~", "-", ":", "javascript:ran", "__proto__", "constructor", "new", "W" * 128]
"""Ids of tasks, as far as the rules let them."""
PATH_IDS = [id for id in IDS if id not in (".", "..")]
"""Ids of jobs and schedules."""
SCHEDULE_IDS = [id[:100] for id in PATH_IDS]
CONTENTS = {
    "markup": f"</pre></script><script>{RUN}</script>{IMAGE}",
    "end of a textarea": f"</textarea>{IMAGE}",
    "control characters": "".join(map(chr, range(256))) + "\ufeff\ufffd\uffff\u202e",
    "deep": "[" * 100_000 + "]" * 100_000,
    "a mebibyte of escapes": '["' + '\\"' * 260_000 + '"]',
    "a mebibyte without a space": "\u202e" + "w" * 1_040_000,
    "names of the prototype": '{"__proto__": {"ran": 1}, "constructor": 1, "__proto__": 2}',
}
MESSAGE = f"{IMAGE} \u202etxt.exe {'m' * 120}"
FOLLOWED = "followed"
"""A topic whose policy names others."""
HOST = f"{IMAGE}{'h' * 60}"


def topic_path(topic: str) -> str:
    """Return the path of a topic in the API."""
    return f"/topics/{quote(f'default/{topic}' if topic in ('.', '..') else topic, safe='')}"


def waiting_id(name: str) -> str:
    return f"waits-{list(TOPICS).index(name)}"


def fill_with_hostile_values(url: str, data: Path, receiver: Receiver) -> None:
    """Create what is hostile: a waiting and a dead task of each topic, jobs, schedules, a policy and an instance."""
    receiver.rules["/fails"] = status(500, headers={"Later-Reason": quote(MESSAGE)})
    fails = {"callback": receiver.url(f"/fails?{quote(RUN)}"), "content": CONTENTS["markup"]}
    for number, topic in enumerate(TOPICS.values()):
        create(url, id=f"waits-{number}", topic=topic, delay=7200, **fails)
        create(url, id=f"died-{number}", topic=topic, delay=0, **fails)
    for number, content in enumerate(CONTENTS.values()):
        create(url, id=f"content-{number}", topic="contents", callback=NOBODY, delay=7200, content=content)
    for id in IDS:
        create(url, id=id, topic="ids", callback=NOBODY, delay=7200)
    for id in PATH_IDS:
        job = f"/create/batch?job={quote(id, safe='')}"
        assert post(url, job, [{"topic": "jobs", "callback": NOBODY, "delay": 7200}]).status == 200
    for id, topic in zip(SCHEDULE_IDS, TOPICS.values(), strict=False):
        schedule = {"topic": topic, "callback": NOBODY, "every": 86_400, "start": "2100-01-01T00:00:00Z"}
        assert call(url, "PUT", f"/schedules/{quote(id, safe='')}", schedule).status == 200
    policy = {
        "dead_to": IMAGE,
        "on_done": TOPICS["from right to left"],
        "callback": f"http://127.0.0.1:9/?{quote(RUN)}",
    }
    assert call(url, "PATCH", f"/topics/{FOLLOWED}/policy", policy).status == 200
    create(url, id="followed", topic=FOLLOWED, delay=0, callback=fails["callback"])
    write_instance(data)
    wait_until(lambda: _has_died(url), "the tasks that are due have died")


def _has_died(url: str) -> bool:
    is_dead = [get(url, topic_path(topic)).body["dead"] for topic in TOPICS.values()]
    return all(is_dead) and post(url, "/query", {"id": "followed"}).body.get("state") == "dead"


def write_instance(data: Path) -> None:
    """Write the heartbeat of an instance whose host has a hostile name, as if it had come just now."""
    with redis.Redis(unix_socket_path=str(data / "store.sock")) as store:
        seconds, micros = store.time()
        now = seconds * 1000 + micros // 1000
        heartbeat = Heartbeat(
            role="worker", version=IMAGE, host=HOST, processes=1, slots=4, slots_in_use=1, since=now, at=now,
            clock_offset_ms=0,
        )  # fmt: skip
        store.hset(Keys("later", 1).instances, f"{HOST}:1:ffff", encode_heartbeat(heartbeat))
