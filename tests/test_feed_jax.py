"""Batches of a feed as JAX arrays: of one process with several devices, and of several processes."""

from __future__ import annotations

import pickle
import socket
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from support.processes import Household

ONE = """
import jax, jax.numpy as jnp, numpy as np, pyarrow as pa, penstock as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from penstock.engine.core.errors import ConfigurationError, DataError

table = pa.table({
    "n": pa.array(range(26), pa.int64()),
    "x": pa.array([n / 2 for n in range(26)], pa.float64()),
    "tokens": pa.array([[n, n + 1, n + 2, n + 3] for n in range(26)], pa.list_(pa.int32())),
    "large": pa.array([2**31 + n for n in range(26)], pa.int64()),
    "word": [str(n) for n in range(26)],
})

def read(*columns, drop_last=True, **arguments):
    flow = ps.Flow("jax", lanes=2)
    flow.from_tables([table]).project(*columns).feed(8, drop_last=drop_last)
    with ps.run_local(flow) as job, job.feed().reader(timeout=60) as reader:
        return list(reader.iter_jax_batches(**arguments))

def refused(kind, message, *columns, **arguments):
    try:
        read(*columns, **arguments)
    except kind as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")

found = read("n", "x", "tokens", dtypes={"x": jnp.bfloat16})
assert [each["n"].tolist() for each in found] == [list(range(8)), list(range(8, 16)), list(range(16, 24))]
assert found[0]["x"].dtype == jnp.bfloat16 and found[0]["tokens"].shape == (8, 4)
assert {device for each in found for device in each["n"].devices()} == {jax.devices()[0]}

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("dp", "cp"))
rows, parts = NamedSharding(mesh, PartitionSpec("dp")), NamedSharding(mesh, PartitionSpec("dp", "cp"))
for threads in (0, 2):
    found = read("n", "tokens", sharding={"n": rows, "tokens": parts}, threads=threads)
    assert found[1]["n"].sharding == rows and found[1]["n"].tolist() == list(range(8, 16))
    shards = {shard.device.id: shard.data.tolist() for shard in found[0]["tokens"].addressable_shards}
    assert shards[1] == [[n + 2, n + 3] for n in range(4)], shards
total = jax.jit(lambda part: part["tokens"].sum())(found[0])
assert int(total) == sum(4 * n + 6 for n in range(8))

refused(DataError, "column 'large' has 2147483648 to 2147483655, and JAX has integers of 32 bits", "large")
refused(DataError, "has 2147483648 to 2147483655, which int32 has not", "large", dtypes=jnp.int32)
refused(DataError, "column 'word' cannot become a tensor", "word")
refused(DataError, "cannot be divided among devices", "n", drop_last=False,
        sharding=NamedSharding(Mesh(np.array(jax.devices()), ("dp",)), PartitionSpec("dp")))
refused(ConfigurationError, "no column 'm'", "n", dtypes={"m": jnp.float32})
refused(ConfigurationError, "is no jax.sharding.Sharding", "n", sharding="dp")
refused(ConfigurationError, "is no type of JAX", "n", dtypes="words")
jax.config.update("jax_enable_x64", True)
assert read("large")[0]["large"].tolist() == [2**31 + n for n in range(8)]
print("all is right")
"""

OF_SEVERAL = """
import pickle, sys
import jax
jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("dp",)), PartitionSpec("dp"))
feed = pickle.load(open(sys.argv[1], "rb"))
with feed.reader(timeout=120) as reader:  # rank and size are those of JAX
    for part in reader.iter_jax_batches(sharding=sharding):
        own = [(shard.index[0].start or 0, shard.data.tolist()) for shard in part["row"].addressable_shards]
        print(part["row"].shape, sorted(own))
"""


def test_arrays_are_divided_among_the_devices_of_a_process(tmp_path: Path) -> None:
    with Household(tmp_path) as household:
        done = household.python(
            "-c", ONE, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4"
        ).wait()
    assert done.returncode == 0, done
    assert "all is right" in done.stdout


UNEQUAL = """
import sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from penstock.actors.feed.collating import SlicePlace
from penstock.actors.feed.jax_batches import JaxBatches
from penstock.engine.core.errors import DataError

rank = int(sys.argv[2])
mesh = jax.make_mesh((2,), ("dp",))
for spec, rows, total in (("dp", (5, 4), 9), ("dp", (12, 20), 32), (None, (4, 4), 8)):
    batches = JaxBatches(["x"], None, NamedSharding(mesh, PartitionSpec(spec)))
    try:
        batches.make({"x": np.arange(rows[rank])}, SlicePlace(3, rank, 2, total))
    except DataError as error:
        assert f"batch 3 at rank {rank} of 2" in str(error) and f"the global batch has {total}" in str(error), error
    else:
        raise AssertionError(f"not refused: {rows}")
batches = JaxBatches(["x"], None, NamedSharding(mesh, PartitionSpec("dp")))
part = batches.make({"x": np.arange(4)}, SlicePlace(3, rank, 2, 8))
assert part["x"].shape == (8,)
print("all is right")
"""


@pytest.mark.slow
def test_slices_that_make_no_global_array_are_refused_by_every_process(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{found.getsockname()[1]}"
    with Household(tmp_path) as household:
        ranks = [household.python("-c", UNEQUAL, meeting, str(rank), JAX_PLATFORMS="cpu") for rank in range(2)]
        for rank in ranks:
            done = rank.wait()
            assert done.returncode == 0, done
            assert "all is right" in done.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_processes_of_a_jax_job_are_the_ranks_of_a_feed(tmp_path: Path, cluster: str) -> None:
    flow = ps.Flow("jax-job", lanes=2)
    flow.from_tables([pa.table({"row": list(range(64))})]).shuffle(32, seed=1).feed(16)
    with ps.run_local(flow) as local, local.feed().reader(0, 1, timeout=60) as reader:
        expected = [records["row"].to_pylist() for records in reader]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{found.getsockname()[1]}"
    job = ps.run(flow, checkpoints=ps.Checkpoints(tmp_path / "state"))
    (tmp_path / "feed").write_bytes(pickle.dumps(job.feed()))
    with Household(tmp_path) as household:
        environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        arguments = [str(tmp_path / "feed"), meeting, "2"]
        ranks = [household.python("-c", OF_SEVERAL, *arguments, str(rank), **environment) for rank in range(2)]
        ended = [rank.wait() for rank in ranks]
    job.wait(60)
    assert [done.returncode for done in ended] == [0, 0], textwrap.indent("\n".join(map(str, ended)), "  ")
    for rank, done in enumerate(ended):
        lines = [line for line in done.stdout.splitlines() if line.startswith("(16,)")]
        cut = [[(8 * rank + 4 * part, rows[8 * rank + 4 * part :][:4]) for part in range(2)] for rows in expected]
        assert lines == [f"(16,) {each}" for each in cut]
