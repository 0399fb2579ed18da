"""Configuration: small frozen dataclasses, units in the names, an unknown key is an error.

Each field's metadata carries its meaning; docs/reference/configuration.md is generated from it. Values come from
defaults, then a TOML file, then environment variables (BUCKRAM_<SECTION>_<KEY>), then explicit arguments;
`Sourced` remembers which. Nothing here reads a file: `load` takes the parsed mapping and the environment.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from buckram.addresses import host_port, parse_host
from buckram.errors import ConfigError
from buckram.pickles import restore, state_of

C = TypeVar("C")
KIB, MIB = 1024, 1024 * 1024


def _key(
    default: Any,
    meaning: str,
    *,
    least: float = 0,
    most: float | None = None,
    choices: tuple[Any, ...] = (),
    address: bool = False,
    host: bool = False,
) -> Any:
    """Return a configuration key. `least` and `most` are inclusive and for numbers; `address`: HOST:PORT or empty;
    `host`: without a port.
    """
    limits = {"least": least, "most": most, "choices": choices, "address": address, "host": host}
    return field(default=default, metadata={"meaning": meaning, **limits})


_BELIEVE_CLOCK = (
    "how long a wall clock that was set by more than a minute has to run steadily before it is believed; it is "
    "believed earlier when the bookies agree, or by `buckram cluster accept-time`; until then nothing is ended "
    "by its age"
)


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Settings of both ends of the wire."""

    max_frame_bytes: int = _key(
        5 * MIB,
        "largest frame, its 4-byte length included; Apache's nettyMaxFrameSizeBytes",
        least=64 * KIB,
        most=1024 * MIB,
    )
    connect_timeout_s: float = _key(5.0, "how long a client waits for a connection", least=0.01)
    request_timeout_s: float = _key(5.0, "how long a client waits for an answer; adds and reads", least=0.01)
    sweep_interval_s: float = _key(0.5, "how often a connection looks for requests that ran out of time", least=0.01)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS, of bookies and of clients."""

    mode: str = _key(
        "off",
        "bookies: whether connections may (optional) or must (required) be TLS; clients: anything but off uses it",
        choices=("off", "optional", "required"),
    )
    ca: str = _key("", "PEM file: whose certificates are trusted; empty: the system's, and no client's")
    certificate: str = _key("", "PEM file: what this side shows, with what is between it and the authority")
    key: str = _key("", "PEM file: the private key of the certificate; mode 0600")
    client_certificates: str = _key(
        "no", "whether a bookie asks its clients for certificates", choices=("no", "optional", "required")
    )
    verify_host: int = _key(1, "1: a client compares the host that it connects to with the certificate", most=1)
    start: str = _key(
        "starttls",
        "how clients begin: starttls (as Apache's; for bookies of both kinds) or first-byte (a round trip less)",
        choices=("starttls", "first-byte"),
    )


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Authentication: logins that a bookie requires, and credentials of a client."""

    logins: str = _key(
        "",
        "bookies: which logins count, of token, certificate and sasl, with spaces between; empty: clients "
        "need no login",
    )
    authorisation: str = _key(
        "off",
        "bookies: whether grants (`buckram acl`) count, or every known peer may do everything",
        choices=("off", "on"),
    )
    audit: str = _key(
        "off",
        "bookies: whether who created, deleted, fenced and so on is written into the stream system/audit",
        choices=("off", "on"),
    )
    unix_admin: int = _key(
        1,
        "bookies: 1: processes of the bookie's own user that give no credential, through its Unix socket, are "
        "administrators",
        most=1,
    )
    mixed: str = _key(
        "refused",
        "bookies: whether one that asks for logins may stand beside one that does not; allowed is for the time in "
        "which they are rolled out, one bookie after the other",
        choices=("refused", "allowed"),
    )
    oidc_issuer: str = _key(
        "",
        "bookies, gateways, servers of databases: the issuer of OIDC whose tokens count as well, as its `iss` says, "
        "such as https://login.example.com/realms/data; empty: none",
    )
    oidc_audience: str = _key("", "whom its tokens for this cluster are for (`aud`); needed with oidc_issuer")
    oidc_jwks: str = _key("", "URL of its keys; empty: where its /.well-known/openid-configuration says")
    oidc_groups_claim: str = _key("groups", "the claim with the groups of who logs in")
    oidc_principal_claim: str = _key("sub", "the claim that becomes the principal oidc:NAME")
    oidc_known_s: float = _key(3600.0, "how long keys that are known count while the issuer is away", least=1)
    oidc_admin_groups: str = _key("", "groups whose members are administrators, with commas between; empty: none")
    oidc_roles: str = _key(
        "", "GROUP=ROLE,...: roles of groups; a group that is not named is the role oidc-group:GROUP"
    )
    sasl_users: str = _key("", "bookies: file with USER:PASSWORD lines for SASL DIGEST-MD5; mode 0600")
    token_file: str = _key("", "clients: file with the token; BUCKRAM_TOKEN may hold the token itself")
    sasl_user: str = _key("", "clients: user for SASL DIGEST-MD5, where no token is given")
    sasl_password_file: str = _key("", "clients: file with the password of that user")


