#!/usr/bin/env bash
# Sets up .venv, runs the campaign of jobs/digits.toml, and prints what it found beside the default configuration.
# Usage: bash jobs/quickstart.sh
# Stopped or killed, it goes on when it is run again; when all is done, it prints the same again within seconds.
# Exit codes are those of hpo: 0 done, 1 error of the environment, 2 usage, 75 stopped early and resumable.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash jobs/setup.sh || exit
export PATH="$PWD/.venv/bin:$PATH"

campaign=jobs/digits.toml
printf 'quickstart: hpo run %s\n' "$campaign" >&2
hpo run "$campaign"
code=$?
if ((code == 75)); then
    printf 'quickstart: stopped before the end. Run it again to go on.\n' >&2
fi
((code == 0)) || exit "$code"

exec python jobs/compare.py "$campaign"
