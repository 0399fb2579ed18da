"""Bugs of what peers may do before they have logged in, and beside others' logins."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_BOOKIE = "tests/bookie/service/security/test_connection_gate.py::"
_HEADS = "tests/serve/http/test_heads.py::"
_SHARES = "tests/serve/gateway/test_shares.py::"

MUTANTS = (
    TestMutant(
        "idle-peers-stay",
        "idle connections keep their places when others come",
        edited(
            (
                "buckram.bookie.service.security.connection_gate:UnauthenticatedConnections.make_room",
                "and not session.heard",
                "and False",
            )
        ),
        (_BOOKIE + "test_idle_connections_keep_nobody_out",),
    ),
    TestMutant(
        "full-of-idle-peers",
        "a bookie that has all its connections refuses whoever comes, though some are idle",
        edited(
            ("buckram.bookie.service.server:BookieServer.session_opened", "self._door.unknown.make_room()", "False")
        ),
        (_BOOKIE + "test_a_bookie_that_is_full_of_idle_connections_takes_whoever_comes",),
    ),
    TestMutant(
        "silence-has-time",
        "a peer that says nothing has the time of a login",
        edited(
            (
                "buckram.bookie.service.security.connection_gate:UnauthenticatedConnections._first_look",
                "if not session.heard:",
                "if False:",
            )
        ),
        (_BOOKIE + "test_whoever_is_silent_goes_before_whoever_speaks_slowly",),
    ),
    TestMutant(
        "tls-has-time",
        "a peer that owes TLS has the time of a login to begin",
        edited(
            (
                "buckram.bookie.service.security.connection_gate:UnauthenticatedConnections._first_look",
                "elif session.owes_tls:",
                "elif False:",
            )
        ),
        (_BOOKIE + "test_tls_has_to_begin_soon",),
    ),
    TestMutant(
        "address-without-share",
        "two addresses whose peers never log in keep all others out",
        edited(
            (
                "buckram.bookie.service.security.connection_gate:UnauthenticatedConnections.admit",
                "not self._make_fair(address)",
                "True",
            )
        ),
        (_BOOKIE + "test_addresses_that_fill_the_table_leave_a_share_to_others",),
    ),
    TestMutant(
        "half-heads-have-memory",
        "heads that are not complete take as much memory as they like, all together",
        edited(("buckram.serve.http.pending_connections:Heads.hold", " or self._bytes > self._most_bytes", "")),
        (_HEADS + "test_half_heads_are_bounded_in_bytes_of_all_and_the_oldest_goes",),
    ),
    TestMutant(
        "half-heads-stay",
        "connections that owe a head are not bounded in number",
        edited(("buckram.serve.http.pending_connections:Heads.hold", "len(self._sizes) > self._most or ", "")),
        (_HEADS + "test_connections_that_owe_a_head_are_bounded_in_number_and_idle_ones_are_not_among_them",),
    ),
    TestMutant(
        "silent-clients-stay",
        "a server that has all its connections refuses whoever comes, though some have asked nothing",
        edited(
            ("buckram.serve.http.connection:Connection.connection_made", " and not self.heads.make_room()", ""),
        ),
        (_HEADS + "test_silent_connections_keep_nobody_out_of_a_server_that_is_full",),
    ),
    TestMutant(
        "headers-without-number",
        "a head may have any number of headers",
        edited(
            (
                "buckram.serve.http.connection:Connection._count",
                "if self._head_count > self.limits.headers:",
                "if False:",
            ),
        ),
        (_HEADS + "test_headers_are_bounded_in_number",),
    ),
    TestMutant(
        "handshakes-uncounted",
        "connections in their handshake of TLS are not among those that make room",
        edited(
            ("buckram.serve.http.pending_connections:TlsAcceptor._accept", "self._heads.hold(handshake, 0)", "pass")
        ),
        (_HEADS + "test_connections_without_a_handshake_keep_nobody_out",),
    ),
    TestMutant(
        "unread-body-stays",
        "what nobody read of a body stays as long as its connection",
        edited(
            ("buckram.serve.http.connection:Connection.on_response_complete", "self.cycle.body = bytearray()", "pass")
        ),
        (_HEADS + "test_the_unread_part_of_a_body_is_forgotten_with_its_answer",),
    ),
    TestMutant(
        "login-of-any-size",
        "who is not known yet may send, and keep room for, as much as anybody",
        edited(("buckram.serve.gateway.dispatch:Dispatcher._serving", 'if operation.needs == "nothing":', "if False:")),
        (_SHARES + "test_a_login_needs_no_more_than_its_bytes_and_keeps_no_room",),
    ),
    TestMutant(
        "hello-of-any-size",
        "the first message on a WebSocket may be as large as any",
        edited(
            (
                "buckram.serve.http.connection:Socket.__init__",
                "first.ws_max_size = min(config.ws_max_size, LOGIN_BYTES)",
                "pass",
            )
        ),
        ("tests/serve/hrana/test_websockets.py::test_the_first_message_is_no_larger_than_a_login",),
    ),
    TestMutant(
        "sessions-of-all",
        "logins of one principal end the sessions of others",
        edited(
            (
                "buckram.serve.gateway.shared.authentication:Sessions.begin",
                "self._forget(self._owned.oldest_of_most())",
                "self._forget(next(iter(self._sessions)))",
            )
        ),
        (_SHARES + "test_a_full_table_of_sessions_takes_from_whoever_has_most",),
    ),
    TestMutant(
        "sessions-without-share",
        "a principal has as many sessions as there may be",
        edited(
            (
                "buckram.serve.gateway.shared.authentication:Sessions.begin",
                "self._owned.count(who) >= self._limits.sessions_of_principal",
                "False",
            )
        ),
        (_SHARES + "test_logins_of_one_principal_end_only_his_own_sessions",),
    ),
    TestMutant(
        "repeats-of-all",
        "requests of one principal push out the answers that are kept for others",
        edited(
            (
                "buckram.serve.gateway.shared.idempotency:Repeats._done",
                "self._forget(self._owned.oldest_of_most())",
                "self._forget(next(iter(self._kept)))",
            )
        ),
        (_SHARES + "test_answers_to_one_principal_s_requests_push_out_only_his_own",),
    ),
    TestMutant(
        "shares-of-nobody",
        "one principal takes all tails, streams, jobs, transfers and memory",
        edited(("buckram.core.tenants.fair_share:FairShare.has_room", "return not holder or", "return True or")),
        (
            _SHARES + "test_one_principal_leaves_tails_to_others",
            _SHARES + "test_one_principal_leaves_memory_to_others",
            _SHARES + "test_one_principal_leaves_files_to_others",
            _SHARES + "test_one_owner_leaves_a_job_to_others_and_forgets_his_own",
            "tests/serve/hrana/test_websockets.py::test_one_principal_leaves_streams_to_others",
        ),
    ),
    TestMutant(
        "shelf-of-all",
        "ledgers that one principal creates close the writers of others' ledgers",
        edited(
            (
                "buckram.runtime.process.handle_cache:HandleCache._close_surplus",
                "max(idle, key=lambda holder: open_now[holder])",
                "next(iter(idle))",
            )
        ),
        (
            "tests/state/db/test_opening.py::test_whoever_has_most_open_makes_room",
            _SHARES + "test_a_ledger_s_writer_is_not_closed_for_another_principal_s",
        ),
    ),
    TestMutant(
        "probe-kept-out",
        "idle connections keep a bookie's probes out",
        edited(("buckram.runtime.net.http_server:_Server._exchange", " and not self._make_room(writer)", "")),
        ("tests/runtime/net/test_http_server.py::test_idle_connections_keep_no_probe_out",),
    ),
    TestMutant(
        "metrics-for-all",
        "a bookie with tokens shows its metrics to anybody",
        edited(("buckram.bookie.pages.status_pages:StatusPages.__call__", "if self._tokens and", "if False and")),
        ("tests/bookie/pages/test_status_pages.py::test_metrics_need_a_token_where_clients_do_and_health_needs_none",),
    ),
)
