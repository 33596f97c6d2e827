"""The website of the READMEs and public docstrings is built, and all of its links lead somewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_website_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        ["bash", "jobs/docs.sh", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page, text in (
        ("hpo/index.html", 'id="search-kinds"'),
        ("reference/hpo/index.html", 'id="hpo.Campaign"'),
    ):
        assert text in (tmp_path / "site" / page).read_text()
