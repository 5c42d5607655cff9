"""From the address of a checkpoint folder to the store that keeps its log."""

from __future__ import annotations

import os

from ...coordinator.store import Store
from ...engine.durable import LOCAL, make_folder
from ...engine.errors import ConfigurationError
from ...engine.sources.files import absolute, storage_error
from .file_store import FileStore


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store in the folder, which is made if it does not exist. Raises ConfigurationError if it cannot be used."""
    path = absolute(url)
    if "://" in path:
        raise ConfigurationError(
            f"the checkpoint folder {path} is on a file system that checkpoints cannot be kept on",
            "give a local path, or file:///… on storage that all machines share; object stores are not supported yet, "
            "because the log needs an object that is created only if it is absent",
        )
    try:
        make_folder(LOCAL, path)
    except OSError as error:
        told = storage_error("make the checkpoint folder", path, error)
        raise ConfigurationError(told.message, "make its parent writable, or choose another folder") from error
    return FileStore(path)
