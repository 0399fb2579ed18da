"""Planted bugs of self-healing: `python -m buckram.sim --healing --mutants`."""

from __future__ import annotations

from simulator.engine.edits import edited
from simulator.healing import completeness_mutants
from simulator.healing.mutant import Mutant

_NEXT = "buckram.healing.repair.spare_selection:next_spare"
_REPAIR = "buckram.healing.repair.ledger_repair:LedgerRepair"
_WORKER = "buckram.healing.repair.replicator:Replicator"


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "named-before-copied",
            "H1, M7",
            "metadata names the new member although nothing was copied",
            edited(
                (
                    "buckram.healing.repair.fragment_copy:FragmentCopy._through",
                    "for first, end in ranges:",
                    "for first, end in ():",
                )
            ),
        ),
        Mutant(
            "no-grace",
            "H2",
            "an open ledger is recovered while its writer is at work",
            edited(
                (
                    "buckram.healing.repair.member_verdicts:OpenLedgers.why_not",
                    "if still_s < self._grace_s:",
                    "if still_s < 0.0:",
                )
            ),
            120,
        ),
        Mutant(
            "password-lost",
            "H3",
            "the new record has another password than the old one",
            edited(
                (
                    f"{_REPAIR}._name",
                    "return member_replaced(metadata, member.first, member.bookie, target)",
                    "return __import__('dataclasses').replace("
                    "member_replaced(metadata, member.first, member.bookie, target), password=b'x')",
                )
            ),
        ),
        Mutant(
            "works-without-session",
            "H5",
            "a replicator goes on with its ledgers when its session and its locks are gone",
            edited((f"{_WORKER}._session_lost", "self._end_attempts()", "pass")),
            160,
            faults=("expire worker",),
            slow=True,
        ),
        Mutant(
            "any-mark-goes",
            "H6",
            "a mark is taken back although the ledger was marked again since",
            edited(
                (
                    "buckram.metadata.records.underreplication:Underreplication.unmark",
                    "await self._keys.delete(key, mark.version)",
                    "await self._keys.delete(key, (await self._keys.get(key)).version)",
                ),
                (
                    "buckram.metadata.records.underreplication:Underreplication.finish",
                    "Delete(key, mark.version)",
                    "Delete(key, (await self._keys.get(key)).version)",
                ),
            ),
            200,
            faults=("late bookie", "crash bookie"),
        ),
        Mutant(
            "away-is-lost",
            "H7",
            "entries of which copies are on a bookie that does not answer are said to be lost",
            edited(("buckram.healing.repair.fragment_copy:FragmentCopy._read", "elif errors or away:", "elif False:")),
            200,
            faults=("late bookie", "crash bookie"),
        ),
        Mutant(
            "disabled-ignored",
            "H9",
            "replicators work while autorecovery is disabled",
            edited((f"{_WORKER}._may_work", "await self._tree.enabled(watch) and", "")),
            160,
            faults=("disable",),
        ),
        Mutant(
            "disabled-too-late",
            "H9",
            "what is being copied goes on when autorecovery is disabled",
            edited((f"{_WORKER}._stop_when_forbidden", "self._end_attempts()", "pass")),
            160,
            faults=("disable",),
            slow=True,
        ),
        Mutant(
            "brake-ignored",
            "brake",
            "replicators work while the brake is on",
            edited((f"{_WORKER}._may_work", "and await self._board.brake(watch) is None", "")),
            160,
            faults=("late bookie", "second loss"),
        ),
        Mutant(
            "mark-goes-in-any-case",
            "L12",
            "a mark is taken back although the ledger is not whole",
            edited((f"{_WORKER}._take", "if outcome.whole and await", "if await")),
        ),
        Mutant(
            "lock-kept",
            "L12, reason",
            "a lock that could not be given back stays",
            edited((f"{_WORKER}._round", "in list(self._kept):", "in ():")),
            200,
            faults=("cut worker",),
        ),
        Mutant(
            "no-bookie-unnamed",
            "reason",
            "that no bookie can take the copies is said as something else",
            edited(("buckram.healing.repair.ledger_repair:_no_bookie", "Reason(Why.NO_BOOKIE,", "Reason(Why.OTHER,")),
        ),
        Mutant(
            "copy-away-unnamed",
            "reason",
            "that copies are where nobody answers is said as something else",
            edited(("buckram.healing.repair.ledger_repair:_reasons_of", "Reason(Why.COPY_AWAY,", "Reason(Why.OTHER,")),
            120,
        ),
        Mutant(
            "open-end-unnamed",
            "reason",
            "that a ledger waits for its end is said as something else",
            edited(
                (
                    f"{_REPAIR}._end",
                    "Reason(Why.WRITER_LIVES if there else Why.COPY_AWAY, why)",
                    "Reason(Why.OTHER, why)",
                )
            ),
            120,
        ),
        Mutant(
            "one-bookie-twice",
            "H4",
            "a member that is there takes the place of a lost one, too",
            edited(
                (
                    f"{_REPAIR}._next_spare",
                    "return by_position[position], target",
                    "return by_position[position], next((b for b in ensemble if b not in failed.values()), target)",
                ),
                (f"{_REPAIR}._name", "if target in present.ensemble:", "if False:"),
                (
                    "buckram.core.ledgers.metadata:_fragments_problem",
                    "if len(dict.fromkeys(fragment.ensemble)) != md.ensemble_size:",
                    "if False:",
                ),
            ),
            80,
        ),
        Mutant(
            "closed-before-written",
            "H8",
            "recovery closes a ledger before what it wrote back is acknowledged",
            edited(
                (
                    "buckram.core.ledgers.recovery:WriteBack.add",
                    "sends += self._send(position, entries)",
                    "sends += self._send(position, entries)\n"
                    "    if entries:\n"
                    "        self.head = entries[-1].entry_id\n"
                    "        self._pending.clear()",
                )
            ),
            300,
            faults=("crash bookie",),
        ),
        Mutant(
            "half-a-listing",
            "H10",
            "an audit takes a listing that failed for its end",
            edited(
                (
                    "buckram.healing.auditing.auditor:Auditor._walk",
                    "await self._store.read_ledgers(after=after, limit=_PAGE)",
                    "next((p for p in await asyncio.gather(self._store.read_ledgers(after=after, limit=_PAGE), "
                    "return_exceptions=True) if isinstance(p, list | tuple)), [])",
                )
            ),
            300,
            faults=("cut auditor",),
        ),
        Mutant(
            "no-delay",
            "delay",
            "a lost bookie's ledgers are marked at once",
            edited(
                (
                    "buckram.core.healing.lost_bookies:Losses._due_at",
                    "(0.0 if at_once else self._delay_s)",
                    "0.0",
                )
            ),
            80,
            faults=("new bookie",),
        ),
        Mutant(
            "decommissioned-too-soon",
            "departure",
            "the command ends before the ledgers of its bookie are copied",
            edited(("buckram.healing.operations.decommission:_wait", "while left:", "while False:")),
            160,
            faults=("decommission",),
        ),
        Mutant(
            "one-bad-mark-stops-all",
            "L12",
            "a mark that nobody can read ends every audit",
            edited(
                (
                    "buckram.healing.auditing.auditor:Auditor._mark",
                    "except MalformedRecord as error:",
                    "except KeyError as error:",
                )
            ),
            300,
            faults=("bad mark", "second loss"),
        ),
        Mutant(
            "check-forgotten",
            "H7, L12",
            "a mark that asks for all copies forgets that when names come",
            edited(
                (
                    "buckram.metadata.records.underreplication:Underreplication.mark",
                    "if not names or not replicas:",
                    "if False:",
                )
            ),
            300,
            faults=("copies gone",),
        ),
        Mutant(
            "open-ledger-stays-marked",
            "reason",
            "an open ledger whose members all live waits for an end that nobody writes",
            edited(
                (
                    f"{_REPAIR}._check",
                    "if not await self._fill_open(ledger):",
                    "if True:",
                )
            ),
            200,
            faults=("check",),
        ),
        Mutant(
            "no-good-copy-unnamed",
            "reason",
            "that entries are lost is said as something else",
            edited(
                ("buckram.healing.repair.member_verdicts:reasons_for", "Reason(Why.NO_GOOD_COPY,", "Reason(Why.OTHER,")
            ),
            160,
            faults=("copies gone",),
        ),
        Mutant(
            "target-failure-unsaid",
            "L12",
            "a bookie that was to take copies and did not keeps no mark",
            edited((f"{_REPAIR}._replace", "outcome.reasons.append(Reason(Why.TARGET_FAILED, str(error)))", "pass")),
            300,
            faults=("full", "crash bookie"),
        ),
        Mutant(
            "target-failure-unnamed",
            "reason",
            "that the target of copies failed is said as something else",
            edited((f"{_REPAIR}._replace", "Reason(Why.TARGET_FAILED, str(error))", "Reason(Why.OTHER, str(error))")),
            300,
            faults=("full", "crash bookie"),
        ),
        Mutant(
            "unreadable-unnamed",
            "reason",
            "that a mark cannot be read is said as something else",
            edited((f"{_WORKER}._look", "Reason(Why.UNREADABLE_RECORD,", "Reason(Why.OTHER,")),
            160,
            faults=("bad mark",),
        ),
        Mutant(
            "trouble-unsaid",
            "H7",
            "copies that could not be looked at count as good",
            edited(
                (
                    f"{_REPAIR}._check",
                    "outcome.reasons.append(Reason(why, problem))",
                    "outcome.reasons += [Reason(why, problem)] if why is Why.NO_BOOKIE else []",
                )
            ),
            300,
            faults=("check",),
        ),
        Mutant(
            "joined-unlooked",
            "L12",
            "nobody looks whether a bookie that a recovery put into a ledger has all of it",
            edited((f"{_REPAIR}.run", "not named or joined or", "not named or")),
            200,
        ),
        Mutant(
            "rule-ignored",
            "M6",
            "whoever heals puts any bookie in any place, whatever the rule of places says",
            edited(
                (
                    f"{_REPAIR}._placement",
                    "policy = policy_of(metadata.custom_metadata, self._services.bookies.policy)",
                    "policy = __import__('buckram.core.placement.policy', fromlist=['*']).PlacementPolicy()",
                )
            ),
            80,
            racks=True,
        ),
        Mutant(
            "hosts-forgotten",
            "M6",
            "whoever heals puts copies on hosts that have one of the entry already",
            edited(
                (
                    "buckram.healing.repair.spare_selection:spare_members",
                    "bookies.replace(ensemble, failed, write_quorum=quorum.write_quorum, policy=policy)",
                    "bookies.replace(ensemble, failed, write_quorum=quorum.write_quorum, policy=type(policy)())",
                )
            ),
            80,
            shared=True,
        ),
        Mutant(
            "place-of-the-lost-unknown",
            "L1, reason",
            "a recovery gives up where a lost member's place is not known, although others could take it",
            edited(
                (
                    "buckram.client.maintain.recover:_Attempt._copy_forward",
                    "self._services.bookies.info(bookie) is None and",
                    "False and",
                )
            ),
            200,
            faults=("lose rack", "second loss", "crash worker"),
            racks=True,
        ),
        Mutant(
            "places-out-of-turn",
            "M6",
            "members give way in any order, so that those that stay for now break the rule of places",
            edited(
                (_NEXT, "options = [one for one in options if broken(dict([one])) <= now]", "pass"),
                (_NEXT, "if not options or any(broken(dict(options[:1]))):", "if not options:"),
                (_NEXT, "return min(options, key=lambda one: broken(dict([one])))", "return options[0]"),
            ),
            300,
            faults=("second loss", "lose rack", "replace"),
            racks=True,
        ),
        Mutant(
            "rack-is-no-domain",
            "domain",
            "the brake does not look at fault domains",
            edited(
                (
                    "buckram.healing.auditing.auditor:Auditor._domains",
                    "for level in self._brake_levels",
                    "for level in ()",
                )
            ),
            80,
            faults=("lose rack",),
            racks=True,
        ),
        Mutant(
            "needed-again",
            "brake",
            "bookies that no ledger names count again for the brake when others go",
            edited(
                ("buckram.core.healing.lost_bookies:Losses.named", "frozenset(self._lost_at)", "frozenset(self.lost)")
            ),
            120,
            faults=("second loss",),
        ),
        Mutant(
            "lease-ignored",
            "H2",
            "a stream's ledger is ended although its writer has the lease",
            edited(
                (
                    "buckram.healing.repair.member_verdicts:OpenLedgers.why_not",
                    "if owner is not None and await self._leased(owner[1]):",
                    "if False:",
                )
            ),
            120,
            streams=True,
        ),
        Mutant(
            "drained-too-soon",
            "departure",
            "a drain ends before the bookie's ledgers are copied",
            edited(("buckram.healing.operations.decommission:_wait", "while left:", "while False:")),
            80,
            faults=("drain",),
        ),
        Mutant(
            "replaced-too-soon",
            "departure",
            "a bookie counts as replaced before its ledgers are copied",
            edited(("buckram.healing.operations.decommission:_wait", "while left:", "while False:")),
            80,
            faults=("replace",),
        ),
        Mutant(
            "rest-ignored",
            "maintenance",
            "the ledgers of a bookie are marked while it rests",
            edited(
                (
                    "buckram.healing.auditing.auditor:Auditor._step",
                    "self._losses.resting(self._countdown.resting(now))",
                    "self._losses.resting(())",
                )
            ),
            120,
            faults=("maintenance",),
        ),
        Mutant(
            "rest-for-ever",
            "maintenance",
            "a maintenance that is over is not taken back",
            edited(("buckram.core.healing.operator_requests:Countdown.changed", "if at <= now:", "if False:")),
            80,
            faults=("maintenance",),
        ),
        Mutant(
            "rest-below-quorum",
            "maintenance",
            "a bookie may rest although entries are left with fewer than Qa copies",
            edited(
                (
                    "buckram.healing.operations.dependency_check:below_ack_quorum",
                    "left is not None and left < metadata.ack_quorum",
                    "False",
                )
            ),
            120,
            faults=("maintenance",),
        ),
        Mutant(
            "moved-without-lock",
            "H5",
            "evening out does not take the locks of ledgers",
            edited(
                (
                    "buckram.healing.operations.rebalance:_Rebalance._ledger",
                    "if not await self._tree.lock(ledger):",
                    "if False:",
                )
            ),
            120,
            faults=("rebalance",),
        ),
        Mutant(
            "moves-while-disabled",
            "H9",
            "evening out goes on while autorecovery is disabled",
            edited(
                (
                    "buckram.healing.operations.rebalance:_Rebalance._carry_out",
                    "await _check_allowed(self._client)",
                    "pass",
                ),
                ("buckram.healing.operations.rebalance:_Rebalance.run", "await _check_allowed(self._client)", "pass"),
                ("buckram.healing.operations.rebalance:rebalance", "await _check_allowed(client)", "pass"),
            ),
            160,
            faults=("rebalance", "disable"),
        ),
        Mutant(
            "empty-disk-serves",
            "M8",
            "an empty disk is accepted under an old id",
            edited(
                ("buckram.bookie.trust.cookie:_refuse_unless_new", "if remote is not None:", "if False:"),
                (
                    "buckram.bookie.trust.cookie:_check_unfinished",
                    "raise WrongCookie(why_replaced(claimed.bookie_id, claimed.incarnation, found.value))",
                    "from dataclasses import replace\n"
                    "        named = replace(found.value, incarnation=claimed.incarnation)\n"
                    "        key = witness_key(metadata, claimed.bookie_id)\n"
                    "        await metadata.keys.set(key, encode_statement(named), found.version)",
                ),
            ),
            80,
        ),
        Mutant(
            "named-is-collected",
            "F17",
            "a bookie deletes its data of ledgers that name it",
            edited(
                (
                    "buckram.bookie.garbage.collector:is_foreign",
                    "not any(bookie_id in fragment.ensemble for fragment in metadata.fragments)",
                    "True",
                )
            ),
            80,
        ),
        *completeness_mutants.MUTANTS,
    )
}
