"""Calls of a measured API: clients in a process of their own, a policy, and a metric."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

from scripts.bench.environment import Environment
from scripts.bench.processes import module_command, run_for_result
from scripts.bench.programs import Program

WITHIN_S = 120.0
PROPAGATION_S = 2.5


def client_command(what: str, settings: Mapping[str, object]) -> list[str]:
    """Return the command line of clients that do a thing named in `consumer_load`."""
    return module_command("consumer_load", what, json.dumps(settings))


def run_clients(environment: Environment, what: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """Run clients to their end, and return what they measured."""
    with environment.temporary_folder() as folder:
        return run_for_result(client_command(what, settings), folder, "clients", WITHIN_S)


def let_consumers_claim(server: Program, scope: str) -> None:
    """Let consumers claim the tasks of `topics/…` or `namespaces/…`, and wait until every process knows it."""
    request = Request(f"{server.url}/{scope}/policy", json.dumps({"deliver": "pull"}).encode(), method="PATCH")
    with urlopen(request, timeout=WITHIN_S):
        time.sleep(PROPAGATION_S)


def read_metric(server: Program, series: str) -> float:
    """Return the value of a series at `/metrics`; 0 if there is none."""
    with urlopen(f"{server.url}/metrics", timeout=WITHIN_S) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{series} ")), 0.0)
