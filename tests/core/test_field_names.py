"""Fields that an unknown name is probably meant for."""

from __future__ import annotations

import pytest

from later.core.errors import Refused
from later.core.field_names import suggest_field
from later.core.json_body import parse_draft
from later.core.task import Draft
from tests.cases import each_case

FIELDS = Draft.__struct_fields__


@each_case(
    ("field", "names"),
    [
        ("execute_time", "at eta when run_at runAt due_at execute-time executeTime EXECUTE_TIME excute_time"),
        ("delay", "countdown defer_by Delay dealy deley delays"),
        ("retry", "retries max_retry maxRetries max-retries retrys"),
        ("content", "payload body data Content contnet"),
        ("callback", "url callback_url callbackUrl calback"),
        ("id", "key task_id"),
        ("headers", "header Headers"),
        ("topic", "queue topics"),
    ],
)
def test_a_name_of_another_tool_or_a_misspelling_means_a_field(field: str, names: str) -> None:
    assert {name: suggest_field(name, FIELDS) for name in names.split()} == dict.fromkeys(names.split(), field)


@each_case("name", ["", "colour", "x", "\ud800", "x" * 1_000_000, "priority"])
def test_any_other_name_means_nothing(name: str) -> None:
    assert suggest_field(name, FIELDS) is None


def test_only_known_fields_are_meant() -> None:
    assert suggest_field("at", ["id", "topic"]) is None


@each_case(
    ("body", "detail"),
    [
        (b'{"at": 5}', "at: unknown field; did you mean execute_time?"),
        (b'{"colour": 5}', "colour: unknown field"),
        (b'{"timeout": 5}', "timeout: not a field of this version"),
        (b'{"cron": 5}', "cron: not a field of this version"),
    ],
)
def test_a_refusal_asks_whether_the_field_was_meant(body: bytes, detail: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_draft(body)
    assert caught.value.detail == detail
