"""Ids of a bulk job's tasks: the job's, and what the row's key comes to. The same row has the same id wherever it is
sent from, so that nothing makes its task twice: no failed attempt, no lost answer, no second run.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable
from hashlib import sha256

from later.core.errors import Refused

HASH_BYTES = 15
"""120 bits: two of 100 million keys share an id in one job of 10²⁰. As base64 they are 20 characters, no padding."""
MAX_JOB_CHARS = 128 - 1 - HASH_BYTES * 4 // 3

_JOB = re.compile(rf"[A-Za-z0-9._~:-]{{1,{MAX_JOB_CHARS}}}")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def check_job(text: str) -> str:
    """A job's id.

    Raises:
        Refused: ids of tasks could not begin with it.
    """
    if not _JOB.fullmatch(text):
        raise Refused(f"expected 1 to {MAX_JOB_CHARS} characters of A-Za-z0-9._~:-", "job")
    return text


def task_ids(job: str, keys: Iterable[bytes]) -> list[str]:
    """The ids of the rows that have these keys: `<job>:<base64url of the first 15 bytes of SHA-256 of the key>`."""
    return [f"{job}:{_hash(key)}" for key in keys]


def _hash(key: bytes) -> str:
    digest = sha256(key, usedforsecurity=False).digest()
    return b2a_base64(digest[:HASH_BYTES], newline=False).translate(_URL_SAFE).decode()
