"""Asyncio tasks that several callers wait for, or none."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of an ended task as retrieved: perhaps no caller waits for it, and asyncio would log it."""
    if not task.cancelled():
        task.exception()
