"""Decoding of images by Pillow, with errors that name the image. Imports no torch."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from contextlib import nullcontext

from PIL import Image


def decoded(content: bytes, name: Callable[[], str], *, mode: str | None = "RGB") -> Image.Image:
    """Image of the file ``content``, converted to Pillow's ``mode``; ValueError, with ``name()``, if it is damaged.

    With None it stays as it is, and other threads may decode at the same time: Python's filters of warnings, which are
    changed for images of any origin, are the process's.
    """
    try:
        with nullcontext() if mode is None else warnings.catch_warnings():
            if mode is not None:
                # A few images of ImageNet have damaged comments, but whole pixels.
                warnings.filterwarnings("ignore", message=".*(EXIF|Palette images with Transparency)")
                # Images of half a GB are refused.
                warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Two decoders alone for downloaded files, as that of EPS would start Ghostscript.
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
                return opened.copy() if mode is None else opened.convert(mode)
    # Pillow raises errors of all these classes for bytes that are no image.
    except (
        OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error, Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:  # fmt: skip
        raise ValueError(f"{name()} is no whole image ({error}). Bring it again, or remove it.") from error
