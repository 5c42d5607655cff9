"""A feed for torch: its slices as tensors, and a reader as a loader. torch is imported when the first one is made.

The arguments are named as Ray Data names them (``iter_torch_batches``), so that a training loop need not change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ...engine.core.errors import ConfigurationError, DataError
from .arrays import Arrays


class TorchBatches:
    """Makes what ``Reader.iter_torch_batches`` gives of each slice. Raises ConfigurationError for arguments that cannot
    be; DataError for a slice, by column."""

    def __init__(
        self,
        arrays: Arrays,
        dtypes: Any = None,
        device: Any = None,
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._torch = _torch()
        if collate_fn is not None and dtypes is not None:
            raise ConfigurationError("dtypes and collate_fn", "convert the types in collate_fn")
        _check_dtypes(self._torch, dtypes, arrays.names)
        self._arrays, self._dtypes, self._collate = arrays, dtypes, collate_fn
        self._device, self._pin = device, pin_memory
        _try(self._torch, device, pin_memory)

    def of(self, records: pa.RecordBatch) -> Any:
        """One slice."""
        arrays = self._arrays.of(records)
        if self._collate is not None:
            made: Any = self._collate(arrays)
        else:
            made = {name: _tensor(self._torch, name, array, self._dtypes) for name, array in arrays.items()}
        return _moved(made, self._device, self._pin) if self._pin or self._device is not None else made


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ConfigurationError("torch is not installed", "pip install torch, or use iter_batches()") from error


def _check_dtypes(torch: Any, dtypes: Any, names: list[str]) -> None:
    found = dtypes if isinstance(dtypes, Mapping) else {} if dtypes is None else {None: dtypes}
    for name, dtype in found.items():
        if name is not None and name not in names:
            raise ConfigurationError(f"dtypes: the feed has no column {name!r}", f"its columns: {', '.join(names)}")
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


def _tensor(torch: Any, name: str, array: np.ndarray[Any, Any], dtypes: Any) -> Any:
    if array.dtype.kind not in "biufc":
        lists = array.dtype == object and len(array) > 0 and isinstance(array[0], np.ndarray)
        raise DataError(
            f"column {name!r} cannot become a tensor: "
            f"{'its lists have different lengths' if lists else f'its values are {array.dtype}'}",
            "leave the column out (project), make it a number, or pass collate_fn=",
        )
    if not array.flags.writeable:
        array = array.copy()  # torch may write into what it is given
    dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
    return torch.as_tensor(array, dtype=dtype)


def _moved(found: Any, device: Any, pin_memory: bool) -> Any:
    """Tensors, alone or in dictionaries, lists and tuples, where they are wanted."""
    if isinstance(found, Mapping):
        return {key: _moved(value, device, pin_memory) for key, value in found.items()}
    if isinstance(found, list | tuple):
        moved = [_moved(value, device, pin_memory) for value in found]
        if hasattr(found, "_fields"):  # a NamedTuple takes its values one by one
            return type(found)(*moved)
        return type(found)(moved)
    if not hasattr(found, "to"):
        return found
    if pin_memory:
        found = found.pin_memory()
    return found if device is None else found.to(device, non_blocking=pin_memory)


class Stateful(Protocol):
    """What a loader needs of a reader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Loader:
    """What Lightning and Accelerate take for a data loader: epochs of torch batches, and a state. It has no length, so
    that a framework that looks one batch ahead does so always. Made by ``Reader.loader``."""

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