@dataclass(frozen=True, slots=True)
class EncryptionConfig:
    """Encryption of entries by clients, with a key for each namespace. `buckram key create` makes files of keys."""

    keys: str = _key(
        "",
        "clients: the file with the keys of a namespace, where {namespace} stands for its name, as in "
        "/etc/buckram/keys/{namespace}.keys; mode 0600; a namespace without such a file is not encrypted",
    )
    command: str = _key(
        "", "clients: a command that prints them, with {namespace} for the name; asked where there is no such file"
    )
    refresh_s: float = _key(60.0, "how long the answer of the command counts", least=1)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A bookie's files and memory."""

    segment_bytes: int = _key(256 * MIB, "size of one log file", least=1 * MIB)
    commit_max_bytes: int = _key(4 * MIB, "largest group written with one sync", least=64 * KIB)
    tail_cache_bytes: int = _key(
        32 * MIB,
        "newest log bytes kept in memory, so that tailing readers never touch the disk",
    )
    ledger_cache_entries: int = _key(20_000, "ledger records kept in memory", least=1)
    reserved_bytes: int = _key(
        512 * MIB,
        "free space below which the bookie turns read-only; adds by recovery may use half of it",
    )
    writable_again_bytes: int = _key(768 * MIB, "free space from which a read-only bookie accepts writes again")
    compaction_threshold: float = _key(0.5, "a sealed file with a smaller share of live bytes is rewritten", most=1)
    compaction_bytes_per_s: int = _key(64 * MIB, "rewriting speed limit", least=64 * KIB)
    slow_sync_ms: float = _key(
        50.0,
        "a disk whose syncs take less is never called slow, however fast it used to be or others are; 0: none ever is",
    )
    scrub_bytes_per_s: int = _key(
        4 * MIB, "how fast a bookie checks its own sealed files for damage; 0: it does not", most=16 * 1024 * MIB
    )
    scrub_interval_s: float = _key(86_400.0, "how long after a complete check began the next one begins", least=1)
    disk_mode: str = _key(
        "adaptive",
        "where syncs run: inline, thread, or adaptive (inline while the device is fast)",
        choices=("adaptive", "inline", "thread"),
    )


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """One bookie's service."""

    host: str = _key("127.0.0.1", "address to listen on; keep it private unless [auth] asks who clients are", host=True)
    port: int = _key(3181, "TCP port; 0 picks a free one", most=65535)
    bookie_id: str = _key("", "identity; default is the advertised host:port of the first start")
    advertise: str = _key("", "HOST:PORT that clients should use; default is where it listens", address=True)
    believe_clock_after_s: float = _key(3600.0, _BELIEVE_CLOCK, least=1, most=86_400)
    metrics: str = _key("", "HOST:PORT that serves Prometheus text; empty is off", address=True)
    metrics_names: str = _key(
        "buckram",
        "under which names metrics are shown: ours, those of Apache's bookies, or both; `/metrics?names=` chooses, too",
        choices=("buckram", "apache", "both"),
    )
    http: str = _key(
        "",
        "HOST:PORT that serves the HTTP API of Apache's bookies, with metrics and health; port 0 picks a free one; "
        "empty is off",
        address=True,
    )
    audit_sink: str = _key(
        "",
        "where a copy of the audit trail is sent as events are recorded: file: and an absolute path (JSON "
        "lines, synced), or "
        "syslog:; needs [auth] audit = on; empty: nowhere",
    )
    connection_buffer_bytes: int = _key(
        4 * MIB,
        "answers not yet sent on one connection before its requests are no longer read",
        least=64 * KIB,
    )
    total_buffer_bytes: int = _key(
        96 * MIB,
        "requests and answers in memory on all connections before the heaviest are no longer read",
        least=1 * MIB,
    )
    max_connections: int = _key(2000, "connections accepted at the same time", least=1)
    max_batch_read_bytes: int = _key(5 * MIB, "largest answer to a batch read", least=4 * KIB)
    max_long_polls: int = _key(10_000, "long polls waiting at the same time")
    location: str = _key("", "where it is: /rack, /region/rack, /region/zone/rack; see `buckram placement topology`")
    host_id: str = _key(
        "",
        "the host that it runs on, the same for all bookies there: copies of an entry go to several; default is "
        "the id of the running kernel, which containers share, else the machine's name",
    )
    admission: str = _key(
        "known",
        "adds to which ledgers are taken: known (those that metadata knows) or any (UNSAFE: a deleted ledger or one of "
        "another cluster is taken, too; for tests that write to bookies without metadata)",
        choices=("known", "any"),
    )
    admission_timeout_s: float = _key(
        30.0,
        "how long an add to a new ledger waits for the metadata store before it gets the answer to try again later",
    )
    collection_interval_s: float = _key(
        900.0,
        "pause between two comparisons of the store with the metadata listing",
        least=0.1,
    )
    collection_age_s: float = _key(
        900.0,
        "a ledger's data is deleted only after the ledger was absent from two complete listings this far apart, "
        "unless its deletion is recorded",
    )
    deletions_interval_s: float = _key(
        5.0,
        "pause between two looks at the recorded deletions; ledgers whose deletion is recorded are deleted "
        "without a listing or an age",
        least=0.1,
    )


