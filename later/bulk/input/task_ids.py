"""Ids of a bulk job's tasks, computed from the job's id and the row's key.

The same row always has the same id. So its task is created once, whatever is repeated: a failed attempt, a batch whose
answer was lost, or the whole job.
"""

from __future__ import annotations

import re
import time
from binascii import b2a_base64
from collections.abc import Iterable
from hashlib import sha256
from secrets import token_hex

from later.core.caller import RESERVED_ID_STARTS
from later.core.errors import Refused

HASH_BYTES = 15
"""120 bits: of 10²⁰ jobs with 100 million keys each, one has two keys with the same id. In base64, 20 characters."""
MAX_JOB_CHARS = 128 - 1 - HASH_BYTES * 4 // 3

_JOB = re.compile(rf"[A-Za-z0-9._~:-]{{1,{MAX_JOB_CHARS}}}")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def check_job(text: str) -> str:
    """Return the job's id.

    Raises:
        Refused: The ids of tasks could not begin with it.
    """
    if not _JOB.fullmatch(text):
        raise Refused(f"expected 1 to {MAX_JOB_CHARS} characters of A-Za-z0-9._~:-", "job")
    if text.startswith(RESERVED_ID_STARTS):
        raise Refused(f"expected one that does not begin with {' or '.join(RESERVED_ID_STARTS)}", "job")
    return text


def new_run_id(now_s: float) -> str:
    """Return an id for a run of a job: the time in UTC, so that runs are in their order, and a random end."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{token_hex(3)}"


def task_ids(job: str, keys: Iterable[bytes]) -> list[str]:
    """Return each key's task id: `<job>:<base64url of the first 15 bytes of SHA-256 of the key>`."""
    ids: list[str] = []
    for key in keys:
        digest = sha256(key, usedforsecurity=False).digest()[:HASH_BYTES]
        ids.append(f"{job}:{b2a_base64(digest, newline=False).translate(_URL_SAFE).decode()}")
    return ids
