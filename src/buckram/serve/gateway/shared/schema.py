"""JSON Schema, as much of it as the gateway's bodies and answers need: making schemas, and finding what breaks one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
YES_OR_NO: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
SETTINGS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number", "boolean", "null"]},
}
"""Schema of the settings of a namespace or stream; the handler checks their names."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    kind = schema["type"]
    kinds = list(kind) if isinstance(kind, list) else [kind]
    return {**schema, "type": [*kinds, "null"]}


def array(items: Schema) -> Schema:
    """Return the schema of a list of such values."""
    return {"type": "array", "items": dict(items)}


def one_of(*values: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(values)}


def record(*optional: str, more: bool = False, **fields: Schema) -> Schema:
    """An object with these fields; all but `optional` are there. `more`: others may be there as well."""
    return {
        "type": "object",
        "properties": {name: dict(schema) for name, schema in fields.items()},
        "required": [name for name in fields if name not in optional],
        "additionalProperties": more,
    }


def joined(first: Schema, second: Schema) -> Schema:
    """An object with the fields of both."""
    return {
        **first,
        "properties": {**first["properties"], **second["properties"]},
        "required": [*first["required"], *second["required"]],
    }


def mapping(values: Schema) -> Schema:
    """Return the schema of an object with any names and such values."""
    return {"type": "object", "additionalProperties": dict(values)}


def fault(value: Any, schema: Schema, where: str = "the body") -> str:
    """Return what is wrong with a value, naming it, what is needed and where; empty if it is valid."""
    kind = schema.get("type")
    if kind is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        if not any(_is(value, one) for one in kinds):
            return f"{where} is {_shown(value)}: needs {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {_shown(value)}: needs one of {', '.join(schema['enum'])}"
    if isinstance(value, int) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if (least is not None and value < least) or (most is not None and value > most):
            bounds = [f"{word} {one}" for word, one in (("from", least), ("up to", most)) if one is not None]
            return f"{where} is {value}: needs a number {' '.join(bounds)}"
    if isinstance(value, dict):
        return _fault_of_object(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        return next(filter(None, (fault(one, schema["items"], f"{where}[{n}]") for n, one in enumerate(value))), "")
    return ""


def _fault_of_object(value: dict[str, Any], schema: Schema, where: str) -> str:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{where} has no {missing[0]}: give it"
    for name, one in value.items():
        if name in fields:
            found = fault(one, fields[name], f"{where}.{name}")
        elif others is False:
            known = ", ".join(fields) or "none"
            found = f"{where} has an unknown field {_shown(name)}; known: {known}"
        else:
            found = "" if others is True else fault(one, others, f"{where}.{name}")
        if found:
            return found
    return ""


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
