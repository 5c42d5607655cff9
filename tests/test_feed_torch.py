"""Batches of a feed as torch tensors."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, DataError


@pytest.fixture
def reader(request):
    flow = ps.Flow("tensors", lanes=2)
    table = pa.table(
        {
            "n": pa.array(range(25), pa.int32()),
            "x": pa.array([n / 2 for n in range(25)], pa.float64()),
            "tokens": pa.array([[n, n + 1, n + 2] for n in range(25)], pa.list_(pa.int64())),
            "word": [str(n) for n in range(25)],
        }
    )
    columns = getattr(request, "param", ("n", "x", "tokens"))
    flow.from_tables([table]).project(*columns).feed(10)
    job = ps.run_local(flow)
    with job.feed().reader(timeout=60) as found:
        yield found
    job.shutdown()


def test_columns_are_tensors_of_the_types_asked_for(reader):
    found = list(reader.iter_torch_batches(prefetch_batches=2, dtypes={"x": torch.float32}, device="cpu"))
    assert [len(batch["n"]) for batch in found] == [10, 10, 5]
    assert (found[0]["n"].dtype, found[0]["x"].dtype) == (torch.int32, torch.float32)
    assert found[0]["tokens"].shape == (10, 3)
    assert torch.cat([batch["n"] for batch in found]).tolist() == list(range(25))
    found[0]["n"] += 1  # theirs to write into


def test_collate_fn_gets_arrays_and_its_tensors_are_moved(reader):
    def collate(arrays):
        assert isinstance(arrays["n"], np.ndarray)
        return torch.as_tensor(arrays["n"].copy()), ["kept"]

    tensor, kept = next(reader.iter_torch_batches(collate_fn=collate, device="cpu"))
    assert tensor.tolist() == list(range(10))
    assert kept == ["kept"]


def test_tensors_of_several_shapes_come_through_a_job_in_the_form_asked_for(tmp_path):
    rows = [np.full((n % 3 + 1, 2), n, np.float32) for n in range(10)]
    data = pa.array([each.ravel() for each in rows], pa.list_(pa.float32()))
    shapes = pa.array([each.shape for each in rows], pa.list_(pa.int32(), 2))
    storage = pa.StructArray.from_arrays([data, shapes], ["data", "shape"])
    told = {"ARROW:extension:name": "arrow.variable_shape_tensor", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([("n", pa.int64()), pa.field("x", storage.type, metadata=told)])
    pq.write_table(pa.Table.from_arrays([pa.array(range(10)), storage], schema=schema), tmp_path / "rows.parquet")
    flow = ps.Flow("tensors", lanes=2)
    flow.read_parquet(str(tmp_path)).feed(4, shuffle=True, seed=1)
    with ps.run_local(flow) as job:
        handle = pickle.loads(pickle.dumps(job.feed()))
        assert handle.schema == job.feed().schema
        with job.feed().reader(timeout=60) as reader:
            found = list(reader.loader(ragged="jagged", fetches_ahead=False))
        assert job.audit_feed().clean
    assert sorted(n for batch in found for n in batch["n"].tolist()) == list(range(10))
    for batch in found:
        assert batch["x"].layout == torch.jagged
        for n, each in zip(batch["n"].tolist(), batch["x"].unbind(), strict=True):
            assert each.tolist() == rows[n].tolist()


@pytest.mark.parametrize("reader", [("n", "word")], indirect=True)
def test_column_that_is_no_number_is_refused_by_name(reader):
    with pytest.raises(DataError, match=r"column 'word' cannot become a tensor[\s\S]*collate_fn"):
        next(reader.iter_torch_batches())
    with pytest.raises(ConfigurationError, match="ragged and collate_fn"):
        next(reader.iter_torch_batches(ragged="list", collate_fn=dict))
    with pytest.raises(ConfigurationError, match="dtypes and collate_fn"):
        next(reader.iter_torch_batches(dtypes=torch.float32, collate_fn=dict))


def test_ranks_of_a_device_mesh_find_their_place_in_it():
    """A process with torch's fake backend for each, one after the other: what matters is where the mesh says it is."""
    script = """
import sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from penstock.actors.feed.mesh import MeshRoles, place_of
import pyarrow as pa
import pyarrow.parquet as pq
for rank in range(8):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "cp"))
    roles = MeshRoles("dp", "pp", "cp", True, None)
    found = place_of(None, None, mesh, roles, pa.schema({"tokens": pa.list_(pa.int32())}))
    print(found.rank, found.ranks, found.copies, found.part, found.parts, *found.columns)
    try:
        place_of(None, None, mesh["dp", "cp"], MeshRoles("dp", (), "cp", True, None), pa.schema({}))
    except Exception as error:
        assert "the mesh has 4 ranks, and there are 8" in str(error), error
    else:
        raise AssertionError("a part of the mesh has several ranks in one place")
    dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # rank pp dp cp: its number is dp, then pp, then cp
    wanted = [f"{dp * 4 + pp * 2 + cp} 8 4 {cp} 2 tokens" for pp in range(2) for dp in range(2) for cp in range(2)]
    assert done.stdout.splitlines() == wanted
