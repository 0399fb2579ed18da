from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    initial = True
    operations = (
        migrations.CreateModel(
            "Author", [("id", models.BigAutoField(primary_key=True)), ("name", models.CharField(max_length=30))]
        ),
        migrations.CreateModel(
            "Book",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("title", models.CharField(max_length=30)),
                ("author", models.ForeignKey("library.Author", models.CASCADE)),
            ],
        ),
    )
