"""From the address of a checkpoint folder to the store that keeps its log."""

from __future__ import annotations

import os

from ...coordinator.store import Store
from ...engine.durable import LOCAL, make_folder
from ...engine.errors import ConfigurationError
from ...engine.sources.files import local_path, storage_error
from .file_store import FileStore


def checkpoint_folder(url: str | os.PathLike[str]) -> str:
    """The local folder that a user's address means. Raises ConfigurationError."""
    return local_path(
        url,
        "the checkpoint folder",
        "give a local path, or file:///… on storage that all machines share; object stores are not supported yet, "
        "because the log needs an object that is created only if it is absent",
    )


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store in the folder, which is made if it does not exist. Raises ConfigurationError if it cannot be used."""
    path = checkpoint_folder(url)
    try:
        make_folder(LOCAL, path)
    except OSError as error:
        told = storage_error("make the checkpoint folder", path, error)
        raise ConfigurationError(told.message, "make its parent writable, or choose another folder") from error
    return FileStore(path)
