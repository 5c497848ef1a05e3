"""Names of tasks: ids, with the namespace in front where callers of a namespace are kept apart from all others.

A caller that is bound to the namespace `team` names its task `order-1` as `team/order-1`, and that is the task's id, so
that no other caller can take, see or forget it. A UUID keeps its 16 bytes in the store: `team/<UUID>` is only the name
by which the store's verbs know whose task it must be. What callers see has the UUID alone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from later.core.policy_scopes import namespace_from_topic
from later.core.task import Task, is_uuid, pack_id

_NAMESPACED_ID = re.compile(r"[A-Za-z0-9._~:%-]{1,765}/[A-Za-z0-9._~:-]{1,128}")


@lru_cache(maxsize=4096)
def name_prefix(namespace: str) -> str:
    """Return how the names of a namespace's tasks begin: `team/`.

    Ids are ASCII, because receivers get them in a header: other characters of the namespace are percent-encoded.
    """
    return f"{quote(namespace, safe=':')}/"


def is_namespaced(text: str) -> bool:
    """Return True if the text has the form of an id with a namespace in front."""
    return _NAMESPACED_ID.fullmatch(text) is not None


def name_of(task: Task) -> str:
    """Return the name of a task: its id, with its namespace in front also if a bound caller has chosen a UUID."""
    return f"{name_prefix(namespace_from_topic(task.topic))}{task.id}" if task.is_namespaced_uuid else task.id


def id_of(name: str) -> str:
    """Return the id that a name stands for, as callers see it."""
    if "/" in name:
        rest = name.partition("/")[2]
        if "/" in rest or is_uuid(rest):
            return rest  # two namespaces: a bound caller's name for what is of another one, which is never found
    return name


def namespace_from_name(name: str) -> str | None:
    """Return the only namespace whose topics may have a task of this name; None if it may be of any."""
    return unquote(name.partition("/")[0]) if "/" in name else None


def can_be_in(name: str, topic: str) -> bool:
    """Return True unless the name is that of a namespace's task, and the topic is of another namespace."""
    return "/" not in name or name.startswith(name_prefix(namespace_from_topic(topic)))


def pack_remembered(name: str) -> bytes:
    """Return the name as it is remembered after its task has ended: a namespace remembers its own UUIDs alone."""
    return name.encode() if "/" in name else pack_id(name)
