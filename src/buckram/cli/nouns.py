"""The nouns of the command line: where each is defined, its group in the help, and its summary.

The summaries are here so that `buckram --help` imports no noun: it is quick, and an extra that is not installed cannot
break it. A test compares them with the docstrings.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """One noun, such as `stream`."""

    place: str
    """MODULE:NAME of the command."""
    summary: str
    """The first sentence of its docstring, without the full stop."""


GROUPS: dict[str, dict[str, Noun]] = {
    "Data": {
        "stream": Noun("buckram.cli.stream.commands:stream", "Create, write, read and manage streams"),
        "object": Noun(
            "buckram.cli.object.commands:object_", "Put, get and manage objects: immutable bytes under names"
        ),
        "db": Noun("buckram.cli.db.commands:db", "Create, query and serve SQL databases with a replicated log"),
        "ledger": Noun("buckram.cli.ledger.commands:ledger", "Create, write, read and manage ledgers"),
        "namespace": Noun(
            "buckram.cli.namespace:namespace", "Create and manage namespaces of streams, and their policies"
        ),
        "checkpoint": Noun(
            "buckram.cli.object.checkpoint:checkpoint", "Show, verify and fork checkpoints of Spark on gateways"
        ),
    },
    "Operate": {
        "up": Noun("buckram.cli.up.commands:up", "Start a cluster here and keep it running until Ctrl-C"),
        "status": Noun("buckram.cli.cluster.status:status", "Show health: bookies, space, ledgers without copies"),
        "top": Noun("buckram.cli.cluster.top:top", "Show what bookies and streams do now, again and again"),
        "doctor": Noun(
            "buckram.cli.cluster.doctor:doctor", "Examine everything, and report what is wrong and what to do"
        ),
        "bookie": Noun("buckram.cli.bookie.commands:bookie", "Run bookies, list them, and look at what one holds"),
        "cluster": Noun("buckram.cli.cluster.commands:cluster", "Make, check and remove a cluster's metadata"),
        "metadata": Noun("buckram.cli.cluster.metadata:metadata", "Show what the metadata store holds"),
        "autorecovery": Noun(
            "buckram.cli.autorecovery:autorecovery", "Restore copies that were lost with their bookies"
        ),
        "placement": Noun("buckram.cli.placement:placement", "Show and set where copies are, by region, zone and rack"),
        "rebalance": Noun("buckram.cli.rebalance:rebalance", "Move copies from the fullest bookies to the emptiest"),
        "usage": Noun("buckram.cli.cluster.usage:usage", "Show what namespaces store and transfer, and their quotas"),
        "plan": Noun("buckram.cli.planning.commands:plan", "Predict when disks are full, and size clusters for a load"),
        "upgrade-check": Noun(
            "buckram.cli.cluster.upgrade_check:upgrade_check", "Check whether bookies can be upgraded to this release"
        ),
        "gateway": Noun("buckram.cli.gateway:gateway", "Serve the cluster over HTTP, with a web console"),
        "exporter": Noun("buckram.cli.exporter:exporter", "Serve metrics of streams, cursors, databases and more"),
    },
    "Secure": {
        "token": Noun(
            "buckram.cli.security.token:token", "Make, list and revoke tokens, by which bookies know clients"
        ),
        "acl": Noun("buckram.cli.security.acl:acl", "Manage who may do what with namespaces, streams and objects"),
        "certificate": Noun(
            "buckram.cli.security.certificate:certificate", "List and renew the certificates of a secured cluster"
        ),
        "key": Noun("buckram.cli.security.key:key", "Make and list keys of namespaces with encrypted entries"),
        "apache-client": Noun(
            "buckram.cli.security.apache_client:apache_client", "Let Apache's client and shell into a secured cluster"
        ),
        "audit": Noun("buckram.cli.security.audit:audit", "Search and verify the audit trail of a cluster"),
    },
    "Move": {
        "job": Noun("buckram.cli.job:job", "Run maintenance, imports and exports on Spark"),
        "replicate": Noun("buckram.cli.replicate:replicate", "Replicate namespaces to another cluster, and fail over"),
    },
    "Tools": {
        "context": Noun("buckram.cli.contexts:context", "Name clusters, and choose the one that commands use"),
        "bench": Noun("buckram.cli.bench.commands:bench", "Measure writes and reads of a running cluster"),
        "deploy": Noun("buckram.cli.deploy:deploy", "Write files for service managers"),
        "spark-conf": Noun(
            "buckram.cli.object.spark_conf:spark_conf", "Print what spark-defaults.conf needs for files on gateways"
        ),
        "zookeeper": Noun(
            "buckram.cli.metadata_servers:zookeeper", "Run a ZooKeeper server from the jars that PySpark brings"
        ),
        "etcd": Noun("buckram.cli.metadata_servers:etcd", "Run an etcd server from an installed etcd 3.5 or later"),
        "version": Noun("buckram.cli.version:version", "Show the version, and which extras are missing"),
        "help": Noun("buckram.cli.app:help_", "Show the help of a command"),
    },
}

NOUNS = {name: noun for group in GROUPS.values() for name, noun in group.items()}
