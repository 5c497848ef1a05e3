"""Changes of a queue's metadata by a JSON patch (draft-ietf-appsawg-json-patch-10), in the dialect of Zaqar's API.

Every change adds, replaces or removes one key, which its path names: `/metadata/key`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from later.core.errors import Conflict, Refused

OPERATIONS = ("add", "remove", "replace")
_ONE_OF_THEM = f"It must be one of the following: {', '.join(OPERATIONS)}."
_ADJACENT_SLASHES = re.compile(r"/\s*?/")
_UNKNOWN_ESCAPE = re.compile(r"~([^01]|$)")


class MetadataChange(NamedTuple):
    """A change of one key. A removal has no value."""

    operation: str
    key: str
    value: object = None


def parse_patch(patch: Sequence[object]) -> list[MetadataChange]:
    """Return the changes that a patch asks for. Raises Refused, with Zaqar's sentence."""
    return [_parse_change(change) for change in patch]


def apply_patch(
    changes: Sequence[MetadataChange], metadata: Mapping[str, object], reserved: Collection[str]
) -> dict[str, object]:
    """Return metadata with these changes. A `reserved` key may be replaced or removed, whether it is set or not.

    Raises:
        Conflict: another key that is to be replaced or removed is not there.
    """
    changed = dict(metadata)
    for operation, key, value in changes:
        if operation != "add" and key not in changed and key not in reserved:
            raise Conflict(f"Can't {operation} non-existent object {key}.")
        if operation == "remove":
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed


def _parse_change(change: object) -> MetadataChange:
    if not isinstance(change, dict):
        raise Refused("Operations must be JSON objects.")
    operation = change.get("op")
    if operation is None:
        raise Refused(f"Unable to find `op` in JSON Schema change. {_ONE_OF_THEM}")
    if operation not in OPERATIONS:
        raise Refused(f"Invalid operation: `{operation}`. {_ONE_OF_THEM}")
    if "path" not in change:
        raise Refused("Unable to find 'path' in JSON Schema change")
    path = _parse_pointer(change["path"])
    if len(path) != 2:
        raise Refused(f"Invalid JSON pointer for this resource: '/{'/'.join(path)}, e.g /metadata/key'")
    root, key = path
    if operation == "remove":
        return MetadataChange(operation, key)
    if "value" not in change:
        raise Refused(f'Operation "{operation}" requires a member named "value".')
    if root.lower() != "metadata":
        raise Refused("The root of path must be metadata, e.g /metadata/key.")
    return MetadataChange(operation, key, change["value"])


def _parse_pointer(pointer: object) -> list[str]:
    """Return the parts of a JSON pointer (draft-pbryan-zyp-json-pointer). Raises Refused."""
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise Refused(f'Pointer `{pointer}` does not start with "/".')
    if _ADJACENT_SLASHES.search(pointer[1:]):
        raise Refused(f'Pointer `{pointer}` contains adjacent "/".')
    if len(pointer) > 1 and pointer.endswith("/"):
        raise Refused(f'Pointer `{pointer}` end with "/".')
    if pointer[1:].strip() == "/":
        raise Refused(f"Pointer `{pointer}` does not contains valid token.")
    if _UNKNOWN_ESCAPE.search(pointer):
        raise Refused(f'Pointer `{pointer}` contains "~" not part of a recognized escape sequence.')
    parts = pointer.lstrip("/").split("/")
    return [part.replace("~1", "/").replace("~0", "~").strip() for part in parts]
