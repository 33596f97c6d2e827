"""The pages of the website: READMEs, the files that they link to, and public names: python jobs/docs_pages.py FOLDER"""

from __future__ import annotations

import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("hpo", "trainers")
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / ".github").glob("*.md"),
    *(
        path
        for name in (*PACKAGES, "search_spaces", "jobs", "tests")
        for path in (ROOT / name).rglob("README.md")
    ),
]
_LINK = re.compile(r"(?:\]\(|src=\")([^)#\":]+)")


def write_pages(folder: Path) -> None:
    """Copies documents and what they link to, at their places; folders are linked to by their first file."""
    for document in DOCUMENTS:
        _copy(document, folder)
        for target in _LINK.findall(document.read_text()):
            path = (document.parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT):
                _copy(path, folder)
    for name in PACKAGES:
        lines = [f"# Public names of {name}", ""]
        for public in sorted(import_module(name).__all__):
            lines += [f"::: {name}.{public}", ""]
        page = folder / "reference" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text("\n".join(lines))


def _copy(path: Path, folder: Path) -> None:
    copy = folder / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
