"""The versions of PySpark that work; docs/tutorial/spark.md says what each can do."""

from __future__ import annotations

from buckram.errors import ConfigError
from buckram.extras import install_line, needs

OLDEST, NEWEST = (4, 0), (4, 3)
"""The first version that has a data source API in Python, and the newest one that the tests run on."""


def need_pyspark() -> str:
    """Return the installed version of PySpark. ConfigError if there is none, or if it is too old."""
    wanted = f"PySpark {OLDEST[0]}.{OLDEST[1]} or newer"
    try:
        import pyspark
    except ImportError:
        raise ConfigError(
            needs(f"buckram.spark stands on {wanted}, of which there is none here, and", "spark")
        ) from None
    version = str(pyspark.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise ConfigError(f"buckram.spark needs {wanted}, here is {version}: {install_line('spark')}")
    return version
