"""The child processes of a supervisor: a fixed number, each restarted when it exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog

from later.config import Config
from later.core.restart_backoff import RESTART_DELAYS_S, RestartBackoff
from later.daemon.lifecycle import wait_for_all
from later.processes.child import Child, start_child
from later.processes.rpc import Handlers

log = structlog.get_logger("later.processes")


class PoolEntry:
    """One process of the pool, by its number: the child that runs, or when (ms) the next one starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.backoff = RestartBackoff((0, *RESTART_DELAYS_S))
        self.started_at = 0
        self.start_at = 0


class ProcessPool:
    """All child processes.

    `handlers` returns the handlers of a child's calls. `on_unexpected_exit` is called for each child that exited
    unasked, `on_exit` as soon as any child exits.
    """

    def __init__(
        self,
        config: Config,
        *,
        handlers: Callable[[Child], Handlers],
        on_unexpected_exit: Callable[[Child], None],
    ) -> None:
        self._config = config
        self._entries = [PoolEntry(number) for number in range(1, config.processes + 1)]
        self._handlers = handlers
        self._on_unexpected_exit = on_unexpected_exit
        self.on_exit: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Child]:
        """Iterate over the children that run, whether they are up or still starting."""
        return (entry.child for entry in self._entries if entry.child is not None)

    @property
    def up(self) -> list[Child]:
        return [child for child in self if child.up and child.status is None]

    def why_not_ready(self) -> str | None:
        """Return one line on missing or hanging processes; None if all are up and answer."""
        missing = len(self._entries) - len(self.up)
        if missing:
            return f"{missing} of {len(self._entries)} processes {'is' if missing == 1 else 'are'} being started"
        hung = sum(child.is_hung for child in self.up)
        if hung:
            return f"{hung} of {len(self._entries)} processes {'does' if hung == 1 else 'do'} not answer"
        return None

    async def check(self, now: int) -> int | None:
        """Start the missing processes whose restart delay is over. A start that fails counts as an exit.

        Returns when (ms) the next delay is over; None if all processes run.
        """
        for entry in self._entries:
            child = entry.child
            if child is not None and child.status is not None:
                child.close()
                self._on_unexpected_exit(child)
                delay_ms = entry.backoff.next_delay_ms(now - entry.started_at)
                entry.child, entry.start_at = None, now + delay_ms
                delay_s, status = delay_ms // 1000, child.status
                log.warning("process exited", process=entry.number, pid=child.pid, status=status, restart_in_s=delay_s)
            if entry.child is None and entry.start_at <= now:
                entry.started_at = now
                try:
                    entry.child = child = await start_child(entry.number, self._config)
                except Exception as error:  # the other processes must start, and this one must be delayed
                    entry.start_at = now + entry.backoff.next_delay_ms(0)
                    reason = str(error) if isinstance(error, OSError) else repr(error)
                    log.warning("process cannot be started", process=entry.number, reason=reason)
                    continue
                child.channel.serve(self._handlers(child))
                child.exited.add_done_callback(lambda _: self.on_exit())
                log.debug("process started", process=child.number, pid=child.pid)
        return min((entry.start_at for entry in self._entries if entry.child is None), default=None)

    def end_delays(self) -> None:
        """Let the next check start each missing process, however often it has exited: its reason may be gone."""
        for entry in self._entries:
            entry.start_at = 0

    async def stop(self, timeout_s: float) -> None:
        """Ask all children to stop, and kill those that take longer. `check` must not be called again."""
        await wait_for_all(*(child.stop(timeout_s) for child in self))

    def kill(self) -> None:
        """Kill all children at once."""
        for child in self:
            child.kill()
