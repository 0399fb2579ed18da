from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """It removes rows that others name, beside a change that makes the table anew."""

    dependencies = (("library", "0002_anew"),)
    operations = (
        migrations.RunSQL("DELETE FROM library_author WHERE name = 'a'"),
        migrations.AlterField("Author", "born", models.BigIntegerField(default=1900)),
    )
