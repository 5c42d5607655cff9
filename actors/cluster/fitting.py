"""Whether what a plan asks for fits into a cluster. Pure: no Ray.

Ray lets an actor that fits nowhere wait for ever, and says so only in its log. So what a plan asks for is compared with
what the cluster has before anything is started, and an error names the stage, what it asks for and what there is.

Rules:

1. What fits no node, or is more than all nodes have together, will never run.
2. What is more than is free now waits for its holder: another job, or Spark's executors. They may wait for this
   job's rows in turn, so it is refused as well.
3. If the sums fit but nodes would have to be filled to the brim in the right order, it may still not fit: a warning.
4. A job that takes the last free CPU leaves none to Spark executors that are started later: a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...engine.core.errors import ConfigurationError
from ...engine.plan.plan import JobPlan
from ...engine.plan.resources import CPU, Resources

Amounts = Mapping[str, float]

_REMEDY = "ask for less, run with a lower parallelism, or let nodes come: ps.Runtime(wait_for_resources=True)"
_EPSILON = 1e-6


class NotFreeError(ConfigurationError):
    """It would fit, but others hold it now."""


def asked_by(plan: JobPlan) -> dict[str, Resources]:
    """What the stages ask for that ask for anything, all subtasks together."""
    stages = plan.stages.values()
    return {stage.name: stage.resources.times(stage.parallelism) for stage in stages if stage.resources}


def check_spares(plan: JobPlan, spares: int) -> None:
    """A spare takes over any task, so with spares no stage may need what others have not. Raises ConfigurationError."""
    asking = next(iter(asked_by(plan)), None)
    if spares and asking is not None:
        message = f"stage {asking} asks for {plan.stages[asking].resources}, which a spare process does not have"
        raise ConfigurationError(message, "leave out spares=, or the resources", asking)


def check_fits(plan: JobPlan, nodes: Sequence[Amounts], free: Amounts) -> list[str]:
    """Warnings; raises ConfigurationError (rule 1) or NotFreeError (rule 2). ``nodes``: what each has in all; ``free``:
    what is free in the whole cluster."""
    asked = asked_by(plan)
    total = _sum(nodes)
    for name in asked:
        _check_node(plan, name, nodes)
    wanted = _sum([dict(each.amounts) for each in asked.values()])
    _check_sum(asked, wanted, total, "the cluster has", ConfigurationError)
    _check_sum(asked, wanted, free, "free in the cluster are now", NotFreeError)
    return [*_warn_packing(plan, nodes), *_warn_cpus(wanted, free)]


def _sum(each: Sequence[Amounts]) -> dict[str, float]:
    names = {name for amounts in each for name in amounts}
    return {name: sum(amounts.get(name, 0.0) for amounts in each) for name in sorted(names)}


def _check_node(plan: JobPlan, name: str, nodes: Sequence[Amounts]) -> None:
    stage = plan.stages[name]
    if not any(_fits(stage.resources, node) for node in nodes):
        best = "; ".join(sorted({_shown(node, stage.resources) for node in nodes})) or "none"
        message = (
            f"stage {name} asks for {stage.resources} for each of its {stage.parallelism} subtasks; nodes have {best}"
        )
        raise ConfigurationError(message, _REMEDY, name)


def _check_sum(
    asked: Mapping[str, Resources], wanted: Amounts, there: Amounts, word: str, error: type[ConfigurationError]
) -> None:
    for resource, amount in wanted.items():
        if amount > there.get(resource, 0.0) + _EPSILON:
            stages = {name: dict(each.amounts) for name, each in asked.items()}
            who = ", ".join(f"stage {name} {each[resource]:g}" for name, each in stages.items() if resource in each)
            message = f"the job asks for {amount:g} {resource} ({who}); {word} {there.get(resource, 0.0):g}"
            raise error(message, _REMEDY)


def _fits(asked: Resources, node: Amounts) -> bool:
    return all(amount <= node.get(name, 0.0) + _EPSILON for name, amount in asked.amounts)


def _shown(node: Amounts, asked: Resources) -> str:
    return ", ".join(f"{node.get(name, 0.0):g} {name}" for name, _ in asked.amounts)


def _warn_packing(plan: JobPlan, nodes: Sequence[Amounts]) -> list[str]:
    """First fit, the largest first."""
    left = [dict(node) for node in nodes]
    stages = sorted(plan.stages.values(), key=lambda stage: -max(dict(stage.resources.amounts).values(), default=0.0))
    for stage in stages:
        for _ in range(stage.parallelism if stage.resources else 0):
            node = next((each for each in left if _fits(stage.resources, each)), None)
            if node is None:
                return [f"the subtasks of stage {stage.name} may not fit on the nodes: {stage.resources} each"]
            for name, amount in stage.resources.amounts:
                node[name] -= amount
    return []


def _warn_cpus(wanted: Amounts, free: Amounts) -> list[str]:
    taken, there = wanted.get(CPU, 0.0), free.get(CPU, 0.0)
    if not taken or there - taken >= 1:
        return []
    return [
        f"the job takes {taken:g} of {there:g} free CPUs, so Spark executors that are started later wait until it is "
        "over; without num_cpus= its processes share the CPUs"
    ]
