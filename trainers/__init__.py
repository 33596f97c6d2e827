"""Data-parallel training methods behind one loop; they know nothing of campaigns.

``train`` is the loop, a method (``DDP``) says how ranks work together, a schedule how the learning rate runs.
Importing this package imports torch.
"""

from __future__ import annotations

from trainers.checkpoints.export import load_model, load_state, load_trained, save_model
from trainers.checkpoints.whole import whole
from trainers.communication.channel import CommunicationError
from trainers.communication.topology import Topology
from trainers.data.assignment import Coarse, FineGrained, FullOverlap, MediumCoarse, effective_epochs
from trainers.data.batches import Disjoint
from trainers.data.streams import Stream
from trainers.evaluation.evaluate import evaluate
from trainers.evaluation.metrics import StreamingMetric
from trainers.loop import train
from trainers.lowrank.layers import merged
from trainers.methods.ab import AB
from trainers.methods.daso import DASO
from trainers.methods.ddp import DDP
from trainers.methods.fsdp import FSDP
from trainers.methods.local_sgd import LocalSGD, effective_batch_size
from trainers.methods.oialr import OIALR
from trainers.methods.strategy import DataRanks, Method, Setup, Strategy
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.ftrl import Ftrl
from trainers.optim.large_batch import lamb, lars, linear_scaling
from trainers.optim.muon import muon
from trainers.optim.schedules import (
    Constant,
    Cosine,
    Drops,
    Exponential,
    InverseTime,
    Polynomial,
    ReduceOnPlateau,
    Schedule,
)
from trainers.own_loop import Wrapped, wrap
from trainers.run.position import Interrupted, Result

__all__ = [
    "AB",
    "DASO",
    "DDP",
    "FSDP",
    "OIALR",
    "Coarse",
    "CommunicationError",
    "Constant",
    "Cosine",
    "DataRanks",
    "Disjoint",
    "Drops",
    "EarlyStopping",
    "Exponential",
    "FineGrained",
    "Ftrl",
    "FullOverlap",
    "Interrupted",
    "InverseTime",
    "LocalSGD",
    "MediumCoarse",
    "Method",
    "Polynomial",
    "ReduceOnPlateau",
    "Result",
    "Schedule",
    "Setup",
    "Strategy",
    "Stream",
    "StreamingMetric",
    "Topology",
    "Wrapped",
    "effective_batch_size",
    "effective_epochs",
    "evaluate",
    "lamb",
    "lars",
    "linear_scaling",
    "load_model",
    "load_state",
    "load_trained",
    "merged",
    "muon",
    "save_model",
    "train",
    "whole",
    "wrap",
]
