"""The table of all states that a cluster, or a part of it, can be in. Pure.

A new state is one row here, one section of docs/howto/runbooks/states.md, and a function that finds it in the facts.
"""

from __future__ import annotations

from buckram.core.health.states import Severity, State

_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_RENEW = (
    "run `buckram certificate renew {file}` on its machine, if `buckram up --secure` made it; else put a new "
    "certificate in its place; the bookie reads it again by itself"
)
_GONE = "if it is gone for good, `buckram bookie decommission {bookie}` has others take its copies"

METADATA = (
    State(
        "metadata-unreachable",
        _E,
        "the metadata store cannot be asked",
        "see that the metadata store at {uri} runs and can be reached; what is open is written and read meanwhile",
    ),
    State(
        "metadata-read-only",
        _E,
        "the metadata store takes no changes",
        "give the metadata store at {uri} space and write access again; until then no ledger is created or closed",
    ),
    State(
        "metadata-refused",
        _E,
        "the metadata store refuses these credentials",
        "use the credentials that the cluster's other processes use",
    ),
    State(
        "metadata-damaged",
        _E,
        "a record cannot be read",
        "put the record {where} back from a backup of the metadata, a cookie from the file VERSION of its bookie",
    ),
    State(
        "foreign-node",
        _W,
        "a key that is no part of a cluster",
        "find out which program made {where}, and stop it from doing so",
    ),
    State(
        "wrong-cookie",
        _E,
        "a cookie is not that of its bookie",
        "restore {where} from the file VERSION in the directory of the bookie, which will not start until then",
    ),
    State(
        "bad-registration",
        _E,
        "a registration does not say how to reach its bookie",
        "restart bookie {bookie} with software that registers its address, and with that address configured",
    ),
    State(
        "open-admission",
        _W,
        "a bookie takes adds to ledgers that metadata does not know",
        'restart bookie {bookie} without admission = "{admission}": acknowledged entries can be lost',
    ),
    State(
        "repeated-births",
        _E,
        "records of ledgers are copies of others",
        "find out who copied records; `buckram ledger check` says which of them have entries",
    ),
    State(
        "no-instance-id",
        _I,
        "the cluster has no instance id",
        "nothing, if the cluster was made by software older than 4.3",
    ),
    State(
        "restore-not-accepted",
        _E,
        "the metadata were restored, and no operator has accepted them yet",
        "start all bookies, let them run, then `buckram cluster accept-restore`",
    ),
    State(
        "metadata-moved",
        _E,
        "the metadata are being moved, or were",
        "call `buckram cluster move-metadata` again with the same stores, or name the other store",
    ),
    State(
        "metadata-went-back",
        _E,
        "a bookie does not believe the metadata store",
        "put the newest metadata back (`buckram cluster restore FILE`), or go on with what is there: "
        "`buckram cluster accept-restore`",
    ),
    State(
        "witness-refused",
        _E,
        "a bookie's witness key is not kept",
        "see the log of bookie {bookie}: nothing proves that the store has not gone back for it; give it write access "
        "to its key and restart it",
    ),
    State(
        "collection-waits",
        _W,
        "ledgers that metadata does not know wait to be removed",
        "see what they are: `buckram bookie show {bookie}`; the runbook says how to decide",
    ),
    State(
        "waiting-bytes",
        _W,
        "much of the data on a bookie waits to be removed",
        "see what it is, and until when it is kept: `buckram bookie show {bookie}`; the runbook says how to decide",
    ),
    State(
        "unknown-ledgers",
        _W,
        "a bookie holds ledgers with ids that the store never gave, and keeps them",
        "see whether the store is an older one: `buckram cluster check`; the runbook says how to decide",
    ),
    State(
        "bookie-convicted",
        _E,
        "a bookie gave wrong answers, and gets no new ensembles",
        "stop bookie {bookie}, repair the ledgers that name it, find out what runs there; "
        "`buckram cluster pardon {bookie}` takes it back",
    ),
    State(
        "bookie-accused",
        _W,
        "a bookie gave an answer that may be an accident",
        "look at its disk, repair the ledger, then `buckram cluster pardon {bookie}`",
    ),
)

