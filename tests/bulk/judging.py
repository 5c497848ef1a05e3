"""What `/create` would make of what is sent: the same reading, the same decision."""

from __future__ import annotations

from collections.abc import Iterable

from later.bulk.input.payload import Parsed
from later.core.admit import admit
from later.core.drafts import parse_draft
from later.core.errors import Refused
from later.core.policy import DEFAULT, Policies
from later.core.task import Task
from tests.builders import NOW

CALLBACK = "http://127.0.0.1:8888/success"
NOW_S = NOW // 1000


def judged(bodies: Iterable[bytes]) -> list[Task | Refused]:
    """Each body by itself."""
    return [_judged(body) for body in bodies]


def _judged(body: bytes) -> Task | Refused:
    assert b"\n" not in body, "lines are what is sent"
    try:
        return admit(parse_draft(body), Policies(DEFAULT), NOW, "of later's choosing")
    except Refused as error:
        return error


def tasks(read: Parsed) -> list[Task]:
    """The tasks of rows that are all good."""
    assert read.rejected == []
    came = judged(read.payloads.bodies)
    assert [task.id for task in came if isinstance(task, Task)] == read.payloads.ids
    return [task for task in came if isinstance(task, Task)]


def refusals(read: Parsed) -> list[str]:
    """Why rows that are all bad are refused."""
    came = judged(read.payloads.bodies)
    return [reject.reason for reject in read.rejected] + [str(error) for error in came if isinstance(error, Refused)]
