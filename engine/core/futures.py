"""Fulfilling futures that others hold. Rule: a future that its holder has cancelled is left alone."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from typing import Any


def resolve(future: Future[Any], result: object = None) -> None:
    """Tell who waits for it."""
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def refuse(future: Future[Any], error: BaseException) -> None:
    """Tell who waits for it that it will not happen."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def wait_for(future: Future[Any], timeout: float | None, wake_at: float | None) -> None:
    """Wait until it is done, or until ``wake_at`` (by the monotonic clock), when something happens by itself. Raises
    TimeoutError if neither comes within ``timeout`` seconds."""
    due = None if wake_at is None else max(0.0, wake_at - time.monotonic())
    if due is None or (timeout is not None and timeout < due):
        future.result(timeout)
    else:
        wait([future], due)
