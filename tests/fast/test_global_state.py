"""Global state that an evaluation changes is what it was for the next one."""

import asyncio
import importlib
import logging
import os
import pickle
import sys
import threading
import zipfile
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
import torch

from hpo.evaluation.process.global_state import GlobalState
from hpo.evaluation.process.torch_state import accept_repetition
from hpo.evaluation.process.when_imported import when_imported

CHANGES = """
torch.set_grad_enabled(False) | torch.is_grad_enabled()
torch.set_default_dtype(torch.float64) | torch.get_default_dtype()
torch.set_default_device("meta") | torch.empty(1).device
torch.use_deterministic_algorithms(True) | torch.are_deterministic_algorithms_enabled()
torch.autograd.set_detect_anomaly(True) | torch.is_anomaly_enabled()
torch.set_float32_matmul_precision("medium") | torch.get_float32_matmul_precision()
torch.backends.cudnn.benchmark = True | torch.backends.cudnn.benchmark
torch.set_num_threads(3) | torch.get_num_threads()
torch.autocast("cpu").__enter__() | torch.is_autocast_enabled("cpu")
torch.set_flush_denormal(True) | sys.float_info.min / 4 == 0
torch.device("meta").__enter__() | torch.empty(1).device
torch.nn.modules.module.register_module_forward_hook(print) | len(torch.nn.modules.module._global_forward_hooks)
numpy.seterr(all="ignore") | numpy.geterr()
decimal.getcontext().prec = 3 | decimal.Decimal(1) / 3
os.environ.update(HOME="/x", OURS="1") | os.environ["HOME"], "OURS" in os.environ
os.umask(0o777) | os.umask(os.umask(0o22) or 0o22) and None
signal.signal(signal.SIGUSR2, signal.SIG_IGN) | signal.getsignal(signal.SIGUSR2)
signal.alarm(100) | signal.getitimer(signal.ITIMER_REAL)[0] > 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]) | signal.pthread_sigmask(signal.SIG_BLOCK, [])
warnings.simplefilter("ignore") | list(warnings.filters)
logging.captureWarnings(True) | warnings.showwarning
logging.basicConfig(force=True, level=10) | logging.root.level, list(logging.root.handlers)
logging.getLogger("new").addHandler(logging.NullHandler()) | len(logging.getLogger("new").handlers)
logging.getLogger("made").setLevel(10) | "made" in logging.root.manager.loggerDict and logging.getLogger("made").level
logging.disable(50), logging.root.isEnabledFor(40) | logging.root.isEnabledFor(40)
logging.getLogger("other").setLevel(10) | logging.getLogger("other").level
import logging.config; logging.config.dictConfig({"version": 1}) | logging.getLogger("hpo.was_there").disabled
sys.path.insert(0, "/x") | list(sys.path)
sys.argv.append("--x") | list(sys.argv)
sys.setrecursionlimit(5000) | sys.getrecursionlimit()
sys.excepthook = print | sys.excepthook
builtins.print = None | print
gc.disable() | gc.isenabled()
socket.setdefaulttimeout(1.0) | socket.getdefaulttimeout()
setattr(tempfile, "tempdir", "/x") | tempfile.gettempdir()
multiprocessing.set_start_method("spawn", force=True) | multiprocessing.get_start_method()
"""
MODULES = "builtins decimal gc logging multiprocessing numpy os signal socket sys tempfile torch warnings"
NAMES = {name: importlib.import_module(name) for name in MODULES.split()}


@pytest.fixture
def state():
    """A state that is no longer asked about imports at the end."""
    finders = list(sys.meta_path)
    yield GlobalState()
    sys.meta_path[:] = finders


@pytest.mark.parametrize("case", CHANGES.strip().splitlines())
def test_what_an_evaluation_changes_is_put_back(case, state):
    logging.getLogger("hpo.was_there")
    change, look = case.split(" | ")
    before = eval(look, dict(NAMES))  # the cases above
    state.begin()
    exec(change, dict(NAMES))
    assert state.restore() == []
    assert eval(look, dict(NAMES)) == before


def test_a_new_logger_is_no_change(state):
    state.begin()
    logging.getLogger("hpo.made_by_an_evaluation")
    assert state.restore() == []


