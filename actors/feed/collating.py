"""``collate_fn``: its errors name rows, and it may be called in processes of its own.

Rules:

1. An error of the function keeps its type. A note says in which batch it was, and, after calls with parts of the rows,
   in which of them.
2. A process is given the function once, and then the arrays of one slice after the other. It imports no script: a
   function of the script that runs travels by value, so a script that starts a job is not run again.
3. Arrays and tensors travel as they lie, beside what is pickled. Arrays that nobody may write into stay so.
4. Before each call in a process the generators of Python, NumPy and torch are seeded by the batch and the share of it
   that the rank reads: what a function draws there depends neither on the process nor on how many there are, and is
   the same at ranks of a mesh that read the same rows, which train one model.
5. A process that dies is an error at the batch that it had; a new one takes its place at the next call.
6. What a function prints goes where errors go. A process ends when it is closed, or its input ends with its parent.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any, TypeAlias

import numpy as np

from ...engine.core.errors import ConfigurationError, SetupError

Collate: TypeAlias = Callable[[dict[str, Any]], Any]
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"
_CLOUDPICKLES = ("cloudpickle", "ray.cloudpickle", "pyspark.cloudpickle")


@dataclass(frozen=True, slots=True)
class SlicePlace:
    """Which slice it is, how many rows the whole batch has, and how many neighbours read the same ones."""

    batch: int
    rank: int
    ranks: int
    batch_rows: int = 0
    copies: int = 1

    @property
    def seed(self) -> int:
        """Of what is drawn for it (rule 4)."""
        return (self.batch * (self.ranks // self.copies) + self.rank // self.copies) % 2**32

    def __str__(self) -> str:
        return f"batch {self.batch} at rank {self.rank} of {self.ranks}"


def called(collate: Collate, arrays: dict[str, Any], place: SlicePlace) -> Any:
    """What the function makes of them. See rule 1."""
    try:
        return collate(arrays)
    except Exception as error:
        error.add_note(f"collate_fn failed {_rows(collate, arrays, type(error))}{place}")
        raise


def _rows(collate: Collate, arrays: dict[str, Any], kind: type[Exception]) -> str:
    """The fewest rows that halving finds with which it fails in the same way."""

    def fails(low: int, high: int) -> bool:
        try:
            collate({name: values[low:high] for name, values in arrays.items()})
        except Exception as error:
            return type(error) is kind
        return False

    rows = min(map(len, arrays.values()), default=0)
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        elif fails(middle, high):
            low = middle
        else:
            break
    if (low, high) == (0, rows) and rows != 1:
        return "in "
    return (f"with row {low}" if high - low == 1 else f"with rows {low} to {high - 1}") + f" of the {rows} of "


class Collators:
    """``count`` processes that call one function. Called by so many threads at once at most."""

    def __init__(self, collate: Collate, count: int) -> None:
        self.collate, self.count = collate, count
        self._function = _pickled(collate)
        self._lock = threading.Lock()
        self._idle: list[_Collator] = []
        self._all: set[_Collator] = set()
        self._closed = False

    def __call__(self, arrays: dict[str, Any], place: SlicePlace) -> Any:
        """What the function makes of these arrays. Raises its error, SetupError if the process dies, and
        ConfigurationError for a function that it cannot import."""
        with self._lock:
            if self._closed:
                raise SetupError("the processes that call collate_fn are closed", "begin a new iteration")
            process = self._idle.pop() if self._idle else _Collator(self._function)
            self._all.add(process)
        try:
            made, error = process.ask((arrays, place))
        except (EOFError, OSError) as lost:
            with self._lock:
                self._all.discard(process)
            raise SetupError(
                f"a process that called collate_fn for {place} {process.end()}",
                "see its last words in the log; if the machine was out of memory, take fewer processes",
            ) from lost
        with self._lock:
            self._idle.append(process)
        if error is not None:
            raise error
        return made

    def close(self) -> None:
        """End them, also those that are called."""
        with self._lock:
            self._closed = True
            ended, self._all = self._all, set()
            idle, self._idle = self._idle, []
        for process in ended:
            process.kill()
        for process in idle:
            process.end()  # others are ended by the threads that wait for them


class _Collator:
    """One of them, from outside."""

    def __init__(self, function: bytes) -> None:
        places = json.dumps(sys.path, default=str)  # whatever others have put there
        command = [sys.executable, "-c", _START.format(__name__), places]
        alone = {"OMP_NUM_THREADS": "1", **os.environ}  # they share the processor
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=alone)
        except OSError as error:
            raise SetupError(
                f"no process can be started that calls collate_fn ({command[0]}): {error}",
                "take threads= instead of processes=, or fewer of them",
            ) from error
        self._function: bytes | None = function

    def ask(self, question: Any) -> Any:
        """Its answer. Raises EOFError or OSError if it is gone."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        if self._function is not None:
            _send(into, self._function)
            self._function = None
        _send(into, question)
        return _receive(out)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> str:
        """What has become of it, when it is over."""
        code = self._process.wait()
        for file in (self._process.stdin, self._process.stdout):
            try:
                if file is not None:
                    file.close()
            except OSError:
                pass  # there was more to say to it
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended by itself, with code {code}"


