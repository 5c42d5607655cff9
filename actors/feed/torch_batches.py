"""A feed for torch: its slices as tensors, and a reader as a loader. torch is imported when the first one is made.

The arguments are named as Ray Data names them (``iter_torch_batches``), so that a training loop need not change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ...engine.arrow.arrays import check_named, check_numeric, of_column
from ...engine.arrow.tensors import Array, Ragged, may_differ
from ...engine.core.errors import ConfigurationError, DataError
from .collating import Collate, Collators, SlicePlace, called

_OTHERWISE = "pass ragged=, for rows of different shapes, or collate_fn="
RAGGED = ("jagged", "nested", "list")
"""What rows of different shapes become: a nested tensor of either layout, or a list of tensors."""


def ragged_forms(given: Any, schema: pa.Schema) -> dict[str, str]:
    """By column, what is to be made of rows that may have different shapes. ``given``: for all, or by name. Raises
    ConfigurationError for what cannot be."""
    check_named("ragged", given, schema.names)
    forms = {field.name: form for field in schema if (form := of_column(given, field.name)) is not None}
    for name, form in forms.items():
        if form not in RAGGED:
            raise ConfigurationError(f"ragged={form!r}", f"give {', '.join(map(repr, RAGGED))}, for all or by column")
        if isinstance(given, Mapping) and not may_differ(schema.field(name)):
            raise ConfigurationError(f"ragged: all rows of column {name!r} have one shape", "leave it out there")
    return {name: form for name, form in forms.items() if may_differ(schema.field(name))}


class TorchBatches:
    """Makes what ``Reader.iter_torch_batches`` gives of arrays with these ``names``. Raises ConfigurationError for
    arguments that cannot be; DataError for a slice, by column.

    To a GPU everything goes from pinned memory, on a stream of its own, beside what the loop computes there. Whoever
    is ``given`` it uses it on the stream that is current then, which waits for the copies; no thread does.
    """

    def __init__(
        self,
        names: list[str],
        dtypes: Any = None,
        device: Any = None,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        processes: Collators | None = None,
    ) -> None:
        self._torch = _torch()
        if collate_fn is not None and dtypes is not None:
            raise ConfigurationError("dtypes and collate_fn", "convert the types in collate_fn")
        _check_dtypes(self._torch, dtypes, names)
        self._dtypes, self._collate = dtypes, collate_fn and (processes or partial(called, collate_fn))
        self._device, self._pin = device, pin_memory
        _try(self._torch, device, pin_memory)
        self.copies = device is not None and self._torch.device(device).type == "cuda"
        """Whether tensors are copied beside the loop, so that making them ahead pays."""
        self._stream = self._torch.cuda.Stream(device) if self.copies else None

    def make(self, arrays: dict[str, Any], place: SlicePlace) -> Any:
        """The tensors of one slice, which may be on their way. From any thread."""
        if self._stream is None:
            made = self._collated(arrays, place)
            return _moved(made, self._device, self._pin) if self._pin or self._device is not None else made
        torch = self._torch
        if self._collate is not None:
            pinned: Any = _moved(self._collate(arrays, place), None, True)
        else:
            pinned = {name: self._to_copy(name, array) for name, array in arrays.items()}
        with torch.cuda.stream(self._stream):
            moved = _moved(pinned, self._device, False, non_blocking=True)
            if self._dtypes is not None:
                for name in [name for name, array in arrays.items() if not isinstance(array, Ragged)]:
                    moved[name] = moved[name].to(self._dtype(name) or moved[name].dtype)
            return moved, self._stream.record_event()

    def give(self, made: Any) -> Any:
        """The tensors, ready for the current stream. From the thread of the loop."""
        if self._stream is None:
            return made
        moved, event = made
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(event)
        _used_on(moved, current)
        return moved

    def _to_copy(self, name: str, array: Any) -> Any:
        if isinstance(array, Ragged):
            return _several(self._torch, name, array, self._dtype(name))
        return _pinned(self._torch, name, array, self._dtype(name))

    def _collated(self, arrays: dict[str, Any], place: SlicePlace) -> Any:
        if self._collate is not None:
            return self._collate(arrays, place)
        return {name: self._tensor(name, array) for name, array in arrays.items()}

    def _tensor(self, name: str, array: Any) -> Any:
        make = _several if isinstance(array, Ragged) else _tensor
        return make(self._torch, name, array, self._dtype(name))

    def _dtype(self, name: str) -> Any:
        return of_column(self._dtypes, name)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ConfigurationError("torch is not installed", "pip install torch, or use iter_batches()") from error


def _check_dtypes(torch: Any, dtypes: Any, names: list[str]) -> None:
    check_named("dtypes", dtypes, names)
    for dtype in dtypes.values() if isinstance(dtypes, Mapping) else (dtypes,):
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ConfigurationError(
                f"dtypes: {dtype!r} is no type of torch", "give torch.float32 and the like, one for all, or by column"
            )


def _try(torch: Any, device: Any, pin_memory: bool) -> None:
    """Whether tensors can go there at all."""
    try:
        where = None if device is None else torch.device(device)
        _moved(torch.empty(0), where, pin_memory)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError, ValueError) as error:
        given = f"device={device!r}" + (", pin_memory=True" if pin_memory else "")
        raise ConfigurationError(
            f"tensors cannot go to {given}: {error}",
            'give a device of this machine ("cpu", "cuda:0"); pin_memory=True needs an accelerator',
        ) from error


def _several(torch: Any, name: str, found: Ragged, dtype: Any) -> Any:
    """Rows of different shapes, in the form that was asked for. Their values are copied once, for all rows."""
    values = _tensor(torch, name, found.values, dtype)
    if found.form == "list":
        return found.rows(values)
    if found.form == "nested":
        return torch.nested.as_nested_tensor(found.rows(values), dtype=values.dtype)
    inner = found.shapes[:, 1:]
    if found.order or (inner != inner[:1]).any():
        raise DataError(
            f"column {name!r} has tensors that differ in more than their first dimension, which are no jagged tensor",
            f'give ragged={{{name!r}: "nested"}} or "list"',
        )
    shape = inner[0].tolist() if len(found) else found.like[1:]
    ends = np.concatenate([[0], np.cumsum(found.shapes[:, 0])])
    return torch.nested.nested_tensor_from_jagged(values.reshape(int(ends[-1]), *shape), torch.from_numpy(ends))


def _tensor(torch: Any, name: str, array: Array, dtype: Any) -> Any:
    check_numeric(name, array, _OTHERWISE)
    if not array.flags.writeable:
        array = array.copy()  # torch may write into what it is given
    return torch.as_tensor(array, dtype=dtype)


def _pinned(torch: Any, name: str, array: Array, dtype: Any) -> Any:
    """The same in pinned memory, in one copy. A type that NumPy does not have, or that it makes of others in ways of
    its own, is left to the device."""
    check_numeric(name, array, _OTHERWISE)
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    if dtype in (torch.float16, torch.float32, torch.float64) and kind.is_floating_point:
        kind = dtype
    found = torch.empty(array.shape, dtype=kind, pin_memory=True)
    with np.errstate(over="ignore"):  # to half precision, as torch does it
        np.copyto(found.numpy(), array, casting="same_kind")
    return found


def _moved(found: Any, device: Any, pin_memory: bool, non_blocking: bool = False) -> Any:
    """Tensors, alone or in dictionaries, lists and tuples, where they are wanted."""

    def moved(tensor: Any) -> Any:
        if pin_memory:
            tensor = tensor.pin_memory()
        return tensor if device is None else tensor.to(device, non_blocking=non_blocking or pin_memory)

    return _each_tensor(found, moved)


def _used_on(found: Any, stream: Any) -> None:
    """Their memory is not given to others before the stream has come past its present end, once nobody holds them."""

    def used(tensor: Any) -> Any:
        for part in _parts(tensor) if tensor.is_cuda else ():
            part.record_stream(stream)
        return tensor

    _each_tensor(found, used)


def _parts(tensor: Any) -> tuple[Any, ...]:
    """The plain tensors that one is made of."""
    if not tensor.is_nested:
        return (tensor,)
    return (tensor.values(), tensor.offsets()) if "jagged" in str(tensor.layout) else (tensor.values(),)


def _each_tensor(found: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(found, Mapping):
        return {key: _each_tensor(value, change) for key, value in found.items()}
    if isinstance(found, list | tuple):
        changed = [_each_tensor(value, change) for value in found]
        if hasattr(found, "_fields"):  # a NamedTuple takes its values one by one
            return type(found)(*changed)
        return type(found)(changed)
    return change(found) if hasattr(found, "to") else found


class Stateful(Protocol):
    """What a loader needs of a reader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Loader:
    """What Lightning and Trainer take for a data loader: epochs of torch batches, and a state. It has no length, so
    that a framework that looks one batch ahead does so always. It is none of torch's, which Accelerate would wrap, and
    so divide a second time what is divided among ranks. Made by ``Reader.loader``."""

    def __init__(self, reader: Stateful, batches: Callable[[], Iterator[Any]]) -> None:
        self.reader = reader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch."""
        return self._batches()

    def state_dict(self) -> dict[str, Any]:
        """The place that the model has come to, the same in every rank."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place of a saved model."""
        self.reader.load_state_dict(state)
