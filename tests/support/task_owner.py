"""Hosts one task of a plan, records what it says, and plays its peers."""

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channels import Frame
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.task import Task

ATTEMPT = Attempt(1, 1)


def cp(number: int) -> CheckpointId:
    return CheckpointId(1, number)


class Owner:
    """Hosts one task of a plan, records what it says, and can play its peers."""

    def __init__(self, plan, task, restored=None) -> None:
        self.frames: list[Frame] = []
        self.upstream: list = []
        self.proposed: list = []
        self.snapshots: dict = {}
        self.said: list = []
        self.error = None
        attempts = dict.fromkeys(plan.tasks(), ATTEMPT)
        self.task = Task(plan, task, ATTEMPT, attempts, restored or {}, self, self)
        self.task.start()

    def send(self, frame):
        self.frames.append(frame)

    def reply(self, message):
        self.upstream.append(message)

    def round_proposed(self, checkpoint, round):
        self.proposed.append((checkpoint.number, round))

    def snapshot_taken(self, checkpoint, snapshot):
        self.snapshots[checkpoint.number] = snapshot

    def declined(self, checkpoint):
        self.said.append(f"declined {checkpoint.number}")

    def data_ended(self):
        self.said.append("data ended")

    def finished(self, cut):
        self.said.append("finished")

    def failed(self, error):
        self.error = error

    def run(self, now=0.0):
        while self.task.step(now).progressed:
            pass
        return self

    def trigger(self, number, at_round=None):
        self.task.trigger(cp(number), BarrierKind.CHECKPOINT, at_round, 0.0)
        return self

    def cut(self, number):
        self.task.trigger(cp(number), BarrierKind.CHECKPOINT, None, 0.0, unaligned=True)
        return self

    def elements(self) -> list:
        return [frame.element for frame in self.frames]


def tables(*sizes: int) -> list[pa.Table]:
    return [pa.table({"x": pa.array([number * 10 + row for row in range(size)])}) for number, size in enumerate(sizes)]


def gathered(parallelism=1, sizes=(2, 2, 2, 2), lanes=2):
    flow = Flow("gathered", lanes=lanes)
    flow.from_tables(tables(*sizes), name="numbers").filter(pc.field("x") >= 0).gather().collect("out")
    return plan_job(flow, parallelism)


def source_owner(**options) -> Owner:
    return Owner(gathered(**options), TaskId("numbers", 0))


def end_checkpoint(owner, number=1):
    owner.run().trigger(number).run()
    owner.task.notify_committed(cp(number))