BOOKIES = (
    State("bookie-down", _E, "it is not registered, and does not answer", "start bookie {bookie} again", _GONE),
    State(
        "bookie-unregistered",
        _E,
        "it answers and is not registered",
        "see the log of bookie {bookie}: it has lost its session, or cannot register",
    ),
    State(
        "bookie-silent", _E, "it is registered and does not answer", "see the log of bookie {bookie}, and restart it"
    ),
    State(
        "bookie-replaced",
        _E,
        "an old disk or process runs under the id of another one",
        "stop that process at once, and start the directory of the newest incarnation; for its machine to serve again, "
        "start it with an empty directory and `--id NEW-ID`",
    ),
    State(
        "bookie-without-cookie",
        _E,
        "it is registered and no member of the cluster",
        "do not restart it, it would not start: `buckram bookie drain {bookie}` copies what ledgers have on it, then "
        "stop it; for its machine to serve again, start it with an empty directory and `--id NEW-ID`",
    ),
    State(
        "apache-without-cookie",
        _E,
        "a bookie of Apache's is registered and no member of the cluster",
        "do not restart it, it would not start: write its cookie again from the file VERSION in its directory "
        "(`bookkeeper shell cookie_create`)",
    ),
    State(
        "bookie-returns",
        _W,
        "it is younger than the restored metadata",
        "let it run: it writes its cookie again within seconds, before `buckram cluster accept-restore`",
    ),
    State(
        "bookie-rests",
        _I,
        "an operator has made it read-only",
        "nothing; `buckram bookie writable {bookie}` takes it back",
    ),
    State(
        "bookie-read-only",
        _E,
        "it takes no new entries, and no operator asked for that",
        "see `buckram bookie show {bookie}` and its log; it turns writable by itself when it can",
    ),
    State(
        "disk-full",
        _E,
        "its disk is full, and it takes no new entries",
        "make room on the disk of bookie {bookie}, or add bookies and `buckram rebalance`; it turns writable by itself",
    ),
    State(
        "disk-never-writable",
        _E,
        "its disk is too small to be ever writable again",
        "give bookie {bookie} a larger disk, or lower [store] reserved_bytes and writable_again_bytes",
    ),
    State(
        "disk-nearly-full",
        _W,
        "its disk is nearly full",
        "make room on the disk of bookie {bookie}, or add bookies and `buckram rebalance`",
    ),
    State(
        "slow-disk",
        _W,
        "its disk is slow",
        "look at the device of bookie {bookie}; new ledgers avoid it meanwhile where others are there",
    ),
    State(
        "bad-records",
        _E,
        "entries in its files are damaged",
        "good copies take their places by themselves; look at the device of bookie {bookie}",
    ),
    State(
        "limbo",
        _E,
        "it may lack acknowledged data",
        "it ends by itself when every ledger that names bookie {bookie} is closed and complete; see "
        "`buckram ledger recover`",
    ),
    State("bookie-trouble", _W, "it reports that something is wrong", "see `buckram bookie show {bookie}`"),
    State(
        "descriptors-short",
        _W,
        "it may open few more files",
        "raise the limit of bookie {bookie}: ulimit -n, or LimitNOFILE= of its service",
    ),
    State(
        "connections-short",
        _W,
        "it may take few more connections",
        "raise [bookie] max_connections of bookie {bookie}, or the limit of open files; find out which client "
        "connects so often",
    ),
    State(
        "mixed-releases",
        _W,
        "bookies run several releases",
        "complete the upgrade, one bookie after the other; until then they work together",
    ),
    State(
        "address-used-twice",
        _E,
        "several ids are registered at one address",
        "stop what should not run; a registration of a dead process ends with its session",
    ),
    State(
        "directory-used-twice",
        _E,
        "several bookies run on copies of one directory",
        "stop the one that was started on the copy, at once; what was written to it since is on no other bookie of "
        "that id",
    ),
    State(
        "clock-off",
        _E,
        "its clock is far from those of the others",
        "set the clock of {where} right: until then nothing is ended by its age, and writers stamp records with "
        "the median",
    ),
    State(
        "clock-jump",
        _E,
        "clocks were set, and the time is in doubt",
        "compare `date -u` on the machines: set a clock right that is wrong; where all are right, wait for an "
        "hour, or run `buckram cluster accept-time`",
    ),
    State(
        "clock-doubted",
        _W,
        "it doubts the time",
        "see what sets the clock of {bookie} (`timedatectl`, `chronyc tracking`), and let only one do so; it is "
        "believed when it has been steady for an hour, or by `buckram cluster accept-time`",
    ),
    State(
        "token-expired",
        _W,
        "a client shows it a token that has expired",
        "give {subject} a new token: `buckram token create --subject {subject}`",
    ),
    State(
        "certificate-ends",
        _W,
        "its certificate ends soon",
        _RENEW,
    ),
    State(
        "certificate-ended",
        _E,
        "its certificate has ended",
        _RENEW,
    ),
)

