"""What the subtasks of a stage ask of a cluster: CPUs, GPUs, and whatever else its nodes are said to have. Pure.

Rules:

1. By default nothing: a task shares the CPUs with everybody, and never waits for one that an executor holds.
2. An operator asks, its stage gets it: the operators of a stage run in one process. Operators of one stage may name
   different resources, or the same amount of one, which they then share. Different amounts of one resource are refused:
   whether the sum or the larger is meant, only the user knows.
3. Resources say where a process may run. They change neither rows nor their order, so no checkpoint depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.errors import FlowError
from .sizes import size

CPU, GPU, MEMORY = "CPU", "GPU", "memory"


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts by name, by ascending name and above 0. Made with ``resources_of``."""

    amounts: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.amounts)

    def __str__(self) -> str:
        said = (f"{size(amount) if name == MEMORY else f'{amount:g}'} {name}" for name, amount in self.amounts)
        return ", ".join(said) or "nothing"

    @property
    def cpus(self) -> float:
        """CPUs that are kept from others."""
        return dict(self.amounts).get(CPU, 0.0)

    @property
    def gpus(self) -> float:
        """GPUs, or the share of one."""
        return dict(self.amounts).get(GPU, 0.0)

    @property
    def memory(self) -> int:
        """Bytes that are kept from others; Ray counts them, and nobody is stopped."""
        return int(dict(self.amounts).get(MEMORY, 0))

    @property
    def custom(self) -> dict[str, float]:
        """The others."""
        return {name: amount for name, amount in self.amounts if name not in (CPU, GPU, MEMORY)}

    def times(self, count: int) -> Resources:
        """What so many subtasks ask for together."""
        return Resources(tuple((name, amount * count) for name, amount in self.amounts))


NOTHING = Resources()


def resources_of(
    num_cpus: float = 0.0, num_gpus: float = 0.0, memory: float = 0.0, custom: Mapping[str, float] | None = None
) -> Resources:
    """Resources, checked; ``memory`` in bytes. Raises FlowError."""
    for name in custom or {}:
        if not name or name.upper() in (CPU, GPU) or name in ("memory", "object_store_memory"):
            raise FlowError(f"{name!r} is no resource of its own", "say num_cpus=, num_gpus=, memory=")
    found = {CPU: num_cpus, GPU: num_gpus, MEMORY: memory, **(custom or {})}
    for name, amount in found.items():
        if type(amount) not in (int, float) or not 0 <= amount < float("inf"):
            raise FlowError(f"{amount!r} is no amount of {name}", "give a number from 0 on")
        if amount > 1 and amount != int(amount):
            raise FlowError(f"{amount:g} {name} cannot be given out", "give a whole number, or a share below 1")
    return Resources(tuple(sorted((name, float(amount)) for name, amount in found.items() if amount)))


def joined(asked: Iterable[tuple[str, Resources]]) -> Resources:
    """What a stage asks for whose operators (by id) ask for this; rule 2. Raises FlowError."""
    found: dict[str, tuple[float, str]] = {}
    for operator, resources in asked:
        for name, amount in resources.amounts:
            known, other = found.setdefault(name, (amount, operator))
            if known != amount:
                message = f"asks for {amount:g} {name}, and {other}, in the same process, for {known:g}"
                raise FlowError(message, "ask for the same, or part the two with an exchange (rebalance)", operator)
    return Resources(tuple(sorted((name, amount) for name, (amount, _) in found.items())))
