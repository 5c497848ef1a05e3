"""Warnings about policies that are valid, but let tasks die: those that lack a callback where one is called."""

from __future__ import annotations

from collections.abc import Iterator

from later.core.policy import Deliver
from later.core.policy_scopes import FOLLOW_UP_FIELDS, Level, Policies, PolicyScope, topic_scope

_NO_CALLBACK = (
    "Tasks of {source} {lack}, and {target} calls one (deliver push): "
    'those that die move there, and are dead there, too ("no callback").'
)
_UNSERVED = (
    "The {name} of {source} makes tasks without a callback in {target}, which calls one (deliver push), and its policy "
    'has none: they are dead there ("no callback").'
)


def follow_up_warning(policies: Policies, scope: PolicyScope) -> str | None:
    """Return a warning if follow-up tasks of this scope, or in it, would be dead because they have no callback."""
    others = policies.settings.scopes_where(lambda summary: scope in summary.follow_up_scopes)
    for source in (scope, *others):
        for name in FOLLOW_UP_FIELDS:
            target = topic_scope(str(policies.settings_at(source).fields.get(name, "")))
            is_changed = target.name and scope in (source, target, target.parent)
            if is_changed and not policies.for_topic(target.name).may_lack_callbacks:
                return _UNSERVED.format(name=name, source=source.name, target=target.name)
    return None


def dead_letter_warning(policies: Policies, scope: PolicyScope) -> str | None:
    """Return a warning if tasks without a callback move to a topic that needs one.

    They move out of this scope or into this topic.
    """
    for source, target in _moves(policies, scope):
        if not policies.for_topic(target).may_lack_callbacks:
            is_pulled = policies.for_scope(source).deliver is Deliver.PULL
            lack = "have no callback (deliver pull)" if is_pulled else "may have no callback of their own"
            return _NO_CALLBACK.format(source=source.name, lack=lack, target=target)
    return None


def _moves(policies: Policies, scope: PolicyScope) -> Iterator[tuple[PolicyScope, str]]:
    """Yield from where, and to where, tasks without a callback move when they die."""
    applied = policies.for_scope(scope)
    if applied.may_lack_callbacks:
        if applied.dead_to not in ("", scope.name):
            yield scope, applied.dead_to
    elif scope.level is Level.TOPIC:
        for source in policies.settings.scopes_where(lambda summary: scope.name in summary.dead_letter_topics):
            names_it = policies.settings_at(source).fields.get("dead_to") == scope.name
            if names_it and policies.for_scope(source).may_lack_callbacks:
                yield source, scope.name
