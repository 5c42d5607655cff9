"""Slices of a feed as torch tensors. torch is imported when the first one is made.

The arguments are named as Ray Data names them (``iter_torch_batches``), so that a training loop need not change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ...engine.errors import ConfigurationError, DataError
from .arrays import to_numpy


def torch_batches(
    batches: Iterator[pa.RecordBatch],
    dtypes: Any = None,
    device: Any = None,
    collate_fn: Callable[[dict[str, Any]], Any] | None = None,
    pin_memory: bool = False,
) -> Iterator[Any]:
    """What ``Reader.iter_torch_batches`` says."""
    torch = _torch()
    if collate_fn is not None and dtypes is not None:
        raise ConfigurationError("dtypes and collate_fn", "convert the types in collate_fn")
    for records in batches:
        arrays = to_numpy(records)
        if collate_fn is not None:
            yield _moved(collate_fn(arrays), device, pin_memory)
        else:
            tensors = {name: _tensor(torch, name, array, dtypes) for name, array in arrays.items()}
            yield _moved(tensors, device, pin_memory)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ConfigurationError("torch is not installed", "pip install torch, or use iter_batches()") from error


def _tensor(torch: Any, name: str, array: np.ndarray[Any, Any], dtypes: Any) -> Any:
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"column {name!r} cannot become a tensor: its values are {array.dtype}",
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
        return type(found)(_moved(value, device, pin_memory) for value in found)
    if not hasattr(found, "to"):
        return found
    if pin_memory:
        found = found.pin_memory()
    return found if device is None else found.to(device, non_blocking=pin_memory)
