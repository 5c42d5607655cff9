"""Errors that say whose fault it is, which operator met it, and what to do about it.

Rules:

1. Every error of Penstock is a :class:`PenstockError`: a message, the operator (if any), the remedy, and details
   (an original traceback, say). All four travel positionally through ``super().__init__``, so an error survives
   pickling, which is how Ray moves it; the sentence is made in ``__str__``.
2. The domain decides what happens next. USER: the same input would fail again, so nothing is retried. EXTERNAL: a
   machine, a disk or a process failed, so the job restarts from its last checkpoint. INTERNAL: a bug of ours.
3. Credentials in URLs are taken out of every text (``shown``).
4. Operators raise without naming themselves; the driver adds the operator's id, once (:meth:`PenstockError.at`).
"""

from __future__ import annotations

import copy
import traceback
from enum import Enum
from typing import ClassVar, Self

from .shown import shown


class Domain(Enum):
    """Whose fault an error is."""

    USER = "user"
    EXTERNAL = "external"
    INTERNAL = "internal"


class PenstockError(Exception):
    """Base of all errors raised on purpose.

    ``message`` says what is wrong, ``remedy`` what to do, ``operator`` where; ``detail`` holds longer text.
    """

    domain: ClassVar[Domain] = Domain.INTERNAL
    batch: tuple[int, int] | None = None
    """Round and lane of the batch that was being processed; known only where the error was raised."""

    def __init__(self, message: str, remedy: str = "", operator: str = "", detail: str = "") -> None:
        super().__init__(shown(message), shown(remedy), operator, shown(detail))

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def remedy(self) -> str:
        return str(self.args[1])

    @property
    def operator(self) -> str:
        return str(self.args[2])

    @property
    def detail(self) -> str:
        return str(self.args[3])

    def at(self, operator: str) -> Self:
        """The same error with the operator's id, unless it already names one."""
        return self if self.operator else type(self)(self.message, self.remedy, operator, self.detail)

    def __str__(self) -> str:
        where = f"{self.operator}: " if self.operator else ""
        remedy = f"\n  remedy: {self.remedy}" if self.remedy else ""
        detail = f"\n{self.detail}" if self.detail else ""
        return f"{where}{self.message}{remedy}{detail}"


def fresh(error: PenstockError) -> PenstockError:
    """The same error, to be raised by somebody who keeps it: one that is raised holds the frames that it passes, and
    these hold whoever raises it."""
    made = copy.copy(error)
    made.__cause__ = error.__cause__
    return made


def without_frames(error: PenstockError) -> PenstockError:
    """The error, of which nothing holds the frames that it has passed, and all that was in them. ``detail`` tells those
    of a user's code."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


class FlowError(PenstockError):
    """The flow itself is wrong: a missing column, a wrong type, a shape that cannot be planned."""

    domain = Domain.USER


class DataError(PenstockError):
    """The data break a promise that an operator needs (sorted input, a key that is unique, a type)."""

    domain = Domain.USER


class UserCodeError(PenstockError):
    """A user's function raised; ``detail`` is its traceback."""

    domain = Domain.USER


class ConfigurationError(PenstockError):
    """The job cannot start as asked: an unwritable folder, a name that is taken, a checkpoint of another flow."""

    domain = Domain.USER


class SetupError(PenstockError):
    """The machine is not ready: no usable Java, no shared memory, a port in use, a cluster that wants a token."""

    domain = Domain.USER


class StorageError(PenstockError):
    """A file system or object store failed (a full disk, a permission, a network)."""

    domain = Domain.EXTERNAL


class DamagedFileError(StorageError):
    """A stored file is gone, or holds other bytes than those that were written: reading it again would not help."""

    domain = Domain.USER


class TaskLostError(PenstockError):
    """A process that ran a task is gone."""

    domain = Domain.EXTERNAL


class AuditError(PenstockError):
    """A job is over, and its audit does not balance: rows are missing somewhere, or there more than once.

    ``audit``: the whole of it, if this is the process that made it or the error was pickled there.
    """

    domain = Domain.INTERNAL
    audit: object = None


class InternalError(PenstockError):
    """A bug in Penstock: an invariant does not hold. ``detail`` tells the story."""

    domain = Domain.INTERNAL


def unexpected(error: BaseException) -> InternalError:
    """An error that nobody foresaw, with its traceback."""
    text = "".join(traceback.format_exception(error))
    return InternalError(
        f"unexpected {type(error).__name__}: {error}", remedy="this is a bug of Penstock: report it", detail=text
    )


def as_penstock_error(error: Exception) -> PenstockError:
    """An error of storage as one of ours; anything unforeseen with its traceback."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, OSError):
        remedy = "check the folder's permissions and its disk's free space; the job can go on from its last checkpoint"
        return StorageError(f"storage failed: {error}", remedy)
    return unexpected(error)
