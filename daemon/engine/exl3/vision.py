"""Pictures in the engine: decoded beside its thread, looked at by exllamav3's vision component on it, remembered by digest.

1. `prepare` opens the component before any weights are read, and refuses what cannot work, in words.
2. `Gallery.start` decodes a picture and cuts it into the tower's patches on a thread of its own: for a large photograph that
   takes longer than many decode steps. One picture at a time, which bounds the memory it takes.
3. `Gallery.look`, on the engine's thread, runs the tower. What it gives has ids made of the picture's digest (`core/pictures.py`)
   in place of those that the library counts up, so that a picture keeps its ids, and its pages their names, whatever becomes of
   what is remembered here.
4. What the tower gave is kept until `memory` bytes are full; the picture used longest ago goes first. Requests hold on to theirs.
"""

import io
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
from exllamav3 import Config, Model, Tokenizer
from exllamav3.tokenizer import MMEmbedding
from PIL import Image, ImageOps

from daemon.core.pictures import FORMATS, MOST_PIXELS, first_id, most_pixels
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.wire import FatalClass, ImageSpan
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.faults import describe
from daemon.engine.exl3.speculation import require_cpu_operations

COMPONENT = "vision"
Cut: TypeAlias = tuple[torch.Tensor, tuple[int, int], tuple[int, int, int]]
"""Patches (patches, values), the picture's size as scaled, and how many patches there are: frames, rows, columns."""
_WARM_UP = 4
"""Tokens a side of the picture that a CPU looks at to prove that it can."""


@dataclass(frozen=True, slots=True)
class Patches:
    """A picture as the tower takes it: what exllamav3's `preprocess` gave. `size` is the picture's own, in pixels."""

    size: tuple[int, int]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Read:
    """A picture that was decoded, or why it could not be."""

    digest: str
    patches: Patches | None
    problem: str = ""


def prepare(settings: EngineSettings, config: Config, *, on_cpu: bool) -> Model | None:
    """The vision component, before its weights; None where it is not wanted. Raises EngineFailed."""
    if not settings.vision:
        return None
    if COMPONENT not in config.model_classes:
        raise _wrong(
            f"engine.vision is true, but {config.directory} ({config.architecture}) has no vision tower that exllamav3 knows:"
            " set it to false"
        )
    if settings.speculation is Speculation.DRAFT:
        raise _wrong(
            "engine.vision is true and engine.speculation is draft: exllamav3's draft models cannot take pictures. Set"
            " engine.speculation to mtp, ngram or none"
        )
    model = Model.from_config(config, component=COMPONENT)
    if not model.caps.get("image_input"):
        raise _wrong(
            f"the vision tower of {config.directory} ({config.architecture}) takes no pictures: set engine.vision to false"
        )
    if on_cpu:
        require_cpu_operations(model)
    bounds = config.vision_pp
    side = bounds.patch_size * config.vision.spatial_merge_size
    bounds.max_pixels = most_pixels(bounds.min_pixels, bounds.max_pixels, side, settings.vision_tokens)
    return model


def decode(data: bytes) -> Image.Image:
    """The picture, the right way up. Raises what Pillow raises."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"it has {opened.width}x{opened.height} pixels; at most {MOST_PIXELS:,} are taken")
        opened.load()
        return ImageOps.exif_transpose(opened)


class Tower:
    """The loaded component. `model.preprocess` is taken over, so that its work can be done beforehand, elsewhere."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._cut = model.preprocess
        self._patches: Patches | None = None
        model.preprocess = self._prepared

    def cut(self, picture: Image.Image) -> Patches:
        """Scale a picture and cut it into patches. Any thread may."""
        return Patches(picture.size, self._cut(picture))

    def look(self, patches: Patches) -> MMEmbedding:
        """Run the tower."""
        self._patches = patches
        try:
            with torch.inference_mode():
                return self._model.get_image_embeddings(self._tokenizer, patches)
        finally:
            self._patches = None

    def warm_up(self, *, whole: bool) -> None:
        """Look at a grey picture: the largest that people may send (`whole`), or a small one."""
        bounds, config = self._model.config.vision_pp, self._model.config
        side = bounds.patch_size * config.vision.spatial_merge_size
        tokens = bounds.max_pixels // side**2 if whole else max(_WARM_UP**2, bounds.min_pixels // side**2)
        edge = max(1, int(tokens**0.5)) * side
        self.look(self.cut(Image.new("RGB", (edge, edge), "grey")))

    def _prepared(self, picture: object) -> Cut:
        del picture
        if self._patches is None:
            raise RuntimeError("the tower was asked to cut a picture by itself")
        return self._patches.cut


class Gallery:
    """See the module. `wake` is called, from another thread, when a picture is ready to be looked at."""

    def __init__(self, tower: Tower, memory: int, wake: Callable[[], None]) -> None:
        self._tower = tower
        self._memory = memory
        self._wake = wake
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pictures")
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._read: deque[Read] = deque()
        self._seen: OrderedDict[str, MMEmbedding] = OrderedDict()
        self._size = 0

    def find(self, digest: str) -> MMEmbedding | None:
        """What the tower gave for a picture, if that is remembered."""
        found = self._seen.get(digest)
        if found is not None:
            self._seen.move_to_end(digest)
        return found

    def start(self, span: ImageSpan) -> None:
        """Decode a picture; `take` gives the result. The same picture is decoded once at a time."""
        with self._lock:
            if span.digest in self._running:
                return
            self._running.add(span.digest)
        self._threads.submit(self._decode, span)

    def ready(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._read)

    def take(self) -> Read:
        """The next picture that was decoded."""
        with self._lock:
            read = self._read.popleft()
            self._running.discard(read.digest)
        return read

    def look(self, digest: str, patches: Patches) -> MMEmbedding:
        """Run the tower on a picture and remember what it gave."""
        seen = self._tower.look(patches)
        seen.first_index = first_id(digest)
        seen.last_index = seen.first_index + seen.mm_length
        self._seen[digest] = seen
        self._size += _bytes(seen)
        while self._size > self._memory and self._seen:
            _, gone = self._seen.popitem(last=False)
            self._size -= _bytes(gone)
        return seen

    def _decode(self, span: ImageSpan) -> None:
        try:
            read = Read(span.digest, self._tower.cut(decode(span.data)))
        except Exception as problem:  # noqa: BLE001 - Pillow's readers raise many kinds; each ends the requests with this picture
            read = Read(span.digest, None, describe(problem))
        with self._lock:
            self._read.append(read)
        self._wake()


def _bytes(seen: MMEmbedding) -> int:
    layers: Sequence[torch.Tensor] = [seen.embeddings, *(seen.deepstack_embeddings or ())]
    return sum(layer.nbytes for layer in layers)


def _wrong(detail: str) -> EngineFailed:
    return EngineFailed(FatalClass.CONFIG, detail)
