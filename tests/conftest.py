"""What all tests share: one thread a process, set before anything that starts threads is imported."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
