"""What the counts of the product's rooms and files count, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.counts import COUNTS, counted

ROOT = Path(__file__).parents[2]
FILES = {
    "src/buckram/__init__.py": "",
    "src/buckram/a/__init__.py": '"""Is a room."""\n',
    "src/buckram/a/one.py": '"""Of one gateway."""\nfrom buckram.a.two import Two\n\n\nclass One:\n    pass\n',
    "src/buckram/a/two.py": "class Two:\n    pass\n\n\nclass One:\n    pass\n\n\nclass _Hidden:\n    pass\n",
    "src/buckram/a/three.py": "from buckram.a import (\n    one,\n)\n" + "x = 1\n" * 500,
    "src/buckram/b/__init__.py": "",
    "src/buckram/b/four.py": "from buckram.a import one, three\n\n\nclass Two:\n    pass\n",
    "src/buckram/sim/__init__.py": "",
    "pyproject.toml": (
        '[[tool.importlinter.contracts]]\nname = "x"\n'
        'ignore_imports = ["buckram.core.entries.hot -> buckram", "buckram.a -> buckram.b.**"]\n'
        '[[tool.importlinter.contracts]]\nname = "y"\n'
    ),
    "docs/explanation/architecture.md": "## Where is ...?\n| x | y |\n|---|---|\n| a | b |\n| c | d |\n## Else\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_count_of_a_small_tree(tree: Path) -> None:
    assert dict(line.split() for line in counted(tree, [])) == {
        "packages": "3",  # without the simulator
        "contracts": "2",
        "exceptions": "1",  # without the compiled module
        "files": "7",
        "modules": "4",
        "lines": str(sum(text.count("\n") for name, text in FILES.items() if "/buckram/" in name)),
        "small": "3",
        "large": "1",
        "alone": "1",  # two: one has two importers, three one in another folder
        "twice": "1",  # One; Two is in two layers
        "bare": "1",
        "where": "2",
    }


def test_a_count_by_its_name(tree: Path) -> None:
    assert list(counted(tree, ["modules", "large"])) == ["modules 4", "large 1"]


def test_the_page_names_every_count() -> None:
    page = (ROOT / "docs" / "project" / "house.md").read_text()
    assert [name for name in COUNTS if f"`python scripts/counts.py {name}`" not in page] == []
