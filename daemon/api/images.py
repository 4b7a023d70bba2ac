"""Pictures in a chat: taken out of data URLs, never fetched from anywhere, and looked at as far as their header.

The header says how many tokens a picture takes, and whether it is one that can be taken at all. It is decoded in the engine only:
Pillow's decoders are C, and what might crash them must not end the process that everybody is connected to.
"""

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Sequence

from PIL import Image

from daemon.chat.messages import MediaKind, MediaPart
from daemon.core.errors import InvalidRequest
from daemon.core.pictures import FORMATS, PictureRule, refusal, tokens_of
from daemon.core.ports import ModelCard
from daemon.core.wire import ImageSpan

MOST_PICTURES = 256
"""Pictures in one request."""
_DATA_URL = re.compile(r"data:(?P<type>image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)


def image_spans(parts: Sequence[MediaPart], card: ModelCard) -> tuple[ImageSpan, ...]:
    """The pictures of a chat. Raises InvalidRequest for the first that is none, stands elsewhere, or is nothing for the model."""
    if len(parts) > MOST_PICTURES:
        where = parts[MOST_PICTURES].where
        raise InvalidRequest(f"`{where}`: a request may hold {MOST_PICTURES} pictures, and this has {len(parts)}.", where)
    return tuple([_image_span(part, card) for part in parts])


def _image_span(part: MediaPart, card: ModelCard) -> ImageSpan:
    if part.kind is not MediaKind.IMAGE:
        raise InvalidRequest(f"`{part.where}`: {part.kind.value} is not supported; send text or pictures.", part.where)
    if card.pictures is None:
        raise InvalidRequest(f"`{part.where}`: the model {card.name} reads text only.", part.where)
    found = _DATA_URL.match(part.url)
    if found is None:
        message = f"`{part.where}`: pictures are taken as data:image/…;base64,… URLs; nothing is fetched from elsewhere."
        raise InvalidRequest(message, part.where)
    try:
        data = base64.b64decode(part.url[found.end() :], validate=True)
    except binascii.Error as problem:
        raise InvalidRequest(f"`{part.where}`: the picture is not valid base64: {problem}.", part.where) from problem
    tokens = _count(data, part.where, card.pictures)
    return ImageSpan(hashlib.blake2b(data, digest_size=16).hexdigest(), found["type"].lower(), data, tokens)


def _count(data: bytes, where: str, rule: PictureRule) -> int:
    """Tokens of a picture, by its header. One that lies on its side counts like one that stands. Raises InvalidRequest."""
    names = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            moves = picture.format != "MPO" and getattr(picture, "is_animated", False)
    except Image.UnidentifiedImageError as problem:
        raise InvalidRequest(f"`{where}`: the picture is no {names}.", where) from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise InvalidRequest(f"`{where}`: the picture has too many pixels: {problem}", where) from problem
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError) as problem:
        # what Pillow raises for damaged headers, by format
        raise InvalidRequest(f"`{where}`: the picture cannot be read: {problem}.", where) from problem
    if moves:
        raise InvalidRequest(f"`{where}`: the picture moves; send one of its frames.", where)
    words = refusal(rule, width, height)
    if words is not None:
        raise InvalidRequest(f"`{where}`: the picture {words}.", where)
    return tokens_of(rule, width, height)
