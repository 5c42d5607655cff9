"""A feed for JAX: the arrays of its slices, divided among devices. jax is imported when the first one is made.

Rules:

1. Each process gives its slice as its part of global arrays, laid out by a ``Sharding``: so the ranks of a feed are the
   processes of a JAX job. Without one an array is on the default device of its process, and nobody else's.
2. JAX takes a process's word for what the others have: from slices of unequal length, or of whole batches where the
   sharding divides no rows, each process makes a global array of another shape, and their replicas drift apart without
   a word. So the rows of the global array must be those of the global batch.
3. Without ``jax_enable_x64`` JAX has no integers of 64 bits and cuts what is larger off, without a word; NumPy does so
   where a type is asked for. What does not fit is an error here.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ...engine.arrow.arrays import check_named, check_numeric, of_column
from ...engine.arrow.tensors import Array
from ...engine.core.errors import ConfigurationError, DataError
from .collating import SlicePlace


class JaxBatches:
    """Makes what ``Reader.iter_jax_batches`` gives of arrays with these ``names``. Raises ConfigurationError for
    arguments that cannot be; DataError for a slice, by column."""

    def __init__(self, names: list[str], dtypes: Any = None, sharding: Any = None) -> None:
        self._jax = _jax()
        check_named("dtypes", dtypes, names)
        check_named("sharding", sharding, names)
        self._dtypes = {name: _dtype(self._jax, of_column(dtypes, name)) for name in names}
        self._shardings = {name: self._sharding(of_column(sharding, name)) for name in names}

    def make(self, arrays: dict[str, Array], place: SlicePlace) -> dict[str, Any]:
        """The arrays of one slice."""
        return {name: self._array(name, array, place) for name, array in arrays.items()}

    def _sharding(self, given: Any) -> Any:
        if given is not None and not isinstance(given, self._jax.sharding.Sharding):
            raise ConfigurationError(
                f"sharding={given!r} is no jax.sharding.Sharding",
                'give NamedSharding(mesh, PartitionSpec("dp")) and the like, one for all, or by column',
            )
        return given

    def _array(self, name: str, array: Array, place: SlicePlace) -> Any:
        check_numeric(name, array, "take iter_batches()")
        dtype, sharding = self._dtypes[name], self._shardings[name]
        self._check_fits(name, array, array.dtype if dtype is None else dtype)
        found = array if dtype is None else array.astype(dtype)
        if sharding is None:
            return self._jax.device_put(found)
        try:
            made = self._jax.make_array_from_process_local_data(sharding, found)
        except ValueError as error:
            raise DataError(
                f"column {name!r}: {len(array)} rows cannot be divided among devices as the sharding says: {error}",
                "give the feed a batch_size that they divide, and drop_last=True",
            ) from error
        if not sharding.is_fully_addressable and made.shape[0] != place.batch_rows:  # rule 2
            raise DataError(
                f"column {name!r}, {place}: with this sharding {len(array)} rows of each process make an array of "
                f"{made.shape[0]} rows, and the global batch has {place.batch_rows}",
                "let the sharding divide rows among all processes, and give the feed a batch_size that the ranks and "
                "their devices divide, drop_last=True, and no balance=",
            )
        return made

    def _check_fits(self, name: str, array: Array, dtype: Any) -> None:
        """Rule 3."""
        if dtype.kind not in "iu" or array.dtype.kind not in "iuf" or not array.size:
            return
        is_wide = dtype.itemsize == 8 and not self._jax.config.jax_enable_x64
        kind = np.iinfo(np.dtype(f"{dtype.kind}4") if is_wide else dtype)
        least, most = array.min(), array.max()
        if least >= kind.min and most <= kind.max:  # NaN is not
            return
        if is_wide:
            raise DataError(
                f"column {name!r} has {least} to {most}, and JAX has integers of 32 bits",
                'say jax.config.update("jax_enable_x64", True) before anything else, or give a type of floats for the '
                "column in dtypes={...}, which rounds",
            )
        raise DataError(
            f"column {name!r} has {least} to {most}, which {dtype} has not", "give a wider type in dtypes={...}"
        )


def _dtype(jax: Any, given: Any) -> Any:
    try:
        return None if given is None else jax.numpy.dtype(given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"dtypes: {given!r} is no type of JAX", "give jnp.bfloat16 and the like, one for all, or by column"
        ) from error


def _jax() -> Any:
    try:
        return importlib.import_module("jax")
    except ModuleNotFoundError as error:
        raise ConfigurationError("jax is not installed", "pip install jax, or use iter_batches()") from error
