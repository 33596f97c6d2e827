"""Decoding of images by Pillow, with errors that name the image. Imports no torch."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable

from PIL import Image


def decoded(content: bytes, name: Callable[[], str], *, mode: str = "RGB") -> Image.Image:
    """Image of the file ``content``, converted to Pillow's ``mode``; ValueError, with ``name()``, if it is damaged."""
    try:
        with warnings.catch_warnings():
            # A few images of ImageNet have damaged comments, but whole pixels.
            warnings.filterwarnings("ignore", message=".*(EXIF|Palette images with Transparency)")
            # Only two decoders are used for downloaded files, as that of EPS would start Ghostscript, and images of
            # half a GB are refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
                return opened.convert(mode)
    # Pillow raises errors of all these classes for bytes that are no image.
    except (
        OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error, Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:  # fmt: skip
        raise ValueError(f"{name()} is no whole image ({error}). Bring it again, or remove it.") from error
