"""Packets: several messages to one process, in a form that travels cheaply and arrives exactly.

A batch travels as an Arrow IPC stream of its own: slices are cut to their rows, dictionaries are kept, batches without
columns keep their length. The stream's buffer is pickled out of band (protocol 5), so a receiver on the same host
reads it where it lies. Control elements travel as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from ...engine.edges import Frame, Upstream
from ...engine.elements import Batch, Element, Tag


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch as bytes."""

    stream: pa.Buffer
    tag: Tag


@dataclass(frozen=True, slots=True)
class Packet:
    """Messages to one process, in order. The element of a frame is an :class:`EncodedBatch` or a control element."""

    frames: tuple[Frame, ...]
    upstream: tuple[Upstream, ...]


def pack(frames: Sequence[Frame], upstream: Sequence[Upstream]) -> Packet:
    """A packet of the messages, with batches encoded."""
    return Packet(tuple(_encoded(frame) for frame in frames), tuple(upstream))


def unpack(packet: Packet) -> tuple[Frame, ...]:
    """The packet's frames, with batches decoded."""
    return tuple(_decoded(frame) for frame in packet.frames)


def _encoded(frame: Frame) -> Frame:
    if not isinstance(frame.element, Batch):
        return frame
    records = frame.element.records
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return replace(frame, element=cast(Element, EncodedBatch(sink.getvalue(), frame.element.tag)))


def _decoded(frame: Frame) -> Frame:
    element = cast(object, frame.element)
    if not isinstance(element, EncodedBatch):
        return frame
    with pa.ipc.open_stream(element.stream) as reader:
        records = reader.read_next_batch()
    return replace(frame, element=Batch(records, element.tag))
