"""The completed checkpoints against a disk: nothing that may still be needed is deleted, nothing else stays.

The model holds the files and the log as they really are, writes of manifests that failed included: some of them appear
in the log later, as long as their number is free.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.log.retained import Gone, RetainedCheckpoints
from penstock.coordinator.model.manifest import Manifest, Pinned, TaskState, Unpinned
from penstock.engine.core.identity import CheckpointId, StateHandle, TaskId

TASKS = (TaskId("a", 0), TaskId("a", 1), TaskId("b", 0))


def locations(manifest: Manifest) -> set[str]:
    return {handle.location for state in manifest.tasks for handle in state.state}


class CompletedMachine(RuleBasedStateMachine):
    """Each checkpoint writes new files for some tasks and shares the others with the newest one."""

    @initialize(retained=st.integers(1, 3))
    def begin(self, retained: int) -> None:
        self.retained = retained
        self.completed = RetainedCheckpoints(retained)
        self.files: set[str] = set()
        #: Entries of the log that are manifests, by number; other entries only take numbers.
        self.log: dict[int, Manifest] = {}
        self.next_number = 0
        #: What the log says of pins, by number; and who depends on what because of it.
        self.notes: dict[int, Pinned | Unpinned] = {}
        self.pins: dict[str, CheckpointId] = {}
        #: Failed writes that may still come.
        self.doubtful: list[Manifest] = []
        self.count = 0

    def new_manifest(self, changed: set[TaskId]) -> Manifest:
        self.count += 1
        tasks = []
        for task in TASKS:
            held = self.completed.state_of(task)
            handles = held.state if held is not None else ()
            if held is None or task in changed:
                handles = (*handles[-1:], StateHandle("op", f"{task}/{self.count}", 1, 1))
            tasks.append(TaskState(task=task, state=handles))
        id = CheckpointId(1, self.count)
        manifest = Manifest(
            number=self.next_number, checkpoint=id, fingerprint="f", parallelism={"a": 2, "b": 1}, tasks=tuple(tasks)
        )
        self.files |= locations(manifest)
        return manifest

    def held_by(self, task: TaskId) -> tuple[StateHandle, ...]:
        state = self.completed.state_of(task)
        return state.state if state is not None else ()

    def discard(self, handles: tuple[StateHandle, ...]) -> None:
        gone = {handle.location for handle in handles}
        assert len(gone) == len(handles), "a file is deleted twice"
        assert gone <= self.files, "what is gone is deleted again"
        self.files -= gone

    def stand(self, manifest: Manifest) -> None:
        """The manifest is in the log, so its number is taken."""
        self.log[manifest.number] = manifest
        self.next_number += 1
        self.doubtful = []
        gone = self.completed.add(manifest)
        self.let_go(gone)

    def let_go(self, gone: Gone) -> None:
        for number in gone.numbers:
            assert number != self.next_number - 1, "the last entry of the log is deleted"
            if self.log.pop(number, None) is None:
                del self.notes[number]
        self.discard(gone.handles)

    @rule(changed=st.sets(st.sampled_from(TASKS)))
    def checkpoint_completes(self, changed: set[TaskId]) -> None:
        self.stand(self.new_manifest(changed))

    @rule(changed=st.sets(st.sampled_from(TASKS)))
    def write_fails_and_may_still_come(self, changed: set[TaskId]) -> None:
        manifest = self.new_manifest(changed)
        self.doubtful.append(manifest)
        self.completed.doubt(manifest)

    @precondition(lambda self: self.doubtful)
    @rule(data=st.data())
    def doubtful_manifest_is_found_in_the_log(self, data: st.DataObject) -> None:
        self.stand(data.draw(st.sampled_from(self.doubtful)))

    @rule()
    def claim_takes_the_number(self) -> None:
        self.next_number += 1
        self.doubtful = []
        self.discard(self.completed.settle())

    @rule(data=st.data())
    def acknowledgement_comes_too_late(self, data: st.DataObject) -> None:
        """It names a file of its own, and some that it shares with a checkpoint that is kept or may be."""
        self.count += 1
        known = [state for manifest in (*self.log.values(), *self.doubtful) for state in manifest.tasks]
        shared = data.draw(st.sampled_from(known)).state if known else ()
        handles = (*shared, StateHandle("op", f"late/{self.count}", 1, 1))
        self.files.add(handles[-1].location)
        self.discard(self.completed.unreferenced(handles))

    @precondition(lambda self: self.log)
    @rule(data=st.data(), name=st.sampled_from("xyz"))
    def somebody_depends_on_a_checkpoint(self, data: st.DataObject, name: str) -> None:
        checkpoint = data.draw(st.sampled_from([manifest.checkpoint for manifest in self.log.values()]))
        assert self.completed.hold(checkpoint)
        entry = Pinned(number=self.next_number, generation=1, checkpoint=checkpoint, name=name)
        self.notes[entry.number] = entry
        self.pins[name] = checkpoint
        self.claim_takes_the_number()
        self.let_go(self.completed.pinned(entry))

    @rule(name=st.sampled_from("xyz"))
    def nobody_depends_on_it_any_more(self, name: str) -> None:
        entry = Unpinned(number=self.next_number, generation=1, name=name)
        self.notes[entry.number] = entry
        self.pins.pop(name, None)
        self.claim_takes_the_number()
        self.let_go(self.completed.unpinned(entry))

    @rule()
    def another_coordinator_takes_over(self) -> None:
        """It knows the log alone, and its claim has taken the number."""
        self.claim_takes_the_number()
        self.completed = RetainedCheckpoints(self.retained)
        manifests = [self.log[number] for number in sorted(self.log)]
        self.let_go(self.completed.restore(manifests, [self.notes[number] for number in sorted(self.notes)]))
        assert self.completed.pins == self.pins

    @invariant()
    def disk_holds_all_and_only_what_a_manifest_may_need(self) -> None:
        if not hasattr(self, "completed"):
            return
        self.completed.validate()
        needed: set[str] = set()
        for manifest in (*self.log.values(), *self.doubtful):
            needed |= locations(manifest)
        assert self.files == needed
        assert self.completed.doubtful == tuple(self.doubtful)

    @invariant()
    def newest_manifests_of_the_log_are_kept(self) -> None:
        if not hasattr(self, "completed"):
            return
        newest = self.log[max(self.log)] if self.log else None
        assert self.completed.latest == newest
        assert self.completed.latest_id == (newest.checkpoint if newest else None)
        pinned = set(self.pins.values())
        assert pinned <= {manifest.checkpoint for manifest in self.log.values()}
        assert sum(manifest.checkpoint not in pinned for manifest in self.log.values()) <= self.retained
        assert self.completed.pins == self.pins
        states = newest.tasks if newest else ()
        for vertex in ("a", "b"):
            found = [h for task in TASKS if task.vertex == vertex for h in self.held_by(task)]
            held = [handle for state in states if state.task.vertex == vertex for handle in state.state]
            assert found == held


TestCompleted = CompletedMachine.TestCase
TestCompleted.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
