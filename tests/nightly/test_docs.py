"""The website of the READMEs and public docstrings is built, and all of its links lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import called

ROOT = Path(__file__).parents[2]


def test_the_website_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    called("bash", "jobs/docs.sh", tmp_path / "site", cwd=ROOT, timeout=280)
    for page, text in (
        ("hpo/index.html", 'id="search-kinds"'),
        ("reference/hpo/index.html", 'id="hpo.Campaign"'),
    ):
        assert text in (tmp_path / "site" / page).read_text()
