"""How many tokens a picture takes, and which ids stand for it. Pure: both processes work it out for themselves and must agree.

1. Tokens. The towers exl3d serves (Qwen-VL's, and GLM-4V's, which count alike) cut a picture into squares of `PictureRule.side`
   pixels, one token each: sides are rounded to whole squares, then the picture is scaled until its area lies within bounds.
2. Ids. exllamav3 wants ids from `FIRST_PICTURE_ID` on. It numbers pictures in the order in which a process sees them; here an
   id is made of the picture's digest instead, so that the same picture has the same ids in every process and every turn, and
   finds its pages in the prefix cache as text does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as replaced

from daemon.core.wire import ImageSpan, Span, TokenSpan

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""What is read, by the names of Pillow's readers."""
MOST_PIXELS = 64_000_000
"""Width times height above which a picture is refused: decoded, one of this size takes 192 MB."""
MOST_TOKENS = 1 << 16
"""Tokens one picture may ever take; room for so many is left above each picture's first id."""
FIRST_PICTURE_ID = 1 << 30
"""No id of a picture is below it, and no id of text reaches it (exllamav3's own line is 10⁹)."""
_ASPECT = 200
"""Times one side may be as long as the other."""
_HIGH_BITS, _LOW_BITS = 31, 30


@dataclass(frozen=True, slots=True)
class PictureRule:
    """What a model does with pictures."""

    side: int
    """Pixels of the square that becomes one token."""
    least: int
    """Pixels below which a picture is enlarged."""
    most: int
    """Pixels above which a picture is shrunk."""
    before: tuple[int, ...]
    """Ids of text in front of every picture."""
    after: tuple[int, ...]
    """Ids of text behind it."""

    def limited(self, tokens: int) -> "PictureRule":
        """The rule where a picture may take at most so many tokens."""
        return replace(self, most=most_pixels(self.least, self.most, self.side, tokens))


def most_pixels(least: int, most: int, side: int, tokens: int) -> int:
    """Pixels above which pictures are shrunk: the model's own limit, or that of `tokens`; never less than the model's least."""
    return max(least, min(most, tokens * side * side))


def refusal(rule: PictureRule, width: int, height: int) -> str | None:
    """What is wrong with a picture of this size, as the end of a sentence that begins with it; None: nothing is."""
    if width * height > MOST_PIXELS:
        return f"has {width}x{height} pixels; at most {MOST_PIXELS:,} are taken"
    if min(width, height) < rule.side:
        return f"has {width}x{height} pixels; this model needs {rule.side} or more on each side"
    if max(width, height) > _ASPECT * min(width, height):
        return f"has {width}x{height} pixels; one side may be at most {_ASPECT} times the other"
    if not 0 < tokens_of(rule, width, height) <= MOST_TOKENS:
        return f"has {width}x{height} pixels, which this model cannot scale to a size it takes"
    return None


def tokens_of(rule: PictureRule, width: int, height: int) -> int:
    """Tokens of a picture that nothing is wrong with, without the ids before and after it."""
    side = rule.side
    columns, rows = round(width / side), round(height / side)
    area = columns * rows * side * side
    if area > rule.most:
        shrink = math.sqrt(width * height / rule.most)
        columns, rows = math.floor(width / shrink / side), math.floor(height / shrink / side)
    elif area < rule.least:
        grow = math.sqrt(rule.least / (width * height))
        columns, rows = math.ceil(width * grow / side), math.ceil(height * grow / side)
    return columns * rows


def first_id(digest: str) -> int:
    """The id of a picture's first token; the others follow.

    61 bits of the digest, laid so that the lower half by itself is no id of text either: parts of exllamav3 look at no more.
    """
    bits = int(digest, 16)
    high = bits >> _LOW_BITS & (1 << _HIGH_BITS) - 1 or 1
    low = FIRST_PICTURE_ID + bits % (FIRST_PICTURE_ID - MOST_TOKENS)
    return high << 32 | low


def ids_of(spans: Sequence[Span]) -> list[int]:
    """The whole sequence as ids."""
    ids: list[int] = []
    for span in spans:
        match span:
            case TokenSpan(ids=some):
                ids.extend(some)
            case ImageSpan(digest=digest, tokens=tokens):
                first = first_id(digest)
                ids.extend(range(first, first + tokens))
    return ids


def without_content(spans: Sequence[Span]) -> list[Span]:
    """The same without the pictures themselves, for whoever only wants to know how many tokens there are, and which."""
    return [replaced(span, data=b"") if isinstance(span, ImageSpan) else span for span in spans]


def count_tokens(spans: Sequence[Span]) -> int:
    """Tokens of text and of pictures."""
    return sum(len(span.ids) if isinstance(span, TokenSpan) else span.tokens for span in spans)
