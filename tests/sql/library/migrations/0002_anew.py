from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    dependencies = (("library", "0001_first"),)
    operations = (
        migrations.AddField("Author", "born", models.IntegerField(default=1900)),
        migrations.AlterField("Author", "name", models.CharField(max_length=60, unique=True)),
        migrations.RenameField("Book", "title", "called"),
        migrations.AddConstraint("Book", models.UniqueConstraint(fields=["called"], name="titles")),
    )
