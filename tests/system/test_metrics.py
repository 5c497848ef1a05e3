"""The metrics that a real daemon shows, of one process and of several."""

from __future__ import annotations

import time
from pathlib import Path

from tests.system.api_client import create, post, read_metric
from tests.system.daemons import run_up
from tests.system.receivers import Receiver
from tests.system.waiting import PROPAGATION_S, wait_until

READ_EVERY_S = 20.0
"""The gauges of the store are read every 15 s."""


def test_tasks_of_a_paused_topic_are_held_by_the_pause(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data) as up:
        post(up.url, "/topics/order/pause", {})
        time.sleep(PROPAGATION_S)
        ids = {create(up.url, topic="order", callback=receiver.url()) for _ in range(3)}
        due = 'later_tasks_due{held="pause",topic="order"}'
        wait_until(lambda: read_metric(up.url, due) == 3, "the tasks are counted", READ_EVERY_S)
        assert read_metric(up.url, "later_topics_paused") == 1
        assert read_metric(up.url, 'later_lateness_seconds_count{held="pause"}') == 0
        post(up.url, "/topics/order/resume", {})
        wait_until(lambda: receiver.answered == ids, "the tasks are delivered")
        held = 'later_lateness_seconds_count{held="pause"}'
        wait_until(lambda: read_metric(up.url, held) == 3, "their lateness is counted")
        assert read_metric(up.url, 'later_lateness_seconds_count{held="no"}') == 0
        assert up.stop() == 0


def test_a_daemon_shows_what_it_is_and_that_it_works(folder: Path, data: Path, processes: int) -> None:
    started_at = time.time()
    with run_up(folder, data) as up:
        wait_until(lambda: read_metric(up.url, "later_workers") == processes, "the store is read", READ_EVERY_S)
        wait_until(lambda: read_metric(up.url, "later_event_loop_lag_seconds_count") > 0, "the lag is measured")
        last_success = read_metric(up.url, 'later_tick_last_success_timestamp_seconds{ticker="delay"}')
        assert started_at < last_success <= time.time()
        assert started_at - 2 < read_metric(up.url, "process_start_time_seconds") <= time.time()
        assert 0 < read_metric(up.url, "process_open_fds") < read_metric(up.url, "process_max_fds")
        assert 0 <= read_metric(up.url, "later_snapshot_age_seconds") < READ_EVERY_S
        assert read_metric(up.url, 'later_http_requests_total{code="200",route="/metrics"}') > 0
        assert up.stop() == 0
