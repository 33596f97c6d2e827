#!/usr/bin/env bash
# Sets up .venv as quickstart.sh does, with what the checks need, and runs them all, whichever fail.
# Usage: bash jobs/check.sh [ARGUMENTS OF PYTEST ...]     e.g. bash jobs/check.sh tests/test_space.py -x
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash jobs/setup.sh dev optuna bigearthnet forecasting || exit 1
# The tests start mpirun and python by name.
export PATH="$PWD/.venv/bin:$PATH"
# Many processes share few cores here.
export OMP_NUM_THREADS=1

failed=()
check() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

check "ruff check" ruff check --output-format concise .
check "ruff format" ruff format --check .
check "mypy" mypy
printf '== pytest\n'
# Output first to a file: what failed is told before pytest's summary, which comes last.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pytest "$@" 2>&1 | tee "$log"
[[ ${PIPESTATUS[0]} == 0 ]] || failed+=("pytest")

if ((${#failed[@]})); then
    printf '\nfailed:'
    printf ' %s;' "${failed[@]}" | sed 's/;$/\n/'
else
    printf '\nall checks passed\n'
fi
tail -n 1 "$log"
((${#failed[@]} == 0))