_CLIENT_FIELDS_0_2 = (
    "max_pending_bytes", "max_pending_entries", "idle_lac_ms", "speculative_read_ms", "read_ahead_entries",
    "read_batch_bytes", "local_read_bytes", "quarantine_s", "placement", "location", "long_poll_s", "wire_protocol",
)  # fmt: skip
"""Fields of release 0.2.0, in their order then."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Clients, writers and readers."""

    max_pending_bytes: int = _key(16 * MIB, "payload bytes of one writer that are not yet acknowledged", least=1)
    max_pending_entries: int = _key(20_000, "entries of one writer that are not yet acknowledged", least=1)
    idle_lac_ms: float = _key(
        10.0,
        "after this long without an append a writer publishes its last confirmed entry; 0 is off",
    )
    speculative_read_ms: float = _key(500.0, "wait before a read is also sent to the next replica")
    read_ahead_entries: int = _key(2000, "entries a sequential read asks for ahead of its consumer", least=1)
    read_batch_bytes: int = _key(1 * MIB, "largest batch read on the wire", least=4 * KIB)
    local_read_bytes: int = _key(
        2 * MIB,
        "reads of more than about this use the files of bookies that run on this machine as the same user; 0 is never",
    )
    join_segments: int = _key(
        8, "a stream's writer that opens joins so many small segments that are neighbours; 0: never"
    )
    quarantine_s: float = _key(30.0, "how long a bookie that failed is avoided where there is a choice")
    believe_clock_after_s: float = _key(3600.0, _BELIEVE_CLOCK, least=1, most=86_400)
    placement: str = _key(
        "rack:2",
        "where copies go: LEVEL:SPREAD[:ACK] for region, zone, rack and host, enforce, label=NAME, weights, any, or "
        "one of Apache's policies by name; without a word about hosts host:all, as many as there are; a namespace may "
        "have its own",
    )
    location: str = _key("", "where this client is, such as /region/rack: it reads from bookies that are near first")
    close_copies_s: float = _key(
        5.0,
        "how long closing waits for bookies that lack entries; then the ledger is noted as lacking copies, which takes "
        "two seconds more at most",
        least=0.0,
    )
    degraded_after_s: float = _key(
        30.0,
        "a bookie that takes eight times as long as others for so long is reported as degraded; 0: never",
        least=0.0,
    )
    replace_slow_s: float = _key(
        0.0, "how long a bookie is degraded before another one takes its place in open ledgers; 0: it stays", least=0.0
    )
    long_poll_s: float = _key(4.0, "how long one tailing request waits at a bookie", least=0.01)
    wire_protocol: int = _key(2, "2 (binary, fastest) or 3 (protobuf) for adds and reads", choices=(2, 3))

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)

    def __setstate__(self, state: Any) -> None:
        restore(self, state, _CLIENT_FIELDS_0_2)


