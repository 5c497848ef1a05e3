"""`later`, whose supervisor kills a process after four checks that it does not answer: about 12 s, not 30."""

from __future__ import annotations

from functools import partial

from later.cli.main import main
from later.processes import supervisor

if __name__ == "__main__":
    kills_after_four_checks = partial(supervisor.Supervisor, max_silent_checks=4)
    supervisor.Supervisor = kills_after_four_checks  # type: ignore[misc,assignment]  # the same class with another limit
    main()
