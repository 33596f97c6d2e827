"""A rank of torchrun: trains, and leaves what it found in FOLDER/RANK.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from test_gpu_training import BATCH, trained

from search_spaces.standalone.torchrun import joined

with joined() as place:
    found = trained(place.device, BATCH, "DDP")
    text = {"device": place.device, "backend": place.backend, "weights": found.tolist()}
    assert dist.get_world_size() == 2 and (place.device == "cpu" or torch.cuda.is_initialized())
    Path(sys.argv[1], f"{place.rank}.json").write_text(json.dumps(text))
