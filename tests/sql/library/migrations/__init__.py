"""Written as Django's makemigrations would."""
