"""Global state that an evaluation changes is what it was for the next one."""

import importlib
import os
import sys
import threading

import pytest

from hpo.evaluation.process.global_state import GlobalState

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
torch.set_printoptions(precision=1) | str(torch.tensor(0.123456))
torch.set_flush_denormal(True) | sys.float_info.min / 4 == 0
torch.nn.modules.module.register_module_forward_hook(print) | len(torch.nn.modules.module._global_forward_hooks)
torch.autograd.graph.save_on_cpu().__enter__() | torch._C._autograd._top_saved_tensors_default_hooks(True) is None
torch.autograd.forward_ad.enter_dual_level() | torch.autograd.forward_ad._current_level
torch.multiprocessing.set_sharing_strategy("file_system") | torch.multiprocessing.get_sharing_strategy()
numpy.seterr(all="ignore") | numpy.geterr()
numpy.set_printoptions(precision=2) | str(numpy.float64(1) / numpy.array([3.0]))
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
logging.disable(50) | logging.root.isEnabledFor(40)
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
NAMES = "torch numpy decimal os signal warnings logging sys builtins gc socket tempfile multiprocessing"


@pytest.mark.parametrize("case", CHANGES.strip().splitlines())
def test_what_an_evaluation_changes_is_put_back(case):
    modules = {name: importlib.import_module(name) for name in NAMES.split()}
    change, look = case.split(" | ")
    state = GlobalState()
    try:
        before = eval(look, dict(modules))  # the cases above
        state.begin()
        exec(change, dict(modules))
        assert state.restore() == []
        assert eval(look, dict(modules)) == before
    finally:
        sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "_ImportWatch"]


def test_what_an_import_sets_stays_and_what_the_evaluation_sets_beside_does_not(tmp_path, monkeypatch):
    (tmp_path / "sets_state.py").write_text(
        "import sys, os\nsys.path.append('/x')\nos.environ['OF_IMPORT'] = '1'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OF_IMPORT", "")
    state = GlobalState()
    state.begin()
    sys.path.append("/y")
    monkeypatch.setenv("OF_EVALUATION", "1")
    importlib.import_module("sets_state")
    state.restore()
    import os

    assert "/x" in sys.path and "/y" not in sys.path
    assert os.environ["OF_IMPORT"] == "1" and "OF_EVALUATION" not in os.environ
    sys.path.remove("/x")
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "_ImportWatch"]


def test_what_hpo_changes_between_two_evaluations_stays(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    state = GlobalState()
    for port in "23":
        state.changed()
        os.environ["MASTER_PORT"] = port
        for _ in range(2):
            state.begin()
            os.environ["MASTER_PORT"] = "4"
            assert state.restore() == [] and os.environ["MASTER_PORT"] == port


def test_a_thread_that_goes_on_cannot_be_put_back():
    state, stop = GlobalState(), threading.Event()
    state.begin()
    thread = threading.Thread(target=lambda: stop.wait(60), daemon=True)
    thread.start()
    assert state.restore() == ["running threads"]
    stop.set()
    thread.join()
    assert state.restore() == []
