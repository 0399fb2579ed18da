"""The client's log about its cluster: `logging.getLogger("buckram.client")`. Changes of state only, nothing per entry.

WARNING: a bookie is lost, a ledger gets fewer copies than it should. INFO: a bookie came, a bookie failed a ledger's
writer, an ensemble changed, a ledger has all its copies again.
"""

from __future__ import annotations

import logging

log = logging.getLogger("buckram.client")
