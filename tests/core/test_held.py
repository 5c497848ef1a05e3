"""The hold of a topic, from its policy, its hold in the store, and its permits."""

from __future__ import annotations

from later.core.held import Held, TopicHold, find_hold
from later.core.policy import Deliver, Policy
from tests.builders import NOW
from tests.cases import each_case


@each_case(
    ("policy", "hold", "permits_in_use", "held"),
    [
        (Policy(), None, 0, Held.NO),
        (Policy(paused=True), None, 0, Held.PAUSE),
        (Policy(), TopicHold("order", None, False), 0, Held.PAUSE),
        (Policy(), TopicHold("order", NOW + 1, False), 0, Held.RECEIVER),
        (Policy(), TopicHold("order", NOW, False), 0, Held.NO),
        (Policy(rate=5), TopicHold("order", NOW + 1, True), 0, Held.RATE),
        (Policy(rate=5), None, 0, Held.NO),
        (Policy(concurrency=5), None, 5, Held.CONCURRENCY),
        (Policy(concurrency=5), None, 4, Held.NO),
        (Policy(), None, 5, Held.NO),
        (Policy(deliver=Deliver.PULL, concurrency=5), TopicHold("order", None, False), 9, Held.PULL),
        (Policy(deliver=Deliver.PULL, paused=True), TopicHold("order", None, False), 0, Held.PAUSE),
    ],
)
def test_a_topic_is_held_by(policy: Policy, hold: TopicHold | None, permits_in_use: int, held: Held) -> None:
    assert find_hold(policy, hold, permits_in_use, NOW) is held
