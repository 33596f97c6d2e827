"""Warnings of settings with which a run would, without an error, do otherwise than they read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from trainers.communication.channel import Channel
from trainers.data.batches import Batch
from trainers.data.fetching import epoch_setters
from trainers.data.own_generators import OwnGenerators
from trainers.data.probing import probed
from trainers.data.streams import stream_of
from trainers.names import plain_name
from trainers.optim.composite import parameters_in
from trainers.run.settings import TrainSettings


def warn_of_traps(settings: TrainSettings, optimizer: Optimizer, planned: Sequence[Sequence[Batch]]) -> None:
    """Warn of traps on the rank that calls it, whose batches of the first epoch's steps are ``planned``."""
    trained = {plain_name(name): p for name, p in settings.model.named_parameters() if p.requires_grad}
    held = parameters_in(optimizer)
    if left := [name for name, parameter in trained.items() if id(parameter) not in held]:
        _warn(
            f"optimizer: it leaves out {_some(left)} of the model's trained parameters, which stay as they are. Give "
            "them to a second optimizer, as optimizer= may return a list, or set their requires_grad to False."
        )
    if half := [name for name, parameter in trained.items() if parameter.dtype is torch.float16]:
        _warn(
            f"model: {_some(half)} of its parameters are float16, in which small gradients and updates become 0. Keep "
            'them in float32, and use precision="bf16".'
        )
    if settings.checkpoint_every is not None and settings.checkpoint is None:
        _warn(
            f"checkpoint_every = {settings.checkpoint_every!r}: nothing is saved without a directory. Name one: "
            "checkpoint=…, or leave checkpoint_every out."
        )
    if len(planned) == 1 and settings.deals_all_alike:
        of_step = sum(len(batch.indices) for batch in planned[0])
        if of_step + 1 < settings.batch_size:  # as ranks differ by a sample where they do not divide the data
            _warn(
                f"batch_size = {settings.batch_size}: train_set has {of_step} samples for a rank, and an epoch is a "
                f"single step. Choose at most {of_step}, or bring more data."
            )


def warn_of_shared_series(settings: TrainSettings, channel: Channel) -> None:
    """Warn on rank 0 where the training set draws from a generator of its own that is in the same state on several
    ranks, or in several loader processes. Collective where there are several ranks.
    """
    samples, processes = settings.train_set, settings.loader_processes
    if not (channel.size > 1 or processes > 1) or stream_of(samples) is not None:
        return
    state = 0
    if not any(True for _ in epoch_setters(samples)) and OwnGenerators(samples).generators:
        state = probed(samples, processes=processes, collate=settings.collate, epoch=None).drawn_from
    drawing = [number for number in channel.number_of_each(state) if number]
    if channel.rank == 0 and drawing and (processes > 1 or len(set(drawing)) < len(drawing)):
        _warn(
            "train_set: it draws from a random generator that it holds, which gives each rank and each loader process "
            "the same series. Draw from the global generators (torch, numpy.random, random), which are seeded for each "
            "batch, or give it set_epoch(epoch) and seed a generator by seed, epoch and the sample's number."
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} ({shown})"


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
