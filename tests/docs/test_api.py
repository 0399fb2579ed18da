"""docs/reference/api.md prints what an allow-list names, all of it described; the classes have nothing else."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path

import pytest
from scripts.generate_docs import API_MODULES, public_members
from scripts.public_api import INTERNAL, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


def handles() -> dict[str, type]:
    found: dict[str, type] = {}
    for module_name in API_MODULES:
        if module_name != "buckram.spark":  # PySpark says what a data source has
            module = importlib.import_module(module_name)
            for name in module.__all__:
                value = getattr(module, name)
                plain = inspect.isclass(value) and not issubclass(value, BaseException | enum.Enum | tuple)
                if plain and not dataclasses.is_dataclass(value):
                    found[f"{module_name}.{name}"] = value
    return found


@pytest.mark.parametrize(("name", "cls"), handles().items())
def test_a_class_has_the_methods_that_are_listed(name: str, cls: type) -> None:
    assert public_members(cls) - INTERNAL.get(name, frozenset()) == set(NAMES[name])


def test_every_item_has_a_description() -> None:
    items = [line for line in PAGE.read_text().splitlines() if line.startswith("* `")]
    assert len(items) > 300
    assert [line for line in items if not re.match(r"\* `[^`]+`: \S", line)] == []


def test_every_class_and_function_has_a_description() -> None:
    for section in PAGE.read_text().split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        text = re.sub(r"```.*?```", "", rest, flags=re.DOTALL).strip()
        assert text, f"{title} says nothing"
        assert not text.startswith(("* ", "Retryable")), f"{title} begins without a description"
