"""The place of a query's checkpoint, equal for all spellings of it, whichever gateway or host name it is reached by.

The place of a checkpoint on a cluster is cluster, namespace and path; a gateway is only a way to it, and gateways have
several names and come and go. Elsewhere the place is scheme, authority and path. A sink records a digest of that. Not
here: the comparison of places (`core/streams/metadata/transactions.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import ssl
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple

from buckram.core.backoff import STORE_CALL, Delays
from buckram.serve.webhdfs.limits import CLUSTER_KEY, SCHEMES
from buckram.spark.relay.hadoop_settings import SERVICE

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?(.*)")
_ASK = "/webhdfs/v1/?op=GETSERVERDEFAULTS"
_ANSWER_S = 3.0
_TRIES = 3
_MOST_BYTES = 65536
_known: dict[str, str] = {}
"""Clusters of the gateways that have answered."""


class Place(NamedTuple):
    """Digests of a checkpoint's place; both are empty where there is no checkpoint."""

    place: str = ""
    was: str = ""
    """Digest as written by earlier releases, which took the spelling for the place; empty if it is the same."""


def checkpoint_place(checkpoint: str, cluster: Callable[[], str], *, tls_ca: str = "") -> Place:
    """Return the place of a checkpoint. `cluster` returns the id of the sink's own cluster, which is assumed for a
    gateway that does not name its cluster."""
    spelt = _spelling(checkpoint)
    if not spelt:
        return Place()
    whole, was = _digest(_normal(spelt, cluster, tls_ca)), _digest(spelt)
    return Place(whole, was if was != whole else "")


def _normal(spelt: str, cluster: Callable[[], str], tls_ca: str) -> str:
    found = _SCHEME.fullmatch(spelt)
    if found is None:
        return _path(spelt)
    scheme, authority, path = found[1].lower(), found[2] or "", _path(found[3])
    if scheme in SCHEMES:
        return f"webhdfs:{_cluster_of(SCHEMES[scheme], authority.lower(), tls_ca) or cluster()}:{path}"
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{user}{at}{host.lower()}{path}" if authority else f"{scheme}:{path}"


def _path(path: str) -> str:
    return "/" + posixpath.normpath("/" + path).strip("/")


def _spelling(checkpoint: str) -> str:
    """Return the location as it was given, normalised as earlier releases did."""
    path = re.sub(r"^file:/+", "/", checkpoint.strip()).rstrip("/")
    if path and not re.match(r"^(/|[a-zA-Z][a-zA-Z0-9+.-]*:)", path):
        path = os.path.join(os.getcwd(), path)
    return path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cluster_of(scheme: str, address: str, tls_ca: str) -> str:
    """Return the cluster of a gateway; empty if it does not name it, or the address is that of several gateways."""
    if address == SERVICE:
        return ""
    if address not in _known:
        said = _asked(scheme, f"{address}{_ASK}", tls_ca)
        if not said:
            return ""
        _known[address] = said
    return _known[address]


def _asked(scheme: str, rest: str, tls_ca: str) -> str:
    """Return the cluster that a gateway names; empty if it names none or does not answer.

    A gateway that is starting or busy is asked again, since a wrong guess would let a checkpoint that is deleted next
    pass. No proxy is used, as Hadoop's client uses none.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=tls_ca or None)))
    opener, delays = urllib.request.build_opener(*handlers), Delays(STORE_CALL)
    for left in reversed(range(_TRIES)):
        try:
            with opener.open(f"{scheme}://{rest}", timeout=_ANSWER_S) as answer:
                said = json.loads(answer.read(_MOST_BYTES)).get(CLUSTER_KEY)
            return said if isinstance(said, str) else ""
        except (ValueError, AttributeError, HTTPException):
            return ""
        except OSError:
            if left:
                time.sleep(delays.take())
    return ""
