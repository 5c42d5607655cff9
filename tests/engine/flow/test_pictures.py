"""What a notebook shows of a flow, a stream and a job: HTML and SVG that can be parsed, with all names in it."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.flow.pictures import HEIGHT, WIDTH

ROWS = pa.table({"k": ["a<b"], "v": [1]})
SVG = "{http://www.w3.org/2000/svg}"


def shown(thing: object) -> ElementTree.Element:
    return ElementTree.fromstring(thing._repr_html_())  # type: ignore[attr-defined]


def texts(page: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in page.iter() if each.text]


def a_flow() -> ps.Flow:
    flow = ps.Flow("pictures")
    rows = flow.from_tables(ROWS, name="rows")
    few = rows.filter("k <> '<&>' and v > 0", name="few")
    few.hash_join(rows.distinct("k"), ["k"], name="joined").collect("an-output-with-a-name-that-is-rather-long")
    return flow


def test_graph_has_a_box_for_each_operator_and_no_two_at_one_place() -> None:
    page, flow = shown(a_flow()), a_flow()
    boxes = [(float(each.attrib["x"]), float(each.attrib["y"])) for each in page.iter(f"{SVG}rect")]
    assert len(boxes) == len({*boxes}) == len(flow.nodes)
    titles = [each.text for each in page.iter(f"{SVG}title")]
    assert titles == [f"{node.config.kind} {node.config.describe()}" for node in flow.nodes]
    assert "few" in texts(page)
    assert "an-output-with-a-name-that-is…" in [each[:30] for each in texts(page)]
    assert len(list(page.iter(f"{SVG}path"))) == sum(len(node.inputs) for node in flow.nodes)


def test_rows_flow_from_left_to_right_within_the_picture() -> None:
    page, flow = shown(a_flow()), a_flow()
    [svg] = page.iter(f"{SVG}svg")
    lefts = {node.id: float(box.attrib["x"]) for node, box in zip(flow.nodes, page.iter(f"{SVG}rect"), strict=True)}
    assert all(lefts[source] < lefts[node.id] for node in flow.nodes for source in node.inputs)
    for box in page.iter(f"{SVG}rect"):
        assert float(box.attrib["x"]) + WIDTH <= float(svg.attrib["width"])
        assert float(box.attrib["y"]) + HEIGHT <= float(svg.attrib["height"])


def test_stream_shows_its_columns_and_what_leads_to_it() -> None:
    flow = ps.Flow("pictures")
    flow.from_tables(ROWS, name="others")
    stream = flow.from_tables(ROWS, name="rows").with_columns(**{"a & b": "v + 1"})
    page = shown(stream)
    assert [each.text for each in page.iter("td")] == ["k", "string", "v", "int64", "a & b", "int64"]
    assert "rows" in texts(page)
    assert "others" not in texts(page)


def test_flow_without_anything_has_a_picture() -> None:
    assert shown(ps.Flow("empty")).tag == "div"


def test_job_shows_how_far_it_is() -> None:
    flow = a_flow()
    with ps.run_local(flow) as job:
        job.wait(30)
        found = dict(zip(*([each.text for each in shown(job).iter(kind)] for kind in ("th", "td")), strict=True))
    assert found["state"] == "finished"
    assert found["restarts"] == "0"


def test_job_that_cannot_be_asked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.run_local(a_flow()) as job:
        job.wait(30)

        def refused() -> None:
            raise ConfigurationError("it is <over>", "look elsewhere")

        monkeypatch.setattr(job, "status", refused)
        assert "it is <over>" in texts(shown(job))
