"""No sink and no streaming source of the package can go without the rules: all get their writers and readers from one
place."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import BinaryType, StructField, StructType

import buckram.spark
from buckram.spark.databases.database_options import DATABASE_OPTIONS
from buckram.spark.shared.first_batch import BEGAN, KeptStartReader, as_initial, batch_start, with_start
from buckram.spark.shared.options import EXACTLY_ONCE, OPTIONS
from buckram.spark.sink.exactly_once import OnceBatchWriter, OnceStreamWriter
from buckram.spark.source.micro_batches import RefusingReader
from buckram.testing import ThreadedCluster


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(buckram.spark.__path__, "buckram.spark."):
        yield importlib.import_module(found.name)


def classes(base: type) -> set[type]:
    """The subclasses that a module of the package defines."""
    return {
        one
        for module in modules()
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, base) and one.__module__ == module.__name__
    }


def test_only_one_module_has_writers() -> None:
    assert classes(DataSourceWriter) == {OnceBatchWriter}
    assert classes(DataSourceStreamWriter) == {OnceStreamWriter}


def test_all_streaming_readers_keep_the_start_of_their_first_batch() -> None:
    readers = classes(DataSourceStreamReader)
    assert {one.__name__ for one in readers} >= {"LiveReader", "LimitedReader", "ChangesStream", "LimitedChanges"}
    for one in readers - {KeptStartReader, RefusingReader}:
        assert issubclass(one, KeptStartReader), one
        assert not {"initialOffset", "partitions"} & vars(one).keys(), one
        assert "with_start" in inspect.getsource(one) or "live()" in inspect.getsource(one), one


def test_the_end_of_the_first_batch_has_its_start() -> None:
    start = as_initial({"a/b": 3})
    assert with_start(start, {"a/b": 3}) is start
    end = with_start(start, {"a/b": 9})
    assert end == {"a/b": 9, BEGAN: {"a/b": 3}}
    assert batch_start(as_initial({"a/b": 7}), end) == {"a/b": 3}
    assert with_start(end, {"a/b": 12}) == {"a/b": 12}
    assert batch_start(end, {"a/b": 12}) == end


def test_every_data_source_writes_by_them(cluster: ThreadedCluster) -> None:
    given: Mapping[str, Mapping[str, str]] = {
        "buckram": {"stream": "default/once", "createStream": "true"},
        "buckram.db": {"database": "default/once", "dbtable": "t"},
    }
    sources = {one.name(): one for one in classes(DataSource)}
    assert sources.keys() == given.keys(), "a new data source needs a row here"
    shape = StructType([StructField("value", BinaryType())])
    for name, source in sources.items():
        own = {"metadata": cluster.uri, **given[name]}
        assert type(source(own).writer(shape, False)) is OnceBatchWriter
        assert type(source({**own, "txnAppId": "a"}).streamWriter(shape, False)) is OnceStreamWriter
        with pytest.raises(Exception, match='neither "checkpointLocation" nor "txnAppId"'):
            source(own).streamWriter(shape, False)
    for options in (OPTIONS, DATABASE_OPTIONS):
        assert set(EXACTLY_ONCE) <= set(options)