def _pickled(collate: Collate) -> bytes:
    """Rule 2: a function of the script, or one without a name, by value."""
    try:
        found = pickle.dumps(collate)
        if b"__main__" not in found:
            return found
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    for name in _CLOUDPICKLES:
        try:
            return bytes(importlib.import_module(name).dumps(collate))
        except ImportError:
            continue
        except Exception as error:
            raise _unfit(error) from error
    raise _unfit("it is no function of a module, and cloudpickle is not installed")


class _Unfit:
    """Stands for a function that could not be imported."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, _: Any) -> Any:
        raise _unfit(self._why)


def _unfit(why: object) -> ConfigurationError:
    return ConfigurationError(
        f"collate_fn cannot go to another process: {why}",
        "define it in a module that others can import, not in the script; or take threads= instead of processes=",
    )


# ---------------------------------------------------------------------- in the process


def serve() -> None:
    """What such a process does, till its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it
    answers, questions = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # rule 6
    try:
        given = _receive(questions)
        try:
            collate: Any = pickle.loads(given)
        except Exception as error:
            collate = _Unfit(f"{type(error).__name__}: {error}")

        while True:
            arrays, place = _receive(questions)
            _answer(answers, collate, arrays, place)
    except (EOFError, BrokenPipeError):
        return


def _answer(answers: IO[bytes], collate: Collate, arrays: dict[str, Any], place: SlicePlace) -> None:
    made = None
    try:
        made = _drawn_alike(collate, arrays, place)
        parts = _parts((made, None))
    except Exception as error:
        parts = _parts((None, _portable(error) if made is None else _stays(made, place, error)))
    _write(answers, parts)


def _stays(made: Any, place: SlicePlace, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"what collate_fn gave for {place}, a {type(made).__name__}, cannot come back from another process: {error}",
        "give what pickle takes: classes of a module that others can import, not of the script; "
        "or take threads= instead of processes=",
    )


def _drawn_alike(collate: Collate, arrays: dict[str, Any], place: SlicePlace) -> Any:
    """Rule 4. A function that brings torch along has drawn from its generator before that was seeded: it is called
    once more."""
    knew = _seed(place.seed)
    found = called(collate, arrays, place)
    if not knew and _seed(place.seed):
        found = called(collate, arrays, place)
    return found


def _seed(seed: int) -> bool:
    """Whether there was torch to be seeded."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return torch is not None


def _portable(error: Exception) -> Exception:
    """The error, or its words if it cannot be pickled and made again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


# ---------------------------------------------------------------------- what travels


class _Pickler(pickle.Pickler):
    """Tensors like arrays (rule 3)."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.requires_grad or value.is_nested:
            return NotImplemented
        if value.device.type != "cpu" or value.layout != torch.strided:
            return NotImplemented
        if value.dtype == torch.bfloat16:
            return _tensor, (value.contiguous().view(torch.int16).numpy(), "bfloat16")
        return _tensor, (value.contiguous().numpy(), None)


def _tensor(array: Any, dtype: str | None) -> Any:
    torch = importlib.import_module("torch")
    found = torch.from_numpy(array)
    return found if dtype is None else found.view(getattr(torch, dtype))


def _parts(value: Any) -> list[memoryview]:
    buffers: list[memoryview] = []

    def beside(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    file = BytesIO()
    _Pickler(file, protocol=5, buffer_callback=beside).dump(value)
    return [file.getbuffer(), *buffers]


def _send(file: IO[bytes], value: Any) -> None:
    _write(file, _parts(value))


def _write(file: IO[bytes], parts: list[memoryview]) -> None:
    file.write(struct.pack(f"<I{len(parts)}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        file.write(part)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    (count,) = struct.unpack("<I", _exactly(file, 4))
    sizes = struct.unpack(f"<{count}Q", _exactly(file, 8 * count))
    first, *buffers = [_exactly(file, size) for size in sizes]
    return pickle.loads(first, buffers=buffers)


def _exactly(file: IO[bytes], size: int) -> bytearray:
    """Raises EOFError if the other end is gone."""
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        read = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        at += read
    return found
