"""Records of streams as lines of JSON. Not here: reading such lines (`serve/json_views/record_lines.py`)."""

from __future__ import annotations

import base64
import json
from binascii import b2a_base64
from typing import Any

from buckram.core.streams.records.batch import Record


def record_line(record: Record) -> str:
    """Return a record as a line of JSON: the bytes of json.dumps, but much faster for records of a value and maybe a
    key.
    """
    offset, value, key, headers, timestamp, append_time, txid, producer, _ = record
    if headers or txid is not None or producer is not None:
        return json.dumps(record_json(record)) + "\n"
    key_text = "null" if key is None else f'"{b2a_base64(key, newline=False).decode()}"'
    text = "null" if value is None else f'"{b2a_base64(value, newline=False).decode()}"'
    return (
        f'{{"offset": {offset}, "timestamp_us": {timestamp}, "append_time_us": {append_time}, '
        f'"key_base64": {key_text}, "value_base64": {text}}}\n'
    )


def record_json(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "offset": record.offset,
        "timestamp_us": record.timestamp,
        "append_time_us": record.append_time,
        "key_base64": _coded(record.key),
        "value_base64": _coded(record.value),
    }
    if record.headers:
        texts = {name: _utf8_or_none(value) for name, value in record.headers}
        shown["headers"] = {name: text for name, text in texts.items() if text is not None}
        others = {name: _coded(value) for name, value in record.headers if texts[name] is None}
        shown |= {"headers_base64": others} if others else {}
    if record.txid is not None:
        shown["txid"] = record.txid
    if record.producer is not None:
        shown |= {"producer": record.producer, "sequence": record.sequence}
    return shown


def _utf8_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _coded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
