"""Pictures at the door: what is taken, how it counts, and why everything else is refused."""

import io
import struct
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.images import MOST_PICTURES, image_spans
from daemon.chat.control_tokens import IMAGE
from daemon.chat.messages import ChatInput, MediaKind, MediaPart
from daemon.chat.prompt import RenderedPrompt
from daemon.core.errors import InvalidRequest
from daemon.core.pictures import MOST_PIXELS, PictureRule
from daemon.core.wire import ImageSpan, TokenSpan
from tests.api.conftest import Connect
from tests.api.fakes import CARD, FakePrompts, FakeServing, application
from tests.api.reading import Json, error_of
from tests.pictures import data_url, drawn, encoded, png

PATH = "/v1/chat/completions"
RULE = PictureRule(32, 4 * 1024, 64 * 1024, (7,), (8,))
"""4 to 64 tokens."""
SEEING = replace(CARD, pictures=RULE)


class Looking(FakePrompts):
    """A template that shows pictures before the text."""

    def render(self, chat: ChatInput) -> RenderedPrompt:
        rendered = super().render(chat)
        contents = [message.content for message in chat.messages if not isinstance(message.content, str)]
        images = tuple(part for content in contents for part in content if isinstance(part, MediaPart))
        return replace(rendered, text=IMAGE * len(images) + rendered.text, images=images)


def shown(*urls: str, **more: object) -> Json:
    """A chat with pictures."""
    parts: list[Json] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "x"}]}], **more}


def part(url: str, kind: MediaKind = MediaKind.IMAGE) -> MediaPart:
    """A picture in a message."""
    return MediaPart(kind, url, "messages[0].content[0]")


async def test_picture_counts_in_usage_and_stands_between_the_ids_of_its_model(connect: Connect) -> None:
    serving = FakeServing(served=SEEING)
    client = await connect(application(serving, prompts=Looking()))
    one, other = png(128, 96), png(64, 64, seed=1)
    response = await client.post(PATH, json=shown(data_url(one), data_url(other)))
    body = await response.json()
    assert response.status == 200, body
    first, image, between, second, last = serving.requests[0].spans
    assert first == TokenSpan([7])
    assert between == TokenSpan([8, 7])
    assert isinstance(image, ImageSpan)
    assert isinstance(second, ImageSpan)
    assert (image.tokens, image.data, second.tokens, second.data) == (12, one, 4, other)
    assert isinstance(last, TokenSpan)
    assert last.ids[0] == 8
    assert body["usage"]["prompt_tokens"] == 12 + 4 + 4 + len(last.ids) - 1


async def test_model_with_eyes_says_so(connect: Connect) -> None:
    client = await connect(application(FakeServing(served=SEEING)))
    (entry,) = (await (await client.get("/v1/models")).json())["data"][:1]
    assert entry["architecture"]["input_modalities"] == ["text", "image"]


async def test_tokenize_counts_a_picture_without_giving_it_ids(connect: Connect) -> None:
    client = await connect(application(FakeServing(served=SEEING), prompts=Looking()))
    body = await (await client.post("/tokenize", json=shown(data_url(png(128, 96))))).json()
    assert body["count"] == len(body["tokens"]) + 12


async def test_prompt_that_does_not_fit_for_its_pictures_is_refused_with_numbers(connect: Connect) -> None:
    serving = FakeServing(served=replace(SEEING, context=256))
    client = await connect(application(serving, prompts=Looking()))
    response = await client.post(PATH, json=shown(*[data_url(png(256, 256))] * 4))
    assert response.status == 400
    error = await error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert "context length is 256" in error["message"]
    assert serving.requests == []


def _png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims a size and holds nothing."""
    inside = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + inside + struct.pack(">I", zlib.crc32(inside)) + b"\0\0\0\0IDAT"


def _moving(kind: str) -> bytes:
    out = io.BytesIO()
    drawn(64, 64).save(out, kind, save_all=True, append_images=[drawn(64, 64, seed=1)])
    return out.getvalue()


REFUSED: list[tuple[str, str]] = [
    ("https://example.com/cat.png", "nothing is fetched"),
    ("file:///etc/passwd", "nothing is fetched"),
    ("data:image/png;base64,***", "not valid base64"),
    (data_url(b""), "is no PNG, JPEG, WEBP or GIF"),
    (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "is no PNG, JPEG, WEBP or GIF"),
    (data_url(png(64, 64)[:20]), "the picture "),
    (data_url(encoded(drawn(64, 64), "TIFF")), "is no PNG, JPEG, WEBP or GIF"),
    (data_url(_moving("GIF")), "moves"),
    (data_url(_moving("WEBP")), "moves"),
    (data_url(_moving("PNG")), "moves"),
    (data_url(png(31, 64)), "has 31x64 pixels; this model needs 32"),
    (data_url(png(6500, 32)), "one side may be at most 200 times"),
    (data_url(_png_header(9000, 8000)), f"has 9000x8000 pixels; at most {MOST_PIXELS:,}"),
    (data_url(_png_header(60000, 60000)), "pixels"),
]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("url", "words"), REFUSED)
async def test_picture_that_cannot_be_taken_is_refused_by_its_place_in_words(connect: Connect, url: str, words: str) -> None:
    serving = FakeServing(served=SEEING)
    client = await connect(application(serving, prompts=Looking()))
    response = await client.post(PATH, json=shown(data_url(png(64, 64)), url))
    assert response.status == 400
    error = await error_of(response)
    assert error["param"] == "messages[0].content[1]"
    assert words in error["message"]
    assert serving.requests == []


async def test_videos_stay_refused_where_pictures_are_taken(connect: Connect) -> None:
    client = await connect(application(FakeServing(served=SEEING), prompts=Looking()))
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}}
    response = await client.post(PATH, json={"messages": [{"role": "user", "content": [video]}]})
    assert response.status == 400
    assert "video is not supported" in (await error_of(response))["message"]


async def test_picture_for_a_model_without_eyes_is_refused(connect: Connect) -> None:
    client = await connect(application(FakeServing(), prompts=Looking()))
    response = await client.post(PATH, json=shown(data_url(png(64, 64))))
    assert response.status == 400
    assert "reads text only" in (await error_of(response))["message"]


def test_more_pictures_than_a_request_may_hold_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="may hold 256 pictures, and this has 257"):
        image_spans([part(data_url(png(64, 64)))] * (MOST_PICTURES + 1), SEEING)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([png(64, 64), encoded(drawn(64, 64), "JPEG"), encoded(drawn(64, 64), "WEBP"), encoded(drawn(64, 64), "GIF")]),
    st.integers(0, 400),
    st.binary(max_size=60),
)
def test_damaged_picture_is_counted_or_refused_and_never_anything_else(whole: bytes, place: int, damage: bytes) -> None:
    data = whole[:place] + damage + whole[place + len(damage) :]
    with suppress(InvalidRequest):
        (span,) = image_spans([part(data_url(data))], SEEING)
        assert 0 < span.tokens <= 64
