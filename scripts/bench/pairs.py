"""Pairs of turns: two variants of later, both up at once, do the same work in turns, in each of many starts.

Two starts of the same program differ by a tenth and more, and the machine is not equally fast all the time. So a ratio
of two runs cannot show a few percent. The two turns of a pair follow one another, and the median of the pairs' ratios,
over many starts, can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from random import randrange, sample

from scripts.bench.results import Row, Sample

Turn = Callable[[], Sample]
Start = Callable[[Mapping[str, str]], AbstractContextManager[Turn]]
"""A function of environment variables that starts a variant."""

STARTS = 10
HASH_SEEDS = 2**32
pair_row = partial(
    Row,
    figures=("ratio", "cpu_ratio", "rate"),
    details=("reference_rate", "server_cpu", "reference_cpu", "store_cpu", "receiver_cpu", "early", "twice"),
    runs=STARTS,
)
"""A row of pairs: the ratio of each by rate and by CPU time, and the rate and CPU time of both variants."""


def measure_pairs(reference: Start, variant: Start, pairs: int) -> list[Sample]:
    """Start two variants once, and return a sample of each pair of their turns.

    Both have the same seed of Python's hashes, another one in each start. Which one starts first is random.
    """
    starts, variables = (reference, variant), {"PYTHONHASHSEED": str(randrange(HASH_SEEDS))}
    with ExitStack() as stack:
        turns = {at: stack.enter_context(starts[at](variables)) for at in sample(range(2), 2)}
        return take_turns(turns[0], turns[1], pairs)


def take_turns(reference: Turn, variant: Turn, pairs: int) -> list[Sample]:
    """Let two variants take turns, and return a sample of each pair.

    The order alternates: whichever is first finds the machine as the other one has left it.
    """
    samples: list[Sample] = []
    for number in range(pairs):
        if number % 2:
            measured, compared_with = variant(), reference()
        else:
            compared_with, measured = reference(), variant()
        samples.append(compare(compared_with, measured))
    return samples


def compare(reference: Sample, variant: Sample) -> Sample:
    """Return the variant's sample, with its ratios to the reference, and with what went wrong in either turn.

    The ratio of CPU time is that of the reference's to the variant's, for as much work: it is below 1, too, if the
    variant is slower, and a busy machine changes it far less. It is left out where CPU time is unknown.
    """
    wrong = {name: variant[name] + reference[name] for name in ("early", "twice") if name in variant}
    by_cpu = {"cpu_ratio": reference["server_cpu"] / variant["server_cpu"]} if variant["server_cpu"] else {}
    return {
        **variant,
        **wrong,
        **by_cpu,
        "ratio": variant["rate"] / reference["rate"],
        "reference_rate": reference["rate"],
        "reference_cpu": reference["server_cpu"],
    }
