"""What the handles of the public interface have: docs/api.md prints these names and no others.

Adding a name is a decision, and removing one breaks somebody: tests/docs/test_api.py compares this with the classes.
"""

NAMES: dict[str, tuple[str, ...]] = {
    "buckram.Batch": (
        "ledger_id", "entry_id", "payload_bytes", "append_time", "first_offset",
        "next_offset", "values", "keys", "headers", "timestamps", "txids", "producers", "records", "between",
        "window", "value_column", "key_column", "header_column", "timestamp_column", "txid_column",
    ),
    "buckram.Client": (
        "uri", "create", "open", "recover", "delete", "list", "metadata", "repair", "namespace", "namespaces",
        "close",
    ),
    "buckram.Namespace": (
        "name", "create", "exists", "list", "info", "delete", "set_policy", "set_properties", "segments",
        "writer", "read", "get", "truncate", "cursors", "move_cursor", "delete_cursor", "bulk",
    ),
    "buckram.Namespaces": (
        "create", "get", "list", "set", "delete",
    ),
    "buckram.Reader": (
        "ledger_id", "metadata", "last_confirmed", "length", "read_last_confirmed", "read", "read_payloads",
        "get", "read_unconfirmed", "entries", "chunks", "payload_chunks", "tail", "close",
    ),
    "buckram.StreamReader": (
        "stream", "position", "open", "next_batch", "batches", "arrow_batches", "commit", "seek", "close",
    ),
    "buckram.StreamWriter": (
        "stream", "name", "epoch", "policy", "lost", "append", "append_nowait", "next_offset", "acknowledged",
        "pending_bytes", "max_record_bytes", "closed", "lost_reason", "degraded", "degraded_reason",
        "roll_trouble", "append_many", "flush", "roll", "end", "close", "abandon",
    ),
    "buckram.Tail": (
        "position", "next_chunk", "aclose",
    ),
    "buckram.Writer": (
        "ledger_id", "append", "append_nowait", "last_confirmed", "last_pushed", "length", "pending_bytes",
        "pending_entries", "metadata", "degraded", "degraded_reason", "ensemble_changes", "closed",
        "append_many", "flush", "force", "close", "replicated", "abandon",
    ),
    "buckram.sync.Bulk": (
        "stream", "application", "version", "published", "foreseen", "create_ledger", "publish", "abort",
    ),
    "buckram.sync.BulkLedger": (
        "ledger_id", "append_many", "append_arrow", "abandon", "close",
    ),
    "buckram.sync.Client": (
        "create", "open", "recover", "delete", "list", "metadata", "repair", "namespace", "namespaces", "close",
    ),
    "buckram.sync.Namespace": (
        "name", "create", "exists", "list", "info", "delete", "set_policy", "set_properties", "segments",
        "writer", "read", "get", "truncate", "cursors", "move_cursor", "delete_cursor", "bulk",
    ),
    "buckram.sync.Namespaces": (
        "create", "get", "list", "set", "delete",
    ),
    "buckram.sync.Reader": (
        "ledger_id", "metadata", "last_confirmed", "length", "read_last_confirmed", "read", "read_payloads",
        "get", "read_unconfirmed", "chunks", "payload_chunks", "entries", "tail", "close",
    ),
    "buckram.sync.StreamReader": (
        "stream", "position", "open", "next_batch", "batches", "arrow_batches", "commit", "seek", "close",
    ),
    "buckram.sync.StreamWriter": (
        "stream", "name", "epoch", "policy", "lost", "next_offset", "acknowledged", "pending_bytes",
        "max_record_bytes", "closed", "lost_reason", "degraded", "degraded_reason", "roll_trouble", "append",
        "append_nowait", "append_many", "flush", "roll", "end", "close", "abandon",
    ),
    "buckram.sync.Tail": (
        "next_chunk", "close",
    ),
    "buckram.sync.Writer": (
        "ledger_id", "last_confirmed", "metadata", "degraded", "degraded_reason", "append", "append_many",
        "append_nowait", "flush", "force", "close",
    ),
    "buckram.testing.Cluster": (
        "uri", "bookies", "client", "kill", "stop", "pause", "resume", "restart", "add", "close",
    ),
    "buckram.testing.ThreadedCluster": (
        "uri", "bookies", "kill", "stop", "pause", "resume", "restart", "add",
    ),
    "buckram.spark.BuckramDataSource": (),
}

INTERNAL: dict[str, frozenset[str]] = {
    "buckram.Batch": frozenset({"base", "clamped", "header"}),
    "buckram.Client": frozenset({"services"}),
    "buckram.Namespace": frozenset({"store"}),
    "buckram.Namespaces": frozenset({"restore"}),
}
"""What parts of Buckram say to each other through a class that users hold, too. Not for users, and not on the page."""
