"""Sums over ranks of numbers that are sent in eight or four bits, with error feedback.

A sum takes two messages. By the first, each rank gets its part of the numbers of all ranks, and adds them up; by the
second, all ranks get the sums. Both are rounded, and what rounding takes away is added to the next numbers, or sums
(Tang et al. 2019, DoubleSqueeze, arXiv 1905.05957).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.communication.channel import Channel

BLOCK = 64
"""Numbers with a common scale, whose four bytes are a sixteenth of a byte for each."""


@dataclass(frozen=True)
class BlockCodec:
    """Integers of ``bits``, 8 or 4, times the scale of their block: its largest magnitude over the largest integer.

    Rounding is to the nearest, so that a number less what is decoded of it is exact (Sterbenz). A block with a number
    that is not finite is decoded as NaN.
    """

    bits: int

    def bytes_of(self, numbers: int) -> int:
        """Bytes of a message; the count of its ``numbers`` is a multiple of ``BLOCK``."""
        return numbers * self.bits // 8 + 4 * numbers // BLOCK

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        """Fill ``message``, bytes of shape (…, ``bytes_of(N)``), with ``numbers``, of shape (…, N).

        First come the integers, two in a byte where they have four bits, and then the scales in float32.
        """
        blocks = numbers.view(*numbers.shape[:-1], -1, BLOCK)
        largest = 2 ** (self.bits - 1) - 1
        scales = torch.linalg.vector_norm(blocks, torch.inf, dim=-1).div_(largest).float()
        # Divided, as the reciprocal of a small scale would overflow. A scale of 0 is of zeros, and of numbers that are
        # too small for float32; one that is not finite makes all of its block so, whatever its integers are.
        codes = (blocks / scales.unsqueeze(-1)).nan_to_num_().round_().clamp_(-largest, largest)
        codes = codes.to(torch.int8).flatten(-2)
        integers, of_blocks = self._split(message)
        if self.bits == 4:
            codes = (codes + 8).view(torch.uint8)
            integers.copy_(codes[..., ::2] | codes[..., 1::2] << 4)
        else:
            integers.copy_(codes.view(torch.uint8))
        of_blocks.copy_(scales)

    def decode(self, message: Tensor, dtype: torch.dtype) -> Tensor:
        """Numbers of ``dtype`` in ``message``."""
        integers, scales = self._split(message)
        if self.bits == 4:
            codes = torch.stack([integers & 15, integers >> 4], -1).flatten(-2).view(torch.int8) - 8
        else:
            codes = integers.view(torch.int8)
        numbers = codes.to(dtype)
        numbers.view(*scales.shape, BLOCK).mul_(scales.unsqueeze(-1))
        return numbers

    def _split(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Integers, as bytes, and scales in ``message``, in its memory."""
        scales = message.shape[-1] // (BLOCK * self.bits // 8 + 4)
        integers, of_blocks = torch.split(message, [message.shape[-1] - 4 * scales, 4 * scales], -1)
        return integers, of_blocks.view(torch.float32)


class QuantisedSum:
    """Sum of the numbers of several senders, and *residuals*, what rounding has left out of this sender's messages.

    All ranks of a sender call ``encode``, exchange ``message`` for ``received`` part by part, call ``add_up``, exchange
    the parts of ``message``, and call ``decode``. Messages have the shape (shares * parts, bytes): a sender may be
    several ranks with the same numbers, each of which sends a share.

    Args:
        numbers (Tensor): flat numbers, as many as a multiple of ``shares * parts * BLOCK``, which become the sums.
        codec (BlockCodec): form of messages.
        parts (int): number of senders.
        place (int): number of this sender; None: it only gets the sums.
        shares (int): ranks of a sender that send.
    """

    def __init__(
        self, numbers: Tensor, codec: BlockCodec, *, parts: int, place: int | None, shares: int = 1
    ) -> None:
        self._codec, self._place, self._shares = codec, place, shares
        real = torch.view_as_real(numbers) if numbers.is_complex() else numbers
        self._numbers = real.view(shares * parts, -1)
        nbytes = codec.bytes_of(self._numbers.shape[1])
        self.message = torch.zeros(shares * parts, nbytes, dtype=torch.uint8, device=numbers.device)
        """Numbers for each sender; after ``add_up`` the sums of this sender's part in its place, and in those of others
        theirs, once they have come."""
        rows = 0 if place is None else shares * parts
        self.received = torch.zeros_like(self.message[:rows])
        """Numbers of each sender in this sender's part."""
        self._residual = torch.zeros_like(self._numbers[:rows])
        self._residual_of_sums = torch.zeros_like(self._numbers[: rows // parts])

    @property
    def residuals(self) -> list[Tensor]:
        """Numbers, and sums, that are still to be sent."""
        return [self._residual, self._residual_of_sums]

    def sum_over(self, channel: Channel) -> None:
        """Exchange both messages with the other senders, of which each is a rank of ``channel``, and wait for them."""
        self.encode()
        channel.all_to_all_parts(self.received, self.message).wait()
        self.add_up()
        channel.all_gather_parts(self.message).wait()

    @torch.no_grad()
    def encode(self) -> None:
        """Write the numbers, and what was left of those before, into ``message``."""
        self._numbers.add_(self._residual)
        self._encode(self._numbers, self.message, self._residual)

    @torch.no_grad()
    def add_up(self) -> None:
        """Write the sums of what was ``received``, and what was left of those before, into ``message``."""
        first, *others = self._by_share(self.received).unbind(1)
        # One after the other, so that all ranks of a sender get the same bits.
        sums = self._decode(first)
        for other in others:
            sums.add_(self._decode(other))
        sums.add_(self._residual_of_sums)
        self._encode(sums, self._by_share(self.message)[:, self._place], self._residual_of_sums)

    @torch.no_grad()
    def decode(self) -> None:
        """Replace the numbers by the sums in ``message``."""
        self._numbers.copy_(self._decode(self.message))

    def _by_share(self, parts: Tensor) -> Tensor:
        return parts.view(self._shares, -1, parts.shape[1])

    def _encode(self, numbers: Tensor, message: Tensor, residual: Tensor) -> None:
        self._codec.encode(numbers, message)
        torch.sub(numbers, self._decode(message), out=residual)

    def _decode(self, message: Tensor) -> Tensor:
        return self._codec.decode(message, self._numbers.dtype)