# From Python 3.12 on, get_event_loop warns where it makes a loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made_before", [False, True])
def test_each_evaluation_may_close_its_event_loop(state, made_before):
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy() if made_before else None)
    for _ in range(2):
        state.begin()
        loop = asyncio.get_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.run(asyncio.sleep(0))
        assert state.restore() == []
    asyncio.set_event_loop_policy(None)


def test_what_an_import_sets_stays_and_what_the_evaluation_sets_beside_does_not(tmp_path, monkeypatch, state):
    (tmp_path / "sets_state.py").write_text(
        "import sys, os, threading, torch\nsys.path.append('/x')\nos.environ['OF_IMPORT'] = '1'\n"
        "torch.autograd.set_detect_anomaly(True)\nstop = threading.Event()\n"
        "thread = threading.Thread(target=lambda: stop.wait(60), daemon=True)\nthread.start()\n"
        "timer = threading.Timer(60, stop.set)\ntimer.start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OF_IMPORT", "")
    state.begin()
    sys.path.append("/y")
    monkeypatch.setenv("OF_EVALUATION", "1")
    module = importlib.import_module("sets_state")
    assert state.restore() == []
    assert "/x" in sys.path and "/y" not in sys.path
    assert os.environ["OF_IMPORT"] == "1" and "OF_EVALUATION" not in os.environ
    assert torch.is_anomaly_enabled() and not module.timer.finished.is_set()
    sys.path.remove("/x")
    torch.autograd.set_detect_anomaly(False)
    module.timer.cancel()
    module.stop.set()


def test_what_hpo_changes_between_two_evaluations_stays(state, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    for port in "23":
        state.changed()
        os.environ["MASTER_PORT"] = port
        for _ in range(2):
            state.begin()
            os.environ["MASTER_PORT"] = "4"
            assert state.restore() == [] and os.environ["MASTER_PORT"] == port


def test_a_thread_that_goes_on_cannot_be_put_back_and_a_timer_is_cancelled(state):
    stop = threading.Event()
    state.begin()
    thread = threading.Thread(target=lambda: stop.wait(60), daemon=True)
    thread.start()
    timer = threading.Timer(60, stop.set)
    timer.start()
    assert state.restore() == ["running threads"] and timer.finished.is_set()
    stop.set()
    thread.join()
    timer.join()
    assert state.restore() == []


class _Slotted:
    """A loader that allows no new attributes."""

    __slots__ = ()

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.done = True

    @classmethod
    def find_spec(cls, name, path, target=None):
        return ModuleSpec(name, cls()) if name == "slotted" else None


def test_loaders_stay_as_they_are(tmp_path, monkeypatch, state):
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as file:
        for name in ("zipped_a", "zipped_b", "zipped_c"):
            file.writestr(f"{name}.py", "import zipped_c" if name == "zipped_a" else "")
    monkeypatch.syspath_prepend(tmp_path / "modules.zip")
    reads = []
    monkeypatch.setattr(state, "read", lambda: reads.append(1) or {})
    sys.meta_path.append(_Slotted)
    state.begin()
    for name in ("zipped_a", "zipped_b", "slotted"):
        assert (
            importlib.util.find_spec(name) is not None
        )  # looked for, as by `is_available`, and not imported
        module = importlib.import_module(name)
        assert module.__loader__ is module.__spec__.loader
        assert "exec_module" not in getattr(module.__loader__, "__dict__", {})
    assert len(reads) == 1 + 3 * 2
    assert pickle.loads(pickle.dumps(importlib.import_module("wave").__spec__)).name == "wave"


def test_each_action_on_the_same_module_is_taken(tmp_path, monkeypatch, state):
    (tmp_path / "acted_on.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    taken = []
    for name in ("seeds", "patches"):
        when_imported({"acted_on": lambda module, name=name: taken.append(name)})
    importlib.import_module("acted_on")
    assert taken == ["seeds", "patches"]


def test_the_number_of_interop_threads_may_be_set_again_to_what_it_is():
    calls = []
    fake = SimpleNamespace(
        set_num_interop_threads=calls.append, get_num_interop_threads=lambda: [2, *calls][-1]
    )
    accept_repetition(fake)
    for number in (2, 1, 1, 3):
        fake.set_num_interop_threads(number)
    assert calls == [1, 3]
