"""Functions for ``collate_fn`` that a process of its own can import."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import numpy as np


class OddError(Exception):
    """An error that cannot be made again from what it was given."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def with_process(arrays: dict[str, Any]) -> tuple[Any, int]:
    print("this is no answer")  # what a function prints must not be taken for one
    return arrays["n"] + 0, os.getpid()


def drawn(arrays: dict[str, Any]) -> list[Any]:
    import torch  # a process that needs it not begins sooner

    return [int(arrays["n"][0]), random.random(), float(np.random.random()), float(torch.rand(()))]


def tossed(_: dict[str, Any]) -> float:
    return random.random()


def many_kinds(arrays: dict[str, Any]) -> dict[str, Any]:
    import torch

    n = torch.from_numpy(arrays["n"])
    return {
        "half": n.to(torch.bfloat16),
        "turned": torch.stack([n, n]).T,
        "one": torch.tensor(7.5),
        "none": torch.empty(0, 3),
        "words": ["a", None],
        "jagged": torch.nested.nested_tensor_from_jagged(n, torch.tensor([0, 4, len(n)])),
        "array": arrays["n"][::2],
    }


def fails_at_53(arrays: dict[str, Any]) -> int:
    if 53 in arrays["n"]:
        raise KeyError(53)
    return int(arrays["n"][0])


def fails_oddly(arrays: dict[str, Any]) -> int:
    if 23 in arrays["n"]:
        raise OddError(2, 3)
    return int(arrays["n"][0])


def gives_what_cannot_travel(_: dict[str, Any]) -> Any:
    return threading.Lock()


def dies_at_30(arrays: dict[str, Any]) -> int:
    if arrays["n"][0] == 30 and not os.path.exists(os.environ["PENSTOCK_TEST_DIED"]):
        with open(os.environ["PENSTOCK_TEST_DIED"], "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return int(arrays["n"][0])


def ends_at_30(arrays: dict[str, Any]) -> int:
    if arrays["n"][0] == 30:
        os._exit(3)
    return int(arrays["n"][0])


def waits_for_ever(arrays: dict[str, Any]) -> int:
    if arrays["n"][0] > 0:
        threading.Event().wait()
    return os.getpid()
