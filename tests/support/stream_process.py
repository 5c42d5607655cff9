"""One end of a channel in a process of its own, so that a test can kill it: a consumer that takes what it is told to.

Run with the endpoint of the producer as arguments. It prints its own endpoint, then takes as many elements as each line
of its input says, and prints how many of them it took.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.actors.transport.dialling import Endpoint
from support.channel_contract import ATTEMPTS, CHANNEL
from support.stream_wire import FENCE, StreamEnd

CREDIT = 1_000_000


class ConsumerProcess:
    """The process, and the producer's end in this one, which is connected with it."""

    def __init__(self, *, unix: bool = True) -> None:
        self.producer = StreamEnd(CHANNEL.producer, unix=unix)
        argument = pickle.dumps((self.producer.endpoint, unix)).hex()
        tests = str(Path(__file__).parent.parent)
        code = f"import sys; sys.path.insert(0, {tests!r}); from support.stream_process import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        endpoint: Endpoint = pickle.loads(bytes.fromhex(self._line()))
        named = dict.fromkeys((CHANNEL, FENCE), ATTEMPTS)
        self.producer.connect(ATTEMPTS[0], {CHANNEL.consumer: (ATTEMPTS[1], endpoint)}, named, CREDIT)

    def take(self, count: int) -> int:
        """Let it take so many elements, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.producer.close()
        self.process.kill()
        self.process.communicate()


def main() -> None:
    """The process."""
    producer, unix = pickle.loads(bytes.fromhex(sys.argv[1]))
    end = StreamEnd(CHANNEL.consumer, unix=unix)
    named = dict.fromkeys((CHANNEL, FENCE), ATTEMPTS)
    end.connect(ATTEMPTS[1], {CHANNEL.producer: (ATTEMPTS[0], producer)}, named, CREDIT)
    print(pickle.dumps(end.endpoint).hex(), flush=True)
    for line in sys.stdin:
        print(sum(each is not None for each in end.take_all(int(line))), flush=True)
