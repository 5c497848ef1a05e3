"""The check of a create by its topic's policy, before it is sent.

The daemon has the last word: a draft that passes is judged there again, and one that is wrong in another way is sent,
so that the daemon says what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import msgspec

from later.client.answers import AppliedPolicy
from later.core.admit import admit
from later.core.errors import PolicyRefusal, Refused
from later.core.policy import DEFAULT_POLICY, PULL
from later.core.policy_scopes import Policies, Settings
from later.core.task import Draft
from later.core.validation import parse_topic

KEPT_S = 60.0
"""How long a policy is kept."""
MAX_KEPT = 1000
"""Topics whose policies are kept."""
CLOCK_MARGIN_MS = 60_000
"""How far the clocks of the daemon and of the client may differ: a time (`at`) so close to the limit is sent."""
_ANY_ID = "00000000-0000-4000-8000-000000000000"


class AppliedPolicies:
    """The policies of topics as the daemon applies them, each kept for KEPT_S; None where it did not say.

    Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Policies | None]] = {}
        self._keeping = Lock()

    def find(self, topic: str, now_s: float) -> tuple[bool, Policies | None]:
        """Return whether a topic's policy is known at `now_s` (s), and which it is."""
        read_at, policies = self._kept.get(topic, (-KEPT_S, None))
        return now_s - read_at < KEPT_S, policies

    def keep(self, topic: str, applied: AppliedPolicy | None, now_s: float) -> Policies | None:
        """Keep a topic's policy that was read at `now_s`, and return it."""
        policies = None
        if applied is not None:
            fields = {name: value for name, value in applied.values.items() if value is not None}
            policies = Policies(Settings(fields).apply_to(DEFAULT_POLICY))
        with self._keeping:  # or two threads drop the same one
            if len(self._kept) >= MAX_KEPT and topic not in self._kept:
                del self._kept[next(iter(self._kept))]
            self._kept[topic] = (now_s, policies)
        return policies


def topic_to_check(draft: Draft) -> str | None:
    """Return the topic whose policy judges a draft, by its canonical name; None if the draft names none."""
    try:
        return parse_topic(draft.topic)
    except Refused:
        return None


def fit_draft(draft: Draft, policies: Policies | None) -> Draft:
    """Return the draft without its callback if consumers claim the topic's tasks: then the daemon takes none."""
    callback = fit_callback(draft.callback, policies)
    return draft if callback == draft.callback else msgspec.structs.replace(draft, callback=callback)


def fit_callback(callback: str | None, policies: Policies | None) -> str | None:
    """Return the callback, or None if consumers claim the topic's tasks."""
    return None if policies is not None and policies.daemon.deliver is PULL else callback


def callback_refusals(sent: Mapping[int, Draft], results: Mapping[int, object]) -> dict[int, str]:
    """Return the topics of those drafts, by position, whose callback the daemon refused, or missed.

    The topic may be pulled, or pushed, since its policy was read.
    """
    refused: dict[int, str] = {}
    for position, draft in sent.items():
        result, topic = results[position], topic_to_check(draft)
        if topic is not None and isinstance(result, Refused) and result.field == "callback":
            refused[position] = topic
    return refused


def policy_refusal(draft: Draft, policies: Policies | None, now: int) -> PolicyRefusal | None:
    """Return the refusal that the daemon would answer at `now` (ms) because of these policies, if it would."""
    if policies is None:
        return None
    try:
        admit(draft, policies, now if draft.execute_time is None else now + CLOCK_MARGIN_MS, _ANY_ID)
    except PolicyRefusal as refusal:
        return refusal
    except Refused:
        return None
    return None
