"""What pyproject.toml cannot say: how the compiled module is built, and a README whose links work on an index page."""

from __future__ import annotations

import os
import re
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
REQUIRED = os.environ.get("BUCKRAM_REQUIRE_COMPILED", "") not in ("", "0")
"""Fail where the compiled module cannot be built. Wheels are built so; elsewhere its Python twin does the same."""
STRICT = os.environ.get("BUCKRAM_STRICT_C", "") not in ("", "0")
"""Warnings of the compiler are errors. Not by default: a later compiler may know more of them."""
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""These Pythons have no stable interface yet: one wheel for each."""


class BuildExt(build_ext):
    """Each compiler gets options that it knows."""

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "msvc":
            options = ["/O2", *(["/W4", "/WX"] if STRICT else [])]
        else:
            options = ["-O3", "-g0", *(["-Wall", "-Wextra", "-Werror"] if STRICT else [])]
        for extension in self.extensions:
            extension.extra_compile_args = options
        super().build_extensions()


RELATIVE = re.compile(r"(?P<inside>\()?(?P<image>!?)\[(?P<text>[^\]]+)\]\((?!https?://|#)(?P<path>[^)]+)\)")
"""A link of README.md to a file, maybe right after an opening parenthesis, or a picture."""


def readme() -> str:
    """README.md for an index page, which stands nowhere near the files: absolute links, or else the files' names."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]

    def shown(link: re.Match[str]) -> str:
        inside, text, path = link["inside"] or "", link["text"], link["path"]
        if "Source" in urls:
            return f"{inside}{link['image']}[{text}]({urls['Source']}/{path})"
        if link["image"]:
            return ""
        if text == path:
            return f"{inside}`{path}`"
        return f"({text}: `{path}`" if inside else f"{text} (`{path}`)"

    text = RELATIVE.sub(shown, (ROOT / "README.md").read_text(encoding="utf-8"))
    if "Source" in urls:
        return text
    return f"{text}\nThe files that this page names are in the source distribution.\n"


hot = Extension(
    "buckram.core.entries._hot",
    ["src/buckram/core/entries/_hot.c", "src/buckram/core/entries/_take_adds.c"],
    depends=["src/buckram/core/entries/_hot.h"],
    optional=not REQUIRED,
    py_limited_api=not FREE_THREADED,
)
setup(
    ext_modules=[hot],
    cmdclass={"build_ext": BuildExt},
    long_description=readme(),
    long_description_content_type="text/markdown",
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
