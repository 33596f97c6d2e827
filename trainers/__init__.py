"""Data-parallel training methods behind one loop; they know nothing of campaigns.

``train`` is the loop, a method (``DDP``) says how ranks work together, a schedule how the learning rate runs.
Importing this package imports torch.
"""

from __future__ import annotations

from trainers.ab import AB
from trainers.communication.communicator import CommunicationError
from trainers.communication.topology import Topology
from trainers.daso import DASO
from trainers.data.assignment import Coarse, FineGrained, FullOverlap, MediumCoarse, effective_epochs
from trainers.data.loading import Disjoint
from trainers.ddp import DDP
from trainers.evaluation import evaluate
from trainers.export import load_model, load_state, load_trained, save_model
from trainers.local_sgd import LocalSGD, effective_batch_size
from trainers.loop import Interrupted, Result, train
from trainers.lowrank.layers import merged
from trainers.oialr import OIALR
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.ftrl import Ftrl
from trainers.optim.large_batch import lamb, lars, linear_scaling
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
from trainers.strategy import Method, Setup, Strategy

__all__ = [
    "AB",
    "DASO",
    "DDP",
    "OIALR",
    "Coarse",
    "CommunicationError",
    "Constant",
    "Cosine",
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
    "Topology",
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
    "save_model",
    "train",
]
