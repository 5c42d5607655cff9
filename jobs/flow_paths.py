"""Other paths for the sources and sinks of a flow that a command line names: ``--path orders=s3://bucket/orders``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..engine.core.errors import ConfigurationError, PenstockError
from ..engine.flow.flow import Flow
from ..engine.planner.graph import Node


def with_paths(flow: Flow, paths: Mapping[str, str]) -> Flow:
    """The flow, with these paths in place of its own, by the names of sources and sinks. A source must have the columns
    that it had, for what reads it was made for them. Raises ConfigurationError."""
    known = {node.id: node for node in flow.nodes if _has_path(node.config)}
    for name in paths:
        if name not in known:
            raise ConfigurationError(
                f"--path {name}=… names no source and no sink of flow {flow.name!r} that has a path",
                f"those that have one: {', '.join(known) or 'none'}",
            )
    return flow.with_nodes([_moved(known[name], path) for name, path in paths.items()])


def _has_path(config: object) -> bool:
    return is_dataclass(config) and any(field.name == "path" for field in fields(config))


def _moved(node: Node, path: str) -> Node:
    config: Any = node.config
    try:
        moved = replace(config, path=path)
        schema = None if node.schema is None else moved.schema
    except PenstockError as error:
        raise error.at(node.id) from None
    if schema != node.schema:
        raise ConfigurationError(
            f"{path} has the columns {_in_words(schema)}, and the flow was made for {_in_words(node.schema)}",
            "give files of the same columns, or let a function make the flow and take the path: --with NAME=PATH",
            node.id,
        )
    return replace(node, config=moved)


def _in_words(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
