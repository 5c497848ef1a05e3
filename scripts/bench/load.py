"""Load: requests sent over some connections as fast as they are answered, by wrk or by our own generator."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.bench.environment import Setting
from scripts.bench.processes import a_process, python
from scripts.bench.results import BenchError

ANSWER_WITHIN_S = 15.0

SCRIPT = """\
local requests, at = {}, 0
wrk.method = 'POST'
wrk.headers['Content-Type'] = 'application/json'

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
    """What to send: the bodies in turn, until `seconds` have passed or `requests` were answered."""

    url: str
    bodies: Sequence[bytes]
    connections: int
    seconds: float
    requests: int = 0
    """0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of it; an error is any answer but a 2xx, and any connection that broke."""

    requests: int
    seconds: float
    errors: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def press(setting: Setting, load: Load) -> Loaded:
    """Send the load. Raises BenchError where any request failed."""
    with setting.a_folder() as folder:
        bodies = folder / "bodies"
        bodies.write_bytes(b"".join(body + b"\n" for body in load.bodies))
        with_wrk = setting.wrk is not None and not load.requests
        report = _by_wrk(str(setting.wrk), load, folder) if with_wrk else _by_generator(load, folder)
    loaded = Loaded(requests=int(report["requests"]), seconds=report["seconds"], errors=int(report["errors"]))
    if loaded.errors:
        raise BenchError(f"{loaded.errors} of {loaded.requests} requests failed")
    if not loaded.requests:
        raise BenchError("no request was answered")
    return loaded


def _by_wrk(wrk: str, load: Load, folder: Path) -> dict[str, float]:
    """wrk takes whole seconds, and no number of requests."""
    script = folder / "load.lua"
    script.write_text(SCRIPT % {"bodies": folder / "bodies"})
    seconds, connections = math.ceil(load.seconds), str(load.connections)
    line = [wrk, "-t1", "-c", connections, "-d", f"{seconds}s", "--timeout", f"{ANSWER_WITHIN_S:g}s"]
    done = subprocess.run(
        [*line, "-s", str(script), load.url], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise BenchError(f"wrk: {done.stderr.strip() or done.stdout.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _by_generator(load: Load, folder: Path) -> dict[str, float]:
    what = {key: value for key, value in asdict(load).items() if key != "bodies"}
    (folder / "load.json").write_text(json.dumps(what))
    with a_process(python("load_generator"), folder, "generator") as running:
        running.await_end(load.seconds + 60)
        return dict(json.loads(running.log.read_text().splitlines()[-1]))
