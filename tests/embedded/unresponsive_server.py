"""A server that ignores SIGTERM: takes the lock of DIRECTORY, listens on its socket, never answers."""

from __future__ import annotations

import fcntl
import signal
import socket
import sys
from pathlib import Path

data = Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with (data / "lock").open("w") as lock, socket.socket(socket.AF_UNIX) as listener:
    fcntl.flock(lock, fcntl.LOCK_EX)
    listener.bind(str(data / "store.sock"))
    listener.listen()
    print("up", flush=True)
    while True:
        signal.pause()