@dataclass(frozen=True, slots=True)
class HealingConfig:
    """Auditors and replicators: when copies are made again, and how fast."""

    lost_bookie_delay_s: float = _key(
        300.0,
        "how long a bookie may be away before its ledgers are copied; a delay that is set in the "
        "metadata store takes precedence",
    )
    brake_levels: str = _key(
        "region zone rack",
        "levels of the topology: when all bookies of one domain of such a level are lost within the delay, "
        "copying stops until an operator allows it; host stands for the bookies of one machine",
    )
    bookie_check_interval_s: float = _key(3600.0, "how often all ledgers are compared with the bookies", least=1)
    copies_check_interval_s: float = _key(
        86400.0, "how often bookies are asked whether they hold the entries that ledgers place on them; 0: never"
    )
    digest_check_interval_s: float = _key(
        0.0, "how often entries of every bookie of every ledger are read and their digests verified; 0: never"
    )
    digest_check_fraction: float = _key(
        0.01, "the part of a bookie's entries of a ledger that the digest check reads; 1: all", least=0.0, most=1.0
    )
    placement_check_interval_s: float = _key(
        86400.0, "how often ledgers that break their placement are counted, by their records alone; 0: never"
    )
    old_mark_s: float = _key(3600.0, "a ledger that lacks copies for longer is named in the auditor's log", least=1)
    check_requests_per_s: int = _key(
        200,
        "the most requests in a second that the checks of all ledgers send to "
        "bookies, so that reads are served; 0: no limit",
    )
    open_ledger_grace_s: float = _key(
        600.0, "how long an open ledger of a lost bookie must stand still before it is recovered"
    )
    copy_bytes_per_s: int = _key(16 * MIB, "speed limit of one replicator; 0: none")
    ledgers_at_once: int = _key(
        24, "ledgers that one replicator copies at the same time; six of less than 512 KB count as one", least=1
    )
    retry_s: float = _key(30.0, "how long a ledger that could not be repaired waits for the next attempt", least=0.1)


