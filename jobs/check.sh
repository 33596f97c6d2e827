#!/usr/bin/env bash
# Sets up .venv as quickstart.sh does, with what the checks need, and runs them all, whichever fail.
# Usage: bash jobs/check.sh [ARGUMENTS OF PYTEST ...]     e.g. bash jobs/check.sh tests/test_space.py -x
# Without arguments all tests run: most of them two at a time, then one at a time those that tests/conftest.py says are
# to be alone. With arguments, one pytest runs what they say.
#        bash jobs/check.sh oldest|newest [ARGUMENTS OF PYTEST ...]
# Instead, the tests that need no process a rank run in .venv-oldest (Python 3.10, the lowest version of each bound) or
# .venv-newest (Python 3.13, the newest of everything): some 5 GB each, so for a machine of one's own and not for CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv versions=()
if [[ ${1-} == oldest || ${1-} == newest ]]; then
    venv=.venv-$1 versions=("--$1")
    shift
fi
bash jobs/setup.sh "${versions[@]}" dev bench optuna bigearthnet forecasting || exit 1
# The tests start mpirun and python by name.
export PATH="$PWD/$venv/bin:$PATH"
# Many processes share few cores here.
export OMP_NUM_THREADS=1

if ((${#versions[@]})); then
    python --version
    python -m pip --disable-pip-version-check freeze | grep -iE '^(torch|numpy|scipy|pandas|scikit-learn|propulate)=='
    exec python -m pytest --one-rank --durations=10 --numprocesses 2 --dist worksteal "$@"
fi

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
check "imports" lint-imports --no-logo --no-cache

# Output first to files: what failed is told before pytest's summaries, which come last.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# pytest ends in its own way at Ctrl-C, and the next one would begin.
trap 'exit 130' INT
summaries=()
run_pytest() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    pytest --durations=25 "$@" 2>&1 | tee "$logs/$name"
    [[ ${PIPESTATUS[0]} == 0 ]] || failed+=("$name")
    summaries+=("$name: $(tail -n 1 "$logs/$name" | sed 's/^=* //; s/ =*$//')")
}

if (($#)); then
    run_pytest "pytest" "$@"
else
    # Two on any larger machine: more were never tried, and each takes 1 GB beside what its tests start. nproc would
    # take OMP_NUM_THREADS for the number of cores.
    cores=$(env -u OMP_NUM_THREADS nproc)
    processes=$((cores < 2 ? cores : 2))
    run_pytest "pytest, $processes at a time" -m "not alone" --numprocesses "$processes" --dist worksteal
    run_pytest "pytest, those to be alone" -m alone
fi

if ((${#failed[@]})); then
    printf '\nfailed:'
    printf ' %s;' "${failed[@]}" | sed 's/;$/\n/'
else
    printf '\nall checks passed\n'
fi
[[ -z $no_slurm ]] || printf 'NOT CHECKED: campaigns under a real Slurm were skipped: %s.\n' "$no_slurm"
printf '%s\n' "${summaries[@]}"
((${#failed[@]} == 0))
