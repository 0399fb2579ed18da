"""What SQLAlchemy's suite wants before it begins: the dialect by its name, and nothing of a second schema."""

import pytest
from sqlalchemy.dialects import registry
from sqlalchemy.testing import config, provision

for name in ("buckram", "buckram.buckram"):
    registry.register(name, "buckram.sql.dialect", "BuckramDialect")


@provision.temp_table_keyword_args.for_db("buckram")  # type: ignore[untyped-decorator]
def temporary(config: object, engine: object) -> dict[str, list[str]]:
    return {"prefixes": ["TEMPORARY"]}


@pytest.fixture(autouse=True)
def no_second_schema(request: pytest.FixtureRequest) -> None:
    """Some of the suite's cases use a second schema and do not ask whether there are any, as the others do."""
    case = getattr(request.node, "callspec", None)
    wanted = case is not None and any(case.params.get(one) is True for one in ("use_schema", "use_schema_fixture"))
    if wanted and not config.requirements.schemas.enabled:
        pytest.skip("a second schema is an attached file in SQLite, which a replicated database has not")
