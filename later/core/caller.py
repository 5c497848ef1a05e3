"""The caller of the API: what its key allows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from later.core.api_keys import ALL_SCOPES, ApiKey, Scope, format_scopes
from later.core.errors import NotAllowed, Refused
from later.core.policy_scopes import namespace_from_topic
from later.core.task import is_uuid
from later.core.task_names import is_namespaced, name_prefix
from later.core.validation import ID_PATTERN, check_id, format_value, refusal

RESERVED_ID_STARTS = ("s:", "ev:")
"""How the ids begin that later itself will give to tasks: callers create none."""
MAX_SCHEDULE_ID_CHARS = 100
"""So the ids of its firings have 128 characters at most."""
_FREE_ID = re.compile(rf"(?!{'|'.join(RESERVED_ID_STARTS)}){ID_PATTERN}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """A caller by its key: the key's id, the namespace that it is bound to, and its scopes.

    A caller without a key has no `key_id`; one that is bound to no namespace has all of them.
    """

    key_id: str | None
    namespace: str | None
    scopes: frozenset[Scope]

    @classmethod
    def of_key(cls, key: ApiKey) -> Caller:
        return cls(key_id=key.id, namespace=key.namespace, scopes=key.scopes)

    def require(self, scope: Scope) -> None:
        """Check that the caller has a scope. Metrics show all namespaces, so a bound key has no use of that scope.

        Raises:
            NotAllowed: it has not.
        """
        if scope not in self.scopes:
            raise NotAllowed(f"this key may {format_scopes(self.scopes)}, not {scope}", reason="scope")
        if scope is Scope.METRICS and self.namespace is not None:
            raise NotAllowed(
                f"this key is for the namespace {self.namespace}, and metrics show all namespaces", reason="namespace"
            )

    # The namespace that the caller is bound to

    def require_all_namespaces(self, what: str) -> None:
        """Check that the caller is bound to no namespace, because of `what`. Raises NotAllowed."""
        if self.namespace is not None:
            raise NotAllowed(f"this key is for the namespace {self.namespace}, and {what}", reason="namespace")

    def own_topic(self, topic: str) -> str:
        """Return a topic, by its canonical name, that the caller has named. Raises NotAllowed."""
        if self.namespace is not None and namespace_from_topic(topic) != self.namespace:
            raise self._is_outside("topic")
        return topic

    def own_namespace(self, namespace: str) -> str:
        """Return a namespace that the caller has named. Raises NotAllowed."""
        if self.namespace is not None and namespace != self.namespace:
            raise self._is_outside("namespace")
        return namespace

    def own_id(self, text: str) -> str:
        """Return the id of a task that the caller creates under an id of its own.

        A bound caller's id has its namespace in front, written by the caller or not. A UUID has none.

        Raises:
            Refused: it is no id, or a reserved one.
            NotAllowed: it has another namespace in front.
        """
        if self.namespace is None:
            return _check_free(text, "id")
        id = _check_free(self._own_part(text, "id"), "id")
        return id if is_uuid(id) else name_prefix(self.namespace) + id

    def own_job(self, text: str) -> str:
        """Return the id of a bulk job that the caller counts tasks into: as `own_id`, and a UUID is no exception."""
        if self.namespace is None:
            return _check_segment(text, "job")
        return name_prefix(self.namespace) + _check_segment(self._own_part(text, "job"), "job")

    def own_schedule(self, text: str) -> str:
        """Return the id of a schedule that the caller puts: as `own_job`, and no longer than `MAX_SCHEDULE_ID_CHARS`.

        Raises:
            Refused: it is no id, too long, or a reserved one.
            NotAllowed: it has another namespace in front.
        """
        own = _check_segment(text if self.namespace is None else self._own_part(text, "id"), "id")
        if len(own) > MAX_SCHEDULE_ID_CHARS:
            raise refusal("id", text, f"1 to {MAX_SCHEDULE_ID_CHARS} characters of A-Za-z0-9._~:-")
        return own if self.namespace is None else name_prefix(self.namespace) + own

    def schedule_name(self, text: str) -> str:
        """Return the id of the schedule that the caller means. Raises Refused."""
        return self._name(text, "id")

    def task_name(self, text: str) -> str:
        """Return the name (see `task_names`) by which the store's verbs find the task that the caller means by an id.

        Under a bound caller's name no task of another namespace is found: an id with another namespace in front gets a
        second one, which no task has. An unbound key may name the tasks of all namespaces.

        Raises:
            Refused: it is no id.
        """
        return self._name(text, "id")

    def job_name(self, text: str) -> str:
        """Return the id of the bulk job that the caller means. Raises Refused."""
        return self._name(text, "job")

    def can_see_id(self, id: str) -> bool:
        """Return True if an id with a namespace in front may be in a cursor that this caller was given."""
        return is_namespaced(id) and (self.namespace is None or id.startswith(name_prefix(self.namespace)))

    def _name(self, text: str, field: str) -> str:
        namespace = self.namespace
        if namespace is None:
            is_meant = "/" in text and self.key_id is not None and is_namespaced(text)
            return text if is_meant else check_id(text, field)
        own = _without_prefix(text, namespace)
        return name_prefix(namespace) + (own if is_namespaced(own) else check_id(own, field))

    def _own_part(self, text: str, field: str) -> str:
        """Return an id without the namespace that a bound caller has perhaps put in front. Raises NotAllowed."""
        own = _without_prefix(text, self.namespace or "")
        if is_namespaced(own):
            raise self._is_outside(field)
        return own

    def _is_outside(self, field: str) -> NotAllowed:
        return NotAllowed(f"{field}: this key is for the namespace {self.namespace}", field, reason="namespace")


def _without_prefix(text: str, namespace: str) -> str:
    """Return an id without its namespace in front, written as it is or as in `name_prefix`, if it has it there."""
    prefix = name_prefix(namespace)
    return text.removeprefix(prefix if text.startswith(prefix) else f"{namespace}/")


def _check_free(text: str, field: str) -> str:
    """Check the id, without a namespace in front, that a caller gives to a task or a job; return it. Raises Refused."""
    if _FREE_ID.fullmatch(text) is None:
        starts = " or ".join(RESERVED_ID_STARTS)
        id = check_id(text, field)
        raise Refused(f"{field}: expected one that does not begin with {starts}, got {format_value(id)}", field)
    return text


def _check_segment(text: str, field: str) -> str:
    """Check an id, as `_check_free`, that stands in paths of URLs; return it.

    Browsers and most HTTP clients resolve `.` and `..` in a path (RFC 3986, section 5.2.4), even percent-encoded ones.
    """
    if text in (".", ".."):
        raise Refused(
            f"{field}: expected one other than . and .., which no path of a URL can end in, got {text!r}", field
        )
    return _check_free(text, field)


ANYBODY = Caller(key_id=None, namespace=None, scopes=ALL_SCOPES)
"""Every caller of a daemon that asks for no keys."""
NOBODY = Caller(key_id=None, namespace=None, scopes=frozenset())
"""The caller of a route that is open to all, where keys are asked for elsewhere."""
