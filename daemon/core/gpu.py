"""What is known about a GPU from outside of the process that uses it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    used_mib: int | None
    """None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. None: this driver does not tell it."""

    name: str
    uuid: str
    pci: str
    """Address without function, as in `0000:01:00`: what the kernel log calls the card."""
    used_mib: int | None = None
    total_mib: int | None = None
    temperature: int | None = None
    """Degrees Celsius."""
    utilisation: float | None = None
    """Share of the last moments in which it computed, 0 to 1."""
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def fullness(self) -> float | None:
        """Share of its memory that is used, 0 to 1."""
        if self.used_mib is None or not self.total_mib:
            return None
        return self.used_mib / self.total_mib


def pci_address(domain: int, bus: int, device: int) -> str:
    """A card's address as the kernel log writes it, without function."""
    return f"{domain:04x}:{bus:02x}:{device:02x}"
