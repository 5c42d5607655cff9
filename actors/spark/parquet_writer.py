"""Spark's own Parquet writer, partition by partition: its JVM writes those that are asked for, each into a file.

Rules:

1. ``DataFrame.write`` writes all partitions or none. What it is made of does not: a plan that writes is an RDD, whose
   partitions give, when they are computed, what they have written. So those that are asked for are computed, as
   partitions of the whole frame (``evaluation``, rule 6).
2. The settings that decide what the bytes mean are those of this write alone: a clone of the user's session has them,
   and the files' own are options of the writer. Instants are microseconds, days those of the calendar that Arrow has;
   one file for a partition; no form of older versions; pages have checksums; a row group is so small that no executor
   has to make it smaller, which would make other bytes of the same rows.
3. Executors know a session's settings by the properties of the thread that runs a job: Spark sets them where a query
   begins, and here they are set for each computation.
4. Spark's commit coordinator grants one attempt of a partition that its file counts, also if tasks are speculated; the
   committer moves the file to its place in the folder when the attempt commits, on the machine that has written it.
5. Widths of rows differ: the writer looks at what it holds after so many rows at most as a Python worker would get at a
   time (``evaluation``, rule 7).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .evaluation import rows_at_a_time

GROUP_BYTES = 16 << 20
"""Of a row group, as it is written. An executor has some for each of its cores."""

DIED_AS_IT_COMMITTED = "data duplication may happen"
"""What Spark says, as it ends its job, of an attempt that died when it had been granted a partition. Files of one name
do not count twice, so the partition may be asked for again."""

_COMMITTER = "org.apache.parquet.hadoop.ParquetOutputCommitter"
_SESSION = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.parquet.output.committer.class": _COMMITTER,
}
_OPTIONS = {
    "compression": "snappy",
    "mapreduce.output.basename": "part",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.summary.metadata.level": "NONE",
    "parquet.writer.version": "PARQUET_1_0",
    "parquet.block.size": str(GROUP_BYTES),
    "parquet.page.size": str(1 << 20),
    "parquet.page.size.check.estimate": "true",
    "parquet.page.size.row.check.min": "1",
    "parquet.page.row.count.limit": "20000",
    "parquet.page.write-checksum.enabled": "true",
    "parquet.enable.dictionary": "false",
    "parquet.bloom.filter.enabled": "false",
    # sums beside the files, of which we have our own
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a partition came to: the name of its file in the folder, and its rows; no name: there is no file."""

    partition: int
    file: str
    rows: int


def partitions_of(planned: Any) -> int:
    """How many partitions a frame has that is planned. Spark may find out that there are no rows: then none."""
    return int(planned._jdf.queryExecution().toRdd().getNumPartitions())


class ParquetWriter:
    """Of a frame that is planned (``evaluation.planned_before``) and has partitions, into a local folder."""

    def __init__(self, planned: Any, schema: pa.Schema, folder: str) -> None:
        self._context = planned.sparkSession.sparkContext
        held, self._jvm = planned._jdf, self._context._jvm
        session = held.sparkSession().cloneSession()
        for name, value in _SESSION.items():
            session.conf().set(name, value)
        self._properties = session.sessionState().conf().settings()
        self._id = str(uuid.uuid4())
        # nothing is promised about nulls (``types``, rule 1)
        rows = session.internalCreateDataFrame(held.queryExecution().toRdd(), held.schema().asNullable(), False)
        most = {"parquet.page.size.row.check.max": str(rows_at_a_time(schema, 0))}
        self._rdd = self._writing(session, rows, self._map(_OPTIONS | most), f"file://{folder}").toJavaRDD()

    @property
    def rdd(self) -> Any:
        """Of which partitions are computed."""
        return self._rdd.rdd()

    def compute(self, partitions: Sequence[int]) -> list[Written]:
        """Write these partitions. Raises what Spark raises."""
        with self._settings():
            told = self._rdd.collectPartitions(self._numbers(partitions))
        return [self._written(partition, told[position].get(0)) for position, partition in enumerate(partitions)]

    def _written(self, partition: int, message: Any) -> Written:
        found = message.summary().stats().head()
        name = f"part-{partition:05d}-{self._id}-c000.snappy.parquet" if found.numFiles() else ""
        return Written(partition, name, int(found.numRows()))

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Rule 3. They are put together in the JVM: each question to it costs, and a session has a hundred settings."""
        context = self._context._jsc.sc()
        before = context.getLocalProperties()
        mine = before.clone()
        mine.putAll(self._properties)
        context.setLocalProperties(mine)
        try:
            yield
        finally:
            context.setLocalProperties(before)

    def _writing(self, session: Any, rows: Any, options: Any, address: str) -> Any:
        """The RDD (rule 1)."""
        spark = self._jvm.org.apache.spark
        mapreduce = self._jvm.org.apache.hadoop.mapreduce
        job = mapreduce.Job.getInstance(session.sessionState().newHadoopConfWithOptions(options))
        job.setOutputKeyClass(self._jvm.java.lang.Class.forName("java.lang.Void"))
        job.setOutputValueClass(self._jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow"))
        mapreduce.lib.output.FileOutputFormat.setOutputPath(job, self._jvm.org.apache.hadoop.fs.Path(address))
        sources = spark.sql.execution.datasources
        form = sources.parquet.ParquetFileFormat()
        factory = form.prepareWrite(session, job, options, rows.schema())
        job.getConfiguration().set("spark.sql.sources.writeJobUUID", self._id)
        conf = spark.util.SerializableConfiguration(job.getConfiguration())
        plan, nothing, none = rows.queryExecution().executedPlan(), self._jvm.PythonUtils.toSeq([]), self._none()
        counting = sources.BasicWriteJobStatsTracker(conf, sources.BasicWriteJobStatsTracker.metrics())
        description = sources.WriteJobDescription(
            *(self._id, conf, factory, plan.output(), plan.output(), nothing, none, address, self._map({}), 0),
            *(session.sessionState().conf().sessionLocalTimeZone(), self._jvm.PythonUtils.toSeq([counting])),
        )
        committer = sources.SQLHadoopMapReduceCommitProtocol(self._id, address, False)
        committer.setupJob(job)
        spec = sources.WriteFilesSpec(description, committer, self._map({}).withDefaultValue(none))
        writing = sources.WriteFilesExec(plan, form, nothing, none, options, self._map({}))
        return writing.doExecuteWrite(spec)  # executeWrite wants a session that is this thread's

    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def _map(self, entries: Mapping[str, str]) -> Any:
        """As Scala's."""
        made = self._jvm.java.util.HashMap()
        for name, value in entries.items():
            made.put(name, value)
        return self._jvm.PythonUtils.toScalaMap(made)

    def _numbers(self, partitions: Sequence[int]) -> Any:
        """As an array of Java's; they rise."""
        first, end = partitions[0], partitions[-1] + 1
        if len(partitions) == end - first:  # one call, not one for each
            return self._jvm.java.util.stream.IntStream.range(first, end).toArray()
        made = self._context._gateway.new_array(self._jvm.int, len(partitions))
        for position, partition in enumerate(partitions):
            made[position] = partition
        return made