HEALING = (
    State(
        "nothing-copied",
        _E,
        "copying has stopped, because too many bookies were lost at once",
        "start them again, or declare them lost for good: `buckram autorecovery proceed`",
    ),
    State(
        "autorecovery-disabled",
        _E,
        "lost copies are not replaced, since autorecovery is disabled",
        "`buckram autorecovery enable`",
        lasting="10m",
    ),
    State(
        "auditor-missing",
        _E,
        "no auditor is running: the ledgers of a lost bookie are not copied",
        "run it as a service: `buckram autorecovery run`",
        lasting="10m",
    ),
    State(
        "under-replicated",
        _E,
        "ledgers lack copies",
        "they are copied by themselves; see the reasons of those that wait: `buckram autorecovery status`",
        lasting="1h",
    ),
    State(
        "ledgers-misplaced",
        _W,
        "ledgers could be spread better over the bookies that are there",
        "`buckram placement check` names them, and the command that moves them",
    ),
    State(
        "unverified",
        _W,
        "it was away, and its copies written meanwhile have not been checked yet",
        "they are checked by themselves; `buckram ledger check --all` checks them now",
    ),
    State(
        "degraded",
        _W,
        "clients have found it slow for a long time",
        "look at the machine and the network of {bookie}; `[client] replace_slow_s` lets writers replace such a one",
    ),
    State(
        "too-few-domains",
        _W,
        "new ledgers have copies in fewer hosts or racks than their placement asks for",
        "start bookies on another {level}; if they are on other ones already, say so with [bookie] host_id or "
        "`buckram placement topology set`",
    ),
    State(
        "ledgers-unreadable",
        _E,
        "ledgers have entries that cannot be read now",
        "start the bookies that are down; `buckram ledger check {ledger}` says which entries it is",
    ),
    State(
        "entries-lost",
        _E,
        "no good copy is left of some entries",
        "start every bookie that ever had them; `buckram ledger check {ledger}` says which entries it is",
    ),
)

STREAMS = (
    State(
        "orphans",
        _W,
        "ledgers were made for streams, but no stream lists them or ever will",
        "a janitor removes them: `buckram stream janitor`",
        "`buckram stream orphans --delete`",
    ),
    State("leftovers", _W, "keys that no program reads any more", "nothing: they do no harm", "`buckram doctor --fix`"),
    State(
        "namespace-over-quota",
        _W,
        "it has used up a quota",
        "raise the quota, `buckram namespace set {namespace} --quota {quota}=N`, or have its owner use less",
    ),
    State(
        "mirror-behind",
        _W,
        "a mirror is behind its source",
        "see `buckram replicate status`, and that `buckram replicate run` runs and reaches both clusters",
    ),
    State(
        "mirror-stopped",
        _E,
        "a mirror is not copied any more",
        "see `buckram replicate status` for the reason, set it right, and start `buckram replicate run` again",
    ),
    State(
        "query-dead",
        _W,
        "a streaming query has stopped publishing",
        "start query {query} again from its checkpoint; `buckram stream show {stream}` says what it published",
    ),
    State(
        "cursor-holds-retention",
        _W,
        "a cursor that no reader moves keeps records that the policy would delete",
        "start the reader of cursor {cursor} again, or see who owns it: `buckram stream cursor list {stream}`",
        "`buckram stream cursor delete {stream} {cursor}` gives the records up",
    ),
    State(
        "foreign-ledger",
        _E,
        "a stream's metadata name what is not the stream's",
        "nothing of it was read or deleted; see who may append to {stream}: `buckram acl list`, and what it names: "
        "`buckram stream check {stream}`, which takes the note back when all is right",
    ),
    State(
        "backup-late",
        _W,
        "its newest backup is older than its policy allows",
        "see that a janitor runs, `buckram stream janitor --every 1m`, with the place in BUCKRAM_JANITOR_BACKUP_PLACES",
    ),
    State(
        "backup-failed",
        _W,
        "the last attempt to make a backup failed",
        "correct what the message names: the janitor tries again; `buckram db show {where}` shows the newest backup",
    ),
)

OTHER = (
    State(
        "not-asked",
        _W,
        "it could not be asked, so its state is not known",
        "look again; if it stays so, see why: `buckram doctor`",
    ),
)

TABLE = {state.name: state for state in (*METADATA, *BOOKIES, *HEALING, *STREAMS, *OTHER)}
OWNED = frozenset(state.name for state in STREAMS) - {"orphans", "leftovers"}
"""States of one stream or namespace, with whose name `where` begins. They are hidden from users who may not see it."""
