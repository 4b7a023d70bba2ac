"""Pictures in a chat: taken out of data URLs, never fetched from anywhere."""

import base64
import binascii
import hashlib
import re

from daemon.chat.messages import MediaKind, MediaPart
from daemon.core.errors import InvalidRequest
from daemon.core.wire import ImageSpan

_DATA_URL = re.compile(r"data:(?P<type>image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)


def image_span(part: MediaPart) -> ImageSpan:
    """The picture of a message. Raises InvalidRequest where it is none, or somewhere else."""
    if part.kind is not MediaKind.IMAGE:
        raise InvalidRequest(f"`{part.where}`: {part.kind.value} is not supported; send text or pictures.", part.where)
    found = _DATA_URL.match(part.url)
    if found is None:
        message = f"`{part.where}`: pictures are taken as data:image/…;base64,… URLs; nothing is fetched from elsewhere."
        raise InvalidRequest(message, part.where)
    try:
        data = base64.b64decode(part.url[found.end() :], validate=True)
    except binascii.Error as problem:
        raise InvalidRequest(f"`{part.where}`: the picture is not valid base64: {problem}.", part.where) from problem
    return ImageSpan(hashlib.blake2b(data, digest_size=16).hexdigest(), found["type"].lower(), data)
