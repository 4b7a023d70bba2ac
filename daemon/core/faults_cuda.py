"""Exceptions of the engine, and the few words with which other programs report the same errors.

An exception counts by its type and by how its message begins. Text in the middle of a message proves nothing: an
exception that quotes what a person wrote must not restart an engine.
"""

import re

from daemon.core.faults_cuda_errors import CUDA_ERRORS, CudaError
from daemon.core.faults_log import LogLine, Severity, program_line
from daemon.core.faults_values import Label, Remedy, Verdict

_REBUILD = Remedy.ENGINE_REBUILD


_BY_NUMBER = {error.number: error for error in CUDA_ERRORS}
_BY_NAME = {name: error for error in CUDA_ERRORS for name in error.names}
_BY_WORDS = tuple((words, error) for error in CUDA_ERRORS for words in error.words)

_BLAS = {
    "ALLOC_FAILED": (_REBUILD, Label.CUDA_OOM),
    "NOT_INITIALIZED": (_REBUILD, Label.CUDA_OOM),
    "ARCH_MISMATCH": (_REBUILD, Label.CONFIG),
}

# How a message of an exception may begin. Whatever follows the groups is not read.
_OOM = re.compile(r"(?:\w+ )?CUDA out of memory\b|CUDA error: out of memory\b|Allocation on device\b")
_RAISED = re.compile(
    r"(?:Worker failed with error ['\"]|what\(\):\s+)?(?:CUDA(?: driver| runtime)? error|CUDA failure|Triton Error \[CUDA\])"
    r"(?::|\s+\(?(?P<number>\d{1,3})\b\)?(?: at \S+)?\s*:)\s*(?P<words>.*)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?P<name>cudaError\w+|CUDA_ERROR_\w+)\b")
_NUMBERED = re.compile(r"Error (?P<number>\d{1,3}): (?P<words>.*)")
_TORCH_INIT = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver on your system|The NVIDIA driver on your system is too old"
    r"|CUDA unknown error - |CUDA driver version is insufficient for CUDA runtime version|no CUDA-capable device is detected"
    r"|Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False"
)
_CALLED = re.compile(
    r"(?:failed call to cu(?:da)?[A-Z]\w*(?:\(\S*\))?:\s*|cu(?:da)?[A-Z]\w*(?:\(\S*\))?:?\s*(?:failed|returned|failure)[\s:=]*)"
    r"(?:with )?(?:error )?(?:code )?[\s:=]*(?P<code>CUDA_ERROR_[A-Z_]+|cudaError[A-Z]\w*|\d{1,3})\b"
)
_INIT = re.compile(r"(?:CUDA initialization: |(?=Unexpected error from cudaGetDeviceCount\(\)))(?P<words>.*)", re.DOTALL)
_INIT_NUMBER = re.compile(r"(?:^|\. |\? )Error (?P<number>\d{1,3}): ")
_LIBRARY = re.compile(
    r"(?:cuBLAS error: |cuDNN error: |CUDA error: )?(?P<lib>CUBLAS|CUDNN|CUSOLVER|CUFFT)_STATUS_(?P<status>[A-Z_]+)"
)
_NCCL_TEXT = re.compile(
    r"(?:NCCL error\b|ncclUnhandledCudaError\b|ncclSystemError\b|ncclInternalError\b|ncclRemoteError\b"
    r"|Failed: Cuda error \S*custom_all_reduce\.cuh:\d+ '"
    r"|\S+:\d+:\d+ \[\d+\] \S+:\d+ NCCL WARN Cuda failure )"
)
_ENGINE_DEAD = re.compile(
    r"(?:EngineCore encountered an issue\b|Engine core initialization failed\b|EngineCore died unexpectedly\b"
    r"|Engine process failed to start\b)"
)
_NO_ROOM = re.compile(
    r"Insufficient VRAM in split for model and cache|No available memory for the cache blocks|Free memory on device \S* ?\("
    r"|To serve at least one request with the models?'s max seq len"
)
_HANG = re.compile(
    r"Timed out waiting for worker|RPC call to \w+ timed out|CUDA context hung\b"
    r"|(?:\[E\d+ \S+ ProcessGroupNCCL\.cpp:\d+\] )?\[(?:PG [^\]]*)?Rank \d+\]:? Watchdog caught collective operation timeout"
)
_CONFIG = re.compile(r"UVA is not available\b")
_SAYS = (
    (_NCCL_TEXT, Remedy.ENGINE_REBUILD, Label.NCCL_ERROR),
    (_ENGINE_DEAD, Remedy.ENGINE_REBUILD, Label.ENGINE_DEAD),
    (_HANG, Remedy.PROCESS_RESTART, Label.ENGINE_HANG),
    (_CONFIG, Remedy.ENGINE_REBUILD, Label.CONFIG),
)
_NOT_BUILT = re.compile(r"Torch not compiled with CUDA enabled$")
_MISSING = re.compile(
    r"(?P<library>lib(?:cuda|nvidia-ml)|lib(?:cudart|cublas|cublasLt|cudnn|nccl|nvrtc|cusparse|cusolver|cufft|curand))\.so[.\d]*"
    r": cannot open shared object file"
)
_DRIVER_LIBRARIES = frozenset({"libcuda", "libnvidia-ml"})
"""Those that come with the driver; the others come with torch."""

