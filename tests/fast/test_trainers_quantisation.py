"""Sums in eight and four bits, beside numpy, and what their residuals keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from trainers.communication.quantisation import BLOCK, BlockCodec, QuantisedSum

BITS = pytest.mark.parametrize("bits", [8, 4])
DTYPES = st.sampled_from([np.float32, np.float64])


def sent(numbers: Any, bits: int) -> Any:
    """The ``numbers`` as a receiver gets them."""
    blocks, largest = numbers.reshape(-1, BLOCK), numbers.dtype.type(2 ** (bits - 1) - 1)
    with np.errstate(all="ignore"):
        scales = (np.abs(blocks).max(1, keepdims=True) / largest).astype(np.float32)
        codes = np.clip(np.rint(np.where(scales == 0, 0, blocks / scales)), -largest, largest)
        return (codes * scales.astype(numbers.dtype)).reshape(numbers.shape)


def through(numbers: Tensor, bits: int) -> Tensor:
    codec = BlockCodec(bits)
    message = torch.zeros(codec.bytes_of(len(numbers)), dtype=torch.uint8)
    assert len(message) == len(numbers) * (bits / 8 + 4 / 64)
    codec.encode(numbers, message)
    return codec.decode(message, numbers.dtype)


@BITS
@given(data=st.data())
def test_what_is_sent_is_numpys_and_with_the_residual_the_difference(bits: int, data: Any) -> None:
    dtype: Any = data.draw(DTYPES)
    large = 2.0**120
    numbers = st.floats(-large, large, width=32) | st.floats(
        -(2.0**-122), 2.0**-122, width=32
    )  # subnormal ones, too
    residual = np.zeros(2 * BLOCK, dtype)
    for _ in range(3):
        wanted = data.draw(arrays(dtype, 2 * BLOCK, elements=numbers)) + residual
        found = through(torch.from_numpy(wanted), bits).numpy()
        np.testing.assert_array_equal(found, sent(wanted, bits))
        residual = wanted - found
        np.testing.assert_array_equal(found + residual, wanted)


@BITS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_seen_by_all(bits: int, bad: float) -> None:
    numbers = torch.ones(3 * BLOCK)
    numbers[BLOCK + 5] = bad
    found = through(numbers, bits).view(3, BLOCK)
    assert found[1].isnan().all()
    assert torch.equal(found[::2], torch.ones(2, BLOCK))


def exchanged(senders: list[QuantisedSum], shares: int) -> None:
    """Both messages, from each to each."""
    count = len(senders)
    for each in senders:
        each.encode()
    messages = torch.stack([each.message for each in senders]).unflatten(1, (shares, count))
    for place, each in enumerate(senders):
        each.received.copy_(messages[:, :, place].transpose(0, 1).flatten(0, 1))
        each.add_up()
    sums = torch.stack(
        [each.message.unflatten(0, (shares, count))[:, k] for k, each in enumerate(senders)], 1
    )
    for each in senders:
        each.message.copy_(sums.flatten(0, 1))
        each.decode()


@BITS
@pytest.mark.parametrize("shares", [1, 2])
def test_sums_and_what_is_left_are_the_serial_ones(bits: int, shares: int) -> None:
    """The sums lack nothing that three senders ever had but the residuals."""
    generator = np.random.default_rng(0)
    flats = [torch.zeros(shares * 3 * BLOCK * 2) for _ in range(3)]
    senders = [
        QuantisedSum(flat, BlockCodec(bits), parts=3, place=place, shares=shares)
        for place, flat in enumerate(flats)
    ]
    residuals = np.zeros((3, len(flats[0])), np.float32)
    of_sums = np.zeros(len(flats[0]), np.float32)
    given_, summed = np.zeros(len(flats[0])), np.zeros(len(flats[0]))
    for _ in range(5):
        numbers = generator.standard_normal(residuals.shape).astype(np.float32)
        for flat, own in zip(flats, numbers, strict=True):
            flat.copy_(torch.from_numpy(own))
        exchanged(senders, shares)
        wanted = numbers + residuals
        rounded = np.stack([sent(own, bits) for own in wanted])
        residuals = wanted - rounded
        sums = rounded[0] + rounded[1] + rounded[2] + of_sums
        expected = sent(sums, bits)
        of_sums = sums - expected
        for flat in flats:
            np.testing.assert_array_equal(flat.numpy(), expected)
        given_, summed = given_ + numbers.sum(0, dtype=np.float64), summed + expected
    np.testing.assert_allclose(summed + residuals.sum(0) + of_sums, given_, atol=1e-5)
    assert np.abs(residuals).max() < np.abs(wanted).max() / 2 ** (bits - 1)
