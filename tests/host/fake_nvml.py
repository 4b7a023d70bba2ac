"""A driver's management library that does as it is told."""

import threading

from daemon.core.gpu import GpuProcess
from daemon.host.nvml import Identity, NvmlError

CARDS = (Identity("RTX 5070 Ti", "GPU-a", "0000:01:00"), Identity("RTX 5070 Ti", "GPU-b", "0000:02:00"))


class FakeNvml:
    """A driver that does as it is told. `fails` maps a call, or a call and a GPU, to the code it fails with."""

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.used = 4000
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[int] = set()

    def start(self) -> None:
        self._called("start")

    def stop(self) -> None:
        self._called("stop")

    def count(self) -> int:
        self._called("count")
        return len(CARDS)

    def identity(self, gpu: int) -> Identity:
        return CARDS[gpu]

    def memory(self, gpu: int) -> tuple[int, int]:
        self._called("memory", gpu)
        return self.used + gpu, 16000

    def temperature(self, gpu: int) -> int:
        self._called("temperature", gpu)
        return 61

    def utilisation(self, gpu: int) -> float:
        self._called("utilisation", gpu)
        return 0.5

    def power(self, gpu: int) -> float:
        self._called("power", gpu)
        return 212.5

    def processes(self, gpu: int) -> tuple[GpuProcess, ...]:
        self._called("processes", gpu)
        return (GpuProcess(7, 3900), GpuProcess(8, None))

    def _called(self, call: str, gpu: int | None = None) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(call)
        self.gate.wait()
        code = self.fails.get(call if gpu is None else f"{call} {gpu}", self.fails.get(call, 0))
        if code:
            raise NvmlError(call, code)
