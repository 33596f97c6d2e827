"""Joules of evaluations, by stand-ins for counters: files as Linux shows them, and a library that speaks as NVML."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from machines import intel, write
from stand_in_torch import torch_that_finds
from terminal import Terminal

from hpo.evaluation.conversation import RankContext
from hpo.evaluation.process.energy import EnergyMeter, counters_of, filled, with_joules
from hpo.individual import COMPLETED, FAILED
from hpo.task.outcome import TaskOutcome
from hpo.task.task import TaskSource

RAPL = "sys/class/powercap/intel-rapl:"
NVML = """
#include <string.h>
static unsigned long long total = 5000;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)1; return index ? 2 : 0; }
int nvmlDeviceGetHandleByUUID(const char *name, void **handle) { return strcmp(name, "GPU-8932") ? 2 : 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) { *mj = total += 1500; return 0; }
"""


def place(rank: int = 0, size: int = 1, others: int = 0) -> RankContext:
    """A rank of a worker of ``size`` on a host that it shares with ``others`` ranks."""
    return RankContext(
        worker_rank=rank,
        size=size,
        local_rank=rank,
        local_size=size + others,
        cores_agreed=True,
        hosts=("n1",) * size,
        source=TaskSource(reference="task:task"),
    )


def packages(root: Path, *joules: float) -> Path:
    for number, one in enumerate(joules):
        zone = {"name": f"package-{number}", "energy_uj": int(one * 1e6), "max_energy_range_uj": 1000_000_000}
        write(root, {f"{RAPL}{number}/{name}": str(text) for name, text in zone.items()})
    write(root, {f"{RAPL}0:0/name": "dram", f"{RAPL}0:0/energy_uj": "1", f"{RAPL}9/name": "psys"})
    return root


def test_the_energy_of_processors_is_that_of_a_worker_that_has_the_host_for_itself(tmp_path: Path) -> None:
    root = packages(tmp_path, 10.0, 990.0)
    meter = EnergyMeter(counters_of({}, None, place(size=2), root))
    assert meter.end() is None
    meter.begin()
    packages(root, 12.0, 5.0)  # the second began again
    assert meter.end() == pytest.approx(2.0 + 15.0)
    packages(root, 13.0, 6.0)
    assert meter.end() == pytest.approx(17.0), "the evaluation is over"
    meter.begin()
    packages(root, 13.5, 6.0)
    assert meter.end() == pytest.approx(0.5)
    meter.begin()
    write(root, {f"{RAPL}1/energy_uj": "?"})
    assert meter.end() is None
    assert counters_of({}, None, place(), root) is None, "a counter cannot be read"
    packages(root, 1.0, 1.0)
    assert counters_of({}, None, place(rank=1, size=2), root) == []
    assert counters_of({}, None, place(others=1), root) is None
    assert counters_of({}, None, place(), tmp_path / "none") is None


def test_the_energy_of_an_intel_gpu_is_that_of_a_whole_card(tmp_path: Path) -> None:
    root = intel(tmp_path, [0, 0])
    folder = "sys/bus/pci/devices/0000:1a:00.0/hwmon"
    write(root, {f"{folder}/hwmon1/name": "i915_gt0", f"{folder}/hwmon1/energy1_input": "1"})
    write(root, {f"{folder}/hwmon2/name": "i915", f"{folder}/hwmon2/energy1_input": "3000000"})
    cards = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    meter = EnergyMeter(counters_of({**cards, "ZE_AFFINITY_MASK": "1"}, 0, place(others=3), root))
    meter.begin()
    write(root, {f"{folder}/hwmon2/energy1_input": "7500000"})
    assert meter.end() == pytest.approx(4.5)
    assert counters_of({}, 2, place(), root) is None, "two tiles share a counter"
    assert counters_of({**cards, "HPO_RANKS_ON_GPU": "2"}, 1, place(), root) is None
    assert counters_of(cards, 0, place(), root) is None, "it has no counter"


DONE = TaskOutcome(status=COMPLETED, objectives={"loss": 1.0}, metrics={"seen": 2})


def test_joules_are_a_metric_of_all_ranks_or_an_objective_that_the_task_leaves_out() -> None:
    assert with_joules(DONE, [1.5, 2.0]).metrics == {"seen": 2, "joules": 3.5}
    assert with_joules(DONE, [1.5, None]) == DONE == with_joules(DONE, [None])
    own = TaskOutcome(status=COMPLETED, objectives={"loss": 1.0}, metrics={"joules": 9.0})
    assert with_joules(own, [1.5]) == own
    both = ("loss", "joules")
    assert filled({"loss": 1.0}, both, 1.5) == {"loss": 1.0, "joules": 1.5}
    assert filled({"loss": 1.0, "joules": 9.0}, both, 1.5)["joules"] == 9.0  # type: ignore[index]
    assert [filled(one, both, 1.5) for one in (1.0, None)] == [1.0, None]
    assert filled({"loss": 1.0}, ("loss",), 1.5) == {"loss": 1.0} == filled({"loss": 1.0}, both, None)
    measured = TaskOutcome(status=COMPLETED, objectives={"loss": 1.0, "joules": 1.5})
    assert with_joules(measured, [1.5, 2.0]).objectives == {"loss": 1.0, "joules": 3.5}
    assert with_joules(measured, [0.7, 2.0]) == measured, "the task returned its own"
    limited = TaskOutcome(status=COMPLETED, objectives={"loss": 1.0}, metrics={"joules": 1.5})
    assert with_joules(limited, [1.5, 2.0]).metrics == {"joules": 3.5}
    for one in (measured, limited):
        partly = with_joules(one, [1.5, None])
        assert (partly.status, partly.objectives) == (FAILED, None) and "1 ranks of 2" in str(partly.error)


compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the library")


def run_on_gpu(terminal: Terminal, device: str, evaluate: str, options: str, *, returns: int) -> None:
    """A campaign of three evaluations on a GPU that has a counter where it is ``device`` 0 or GPU-8932."""
    torch_that_finds((device,), terminal.directory, built="12.8")
    source = terminal.write("nvml.c", NVML)
    library = terminal.directory / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    space = "hpo.SearchSpace(x=hpo.Float(0, 1))"
    terminal.write("task.py", f"import hpo\ntask = hpo.Task({space}, lambda trial: {evaluate}, {options})\n")
    terminal.environment |= {"CUDA_VISIBLE_DEVICES": device, "LD_LIBRARY_PATH": str(library.parent)}
    terminal.campaign(evaluations=3)
    terminal.hpo("run", "c.toml", returns=returns)


@compiled
def test_joules_may_be_limited_without_being_returned(terminal: Terminal) -> None:
    run_on_gpu(terminal, "0", 'trial.params["x"]', 'at_most={"joules": 1.0}', returns=0)
    ends = terminal.records("finished")
    assert [(one["status"], one["metrics"]["joules"]) for one in ends] == [("completed", 1.5)] * 3
    assert terminal.status()["best"] is None, "all break the limit"


@compiled
@pytest.mark.parametrize(("device", "joules"), [("0", 1.5), ("GPU-8932", 1.5), ("1", None), ("MIG-a", None)])
def test_a_campaign_minimizes_the_joules_of_its_gpu(
    terminal: Terminal, device: str, joules: float | None
) -> None:
    objectives = 'objectives={"loss": "minimize", "joules": "minimize"}'
    returns = 1 if joules is None else 0
    run_on_gpu(terminal, device, '{"loss": trial.params["x"]}', objectives, returns=returns)
    for record in terminal.records("finished"):
        if joules is None:
            assert (
                "without objective 'joules'" in record["error"]
                and "count this evaluation alone" in record["error"]
            )
        else:
            assert record["objectives"]["joules"] == pytest.approx(joules), record
