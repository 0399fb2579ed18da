"""Where a repeated first batch begins: as its end says, not where a query would begin now."""

from __future__ import annotations

from buckram.spark.shared.first_batch import as_initial, batch_start, with_start

BEGAN = {"default/a": 5, "uids": {"default/a": "u"}}
"""Where the query began."""
NOW = as_initial({"default/a": 9, "default/b": 0, "uids": {"default/a": "u", "default/b": "v"}})
"""Where it would begin now: records were appended, and its pattern finds another stream."""


def test_a_repeated_first_batch_begins_where_it_began() -> None:
    end = with_start(as_initial(BEGAN), {**BEGAN, "default/a": 7})
    assert batch_start(NOW, end) == BEGAN


def test_a_repeated_first_batch_without_records_has_none() -> None:
    """A stream that was added since was taken for one that the batch should have and that was deleted."""
    empty = with_start(as_initial(BEGAN), BEGAN)
    assert batch_start(NOW, empty) == empty


def test_an_end_ahead_of_where_the_query_begins_is_no_empty_batch() -> None:
    assert batch_start(NOW, {**NOW, "default/a": 50}) == NOW


def test_a_later_batch_begins_where_spark_says() -> None:
    empty = with_start(as_initial(BEGAN), BEGAN)
    end = with_start(empty, {**BEGAN, "default/a": 7})
    assert batch_start(empty, end) == BEGAN
    assert batch_start(end, {**BEGAN, "default/a": 8}) == end
