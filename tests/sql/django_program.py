"""Migrations of Django that make tables anew: `django_program URI DATABASE`; prints one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings


def main(uri: str, database: str) -> None:
    settings.configure(
        DATABASES={"default": {"ENGINE": "tests.sql.django_buckram", "NAME": database, "OPTIONS": {"uri": uri}}},
        INSTALLED_APPS=["tests.sql.library"],
    )
    django.setup()
    from django.core.management import call_command
    from django.db import IntegrityError, connection, connections, transaction
    from django.db.migrations.executor import MigrationExecutor

    def migrate(to: str) -> tuple[Any, Any]:
        """The models of the state that this migration leads to."""
        call_command("migrate", "library", to, verbosity=0)
        apps = MigrationExecutor(connection).loader.project_state([("library", to)]).apps
        return apps.get_model("library", "Author"), apps.get_model("library", "Book")

    seen: dict[str, Any] = {}
    author, book = migrate("0001_first")
    one, two = author.objects.create(name="a"), author.objects.create(name="b")
    book.objects.bulk_create([book(title=f"{number}", author=who) for number, who in enumerate((one, two, two))])
    author, book = migrate("0002_anew")
    seen["books"] = list(book.objects.order_by("pk").values_list("called", "author__name", "author__born"))
    seen["keys"] = connection.cursor().execute("PRAGMA foreign_keys").fetchone()[0]
    seen["nobody"] = _error(IntegrityError, lambda: book.objects.create(called="nobody's", author_id=99))
    with transaction.atomic():
        author.objects.create(name="c", born=1)

        def again() -> None:
            with transaction.atomic():
                author.objects.create(name="c", born=2)

        seen["twice"] = _error(IntegrityError, again)
    seen["lost"] = _error(IntegrityError, lambda: migrate("0003_loses"))
    # Django leaves the transaction open after this; its process would end here.
    connection.connection.close()
    del connections["default"]
    seen["after"] = [author.objects.count(), book.objects.count()]
    author, book = migrate("0001_first")
    seen["back"] = list(book.objects.order_by("pk").values_list("title", "author__name"))
    with connection.cursor() as cursor:
        seen["relations"] = connection.introspection.get_relations(cursor, "library_book")["author_id"][:2]
    author.objects.get(name="b").delete()
    seen["cascade"] = book.objects.count()
    connection.close()
    print(json.dumps(seen))


def _error(kind: type[Exception], work: Any) -> str:
    try:
        work()
    except kind as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    main(*sys.argv[1:])
