"""All commands of administrators, by the name that plans give them."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.administration.commands import Command
from simulator.administration.departing import decommission_one, drain_one, forget_one, rejoin_one, replace_one
from simulator.administration.moving import move_all
from simulator.administration.resting import collect_one, maintain_one, readonly_one, rebalance_all, upgrade_all
from simulator.administration.restoring import back_up, put_back

COMMANDS: Mapping[str, Command] = {
    "decommission": decommission_one,
    "forget": forget_one,
    "rejoin": rejoin_one,
    "replace": replace_one,
    "drain": drain_one,
    "maintenance": maintain_one,
    "readonly": readonly_one,
    "rebalance": rebalance_all,
    "collect": collect_one,
    "upgrade": upgrade_all,
    "backup": back_up,
    "restore": put_back,
    "move-metadata": move_all,
}
