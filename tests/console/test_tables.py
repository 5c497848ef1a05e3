"""The console's own tables of what the API knows: fields of policies, and reasons of deaths."""

from __future__ import annotations

import re

from later.core.policy import POLICY_FIELDS, PolicyField, ValueKind
from later.core.retry import DEATH_REASONS
from tests.console.test_size_and_content import STATIC

KINDS = {
    ValueKind.DURATION: "duration",
    ValueKind.INTEGER: "number",
    ValueKind.FRACTION: "number",
    ValueKind.RATE: "number",
    ValueKind.SWITCH: "switch",
    ValueKind.TOPIC: "text",
    ValueKind.URL: "text",
}


def read_block(path: str, start: str) -> str:
    """Return the text of an object or array of a file, from its start to the end of its statement."""
    text = (STATIC / path).read_text()
    return text[text.index(start) + len(start) :].partition(";\n")[0]


def kind_of(field: PolicyField) -> str | list[str]:
    return list(field.choices) if field.kind is ValueKind.CHOICE else KINDS[field.kind]


def test_the_policy_form_has_every_field_with_its_kind() -> None:
    block = read_block("lib/policy_fields.js", "export const FIELD_GROUPS =")
    entries = re.findall(r'(\w+): (?:"(\w+)"|(\[[^\]]*\]))', block)
    shown = {name: kind or re.findall(r'"([\w-]+)"', choices) for name, kind, choices in entries}
    assert shown == {name: kind_of(field) for name, field in POLICY_FIELDS.items()}


def test_every_field_of_a_policy_is_explained() -> None:
    words = read_block("lib/words/topic.js", "export const fieldWords =")
    assert set(re.findall(r"(\w+): \"", words)) == set(POLICY_FIELDS)


def test_what_zero_means_is_said_of_every_field_that_has_a_meaning() -> None:
    words = read_block("lib/words/topic.js", "export const zeroWords =")
    assert set(re.findall(r"(\w+): \"", words)) == {name for name, field in POLICY_FIELDS.items() if field.zero}


def test_the_page_of_dead_tasks_knows_every_reason() -> None:
    reasons = re.findall(r'"([a-z ]+)"', read_block("pages/dead.js", "const REASONS ="))
    assert sorted(reasons) == sorted(DEATH_REASONS)
    meanings = read_block("lib/words/dead.js", "meanings:").partition("},\n")[0]
    assert set(re.findall(r'(?:^|[{,\n])\s*"?([a-z ]+?)"?: "', meanings)) == set(DEATH_REASONS)
