#!/usr/bin/env bash
# Runs tests/gpu and the figures of tests/benchmarks/gpu.py with the torch and numpy of the python3 on PATH, from a checkout.
# Installs nothing from a network, and nothing into that Python.
# Usage: bash jobs/check.sh gpu [OPTION ...] [ARGUMENTS OF PYTEST ...]   with arguments these tests alone, and no figures
#   --wheels DIR       packages that this Python lacks
#   --figures FILE     what figures and the tests' outcomes are added to, as JSON; default runs/gpu.json, with --cpu
#                      runs/gpu-cpu.json
#   --only-tests, --only-figures   each takes about five minutes; what is cut off leaves what it has found
#   --cpu              on the CPU what can run there: do the tests themselves work?
#        bash jobs/check.sh gpu --make-wheels DIR    fetch these packages, for Python 3.12 on x86-64 Linux, into DIR
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'check gpu: %s\n' "$*" >&2; }
usage() { say "$*"; exit 2; }
die() { say "$*"; exit 1; }
after() { [[ -n ${2-} ]] || usage "$1 needs a value: name a $3."; }

wheels='' make='' figures='' device=cuda only=''
while (($#)); do
    case $1 in
    --wheels | --make-wheels) after "$1" "${2-}" folder ;;&
    --figures) after "$1" "${2-}" file ;;&
    --wheels) wheels=$2 && shift 2 ;;
    --make-wheels) make=$2 && shift 2 ;;
    --figures) figures=$2 && shift 2 ;;
    --only-tests | --only-figures)
        [[ -z $only || $only == "$1" ]] || usage "$only and $1: leave both out for tests and figures."
        only=$1 && shift
        ;;
    --cpu) device=cpu && shift ;;
    *) break ;;
    esac
done
[[ $only != --only-figures || -z ${1-} ]] || usage "--only-figures runs no tests, and $1 was given. Leave one of them out."

if [[ -n $make ]]; then
    ! compgen -G "$make/*.whl" >/dev/null || usage "$make holds wheels already. Name an empty folder."
    platforms=()
    for platform in manylinux_2_28 manylinux_2_17 manylinux2014 manylinux_2_12 manylinux2010 manylinux_2_5 manylinux1; do
        platforms+=(--platform "${platform}_x86_64")
    done
    mapfile -t wanted < <(python3 jobs/requirements.py gpu)
    ((${#wanted[@]})) || die "jobs/requirements.py says above why there is nothing to fetch."
    python3 -m pip --disable-pip-version-check download -q --dest "$make" --constraint jobs/constraints.txt \
        --only-binary=:all: --implementation cp --python-version 3.12 "${platforms[@]}" "${wanted[@]}" ||
        die "pip says above why the packages could not be fetched. It needs a network."
    say "$(find "$make" -name '*.whl' | wc -l) wheels, $(du -sm "$make" | cut -f1) MB, in $make"
    exit
fi

has_torch='import numpy, sys, torch; assert (3, 10) <= sys.version_info[:2] < (3, 14)'
for python in python3 python3.12 python none; do
    ! "$python" -c "$has_torch" 2>/dev/null || break
done
[[ $python != none ]] || die "no Python 3.10 to 3.13 on PATH has torch and numpy (python3 is $(command -v python3 ||
    echo missing)). Put the one that has them first."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [[ -n $wheels ]]; then
    compgen -G "$wheels/*.whl" >/dev/null || die "$wheels holds no wheel. Make them where there is a network:" \
        "bash jobs/check.sh gpu --make-wheels $wheels"
    # An environment of its own, which sees what that Python sees. Not --system-site-packages: of a virtual environment
    # that would be the packages of the Python below it.
    host=$python python=$scratch/environment/bin/python
    "$host" -m venv --without-pip "$scratch/environment" || die "$host cannot make virtual environments."
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$host" -c 'import sys; print(*(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))), sep="\n")' \
        >"$site/of_host.pth"
    "$host" -m pip --disable-pip-version-check --python "$python" install -q --no-index --no-deps --ignore-installed \
        --no-compile --no-cache-dir --no-warn-script-location "$wheels"/*.whl ||
        die "pip says above why a wheel of $wheels does not go with $("$host" --version)."
    export PATH="$scratch/environment/bin:$PATH"
fi
lacking=$("$python" jobs/requirements.py lacking | paste -sd ' ')
[[ -z $lacking ]] || die "$("$python" --version) lacks $lacking. Name a folder of wheels by --wheels: where there is a" \
    "network, bash jobs/check.sh gpu --make-wheels DIR makes one."

export OMP_NUM_THREADS=1
# Of the plugins that this Python may have, only the one that is needed.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
# A run that is cut off should have left its output.
export PYTHONUNBUFFERED=1
if [[ -z $figures ]]; then
    [[ $device == cuda ]] && figures=runs/gpu.json || figures=runs/gpu-cpu.json
fi
failed=0
run_pytest() {
    # Warnings of other versions than those of constraints.txt are no errors here.
    "$python" -m pytest -p pytest_timeout -p no:cacheprovider -o filterwarnings=default -v --tb=short --durations=15 \
        --device "$device" --figures "$figures" "$@"
}
if (($#)); then
    run_pytest "$@" || failed=1
elif [[ $only != --only-figures ]]; then
    # Side by side, as most of their time is that of processes that start.
    lanes=("training" "options evaluation" "campaigns groups") running=()
    for lane in "${lanes[@]}"; do
        files=()
        for name in $lane; do files+=("tests/gpu/test_gpu_$name.py"); done
        run_pytest -m "not whole_device" "${files[@]}" 2>&1 | sed -u "s/^/${lane%% *}: /" &
        running+=($!)
    done
    for one in "${running[@]}"; do wait "$one" || failed=1; done
    # Alone: others would be seen in the memory that is in use, and would lack what these take.
    run_pytest -m whole_device tests/gpu || failed=1
fi
if ! (($#)) && [[ $only != --only-tests ]]; then
    "$python" tests/benchmarks/gpu.py --device "$device" --into "$figures" || failed=1
fi
if [[ $figures -nt $scratch ]]; then
    say "after $SECONDS s: figures and outcomes are added to $figures"
else
    say "nothing has run that could be added to $figures"
fi
exit "$failed"
