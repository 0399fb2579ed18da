"""SQLAlchemy's own compliance suite for dialects, against the dialect for Buckram."""
