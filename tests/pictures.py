"""Pictures for tests: small, colourful, the same for the same seed."""

import base64
import hashlib
import io

import numpy as np
from PIL import Image

from daemon.core.pictures import PictureRule, tokens_of
from daemon.core.wire import ImageSpan


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of this size in pixels: coarse blotches of random colours."""
    blotches = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(blotches, "RGB").resize((width, height), Image.Resampling.BICUBIC)


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """The bytes of a file of this kind."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, seed: int = 0) -> bytes:
    """`drawn`, as a file."""
    return encoded(drawn(width, height, seed))


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """As clients send it."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def span_of(data: bytes, rule: PictureRule) -> ImageSpan:
    """As the front sends a picture that is not turned to the engine."""
    with Image.open(io.BytesIO(data)) as opened:
        tokens = tokens_of(rule, *opened.size)
    return ImageSpan(hashlib.blake2b(data, digest_size=16).hexdigest(), "image/png", data, tokens)
