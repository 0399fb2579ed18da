"""What the dialect can do and cannot, for SQLAlchemy's suite: of what is closed the suite skips the tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    """Differences from what the suite takes for granted, each with its reason. Nothing is left out by name."""

    # Buckram's.
    temporary_tables = exclusions.closed()  # the schema temp is in no log
    temp_table_reflection = exclusions.closed()
    schemas = exclusions.closed()  # these are attached files in SQLite
    unicode_ddl = exclusions.closed()  # its keys name columns that are not unique; Buckram always looks at foreign keys
    regexp_match = exclusions.closed()  # SQLAlchemy gives Python's sqlite3 a function of its own for this
    skip_autocommit_rollback = exclusions.closed()  # DB-API does not say whether a transaction is open
    # SQLite's.
    implicitly_named_constraints = exclusions.closed()
    parens_in_union_contained_select_w_limit_offset = exclusions.closed()
    parens_in_union_contained_select_wo_limit_offset = exclusions.closed()
    table_value_constructor = exclusions.closed()  # no names of columns after AS
    precision_numerics_many_significant_digits = exclusions.closed()  # they are floating-point numbers
    # Those of SQLAlchemy's dialect for it.
    reflect_indexes_with_expressions = exclusions.closed()
    json_deserializer_binary = exclusions.closed()

    reflects_pk_names = exclusions.open()
    reflect_table_options = exclusions.open()
    check_constraint_reflection = exclusions.open()
    inline_check_constraint_reflection = exclusions.open()
    foreign_key_constraint_name_reflection = exclusions.open()
    isolation_level = exclusions.open()
    savepoints = exclusions.open()
    views = exclusions.open()
    autocommit = exclusions.open()
    insert_returning = exclusions.open()
    update_returning = exclusions.open()
    delete_returning = exclusions.open()
    ctes = exclusions.open()
    window_functions = exclusions.open()
    json_type = exclusions.open()
    unique_constraint_reflection = exclusions.open()
    empty_inserts = exclusions.open()
    datetime_historic = exclusions.open()
    date_historic = exclusions.open()
    create_table_as = exclusions.open()
    table_ddl_if_exists = exclusions.open()
    index_ddl_if_exists = exclusions.open()
    deferrable_fks = exclusions.open()
    repeated_column_foreign_keys = exclusions.open()
    repeated_remote_col_foreign_keys = exclusions.open()
    boolean_col_expressions = exclusions.open()
    nullsordering = exclusions.open()
    intersect = exclusions.open()
    except_ = exclusions.open()
    window_range = exclusions.open()
    window_range_numeric = exclusions.open()
    ctes_with_update_delete = exclusions.open()
    ctes_with_values = exclusions.open()
    ctes_on_dml = exclusions.open()
    tuple_in = exclusions.open()
    dbapi_lastrowid = exclusions.open()
    foreign_key_constraint_option_reflection_ondelete = exclusions.open()
    fk_constraint_option_reflection_ondelete_restrict = exclusions.open()
    fk_constraint_option_reflection_ondelete_noaction = exclusions.open()
    foreign_key_constraint_option_reflection_onupdate = exclusions.open()
    fk_constraint_option_reflection_onupdate_restrict = exclusions.open()
    indexes_check_column_order = exclusions.open()
    indexes_with_expressions = exclusions.open()
    datetime_literals = exclusions.open()
    timestamp_microseconds = exclusions.open()
    legacy_unconditional_json_extract = exclusions.open()
    precision_numerics_enotation_small = exclusions.open()
    server_defaults = exclusions.open()
    expression_server_defaults = exclusions.open()
    aggregate_order_by = exclusions.open()
    infinity_floats = exclusions.open()
    float_or_double_precision_behaves_generically = exclusions.open()
    update_from = exclusions.open()
    order_by_label_with_expression = exclusions.open()
    computed_columns = exclusions.open()
    computed_columns_stored = exclusions.open()
    computed_columns_virtual = exclusions.open()
    computed_columns_reflect_persisted = exclusions.open()
    supports_bitwise_or = exclusions.open()
    supports_bitwise_and = exclusions.open()
    supports_bitwise_not = exclusions.open()
    supports_bitwise_shift = exclusions.open()
    uuid_data_type = exclusions.open()
    unique_index_reflect_as_unique_constraints = exclusions.open()
    column_collation_reflection = exclusions.open()
    mod_operator_as_percent_sign = exclusions.open()

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        return {"default": "READ COMMITTED", "supported": ["READ COMMITTED", "SERIALIZABLE", "AUTOCOMMIT"]}
