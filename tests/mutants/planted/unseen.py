"""Bugs by which somebody learns of what he may not see."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_GATEWAY = "tests/serve/gateway/test_unseen.py::"
_STRANGER = _GATEWAY + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not"
_LEDGER = _GATEWAY + "test_a_ledger_of_another_is_as_one_that_is_not_there"
_LISTS = _GATEWAY + "test_lists_have_what_may_be_seen_and_go_on_behind_nothing_else"
_OBJECTS = _GATEWAY + "test_directories_and_uploads_of_others_are_in_no_list_and_no_page"
_STATUS = _GATEWAY + "test_a_status_of_what_one_may_see_names_nothing_else"
_CLUSTER = _GATEWAY + "test_the_whole_cluster_is_for_who_may_see_it"
_DENIALS = "tests/bookie/service/test_denials.py::"
_HRANA = "tests/serve/hrana/test_database_access.py::"
_FILES = "tests/serve/webhdfs/test_access.py::"
_PAGES = "buckram.serve.gateway."

MUTANTS = (
    TestMutant(
        "unseen-refused",
        "the gateway refuses what one may not see, in place of not knowing it",
        edited((f"{_PAGES}shared.operations:Ask.require", "if not making and not self.sees(of or name):", "if False:")),
        (_STRANGER,),
    ),
    TestMutant(
        "unseen-made",
        "whoever may not make something is told that it is not there",
        edited((f"{_PAGES}shared.operations:Ask.require", "not making and not", "not")),
        (_GATEWAY + "test_making_is_refused_and_says_nothing_of_what_is_there",),
    ),
    TestMutant(
        "unseen-appends-that-create",
        "whoever may not append and create is told whether the stream is there",
        edited((f"{_PAGES}dispatch:Dispatcher._serving", 'bare.query.get("create") is True', "False")),
        (_GATEWAY + "test_making_is_refused_and_says_nothing_of_what_is_there",),
    ),
    TestMutant(
        "unseen-ledger-named",
        "a refusal names the stream of another's ledger",
        edited((f"{_PAGES}streams.ledger_pages:LedgerPages._known", "if not ask.allowed(name):", "if False:")),
        (_LEDGER,),
    ),
    TestMutant(
        "unseen-ledger-damaged",
        "a ledger whose record cannot be read is told to everybody",
        edited((f"{_PAGES}streams.ledger_pages:LedgerPages._known", "if ask.allowed.everything:", "if True:")),
        (_GATEWAY + "test_a_ledger_whose_record_nobody_can_read_is_nobodys",),
    ),
    TestMutant(
        "unseen-ledger-damaged-listed",
        "lists of ledgers have those that cannot be read for everybody",
        edited((f"{_PAGES}streams.ledger_pages:_is_seen", "return ask.allowed.everything", "return True")),
        (_GATEWAY + "test_a_ledger_whose_record_nobody_can_read_is_nobodys",),
    ),
    TestMutant(
        "unseen-ledger-pages",
        "a page of ledgers goes on behind the ledger of another",
        edited((f"{_PAGES}streams.ledger_pages:LedgerPages._list", "at = at // _ROUND * _ROUND - 1", "pass")),
        (_GATEWAY + "test_many_ledgers_of_others_are_gone_through_without_telling_their_ids",),
    ),
    TestMutant(
        "unseen-ledger-pages-twice",
        "ledgers behind the end of a page are in it and in the next one",
        edited((f"{_PAGES}streams.ledger_pages:LedgerPages._list", 'if row["ledger"] <= at]', "]")),
        (_GATEWAY + "test_many_ledgers_of_others_are_gone_through_without_telling_their_ids",),
    ),
    TestMutant(
        "unseen-namespace-pages",
        "a page of namespaces ends, and goes on, at the name of another's",
        edited(
            (
                f"{_PAGES}administration.namespace_pages:NamespacePages._list",
                "while more and len(found) < limit:",
                "if True:",
            )
        ),
        (_LISTS,),
    ),
    TestMutant(
        "unseen-uploads-pages",
        "a page of uploads ends at the upload of another",
        edited(
            (
                f"{_PAGES}objects.upload_pages:UploadPages._list",
                'while objects is not None and more and len(found) < query["limit"]:',
                "if objects is not None:",
            )
        ),
        (_OBJECTS,),
    ),
    TestMutant(
        "unseen-uploads-told",
        "whoever gives up an upload of another learns that it is there",
        edited(
            (
                f"{_PAGES}objects.upload_pages:UploadPages._abort",
                "present is not None and ask.sees",
                "present is not None or ask.sees",
            )
        ),
        (_OBJECTS,),
    ),
    TestMutant(
        "unseen-directory-listed",
        "a directory in which one may see nothing is there, and empty",
        edited(
            (
                f"{_PAGES}objects.object_pages:Page.of_directory",
                "if not found and directory and not whole:",
                "if False:",
            )
        ),
        (_OBJECTS,),
    ),
    TestMutant(
        "unseen-directory-named",
        "a directory is listed because it could have what one may see",
        edited(
            (
                f"{_PAGES}objects.object_pages:_is_seen",
                "any(map(wanted.has, await _first(objects, wanted.text)))",
                "True",
            )
        ),
        (_OBJECTS,),
    ),
    TestMutant(
        "unseen-removal",
        "whoever deletes objects in a namespace of others is refused, in place of not knowing it",
        edited((f"{_PAGES}objects.removal_pages:RemovalPages._delete", "if not ask.sees(namespace):", "if False:")),
        (_STRANGER,),
    ),
    TestMutant(
        "unseen-status",
        "the status tells everybody of every stream",
        edited(("buckram.serve.json_views.status:status_seen", "one.state.name not in OWNED or", "True or")),
        (_STATUS,),
    ),
    TestMutant(
        "unseen-status-where",
        "the status tells everybody which bookie it is",
        edited(
            ("buckram.serve.json_views.status:status_seen", "if one.state.name in OWNED else _of_the_cluster(one)", "")
        ),
        (_STATUS,),
    ),
    TestMutant(
        "unseen-status-whole",
        "everybody gets the status of the whole cluster",
        edited((f"{_PAGES}administration.cluster_pages:ClusterPages._status", "if ask.allowed.everything", "if True")),
        (_CLUSTER,),
    ),
    TestMutant(
        "unseen-cluster",
        "everybody sees the last hour of the whole cluster",
        edited((f"{_PAGES}shared.authentication:Access.who", '("operator", "administrator")', '("administrator",)')),
        (_CLUSTER,),
    ),
    TestMutant(
        "unseen-gateway-places",
        "an answer of the gateway has a place in the metadata store",
        edited(
            (f"{_PAGES}shared.error_answers:problem_of", "if isinstance(error, errors.AccessRefused):", "if False:")
        ),
        (_GATEWAY + "test_a_refusal_of_the_store_says_no_place_in_it",),
    ),
    TestMutant(
        "unseen-files-places",
        "an answer of WebHDFS has a place in the metadata store",
        edited(
            ("buckram.serve.webhdfs.problems:problem_of", "if isinstance(error, errors.AccessRefused):", "if False:")
        ),
        (_FILES + "test_a_refusal_of_the_store_says_no_place_in_it",),
    ),
    TestMutant(
        "unseen-files",
        "WebHDFS refuses what is in a namespace of others, in place of not knowing it",
        edited(
            (
                "buckram.serve.webhdfs.access:Visitor.require",
                "if not making and not self.sees(path.namespace):",
                "if False:",
            )
        ),
        (_FILES + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not",),
    ),
    TestMutant(
        "unseen-files-renamed",
        "a file that is moved to a namespace of others is told to be in none",
        edited(
            ("buckram.serve.webhdfs.server:WebHdfs._rename", "target, below=True, making=True)", "target, below=True)"),
        ),
        (_FILES + "test_what_is_renamed_to_a_namespace_of_others_says_nothing_of_it",),
    ),
    TestMutant(
        "unseen-databases",
        "a server of databases says whether it serves what one may not see",
        edited(("buckram.serve.hrana.databases:Databases.find", "if not sees(str(name)):", "if False:")),
        (_HRANA + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not",),
    ),
    TestMutant(
        "unseen-databases-by-host",
        "the name of a host is found to be that of a database that one may not see",
        edited(("buckram.serve.hrana.databases:Databases.find", "if meant and sees(meant)", "if meant")),
        (_HRANA + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not",),
    ),
    TestMutant(
        "unseen-databases-listed",
        "a server of databases lists all to everybody",
        edited(("buckram.serve.hrana.server:DatabaseServer.report", "if sees(name)", "")),
        (_HRANA + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not",),
    ),
    TestMutant(
        "unseen-databases-described",
        "an error of a server of databases has the names of all",
        edited(("buckram.serve.hrana.databases:Databases.described", "filter(sees, self.names)", "self.names")),
        (_HRANA + "test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not",),
    ),
    TestMutant(
        "unseen-sockets",
        "a WebSocket says which databases are served before it is known who asks",
        edited(("buckram.serve.hrana.websockets:Sockets.serve", "if self._asking.access.vouch is None:", "if True:")),
        (_HRANA + "test_a_websocket_says_of_a_database_only_to_who_may_see_it",),
    ),
    TestMutant(
        "unseen-owner",
        "a denial of a bookie names whose a ledger is",
        edited(
            (
                "buckram.core.security.namespace_rules:NamespaceRules._needs_of_owner",
                "if allowed else UNSEEN",
                "",
            )
        ),
        (_DENIALS + "test_whose_a_ledger_is_learns_only_who_may_use_that",),
    ),
    TestMutant(
        "unseen-place",
        "a denial of a bookie has the place in the store",
        edited(("buckram.bookie.service.metadata.key_checks:KeyJudge.refused", "self._called(key)", "key")),
        (_DENIALS + "test_a_denial_names_namespace_and_permission",),
    ),
    TestMutant(
        "unseen-namespaces",
        "bookies list the namespaces of all to everybody",
        edited(
            (
                "buckram.bookie.service.metadata.key_session:KeySession._lists_names",
                "key in self._judge.places.listed",
                "False",
            )
        ),
        (_DENIALS + "test_names_of_namespaces_are_shown_to_those_only_who_may_use_something_in_them",),
    ),
)
