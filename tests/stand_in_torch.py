"""A ``torch.py`` with what hpo asks of torch where there are GPUs: it is imported in milliseconds, torch in seconds.

``test_torch_has_what_the_stand_in_stands_for`` of processes/test_own_device.py compares such names with torch's own."""

from __future__ import annotations

from pathlib import Path

_TEXT = '''
import os
from types import SimpleNamespace

FINDS = {finds!r}


def device_count():
    """CUDA shows those before the first that it does not find."""
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    missing = [number for number, one in enumerate(visible) if one not in FINDS]
    return missing[0] if missing else len(visible)


def init():
    if not device_count():
        raise RuntimeError("No CUDA GPUs are available")


def manual_seed(seed):
    pass


version = SimpleNamespace(cuda={built!r})
cuda = SimpleNamespace(
    init=init, device_count=device_count, is_available=lambda: device_count() > 0, is_initialized=lambda: False
)
'''


def torch_that_finds(devices: tuple[str, ...], folder: Path, *, built: str | None) -> None:
    """Write it to ``folder``, which comes first on the path of those that are to import it. ``devices``: those of
    CUDA_VISIBLE_DEVICES that work; ``built``: for which CUDA, None for a torch without CUDA."""
    (folder / "torch.py").write_text(_TEXT.format(finds=devices, built=built))
