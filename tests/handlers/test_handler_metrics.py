"""Metrics of handlers: their values after runs of each kind."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

prometheus_client = pytest.importorskip("prometheus_client", reason="it is installed with the server")

from later import Busy, Dead, Later  # noqa: E402  # after it is known that the tests can run
from tests.handlers.tasks import FixedDeadline, task_of  # noqa: E402


def build_application() -> tuple[Later, Any, asyncio.Event]:
    tasks, registry, hangs = Later(), prometheus_client.CollectorRegistry(), asyncio.Event()

    @tasks.handler
    async def order(end: str) -> None:
        if end == "fail":
            raise ValueError
        if end == "busy":
            raise Busy
        if end == "dead":
            raise Dead("no such order")
        if end == "hang":
            hangs.set()
            await asyncio.Event().wait()

    tasks.metrics(registry)
    return tasks, registry, hangs


async def test_the_metrics_of_a_scripted_run_have_its_values() -> None:
    tasks, registry, hangs = build_application()

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(f"later_handler_{name}", {"topic": "order", **labels})
        return found

    def runs() -> dict[str, float | None]:
        return {end: value("runs_total", outcome=end) for end in ("done", "failed", "busy", "gone", "cancelled")}

    assert runs() == dict.fromkeys(("done", "failed", "busy", "gone", "cancelled"), 0)
    due_at = datetime.now(UTC) - timedelta(seconds=20)
    for attempt, end in enumerate(("ok", "ok", "fail", "busy", "dead"), 1):
        await tasks._dispatcher.dispatch(task_of("order", attempt=attempt, due_at=due_at), f'"{end}"')
    await tasks._dispatcher.dispatch(task_of("order"), "no JSON")
    await tasks._dispatcher.dispatch(task_of("unknown"), "")
    hanging = asyncio.create_task(tasks._dispatcher.dispatch(task_of("order", attempt=2), '"hang"'))
    await hangs.wait()
    assert value("running") == 1
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)

    assert runs() == {"done": 2, "failed": 2, "busy": 1, "gone": 1, "cancelled": 1}
    assert value("duration_seconds_count") == 7
    assert value("late_seconds_count") == 2  # of first attempts
    assert value("late_seconds_bucket", le="10.0") == 0
    assert value("running") == 0


async def test_a_thread_that_outlives_its_timeout_still_runs() -> None:
    tasks, registry, ends = Later(), prometheus_client.CollectorRegistry(), threading.Event()
    begun = threading.Event()

    @tasks.handler
    def block() -> None:
        begun.set()
        ends.wait(20)

    tasks.metrics(registry)
    deadline = FixedDeadline(0.01)
    while not begun.is_set():  # on a busy machine the time may be over before the thread runs
        await tasks._dispatcher.dispatch(task_of("block", deadline=deadline), "", cancel_before_s=0)
    assert registry.get_sample_value("later_handler_running", {"topic": "block"}) == 1
    ends.set()
    give_up_at = time.monotonic() + 20
    while registry.get_sample_value("later_handler_running", {"topic": "block"}) != 0:
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)
    tasks._dispatcher.close()


def test_handlers_that_are_added_later_have_metrics_too() -> None:
    tasks, registry, _ = build_application()
    tasks.handler("further")(lambda: None)
    asyncio.run(tasks._dispatcher.dispatch(task_of("further"), ""))
    tasks._dispatcher.close()
    labels = {"topic": "further", "outcome": "done"}
    assert registry.get_sample_value("later_handler_runs_total", labels) == 1
    with pytest.raises(ValueError, match="later_handler_runs"):
        tasks.metrics(registry)


def test_without_prometheus_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("later.handlers.handler_metrics.import_module", import_module)
    with pytest.raises(ModuleNotFoundError, match="metrics need prometheus_client: pip install prometheus_client"):
        Later().metrics()
