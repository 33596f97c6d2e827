#!/usr/bin/env bash
# Sets up .venv as quickstart.sh does, with what the checks need, and runs them all, whichever fail.
# Usage: bash jobs/check.sh                  linters, types and all tests but tests/nightly: what lands
#        bash jobs/check.sh fast             linters, types and tests/fast
#        bash jobs/check.sh nightly          all of that, tests/nightly, and simulated campaigns of 10 000 seeds
#        bash jobs/check.sh oldest|newest [ARGUMENTS OF PYTEST ...]
#            instead, tests of one rank in .venv-oldest (Python 3.10, the lowest version of each bound) or .venv-newest
#            (Python 3.13, the newest of everything): some 5 GB each
#        bash jobs/check.sh gpu [--wheels DIR]
#            instead, tests/gpu and figures of one GPU with the Python that is there (jobs/check_gpu.sh has all options)
#        bash jobs/check.sh ARGUMENTS OF PYTEST ...     e.g. bash jobs/check.sh tests/fast/test_space.py -x
# A test that is skipped though this machine could run it counts as failed; with --lenient, first, it does not.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lenient=
if [[ ${1-} == --lenient ]]; then
    lenient=yes
    shift
fi
if [[ ${1-} == gpu ]]; then
    shift
    exec bash jobs/check_gpu.sh "$@"
fi
tier=default extras=(dev bench optuna tensorboard bigearthnet forecasting) venv=.venv versions=()
case ${1-} in
fast) tier=fast ;;
nightly) tier=nightly extras+=(peers mlflow wandb trackio browser docs plots) ;;
oldest | newest) tier=versions venv=.venv-$1 versions=("--$1") ;;
?*) tier=given ;;
esac
[[ $tier == default || $tier == given ]] || shift
if [[ $tier == fast || $tier == nightly ]] && (($#)); then
    printf 'check: %s takes no arguments, and these were given: %s. Leave them out, or leave out %s.\n' "$tier" "$*" "$tier" >&2
    exit 2
fi

bash jobs/setup.sh "${versions[@]}" "${extras[@]}" || exit 1
# The tests start mpirun and python by name.
export PATH="$PWD/$venv/bin:$PATH"
# Many processes share few cores here.
export OMP_NUM_THREADS=1
# Tests of several processes wait more than they compute: four at a time fill two cores, and take 1 GB each beside what
# they start.
together=(--numprocesses 4 --dist worksteal)

if [[ $tier == versions ]]; then
    python --version
    python -m pip --disable-pip-version-check freeze | grep -iE '^(torch|numpy|scipy|pandas|scikit-learn|propulate)=='
    (($#)) || set -- tests/fast tests/processes
    exec python -m pytest --one-rank --durations=10 "${together[@]}" "$@"
fi

# What tests need beside Python: Slurm, two nodes of network namespaces. Nothing of it runs or is configured outside them.
debian=()
has() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }
has slurmctld || debian+=(slurm-wlm)
has munged || debian+=(munge)
has tc || debian+=(iproute2)
[[ $tier != nightly ]] || has chromium || debian+=(chromium)
if [[ $tier != fast && -n ${debian-} && $EUID == 0 ]] && has apt-get; then
    printf 'check: installing %s\n' "${debian[*]}" >&2
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        "${debian[@]}"; } >/dev/null || printf 'check: apt-get could not install %s\n' "${debian[*]}" >&2
fi

failed=() summaries=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# pytest ends in its own way at Ctrl-C, and the next one would begin.
trap 'exit 130' INT
: >"$logs/skips"

check() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

# Summaries are kept for the end: what failed is said before them.
run_pytest() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    pytest --durations=25 --skips "$logs/skips" "$@" 2>&1 | tee "$logs/output"
    [[ ${PIPESTATUS[0]} == 0 ]] || failed+=("$name")
    summaries+=("$name: $(tail -n 1 "$logs/output" | sed 's/^=* //; s/ =*$//')")
}

[[ $tier != nightly ]] || together+=(--examples 300 --all-cases)
if [[ $tier == given ]]; then
    run_pytest pytest "$@"
else
    check "ruff check" ruff check --output-format concise .
    check "ruff format" ruff format --check .
    check "mypy" mypy
    check "imports" lint-imports --no-logo --no-cache
    if [[ $tier == fast ]]; then
        run_pytest "tests/fast" tests/fast "${together[@]}"
    else
        # First, as a reader takes the last line of pytest for the whole run's, and without a GPU these are all skipped.
        run_pytest "tests/gpu" tests/gpu
        run_pytest "tests/fast, tests/processes, tests/ranks" tests/fast tests/processes tests/ranks "${together[@]}"
    fi
    if [[ $tier == nightly ]]; then
        run_pytest "tests/nightly" tests/nightly
        run_pytest "tests/gpu on the CPU" tests/gpu --device cpu
        check "10 000 simulated campaigns" python tests/many_seeds.py --seeds 10000
    fi
fi

avoidable=$(grep -v '^not possible here: ' "$logs/skips" | sort -u)
[[ -z $avoidable || -n $lenient ]] || failed+=("tests were skipped that this machine could run (--lenient passes them)")
if ((${#failed[@]})); then
    printf '\nfailed:'
    printf ' %s;' "${failed[@]}" | sed 's/;$/\n/'
else
    printf '\nall checks passed\n'
fi
[[ -z $avoidable ]] || sed 's/^/NOT CHECKED: /' <<<"$avoidable"
sed -n 's/^not possible here: /skipped, not possible here: /p' "$logs/skips" | sort -u
printf '%s\n' "${summaries[@]}"
((${#failed[@]} == 0))
