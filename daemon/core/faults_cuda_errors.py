"""CUDA's errors by number, name and words, with what cures each."""

from dataclasses import dataclass

from daemon.core.faults_values import Label, Remedy

_RESTART, _REBUILD, _DRIVER, _REBOOT = (
    Remedy.PROCESS_RESTART,
    Remedy.ENGINE_REBUILD,
    Remedy.DRIVER_ACTION,
    Remedy.HOST_REBOOT,
)


@dataclass(frozen=True, slots=True)
class CudaError:
    """One of CUDA's errors. `words` is what cudaGetErrorString begins with, lower case."""

    number: int
    names: tuple[str, ...]
    words: tuple[str, ...]
    remedy: Remedy
    label: Label
    sticky: bool
    """Whether the context, and with it the process, is lost."""


def _error(number: int, name: str, words: str, remedy: Remedy, label: Label, *, sticky: bool = False) -> CudaError:
    return CudaError(number, tuple(name.split("|")), tuple(words.split("|")), remedy, label, sticky)


CUDA_ERRORS: tuple[CudaError, ...] = (
    _error(2, "cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", "out of memory", _REBUILD, Label.CUDA_OOM),
    _error(3, "cudaErrorInitializationError|CUDA_ERROR_NOT_INITIALIZED", "initialization error", _RESTART, Label.CUDA_UNKNOWN),
    _error(
        35,
        "cudaErrorInsufficientDriver",
        "cuda driver version is insufficient|the nvidia driver on your system is too old",
        _DRIVER,
        Label.DRIVER_MISMATCH,
    ),
    _error(
        46,
        "cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "cuda-capable device(s) is/are busy or unavailable|all cuda-capable devices are busy or unavailable",
        _RESTART,
        Label.CUDA_DEVICES_UNAVAILABLE,
    ),
    _error(
        100,
        "cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE",
        "no cuda-capable device is detected|no cuda gpus are available|found no nvidia driver"
        "|attempting to deserialize object on a cuda device",
        _DRIVER,
        Label.NO_DEVICE,
    ),
    _error(101, "cudaErrorInvalidDevice|CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal", _REBUILD, Label.CONFIG),
    _error(
        209,
        "cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available",
        _REBUILD,
        Label.CONFIG,
    ),
    _error(
        214,
        "cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
        "uncorrectable ecc error encountered",
        _REBOOT,
        Label.CUDA_ECC,
        sticky=True,
    ),
    _error(
        222,
        "cudaErrorUnsupportedPtxVersion",
        "the provided ptx was compiled with an unsupported toolchain",
        _REBUILD,
        Label.CONFIG,
    ),
    _error(304, "cudaErrorOperatingSystem|CUDA_ERROR_OPERATING_SYSTEM", "os call failed", _RESTART, Label.NO_DEVICE),
    _error(500, "cudaErrorSymbolNotFound|CUDA_ERROR_NOT_FOUND", "named symbol not found", _DRIVER, Label.NO_DEVICE),
    _error(600, "cudaErrorNotReady|CUDA_ERROR_NOT_READY", "device not ready", _RESTART, Label.CUDA_DEVICE_NOT_READY),
    _error(
        700,
        "cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access",
        _RESTART,
        Label.CUDA_ILLEGAL_ADDRESS,
        sticky=True,
    ),
    _error(
        701,
        "cudaErrorLaunchOutOfResources|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "too many resources requested for launch",
        _REBUILD,
        Label.CONFIG,
    ),
    _error(
        702,
        "cudaErrorLaunchTimeout|CUDA_ERROR_LAUNCH_TIMEOUT",
        "the launch timed out and was terminated",
        _RESTART,
        Label.CUDA_LAUNCH_TIMEOUT,
        sticky=True,
    ),
    _error(
        710,
        "cudaErrorAssert|CUDA_ERROR_ASSERT",
        "device-side assert triggered",
        _RESTART,
        Label.CUDA_DEVICE_ASSERT,
        sticky=True,
    ),
    _error(
        714,
        "cudaErrorHardwareStackError|CUDA_ERROR_HARDWARE_STACK_ERROR",
        "hardware stack error",
        _RESTART,
        Label.CUDA_LAUNCH_FAILURE,
        sticky=True,
    ),
    _error(
        715,
        "cudaErrorIllegalInstruction|CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "an illegal instruction was encountered",
        _RESTART,
        Label.CUDA_LAUNCH_FAILURE,
        sticky=True,
    ),
    _error(
        716,
        "cudaErrorMisalignedAddress|CUDA_ERROR_MISALIGNED_ADDRESS",
        "misaligned address",
        _RESTART,
        Label.CUDA_MISALIGNED_ADDRESS,
        sticky=True,
    ),
    _error(
        717,
        "cudaErrorInvalidAddressSpace|CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "operation not supported on global/shared address space",
        _RESTART,
        Label.CUDA_ILLEGAL_ADDRESS,
        sticky=True,
    ),
    _error(
        718,
        "cudaErrorInvalidPc|CUDA_ERROR_INVALID_PC",
        "invalid program counter",
        _RESTART,
        Label.CUDA_LAUNCH_FAILURE,
        sticky=True,
    ),
    _error(
        719,
        "cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED",
        "unspecified launch failure",
        _RESTART,
        Label.CUDA_LAUNCH_FAILURE,
        sticky=True,
    ),
    _error(800, "cudaErrorNotPermitted|CUDA_ERROR_NOT_PERMITTED", "operation not permitted", _REBUILD, Label.CONFIG),
    _error(802, "cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized", _DRIVER, Label.NO_DEVICE),
    _error(
        803,
        "cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
        _DRIVER,
        Label.DRIVER_MISMATCH,
    ),
    _error(
        804,
        "cudaErrorCompatNotSupportedOnDevice|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "forward compatibility was attempted on non supported hw",
        _DRIVER,
        Label.DRIVER_MISMATCH,
    ),
    _error(
        999, "cudaErrorUnknown|CUDA_ERROR_UNKNOWN", "unknown error|cuda unknown error", _RESTART, Label.CUDA_UNKNOWN, sticky=True
    ),
)
"""Numbers are the runtime's; of the driver's, those used here are equal. Errors that are not here are reported as they are."""
