"""JSON patches of a queue's metadata, in the dialect of Zaqar, with its sentences."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.errors import Conflict, Refused
from later.core.json_patch import MetadataChange, apply_patch, parse_patch
from tests.cases import each_case

ONE_OF = "It must be one of the following: add, remove, replace."
TILDE = 'contains "~" not part of a recognized escape sequence.'


def add(path: Any, **more: Any) -> list[object]:
    return [{"op": "add", "path": path, "value": 1, **more}]


@each_case(
    "patch, changes",
    [
        ([], []),
        (add("/metadata/key"), [MetadataChange("add", "key", 1)]),
        (add("/METADATA/key", value=None), [MetadataChange("add", "key", None)]),
        (add("/metadata/a~1b~0c"), [MetadataChange("add", "a/b~c", 1)]),
        (add("/metadata/~01"), [MetadataChange("add", "~1", 1)]),
        (add("//metadata/ key "), [MetadataChange("add", "key", 1)]),
        ([{"op": "remove", "path": "/metadata/key"}], [MetadataChange("remove", "key")]),
        ([{"op": "replace", "path": "/metadata/key", "value": []}], [MetadataChange("replace", "key", [])]),
        (add("/metadata/a") + add("/metadata/b"), [MetadataChange("add", "a", 1), MetadataChange("add", "b", 1)]),
    ],
)
def test_a_patch_names_one_key_for_each_change(patch: list[object], changes: list[MetadataChange]) -> None:
    assert parse_patch(patch) == changes


@each_case(
    "patch, sentence",
    [
        ([1], "Operations must be JSON objects."),
        ([{"path": "/metadata/a"}], f"Unable to find `op` in JSON Schema change. {ONE_OF}"),
        (add("/metadata/a", op="move"), f"Invalid operation: `move`. {ONE_OF}"),
        (add("/metadata/a", op=["add"]), f"Invalid operation: `['add']`. {ONE_OF}"),
        ([{"op": "add", "value": 1}], "Unable to find 'path' in JSON Schema change"),
        (add("metadata/a"), 'Pointer `metadata/a` does not start with "/".'),
        (add(""), 'Pointer `` does not start with "/".'),
        (add(7), 'Pointer `7` does not start with "/".'),
        (add("/metadata//a"), 'Pointer `/metadata//a` contains adjacent "/".'),
        (add("/metadata/ /a"), 'Pointer `/metadata/ /a` contains adjacent "/".'),
        (add("/metadata/"), 'Pointer `/metadata/` end with "/".'),
        (add("// "), "Pointer `// ` does not contains valid token."),
        (add("/metadata/a~2"), f"Pointer `/metadata/a~2` {TILDE}"),
        (add("/metadata/a~"), f"Pointer `/metadata/a~` {TILDE}"),
        (add("/a"), "Invalid JSON pointer for this resource: '/a, e.g /metadata/key'"),
        (add("/metadata/a/b"), "Invalid JSON pointer for this resource: '/metadata/a/b, e.g /metadata/key'"),
        (add("/"), "Invalid JSON pointer for this resource: '/, e.g /metadata/key'"),
        ([{"op": "replace", "path": "/metadata/a"}], 'Operation "replace" requires a member named "value".'),
        (add("/meta/a"), "The root of path must be metadata, e.g /metadata/key."),
    ],
)
def test_a_wrong_patch_is_refused_in_zaqars_words(patch: list[object], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_patch(patch)
    assert refused.value.detail == sentence


RESERVED = {"_reserved"}


def changed(metadata: dict[str, object], *changes: MetadataChange) -> dict[str, object]:
    return apply_patch(changes, metadata, RESERVED)


def test_changes_are_made_one_after_the_other() -> None:
    before: dict[str, object] = {"a": 1, "b": 2}
    changes = [MetadataChange("remove", "a"), MetadataChange("add", "a", 3), MetadataChange("replace", "b", None)]
    assert changed(before, *changes) == {"a": 3, "b": None}
    assert before == {"a": 1, "b": 2}


def test_reserved_keys_are_replaced_and_removed_whether_they_are_set_or_not() -> None:
    assert changed({}, MetadataChange("replace", "_reserved", 5)) == {"_reserved": 5}
    assert changed({"_reserved": 5}, *[MetadataChange("remove", "_reserved")] * 2) == {}


@each_case("operation", ["replace", "remove"])
def test_what_is_not_there_cannot_be_replaced_or_removed(operation: str) -> None:
    with pytest.raises(Conflict, match=f"^Can't {operation} non-existent object key\\.$"):
        changed({"other": 1}, MetadataChange(operation, "key", 1))
