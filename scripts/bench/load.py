"""Load: requests sent over several connections as fast as they are answered, by wrk or by our own generator."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.bench.environment import Environment
from scripts.bench.processes import module_command, run_for_result
from scripts.bench.results import BenchError

ANSWER_TIMEOUT_S = 15.0

WRK_SCRIPT = """\
local requests, at = {}, 0
wrk.method = 'POST'
wrk.headers['Content-Type'] = 'application/json'
%(authorization)s

function init()
  for body in io.lines('%(bodies)s') do requests[#requests + 1] = wrk.format(nil, nil, nil, body) end
end

function request()
  at = at %% #requests + 1
  return requests[at]
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('{"requests": %%d, "seconds": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, failed))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests to send: the bodies in turn, until `seconds` have passed or `requests` are answered."""

    url: str
    bodies: Sequence[bytes]
    connections: int
    seconds: float
    requests: int = 0
    """0: no limit."""
    key: str = ""
    """An API key; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of a load. Any answer but a 2xx and any broken connection is an error."""

    requests: int
    seconds: float
    errors: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def run_load(environment: Environment, load: Load) -> LoadResult:
    """Send the load. Raises BenchError if any request failed."""
    with environment.temporary_folder() as folder:
        bodies = folder / "bodies"
        bodies.write_bytes(b"".join(body + b"\n" for body in load.bodies))
        with_wrk = environment.wrk is not None and not load.requests
        counts = _run_wrk(str(environment.wrk), load, folder) if with_wrk else _run_generator(load, folder)
    result = LoadResult(requests=int(counts["requests"]), seconds=counts["seconds"], errors=int(counts["errors"]))
    if result.errors:
        raise BenchError(f"{result.errors} of {result.requests} requests failed")
    if not result.requests:
        raise BenchError("no request was answered")
    return result


def _run_wrk(wrk: str, load: Load, folder: Path) -> dict[str, float]:
    """Run wrk for whole seconds; it cannot stop after a number of requests."""
    script = folder / "load.lua"
    authorization = f"wrk.headers['Authorization'] = 'Bearer {load.key}'" if load.key else ""
    script.write_text(WRK_SCRIPT % {"bodies": folder / "bodies", "authorization": authorization})
    seconds, connections = math.ceil(load.seconds), str(load.connections)
    command_line = [wrk, "-t1", "-c", connections, "-d", f"{seconds}s", "--timeout", f"{ANSWER_TIMEOUT_S:g}s"]
    done = subprocess.run(
        [*command_line, "-s", str(script), load.url], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise BenchError(f"wrk: {done.stderr.strip() or done.stdout.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _run_generator(load: Load, folder: Path) -> dict[str, float]:
    fields = {key: value for key, value in asdict(load).items() if key != "bodies"}
    (folder / "load.json").write_text(json.dumps(fields))
    return run_for_result(module_command("load_generator"), folder, "generator", load.seconds + 60)