_DEVICE_TYPES = frozenset(
    {
        "RuntimeError", "AcceleratorError", "OutOfMemoryError", "CUDAError", "CudaError", "CUDARuntimeError", "CUDADriverError",
        "DistBackendError", "DistError", "EngineDeadError", "MQEngineDeadError", "AsyncEngineDeadError", "UserWarning",
        "TimeoutError", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclRemoteError",
    }
)  # fmt: skip
"""Types whose message is written by torch, CUDA or an engine. A ValueError may hold anything a person wrote."""
_MEMORY_TYPES = frozenset({"ValueError", "RuntimeError"})


def cuda_error(number: int) -> CudaError | None:
    """The entry for a CUDA error number, as `torch.AcceleratorError.error_code` gives it."""
    return _BY_NUMBER.get(number)


def _by_words(words: str) -> CudaError | None:
    lowered = words.lower().lstrip()
    return next((error for text, error in _BY_WORDS if lowered.startswith(text)), None)


def _judge_error(error: CudaError | None, line: str) -> Verdict:
    if error is None:  # CUDA reported something that no rule knows: the process should not go on with it
        return Verdict(Remedy.PROCESS_RESTART, Label.CUDA_UNKNOWN, (line,))
    return Verdict(error.remedy, error.label, (line,))


def _initialization(words: str, line: str) -> Verdict:
    """CUDA never came up in this process: an unknown error here is a missing device node or a stale driver."""
    number = _INIT_NUMBER.search(words)
    error = _BY_NUMBER.get(int(number["number"])) if number else _by_words(words)
    if error is None or error.label is Label.CUDA_UNKNOWN:
        return Verdict(Remedy.DRIVER_ACTION, Label.NO_DEVICE, (line,))
    return _judge_error(error, line)


def _called(message: str) -> CudaError | None:
    """A call of CUDA's own that failed with a code: `cuInit(0) failed: CUDA_ERROR_NO_DEVICE`."""
    found = _CALLED.match(message)
    if found is None:
        return None
    code = found["code"]
    return _BY_NUMBER.get(int(code)) if code.isdecimal() else _BY_NAME.get(code)


def _cuda_words(kind: str, message: str, line: str) -> Verdict | None:
    library = _LIBRARY.match(message)
    if library:
        remedy, label = _BLAS.get(library["status"], (Remedy.PROCESS_RESTART, Label.CUDA_LAUNCH_FAILURE))
        return Verdict(remedy, label, (line,))
    if _OOM.match(message):
        return Verdict(Remedy.ENGINE_REBUILD, Label.CUDA_OOM, (line,))
    initialization = _INIT.match(message)
    if initialization:
        return _initialization(initialization["words"], line)
    named = _NAMED.match(message)
    if named and (kind or named["name"] in _BY_NAME):
        return _judge_error(_BY_NAME.get(named["name"]), line)
    raised = _RAISED.match(message)
    if raised:
        number = raised["number"]
        inner = _NAMED.match(raised["words"])
        error = _BY_NAME.get(inner["name"]) if inner else None
        error = error or _by_words(raised["words"]) or (_BY_NUMBER.get(int(number)) if number else None)
        return _judge_error(error, line) if error or kind else None
    numbered = _NUMBERED.match(message)
    if numbered and (error := _BY_NUMBER.get(int(numbered["number"]))) is not None and _by_words(numbered["words"]) is error:
        return _judge_error(error, line)
    error = _by_words(message) if _TORCH_INIT.match(message) else _called(message)
    return _judge_error(error, line) if error else None


def _unusable(kind: str, message: str, line: str) -> Verdict | None:
    """An installation that can use no GPU."""
    missing = _MISSING.match(message)
    if kind != "AssertionError" and missing:
        if missing["library"] in _DRIVER_LIBRARIES:
            return Verdict(Remedy.DRIVER_ACTION, Label.NO_DEVICE, (line,))
        return Verdict(Remedy.ENGINE_REBUILD, Label.CONFIG, (line,))
    if kind == "AssertionError" and _NOT_BUILT.match(message):
        return Verdict(Remedy.ENGINE_REBUILD, Label.CONFIG, (line,))
    return None


