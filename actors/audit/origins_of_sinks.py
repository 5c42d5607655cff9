"""Compares what a sink took with what its sources handed on, where nothing between them changes rows. Pure.

Rules:

1. The sum of the digests that the sources handed on must be the digest that the sink took; a source that leads there by
   two ways counts twice. Both are of the schema in which the sink stores its rows: where that has other types, those
   of the source are taken of its splits, which then must have been read again.
2. It is compared when the job has finished, for before that rows are on their way.
3. A job that goes on from a snapshot may be of another flow than that, and its sinks may hold rows of that one. If the
   digests agree that is as good; if not, it is not known whether anything is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.integrity.row_digests import MODULUS, ContentSink, RowDigest
from ...engine.plan.plan import JobPlan
from .reading_again import Reading
from .routes import UnknownRoute, operator_of, unchanged


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a sink come from, as they are: the digest of each source, as the sink would take it, once for
    each way. ``unknown``: why that is not known."""

    sources: tuple[tuple[str, RowDigest], ...] = ()
    unknown: str = ""


def origins(plan: JobPlan) -> dict[str, Origin]:
    """By sink, of those whose content can be read back."""
    found = {}
    for id, (_, config) in plan.sinks.items():
        if isinstance(config, ContentSink):
            try:
                ways = unchanged(plan, id)
            except UnknownRoute as unknown:
                found[id] = Origin(unknown=str(unknown))
                continue
            stored = config.stored(operator_of(plan, id).inputs[0])
            found[id] = Origin(tuple((way, RowDigest(plan.sources[way].schema, stored)) for way in ways))
    return found


def wanted(found: Mapping[str, Origin], source: str) -> list[RowDigest]:
    """The digests of a source that its sinks are compared by."""
    by_salt = {digest.salt: digest for origin in found.values() for id, digest in origin.sources if id == source}
    return list(by_salt.values())


def compare(
    origin: Origin, taken: int, readings: Mapping[str, Reading], state: str, descends: bool
) -> tuple[bool | None, str]:
    """Whether a sink took what its sources handed on; None: not known, and why. ``taken``: its digest; ``state``: the
    job's; ``descends``: rule 3."""
    if origin.unknown:
        return None, origin.unknown
    if state != "finished":
        return None, f"the job is {state}: rows may be on their way"
    expected = 0
    for source, digest in origin.sources:
        known = readings[source].digests.get(digest.salt)
        if known is None:
            return None, f"the content that {source} handed on is not known"
        expected += known
    if expected % MODULUS == taken:
        return True, ""
    if descends:
        return None, "the job goes on from a snapshot, which may be of another flow"
    return False, ""
