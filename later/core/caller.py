"""The caller of the API: what its key allows."""

from __future__ import annotations

from dataclasses import dataclass

from later.core.api_keys import ALL_SCOPES, ApiKey, Scope, format_scopes
from later.core.errors import NotAllowed


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


ANYBODY = Caller(key_id=None, namespace=None, scopes=ALL_SCOPES)
"""Every caller of a daemon that asks for no keys."""