def _by_kind(kind: str) -> tuple[Remedy, Label] | None:
    """What an exception's type alone says."""
    if kind.startswith("nccl"):
        return Remedy.ENGINE_REBUILD, Label.NCCL_ERROR
    if kind.endswith("EngineDeadError"):
        return Remedy.ENGINE_REBUILD, Label.ENGINE_DEAD
    return (Remedy.ENGINE_REBUILD, Label.CUDA_OOM) if kind == "OutOfMemoryError" else None


def judge_message(kind: str, message: str, code: int | None = None) -> Verdict | None:
    """The verdict on an exception of type `kind` (its last name alone), or None where it says nothing about a device.

    `code` is the CUDA error number where the exception carries one; it comes before the text.
    """
    line = f"{kind}: {message}" if kind else message
    if kind in {"ImportError", "OSError", "AssertionError"}:
        return _unusable(kind, message, line)
    if kind and kind not in _DEVICE_TYPES | _MEMORY_TYPES:
        return None
    if _NO_ROOM.match(message):
        return Verdict(Remedy.ENGINE_REBUILD, Label.CUDA_OOM, (line,))
    if kind and kind not in _DEVICE_TYPES:
        return None
    if code is not None and code in _BY_NUMBER:
        return _judge_error(_BY_NUMBER[code], line)
    named = _by_kind(kind)
    if named is not None:
        return Verdict(*named, (line,))
    for pattern, remedy, label in _SAYS:
        if pattern.match(message):
            return Verdict(remedy, label, (line,))
    return _cuda_words(kind, message, line)


_HEAD = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Warning|Expired)(?:_\w+)?)(?:: (?P<message>.*))?$"
)
_ENGINE_LINE = re.compile(r"\(EngineCore\w* pid=\d+\) ERROR [\d: -]+\[core\.py:\d+\] ")
_LOCATED_WARNING = re.compile(r"\S+:\d+: (?=\w*Warning: )")


def judge_traceback(text: str) -> tuple[Verdict, ...]:
    """Verdicts on an exception as text. After a line that raises something that is no device's, the rest is its message."""
    verdicts: list[Verdict] = []
    headed = False
    for raw in text.splitlines():
        engine = _ENGINE_LINE.match(raw)
        line = _LOCATED_WARNING.sub("", program_line(raw.strip()).text)
        head = _HEAD.match(line)
        if head is None:
            verdict = judge_message("", line)
            headed = headed or verdict is not None
        elif head["kind"].endswith("Warning") and head["kind"] != "UserWarning":
            continue
        else:
            verdict = judge_message(head["kind"], head["message"] or "")
            if verdict is None and engine:  # whatever an engine's core let escape has ended it
                verdict = Verdict(Remedy.ENGINE_REBUILD, Label.ENGINE_DEAD, (line,))
            if verdict is None and not headed and not head["kind"].endswith("Warning"):
                return tuple(verdicts)
            headed = True
        if verdict is not None:
            verdicts.append(verdict)
    return tuple(verdicts)


_OLLAMA = re.compile(
    r"(?:Error: )?(?:an error was encountered while running the model"
    r"|llama runner process has terminated(?P<dead>)): (?P<message>.*)"
)
_GGML = re.compile(
    r"(?:\w+: )?(?:failed to initialize CUDA: (?P<init>.*)"
    r"|(?:error loading model: )?unable to allocate CUDA\d+ buffer\b(?P<buffer>)"
    r"|(?:allocating [\d.]+ MiB on device \d+: )?cudaMalloc failed: (?P<malloc>.*))"
)
_LIBRARY_INIT = re.compile(
    r"(?:Unable to load cudart library|Unable to load CUDA driver library|unknown error initializing cuda driver library) \S+:"
    r" (?:cuda driver library|cudart|nvcuda) init failure: \d+(?:\. see https\S+ for more information)?"
)


def judge_program_line(line: LogLine) -> Verdict | None:
    """The verdict on another program's log line. Programs log requests as info, so of that only one exact form counts."""
    found = _LIBRARY_INIT.fullmatch(line.text)
    if found:
        return Verdict(Remedy.DRIVER_ACTION, Label.NO_DEVICE, (line.text,))
    if line.severity is Severity.CHATTER:
        return None
    wrapped = _OLLAMA.match(line.text)
    text = wrapped["message"] if wrapped else line.text
    ggml = _GGML.match(text)
    if ggml:
        if ggml["init"] is not None:
            return _initialization(ggml["init"], line.text)
        return Verdict(Remedy.ENGINE_REBUILD, Label.CUDA_OOM, (line.text,))
    head = _HEAD.match(text)
    verdict = judge_message(head["kind"], head["message"] or "") if head else judge_message("", text)
    if verdict is None and wrapped and wrapped["dead"] is not None:
        return Verdict(Remedy.ENGINE_REBUILD, Label.ENGINE_DEAD, (line.text,))
    return verdict