@dataclass(frozen=True, slots=True)
class JanitorConfig:
    """Janitors: what an operator decides for the policies of namespaces and streams."""

    backup_places: str = _key(
        "",
        "places to which policies may send backups of databases (backup_to), as NAME=LOCATION with spaces between; a "
        "location is an absolute path or a URL of fsspec, such as s3://bucket/backups",
    )
    offload_places: str = _key(
        "",
        "places to which policies may send history (offload_to), as NAMESPACE=LOCATION with spaces between, and "
        "*=LOCATION for every namespace; janitors write, read and delete history nowhere else, and gateways "
        "that ask for tokens read it nowhere else",
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logs of processes that run for long: bookies, servers of databases, autorecovery, janitors."""

    level: str = _key(
        "",
        "debug, info, warning or error, and after it perhaps LOGGER=LEVEL, as in `info buckram.net=debug`; empty: info "
        "for bookies and autorecovery, warning for the others, debug where BUCKRAM_DEBUG is set",
    )
    format: str = _key("text", "lines for people, or one JSON object a line", choices=("text", "json"))
    lines_per_minute: int = _key(
        600, "lines from one place in the program in a minute; of the others only the number is logged; 0: no limit"
    )


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value in force and where it came from: default, file, environment or argument."""

    section: str
    key: str
    value: Any
    source: str
    meaning: str


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """OpenTelemetry, of bookies, gateways and clients. Needs the extra `otel`."""

    endpoint: str = _key(
        "", "URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; empty: nothing is sent"
    )
    trace_share: float = _key(
        0.01,
        "the share of appends, of requests to a gateway and of Spark's micro-batches that are traced; what is part "
        "of a trace already is traced if the trace is",
        most=1,
    )
    traces_per_s: float = _key(
        1000.0,
        "the most traces that begin in a second in one process, so that a collector gets no more however much is "
        "written; a bookie follows ten times as many adds of its clients",
        least=0.01,
    )
    metrics_interval_s: float = _key(15.0, "how often metrics are sent", least=0.1)
    service: str = _key("", "service.name; empty: buckram-bookie, buckram-gateway or buckram-client")


SECTIONS: dict[str, type] = {
    "net": NetConfig,
    "tls": TlsConfig,
    "auth": AuthConfig,
    "encryption": EncryptionConfig,
    "store": StoreConfig,
    "bookie": BookieConfig,
    "client": ClientConfig,
    "healing": HealingConfig,
    "janitor": JanitorConfig,
    "log": LogConfig,
    "telemetry": TelemetryConfig,
}


def load(
    section: str,
    file: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Any, list[Sourced]]:
    """Return the section's value and the origin of each key. `file` is the whole parsed TOML document."""
    cls = SECTIONS[section]
    known = {f.name: f for f in dataclasses.fields(cls)}
    document = file or {}
    for name in document:
        if name not in SECTIONS:
            raise ConfigError(f"unknown section [{name}]; known: {', '.join(SECTIONS)}")
    table = document.get(section, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"[{section}] must be a table, not {table!r}")
    for name in table:
        if name not in known:
            raise ConfigError(f"unknown key {name!r} in [{section}]; known: {', '.join(known)}")
    prefix = f"BUCKRAM_{section}_".upper()
    for variable in environment or ():
        if variable.startswith(prefix) and variable.removeprefix(prefix).lower() not in known:
            raise ConfigError(f"unknown environment variable {variable}; known keys of [{section}]: {', '.join(known)}")
    values: dict[str, Any] = {}
    sources: list[Sourced] = []
    for name, f in known.items():
        variable = prefix + name.upper()
        if arguments is not None and arguments.get(name) is not None:
            raw, source = arguments[name], "argument"
        elif environment is not None and variable in environment:
            raw, source = environment[variable], f"environment {variable}"
        elif name in table:
            raw, source = table[name], "file"
        else:
            raw, source = f.default, "default"
        values[name] = _convert(section, f, raw, source)
        sources.append(Sourced(section, name, values[name], source, f.metadata["meaning"]))
    return cls(**values), sources


def _convert(section: str, f: dataclasses.Field[Any], raw: Any, source: str) -> Any:
    default: Any = f.default
    kind: Callable[[Any], Any] = type(default)
    where = f"[{section}] {f.name} = {raw!r} ({source})"
    try:
        value = kind(raw)
        if isinstance(raw, bool) or (isinstance(raw, float) and value != raw):
            raise ValueError("a flag or a fraction where a whole number is needed")
        if kind is float and not math.isfinite(value):
            raise ValueError("not such a number")
    except (TypeError, ValueError, OverflowError):
        wanted = "a whole number" if kind is int else "a number" if kind is float else "a string"
        raise ConfigError(f"{where}: needs {wanted}, for example {default!r}") from None
    least, most, choices = f.metadata["least"], f.metadata["most"], f.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{where}: must be one of {', '.join(map(str, choices))}")
    if kind is not str and (value < least or (most is not None and value > most)):
        limit = "must not be negative" if not least else f"needs at least {least}"
        raise ConfigError(f"{where}: {limit}" if most is None else f"{where}: needs {least} to {most}")
    if f.metadata["address"] and value:
        host_port(value, where)
    if f.metadata["host"]:
        value = parse_host(value, where) if value else value
    return value
