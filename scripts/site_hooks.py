"""Hooks of mkdocs (mkdocs.yml): the navigation, and links to files that are not pages.

Not here: building the site and checking the result (`build_site.py`).
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INDEX = "index.md"
HEADING = re.compile(r"^## (?P<title>[^:\n]+)", re.MULTILINE)
ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<page>[^)#]+)\) \|", re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)")
NUMBERED = re.compile(r"\d+\. ")
FENCE = re.compile(r"^( *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Called by mkdocs: the tables of the index are the navigation."""
    config["nav"] = navigation((Path(config["docs_dir"]) / INDEX).read_text(encoding="utf-8"))
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return with_wide_items(with_outer_links(markdown, page.file.src_uri, source_url()))


def navigation(index: str) -> list[dict[str, Any]]:
    """Return the pages below each heading of the index, under the first word of the heading."""
    found: list[dict[str, Any]] = [{"Home": INDEX}]
    parts = HEADING.split(index)
    for title, rows in zip(parts[1::2], parts[2::2], strict=True):
        found.append({title.strip(): [{row["title"]: row["page"]} for row in ROW.finditer(rows)]})
    return found


def with_wide_items(markdown: str) -> str:
    """Return a page whose numbered items are as mkdocs wants them: indented by four, and apart from paragraphs within
    them."""
    lines: list[str] = []
    inside = False
    for line in markdown.split("\n"):
        if NUMBERED.match(line):
            if inside and lines[-1].startswith("    "):
                lines.append("")
            inside = True
        elif line and not line.startswith("   "):
            inside = False
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines)


def source_url() -> str:
    """Return the URL at which the project's files are shown; empty while they have no public address."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    return str(urls.get("Source", "")).rstrip("/")


def with_outer_links(markdown: str, page: str, source: str) -> str:
    """Return a page whose links to files outside docs/ lead to `source`, or where there is none only name the files.

    `page` is its path below docs/.
    """

    def shown(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
        if re.match(r"[a-z]+:|#", target) or path == "docs" or path.startswith("docs/"):
            return link[0]
        if source:
            return f"[{text}]({source}/{path})"
        return f"`{text}`" if path.endswith(text) and "`" not in text else text

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(shown, part) for part in parts[::2]]
    return "".join(parts)
