"""Fulfilling futures that others hold. Rule: a future that its holder has cancelled is left alone."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


def resolve(future: Future[Any], result: object = None) -> None:
    """Tell who waits for it."""
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def refuse(future: Future[Any], error: BaseException) -> None:
    """Tell who waits for it that it will not happen."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
