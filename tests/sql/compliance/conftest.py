"""What SQLAlchemy's suite wants before it begins: the dialect by its name."""

from sqlalchemy.dialects import registry
from sqlalchemy.testing import provision

for name in ("buckram", "buckram.buckram"):
    registry.register(name, "buckram.sql.dialect", "BuckramDialect")


@provision.temp_table_keyword_args.for_db("buckram")  # type: ignore[untyped-decorator]
def temporary(config: object, engine: object) -> dict[str, list[str]]:
    return {"prefixes": ["TEMPORARY"]}
