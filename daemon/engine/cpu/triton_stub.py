"""A stand-in for the triton package, which exllamav3 imports for kernels that only a GPU runs; the real one is a gigabyte.

Decorators give back the function they decorate; every other name is a placeholder. Nothing of it can be run.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Generator, MutableSequence
from contextlib import contextmanager
from types import ModuleType

_NAMES = (
    "triton",
    "triton.language",
    "triton.language.extra",
    "triton.language.extra.libdevice",
    "triton.runtime",
    "triton.compiler",
)
_VERSION = "3.0.0"


class _Placeholder(ModuleType):
    """A module or value whose every attribute is another placeholder, and which can be called while a module is imported."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - the import system's own name, and what makes this a package

    def __getattr__(self, name: str) -> "_Placeholder":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name)

    def __call__(self, *args: object, **options: object) -> object:
        decorated = args[0] if len(args) == 1 and not options else None
        return decorated if callable(decorated) else _Placeholder("value")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()


def _decorator(*args: object, **_options: object) -> object:
    """Serves as `@jit` and as `@jit(...)`."""
    if len(args) == 1 and callable(args[0]):
        return args[0]

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        return function

    return decorate


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


@contextmanager
def triton_in_place() -> Generator[None]:
    """While exllamav3 is imported, let `import triton` work. The real package is used where it is installed.

    The stub goes away afterwards: torch and others look for triton by name and must not find this one.
    """
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    modules = {name: _Placeholder(name) for name in _NAMES}
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    root = vars(modules["triton"])
    root.update(jit=_decorator, autotune=_decorator, heuristics=_decorator, cdiv=_cdiv, __version__=_VERSION)
    root["language"] = modules["triton.language"]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in _NAMES:
            del sys.modules[name]
