"""A running operator in a driver's chain, what has passed it, and the blame for what it raises.

Rule: an error gets its operator's id once, at the innermost operator. What a user's code raises is the user's
(``user_code``), what a kernel of pyarrow raises the data's fault (DataError). An OSError of a user's code may pass
(StorageError). Any other foreign exception is a bug of ours (InternalError).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ..arrow.combining import is_too_large
from ..core.elements import Tag
from ..core.errors import DataError, InternalError, PenstockError, StorageError, UserCodeError
from ..core.operator import RunningOperator
from ..core.user_code import is_to_be_told, is_users_own, raised, user_frames
from ..sources.reader import SplitReader
from .windows import OperatorWindow


@dataclass(slots=True)
class OperatorInstance:
    """An operator of the chain and what has passed it."""

    id: str
    running: RunningOperator
    #: whether it keeps what it holds at a task barrier, instead of emitting and forgetting it
    hold: bool = False
    #: the lanes of its task, those for which it had finished before the task was built, and their state
    lanes: range = range(0)
    ended: frozenset[int] = frozenset()
    carried: pa.Table | None = None
    #: a sink: rows prepared in this attempt, and whether it ever prepares any
    prepared: int = 0
    prepares: bool = False
    rows_in: int = 0
    rows_out: int = 0
    batches_out: int = 0
    bytes_out: int = 0
    #: rows in, rows out and bytes out when the window began
    window: tuple[int, int, int] = (0, 0, 0)
    #: when the window's first row came, by ``time.perf_counter``
    first_at: float | None = None
    #: tag of the batch being processed, or processed last
    at: Tag | None = None

    def end_window(self, drain_seconds: float) -> OperatorWindow:
        """A task barrier has passed: what happened since the one before."""
        rows_in, rows_out, bytes_out = self.window
        self.window = (self.rows_in, self.rows_out, self.bytes_out)
        first_at, self.first_at = self.first_at, None
        rows = (self.rows_in - rows_in, self.rows_out - rows_out, self.bytes_out - bytes_out)
        return OperatorWindow(self.id, *rows, drain_seconds, first_at)

    @property
    def where(self) -> str:
        """The batch being processed, in words."""
        if self.at is None:
            return "before the first batch"
        return f"round {self.at.round}, lane {self.at.lane}, batch {self.at.sequence}"


class blame:  # noqa: N801 a context manager, read as a verb; a generator would take four times as long
    """Name ``operator``, and the batch it was given, in whatever the block raises."""

    __slots__ = ("_operator",)

    def __init__(self, operator: OperatorInstance) -> None:
        self._operator = operator

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, PenstockError) and error.operator and not is_users_own(error)):
            return
        if not isinstance(error, Exception) and not (is_to_be_told(error) and user_frames(error)):
            return
        operator = self._operator
        named = _named(error, operator.id, f" ({operator.where})")
        named.batch = None if operator.at is None else (operator.at.round, operator.at.lane)
        raise named from error


@contextmanager
def blame_build(operator: str) -> Iterator[None]:
    """Name ``operator`` in what building it raises."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not (is_to_be_told(error) and user_frames(error)):
            raise
        raise _named(error, operator, " (the step that builds it)") from error


def blame_split(error: PenstockError, readers: Sequence[SplitReader]) -> PenstockError:
    """A user's error, with the split whose rows it was given."""
    found = error.batch
    if found is None or not isinstance(error, UserCodeError | DataError):
        return error
    splits = [f"{reader.operator} {split}" for reader in readers if (split := reader.split_at(*found))]
    if not splits:
        return error
    # the same object: what goes wrong later is attached to it
    error.args = (f"{error.message} (split {', '.join(splits)})", *error.args[1:])
    return error


def _named(error: BaseException, operator: str, where: str) -> PenstockError:
    if isinstance(error, PenstockError) and not is_users_own(error):
        return error.at(operator)
    if is_too_large(error):
        remedy = "cast its columns to large_string, large_binary or large_list before it, or let it hold fewer rows"
        return DataError(f"it needs more than 2 GiB of one column at once: {error}{where}", remedy, operator)
    if isinstance(error, pa.ArrowException):
        return DataError(f"{error}{where}", "check the values of the columns that this operator reads", operator)
    if user_frames(error) is not None:
        if isinstance(error, OSError):
            message = f"{type(error).__name__}: {error}{where}"
            return StorageError(message, "check what its code reads and writes", operator)
        remedy = "fix the code, or filter out the rows it cannot take"
        return raised("its code", error, remedy, where.strip(" ()")).at(operator)
    detail = "".join(traceback.format_exception(error))
    return InternalError(f"{type(error).__name__}: {error}{where}", "", operator, detail)
