"""What is read off a manifest."""

from __future__ import annotations

from penstock.coordinator.model.manifest import Manifest, TaskState, committables_of
from penstock.engine.core.identity import CheckpointId, Committable, TaskId


def test_committable_that_is_listed_and_carried_counts_once() -> None:
    """A checkpoint may come before anybody has answered for the one before: its task lists what it prepared again."""
    task, other = TaskId("sink", 0), TaskId("sink", 1)
    again = Committable("out", 3, {"files": [{"final": "a", "bytes": 9}]})
    older = Committable("out", 1, {"files": [{"final": "b", "bytes": 5}]})
    same = Committable("out", 3, {"files": [{"bytes": 9, "final": "a"}]})
    manifest = Manifest(
        number=1,
        checkpoint=CheckpointId(1, 2),
        fingerprint="f",
        parallelism={"sink": 2},
        tasks=(TaskState(task=task, committables=(again,)),),
        uncommitted=((task, same), (other, older)),
    )
    assert committables_of(manifest) == [again, older]
