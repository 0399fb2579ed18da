"""The documentation as a site: it is built strictly, its links hold, and it loads nothing from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.build_site import ROOT, faults
from scripts.site_hooks import navigation, with_outer_links, with_wide_items

PAGE = '<html><body><h1 id="top">T</h1><p>text</p><a href="b.html#here">b</a></body></html>'


def test_the_site_is_built_without_faults(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="NO MKDOCS HERE: `make setup-all` brings it")
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.relative_to(tmp_path).with_suffix(".md").as_posix() for path in tmp_path.rglob("*.html")}
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page.replace("README.md", "index.md") for page in pages} | {"404.md"} == built
    start = (tmp_path / "index.html").read_text()
    for tab in ("Tutorials", "How-to", "Reference", "Explanation", "The project"):
        assert tab in start


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("b.html#here", "c.html", "a.html links to c.html: there is no such file"),
        ("b.html#here", "../outside.html", "a.html links to ../outside.html: there is no such file"),
        ("b.html#here", "b.html#there", "a.html links to b.html#there: there is no such heading"),
        ("b.html#here", "#bottom", "a.html links to #bottom: there is no such heading"),
        ("<body>", '<script src="https://cdn.invalid/x.js"></script>', "loads https://cdn.invalid/x.js from elsewhere"),
        ("<body>", '<link rel="stylesheet" href="//cdn.invalid/x.css">', "loads //cdn.invalid/x.css from elsewhere"),
        ("<body>", '<img src="no.png">', "a.html links to no.png: there is no such file"),
        ("text", "Steps:\n1. one\n2. two", "a.html shows markup as text: Steps: 1. one"),
        ("text", "```sh\nrm", "a.html shows markup as text: ```sh"),
    ],
)
def test_a_fault_of_a_page_is_reported(tmp_path: Path, old: str, new: str, fault: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "outside.html").write_text("")
    (site / "b.html").write_text('<a id="here" href="a.html"></a><a href="https://example.org">elsewhere</a>')
    (site / "a.html").write_text(PAGE)
    assert faults(site) == []
    (site / "a.html").write_text(PAGE.replace(old, new, 1))
    (found,) = faults(site)
    assert fault in found


def test_a_style_that_loads_a_font_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE.replace("b.html#here", "#top"))
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.invalid/a.woff2) }")
    assert faults(tmp_path) == ["a.css loads something from elsewhere"]
    assert faults(tmp_path / "empty") == [f"{tmp_path / 'empty'} has no pages"]


def test_the_index_is_the_navigation() -> None:
    head = "| page | about |\n|---|---|\n"
    index = f"# Documentation\n\n## Tutorials: learn\n\n{head}| [A](t/a.md) | x |\n\n## The project\n\n{head}"
    assert navigation(index + "| [B](p/b.md) | [C](p/c.md) |\n") == [
        {"Home": "index.md"},
        {"Tutorials": [{"A": "t/a.md"}]},
        {"The project": [{"B": "p/b.md"}]},
    ]


def test_links_to_files_that_are_no_pages() -> None:
    page = "[x](../README.md#a), [y](how.md), [core/a.py](../../src/buckram/core/a.py), [z](https://z), [q](#q)\n"
    page += "```\n[x](../README.md)\n```\n"
    assert with_outer_links(page, "explanation/index.md", "") == page.replace(
        "[core/a.py](../../src/buckram/core/a.py)", "`core/a.py`"
    )
    named = with_outer_links(page, "index.md", "https://s")
    assert named.startswith("[x](https://s/README.md), [y](how.md), ")
    assert named.endswith("```\n[x](../README.md)\n```\n")


def test_numbered_items_are_wide() -> None:
    given = "1. a\n\n   ```sh\n   b\n   ```\n\n   c\n2. d\n   e\n\nf\n   g\n"
    assert with_wide_items(given) == "1. a\n\n    ```sh\n    b\n    ```\n\n    c\n\n2. d\n    e\n\nf\n   g\n"
