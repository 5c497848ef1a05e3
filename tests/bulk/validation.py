"""Validation of the bodies that are sent: they are parsed and admitted as by the daemon."""

from __future__ import annotations

from collections.abc import Iterable

from later.bulk.input.column_names import TimeRules
from later.bulk.input.payload import Parsed
from later.core.admit import admit
from later.core.errors import Refused
from later.core.json_body import parse_draft
from later.core.policy import DEFAULT_POLICY, Policy
from later.core.policy_scopes import Policies
from later.core.task import Task
from tests.builders import NOW

CALLBACK = "http://127.0.0.1:8888/success"
NOW_S = NOW // 1000
NO_TIME_NEEDED = TimeRules(all_now=True, null_now=True)


def validate_bodies(bodies: Iterable[bytes], policy: Policy = DEFAULT_POLICY) -> list[Task | Refused]:
    """Return the task or the refusal of each body."""
    results: list[Task | Refused] = []
    for body in bodies:
        assert b"\n" not in body, "a batch is sent as lines: no body may have a line end"
        try:
            results.append(admit(parse_draft(body), Policies(policy), NOW, "generated-id"))
        except Refused as error:
            results.append(error)
    return results


def accepted_tasks(parsed: Parsed) -> list[Task]:
    """Return the tasks of rows that must all be valid."""
    assert parsed.rejected == []
    tasks = [task for task in validate_bodies(parsed.payloads.bodies) if isinstance(task, Task)]
    assert [task.id for task in tasks] == parsed.payloads.ids
    return tasks


def rejection_reasons(parsed: Parsed) -> list[str]:
    """Return the reasons of all rejected rows: first the reader's, then the daemon's."""
    results = validate_bodies(parsed.payloads.bodies)
    return [reject.reason for reject in parsed.rejected] + [str(e) for e in results if isinstance(e, Refused)]
