"""Builds the documentation site: `python scripts/build_site.py [DIRECTORY]`; exit code 1 with a line for each fault.

mkdocs is strict about links of pages. The result is checked once more: every link within the site has a target with
that anchor, nothing is loaded from elsewhere, and no markup is shown as text. Default directory: build/site.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that make a browser load a file, and the attribute that names it."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}
"""Relations of a `link` element that are only read."""
STYLE_URL = re.compile(r"(?:@import\s+|url\()\s*['\"]?(https?:|//)")
RAW_MARKUP = re.compile(r"^(\* |- |\d+\. |\||```|#{1,6} )", re.MULTILINE)
NO_PAGES = ("404.html",)


@dataclass
class Page(HTMLParser):
    """Resources, links and anchors of one page."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    raw: list[str] = field(default_factory=list)
    """Markup that is shown as text: how its paragraph begins."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._paragraph: list[str] | None = None
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and given.get(LOADED[tag]) and given.get("rel") not in NOT_LOADED:
            self.loads.append(given[LOADED[tag]])
        if tag == "p":
            self._paragraph = []
        self._code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag == "code"
        if tag == "p" and self._paragraph is not None:
            text = "".join(self._paragraph)
            if RAW_MARKUP.search(text):
                self.raw.append(" ".join(text.split())[:80])
            self._paragraph = None

    def handle_data(self, data: str) -> None:
        if self._paragraph is not None:
            self._paragraph.append("x" * len(data) if self._code else data)


def faults(site: Path) -> list[str]:
    """Return the faults of a built site, one sentence each."""
    pages = {path.relative_to(site).as_posix(): _read(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for name, page in pages.items():
        if name in NO_PAGES:
            continue
        found += [f"{name} shows markup as text: {text}" for text in page.raw]
        for target in page.loads:
            if _is_outer(target):
                found.append(f"{name} loads {target} from elsewhere")
        for target in (*page.loads, *page.links):
            if not _is_outer(target) and (why := _dead(site, name, target, pages)):
                found.append(f"{name} links to {target}: {why}")
    for style in sorted(site.rglob("*.css")):
        if STYLE_URL.search(style.read_text(encoding="utf-8")):
            found.append(f"{style.relative_to(site)} loads something from elsewhere")
    return found


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def _is_outer(target: str) -> bool:
    return re.match(r"([a-z]+:|//)", target) is not None and not target.startswith("data:")


def _dead(site: Path, name: str, target: str, pages: dict[str, Page]) -> str:
    """Return why a link within the site leads nowhere; empty if it leads somewhere."""
    if target.startswith("data:"):
        return ""
    parts = urllib.parse.urlsplit(target)
    path = site / Path(name).parent / urllib.parse.unquote(parts.path) if parts.path else site / name
    path = path / "index.html" if path.is_dir() else path
    if not path.exists() or not path.resolve().is_relative_to(site.resolve()):
        return "there is no such file"
    anchor = urllib.parse.unquote(parts.fragment)
    page = pages.get(path.resolve().relative_to(site.resolve()).as_posix())
    return "" if not anchor or page is None or anchor in page.anchors else "there is no such heading"


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").absolute()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "--site-dir", str(site)], env=quiet, check=False)
    if done.returncode != 0:
        return 1
    wrong = faults(site)
    print("\n".join(wrong) or f"{site / 'index.html'} is built, {len(list(site.rglob('*.html')))} pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
