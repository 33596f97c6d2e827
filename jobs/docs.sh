#!/usr/bin/env bash
# Builds a website of the READMEs and of the docstrings of all public names, and checks every link in it.
# Usage: bash jobs/docs.sh [FOLDER]     FOLDER: where the website goes (default: site, in the project's folder)
set -euo pipefail
folder=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../site}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash jobs/setup.sh docs
export PATH="$PWD/.venv/bin:$PATH"

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
python jobs/docs_pages.py "$pages"
# The file names its pages by a variable, as mkdocs looks for them beside it.
HPO_DOCS_PAGES=$pages mkdocs build --quiet --strict --config-file jobs/mkdocs.yml --site-dir "$folder"
printf 'docs: %s/index.html\n' "$folder" >&2
