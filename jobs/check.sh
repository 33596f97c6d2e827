#!/usr/bin/env bash
# Sets up .venv as quickstart.sh does, with what the checks need, and runs them all, whichever fail.
# Usage: bash jobs/check.sh [ARGUMENTS OF PYTEST ...]     e.g. bash jobs/check.sh tests/test_space.py -x
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash jobs/setup.sh dev bench optuna bigearthnet forecasting || exit 1
# The tests start mpirun and python by name.
export PATH="$PWD/.venv/bin:$PATH"
# Many processes share few cores here.
export OMP_NUM_THREADS=1

# A Slurm of its own for tests/test_slurm.py: Debian's, nothing of which runs or is configured outside these tests.
no_slurm=
has_slurm() {
    local PATH=$PATH:/usr/sbin:/sbin name
    for name in sbatch munged slurmctld slurmd; do
        command -v "$name" >/dev/null || return
    done
}
if ! has_slurm; then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        printf 'check: installing slurm-wlm and munge\n' >&2
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
            slurm-wlm munge; } >/dev/null || no_slurm="apt-get could not install slurm-wlm and munge"
    else
        no_slurm="slurm-wlm and munge are not installed, and only root could install them here (apt-get)"
    fi
elif ((EUID)); then
    no_slurm="its daemons are started as root"
fi

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
pytest --durations=25 "$@" 2>&1 | tee "$log"
[[ ${PIPESTATUS[0]} == 0 ]] || failed+=("pytest")

if ((${#failed[@]})); then
    printf '\nfailed:'
    printf ' %s;' "${failed[@]}" | sed 's/;$/\n/'
else
    printf '\nall checks passed\n'
fi
[[ -z $no_slurm ]] || printf 'NOT CHECKED: campaigns under a real Slurm were skipped: %s.\n' "$no_slurm"
tail -n 1 "$log"
((${#failed[@]} == 0))
