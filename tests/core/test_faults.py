"""Fault classification: the corpus, the rules one by one, and that no text a person wrote ever restarts anything."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.faults import (
    Channel,
    KernelLines,
    Label,
    NvmlFailed,
    Ours,
    Platform,
    Probed,
    ProbeOutcome,
    Raised,
    Remedy,
    SmiOutput,
    Stalled,
    Text,
    WindowsEvent,
    judge,
)
from daemon.core.faults_cuda import cuda_error
from daemon.core.faults_cuda_errors import CUDA_ERRORS, CudaError
from daemon.core.faults_kernel import parse_xid
from tests.core.run_fault_corpus import false_alarms, main, missed, read_corpus, replay

CORPUS = Path(__file__).parent.parent / "cases" / "fault_corpus.jsonl"


def kernel(*lines: str, ours: Ours | None = None) -> Remedy:
    return judge(KernelLines(lines), ours).remedy


def test_corpus_replayed_record_by_record_gives_every_remedy() -> None:
    outcomes = replay(read_corpus(CORPUS))
    assert len(outcomes) == 121
    assert [o.record.id for o in outcomes if not o.passed] == []
    assert (false_alarms(outcomes), missed(outcomes)) == (0, 0)


def test_corpus_runner_on_a_wrong_record_names_it_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "X1", "channel": "dmesg", "text": "all is well", "label": "host_oom", "needs": "process_restart"},
        {
            "id": "X2",
            "channel": "python-exception",
            "text": "CUDA error: unknown error",
            "label": "cuda_unknown",
            "needs": "none",
        },
        {"id": "X3", "channel": "dmesg", "text": "all is well", "label": "benign_noise", "needs": "none"},
    ]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert main(str(file)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["false_alarms=1 missed=1", "1 passed, 2 failed"]
    assert [line.split(":")[0] for line in lines[:2]] == ["X1", "X2"]


def test_corpus_lines_under_other_stamps_keep_their_remedies() -> None:
    """What stands in front of a kernel line is never read: every dialect of dmesg and syslog gives the same verdict."""
    stamps = (
        "[  +0.000012] ",
        "[12345.678901] ",
        "[12345.678901][ T1234] ",
        "[Sat Oct 12 18:35:32 2024] ",
        "2026-10-07T22:30:39,123456+11:00 ",
        "kern  :err   : [    1.265648] ",
        "<3>",
        "févr. 24 16:22:15 hôte-1 kernel: ",
    )
    for record in read_corpus(CORPUS):
        if record.channel is Channel.DMESG:
            bare = [line for line in record.text.splitlines() if line.strip()]
            for stamp in stamps:
                if not any(line.lstrip().startswith("[") or line[:4].isdigit() for line in bare):
                    verdict = judge(Text(Channel.DMESG, "\n".join(stamp + line for line in bare)))
                    assert verdict.remedy is record.needs, (record.id, stamp)


@pytest.mark.parametrize("errno", ["-22", "-2", "-11", "-1", "-19", "-75"])
@pytest.mark.parametrize("function", ["dxgkio_query_adapter_info", "dxgkio_is_feature_enabled", "dxgkio_reserve_gpu_va"])
def test_routine_dxgkrnl_function_with_any_errno_needs_nothing(function: str, errno: str) -> None:
    assert kernel(f"misc dxg: dxgk: {function}: Ioctl failed: {errno}") is Remedy.NONE


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75", Remedy.WSL_SHUTDOWN),
        ("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -22", Remedy.WSL_SHUTDOWN),
        ("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -512", Remedy.NONE),
        ("misc dxg: dxgk: dxgvmb_send_create_process: create_process returned 0 handle", Remedy.WSL_SHUTDOWN),
        ("misc dxg: dxgk: dxgkio_lock2: Ioctl failed: -19", Remedy.WSL_SHUTDOWN),
        ("misc dxg: dxgvmb_send_submit_command: failed ffffffed", Remedy.WSL_SHUTDOWN),
        ("misc dxg: dxgk: dxgvmb_send_sync_msg: wait_for_completion failed: fffffe00", Remedy.NONE),
        ("misc dxg: dxgk: dxgvmb_send_async_msg: vmbus_sendpacket failed: fffffff5", Remedy.PROCESS_RESTART),
        ("misc dxg: dxgk: dxgkio_escape: Ioctl failed: -22", Remedy.NONE),
        ("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12", Remedy.NONE),
        ("misc dxg: dxgk: dxgkio_brand_new_thing: Ioctl failed: -5", Remedy.NONE),
        ("hv_vmbus: registering driver dxgkrnl", Remedy.NONE),
    ],
)
def test_dxgkrnl_line_is_judged_by_function_then_errno(line: str, remedy: Remedy) -> None:
    assert kernel(line) is remedy


def test_xid_of_another_process_needs_nothing_where_our_pids_are_known() -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 31, pid=2817, name=python3, Ch 00000008, intr 00000000. MMU Fault"
    assert kernel(line) is Remedy.PROCESS_RESTART
    assert kernel(line, ours=Ours(pids=frozenset({2817}))) is Remedy.PROCESS_RESTART
    assert kernel(line, ours=Ours(pids=frozenset({4}))) is Remedy.NONE


def test_xid_of_a_card_that_is_not_ours_needs_nothing() -> None:
    line = "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert kernel(line, ours=Ours(gpus=frozenset({"0000:01:00"}))) is Remedy.NONE
    assert kernel(line, ours=Ours(gpus=frozenset({"0000:02:00"}))) is Remedy.HOST_REBOOT


def test_device_wide_xid_counts_whatever_pid_it_names() -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 79, pid=99, name=Xorg, GPU has fallen off the bus."
    assert kernel(line, ours=Ours(pids=frozenset({4}))) is Remedy.HOST_REBOOT


def test_xid_154_overrides_the_table_for_its_card_alone() -> None:
    lost = "NVRM: Xid (PCI:0000:0{}:00): 79, GPU has fallen off the bus."
    stated = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"
    assert kernel(lost.format(1), stated) is Remedy.NONE
    assert kernel(lost.format(2), stated) is Remedy.HOST_REBOOT


@pytest.mark.parametrize(
    "line", ["r8169 0000:06:00.0 eth0: RTL8125B, XID 641, IRQ 158", "NVRM: XID (PCI:1): 79, x", "NVRM: Xid: 79"]
)
def test_line_that_is_no_strict_xid_is_none(line: str) -> None:
    assert parse_xid(line) is None
    assert kernel(line) is Remedy.NONE


def test_oom_kill_counts_only_for_our_processes() -> None:
    line = "Out of memory: Killed process 4242 (python3) total-vm:2120000kB"
    assert kernel(line, ours=Ours(pids=frozenset({4242}))) is Remedy.PROCESS_RESTART
    assert kernel(line, ours=Ours(pids=frozenset({1}))) is Remedy.NONE


def test_hung_task_of_a_slow_disk_needs_nothing() -> None:
    assert kernel("INFO: task jbd2/sda1-8:310 blocked for more than 120 seconds.") is Remedy.NONE
    assert kernel("INFO: task python3:310 blocked for more than 120 seconds.") is Remedy.HOST_REBOOT
    assert kernel("INFO: task python3:310 blocked for more than 120 seconds.", ours=Ours(pids=frozenset({1}))) is Remedy.NONE


@pytest.mark.parametrize("error", CUDA_ERRORS, ids=lambda error: str(error.number))
def test_cuda_error_by_code_and_by_words_gives_the_same_remedy(error: CudaError) -> None:
    by_code = judge(Raised("AcceleratorError", "whatever", error.number))
    by_words = judge(Raised("AcceleratorError", f"CUDA error: {error.words[0]}\nSearch for `{error.names[0]}' in https://x"))
    assert by_code.remedy is by_words.remedy is error.remedy
    assert by_code.label is by_words.label is error.label


def test_sticky_errors_are_those_that_poison_the_process() -> None:
    sticky = {error.number for error in CUDA_ERRORS if error.sticky}
    assert sticky == {214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999}
    assert (found := cuda_error(2)) is not None
    assert not found.sticky


@pytest.mark.parametrize(
    ("kind", "message", "remedy"),
    [
        (
            "OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
            Remedy.ENGINE_REBUILD,
        ),
        ("RuntimeError", "Insufficient VRAM in split for model and cache", Remedy.ENGINE_REBUILD),
        ("TimeoutError", "Timed out waiting for worker", Remedy.PROCESS_RESTART),
        ("RuntimeError", "No CUDA GPUs are available", Remedy.DRIVER_ACTION),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Remedy.ENGINE_REBUILD),
        ("RuntimeError", "CUDA error: an error nobody has heard of", Remedy.PROCESS_RESTART),
        ("RuntimeError", "cuInit(0) failed: CUDA_ERROR_NO_DEVICE", Remedy.DRIVER_ACTION),
        ("RuntimeError", "cudaGetDeviceCount() returned 35", Remedy.DRIVER_ACTION),
        (
            "RuntimeError",
            "Worker failed with error 'CUDA error: an illegal memory access was encountered'",
            Remedy.PROCESS_RESTART,
        ),
        (
            "UserWarning",
            "CUDA initialization: CUDA unknown error - this may be due to an incorrect environment",
            Remedy.DRIVER_ACTION,
        ),
        ("RuntimeError", "llguidance matcher error", Remedy.NONE),
        ("KeyError", "'CUDA error: unknown error'", Remedy.NONE),
        ("ValueError", "CUDA error: unknown error", Remedy.NONE),
        ("RuntimeError", "bad prompt: CUDA error: unknown error", Remedy.NONE),
    ],
)
def test_exception_is_judged_by_type_and_beginning(kind: str, message: str, remedy: Remedy) -> None:
    assert judge(Raised(kind, message)).remedy is remedy


@pytest.mark.parametrize(
    ("call", "code", "remedy"),
    [
        ("nvmlDeviceGetUtilizationRates", 999, Remedy.NONE),
        ("nvmlDeviceGetMemoryInfo", 999, Remedy.PROCESS_RESTART),
        ("nvmlDeviceGetFanSpeed", 3, Remedy.NONE),
        ("nvmlDeviceGetFanSpeed", 13, Remedy.NONE),
        ("nvmlDeviceGetPowerUsage", 15, Remedy.HOST_REBOOT),
        ("nvmlInit", 17, Remedy.WSL_SHUTDOWN),
        ("nvmlInit", 18, Remedy.HOST_REBOOT),
        ("nvmlInit", 9, Remedy.DRIVER_ACTION),
        ("nvmlInit", 31337, Remedy.NONE),
    ],
)
def test_nvml_code_counts_by_what_was_called(call: str, code: int, remedy: Remedy) -> None:
    assert judge(NvmlFailed(call, code)).remedy is remedy


def test_smi_table_with_missing_cells_needs_nothing() -> None:
    table = "| ERR!  48C    P8     3W /  N/A |    161MiB /  8192MiB |     N/A      Default |\n[Not Supported], [N/A], 12"
    assert judge(SmiOutput(table)).remedy is Remedy.NONE
    assert (
        judge(SmiOutput("Unable to determine the device handle for GPU 0000:05:00.0: Unknown Error")).remedy is Remedy.HOST_REBOOT
    )


def test_windows_event_counts_by_number_in_any_language() -> None:
    assert judge(WindowsEvent("Display", 4101, "Der Anzeigetreiber reagiert nicht mehr")).label is Label.HOST_TDR
    assert judge(WindowsEvent("nvlddmkm", 153, "Error occurred on GPUID: 100")).remedy is Remedy.NONE
    assert judge(WindowsEvent("nvlddmkm", 153, "Restarting TDR occurred on GPUID:100")).remedy is Remedy.NONE
    stated = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert judge(WindowsEvent("nvlddmkm", 14, stated)).remedy is Remedy.NONE
    utf16 = "Error code: Wsl/Service/E_UNEXPECTED".encode("utf-16-le").decode("latin-1")
    assert judge(Text(Channel.WINDOWS_EVENT, utf16)).remedy is Remedy.HOST_REBOOT


@pytest.mark.parametrize(
    ("outcome", "native", "wsl"),
    [
        (ProbeOutcome.WORKS, Remedy.NONE, Remedy.NONE),
        (ProbeOutcome.NO_MEMORY, Remedy.NONE, Remedy.NONE),
        (ProbeOutcome.NO_DEVICE, Remedy.DRIVER_ACTION, Remedy.WSL_SHUTDOWN),
        (ProbeOutcome.FAILED, Remedy.DRIVER_ACTION, Remedy.WSL_SHUTDOWN),
        (ProbeOutcome.TIMED_OUT, Remedy.DRIVER_ACTION, Remedy.WSL_SHUTDOWN),
        (ProbeOutcome.UNKILLABLE, Remedy.HOST_REBOOT, Remedy.WSL_SHUTDOWN),
    ],
)
def test_probe_outcome_depends_on_the_platform(outcome: ProbeOutcome, native: Remedy, wsl: Remedy) -> None:
    assert judge(Probed(outcome)).remedy is native
    assert judge(Probed(outcome), Ours(platform=Platform.WSL)).remedy is wsl


def test_stall_asks_for_a_new_process_and_says_where() -> None:
    verdict = judge(Stalled("prefill", 61.2))
    assert (verdict.remedy, verdict.evidence) == (Remedy.PROCESS_RESTART, ("no progress in prefill for 61 s",))


def test_unit_lines_of_other_units_need_nothing() -> None:
    text = "Aug 20 13:37:51 host systemd[1]: snapd.service: Watchdog timeout (limit 5min)!"
    assert judge(Text(Channel.JOURNAL, text), Ours(unit="exl3d.service")).remedy is Remedy.NONE
    assert judge(Text(Channel.JOURNAL, text), Ours(unit="snapd.service")).remedy is Remedy.PROCESS_RESTART


ALARMING = tuple(
    line for record in read_corpus(CORPUS) if record.needs is not Remedy.NONE for line in record.text.splitlines() if line.strip()
)
"""Every line that is a fault where it belongs: the worst a person can paste into a prompt."""

prompts = st.one_of(
    st.sampled_from(ALARMING), st.text(max_size=80), st.tuples(st.text(max_size=20), st.sampled_from(ALARMING)).map("\n".join)
)


@given(prompt=prompts)
def test_prompt_quoted_in_a_log_never_gives_a_remedy(prompt: str) -> None:
    """Engines log requests, as a repr, as JSON or as raw lines that follow an info line; tracebacks quote them."""
    quotations = (
        f"INFO 01-17 21:03:52 [logger.py:40] Received request chatcmpl-1: prompt: {prompt!r}, params: x",
        f"INFO 01-17 21:03:52 [logger.py:40] Received request chatcmpl-1: prompt:\n{_indented_as_is(prompt)}",
        f"Sep 05 04:38:45 host exl3d[12]: request refused: {prompt!r}",
        f"Sep 05 04:38:45 host exl3d[12]: {json.dumps({'level': 'error', 'prompt': prompt})}",
        f"2026-05-01T20:54:16.988Z ERROR template failed on {prompt!r}",
    )
    for text in quotations:
        assert judge(Text(Channel.JOURNAL, text)).remedy is Remedy.NONE, text
    for kind in ("ValueError", "KeyError", "jinja2.exceptions.TemplateError", "RuntimeError"):
        assert judge(Text(Channel.PYTHON_EXCEPTION, f"{kind}: cannot use {prompt!r}")).remedy is Remedy.NONE
        assert judge(Raised(kind.rpartition(".")[2], f"cannot use {prompt!r}")).remedy is Remedy.NONE
    assert judge(Text(Channel.PYTHON_EXCEPTION, f"ValueError: cannot use this:\n{prompt}")).remedy is Remedy.NONE


def _indented_as_is(prompt: str) -> str:
    """A logger that writes raw lines gives them no stamp of its own; lines that bring one are escaped by every journal."""
    stamped = (
        "[",
        "<",
        "(",
        "time=",
        "INFO",
        "WARN",
        "ERROR",
        "Sep",
        "Aug",
        "Mar",
        "april",
        "20",
        "kernel",
        "systemd",
        "1:",
        "|",
    )
    return "\n".join(line for line in prompt.splitlines() if not line.strip().startswith(stamped))


@given(channel=st.sampled_from(list(Channel)), text=st.text())
def test_arbitrary_text_on_any_channel_never_raises(channel: Channel, text: str) -> None:
    assert isinstance(judge(Text(channel, text)).remedy, Remedy)


@given(text=st.lists(st.one_of(st.sampled_from(ALARMING), st.text(max_size=40)), max_size=8).map("\n".join))
def test_mixtures_of_alarming_lines_never_raise(text: str) -> None:
    for channel in Channel:
        judge(Text(channel, text))


@given(text=st.text(alphabet=st.characters(exclude_characters="\n\r"), max_size=60))
def test_arbitrary_text_in_a_structured_field_needs_nothing(text: str) -> None:
    assert judge(Raised("ValueError", text)).remedy is Remedy.NONE or text.startswith(
        ("No available memory", "Free memory", "Insufficient")
    )
    assert judge(NvmlFailed(text, 3)).remedy is Remedy.NONE


def test_numbers_of_absurd_length_do_not_raise() -> None:
    digits = "9" * 5000
    for line in (
        f"NVRM: Xid (PCI:0000:01:00): {digits}, pid={digits}, name=x",
        f"NVRM: Xid (PCI:0000:01:00): 31, pid={digits}, name=x",
        f"misc dxg: dxgk: dxgkio_x: Ioctl failed: -{digits}",
        f"Out of memory: Killed process {digits} (python3)",
        f"INFO: task python:{digits} blocked for more than 120 seconds",
    ):
        judge(KernelLines((line,)))


@pytest.mark.parametrize(
    "line",
    ["cudaMalloc 100 MiB", "cudaGraphs 700 captured", "cuBLAS version 12 loaded", "CUDA error reporting is on", "out of memory?"],
)
def test_program_line_that_only_mentions_cuda_needs_nothing(line: str) -> None:
    assert judge(Text(Channel.JOURNAL, line)).remedy is Remedy.NONE


@pytest.mark.parametrize(
    ("channel", "text", "remedy", "label"),
    [
        (
            Channel.PYTHON_EXCEPTION,
            "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
            1,
            "cuda_illegal_address",
        ),
        (Channel.PYTHON_EXCEPTION, "RuntimeError: Triton Error [CUDA]: out of memory", 2, "cuda_oom"),
        (Channel.PYTHON_EXCEPTION, "ImportError: libcudart.so.12: cannot open shared object file: No such file", 2, "config"),
        (Channel.PYTHON_EXCEPTION, "OSError: libcuda.so.1: cannot open shared object file: No such file", 4, "no_device"),
        (Channel.PYTHON_EXCEPTION, "AssertionError: Torch not compiled with CUDA enabled", 2, "config"),
        (Channel.NVML, "nvmlDeviceGetMemoryInfo failed: GPU is lost", 5, "gpu_fell_off_bus"),
        (Channel.NVML, "failed to init nvml: Driver/library version mismatch", 5, "driver_mismatch"),
        (Channel.NVML, "could not start NVML: ERROR_DRIVER_NOT_LOADED", 4, "nvml_unavailable"),
        (Channel.DMESG, "NVRM: rm_init_adapter failed, device minor number 0", 4, "no_device"),
        (Channel.DMESG, "NVRM: None of the NVIDIA devices were initialized.", 4, "no_device"),
        (Channel.WINDOWS_EVENT, "VIDEO_TDR_FAILURE (116)", 4, "host_bugcheck"),
    ],
)
def test_the_same_fault_in_other_words_is_known_too(channel: Channel, text: str, remedy: int, label: str) -> None:
    verdict = judge(Text(channel, text))
    assert (verdict.remedy, verdict.label.value) == (Remedy(remedy), label)


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        (Channel.PYTHON_EXCEPTION, "ValueError: Triton Error [CUDA]: out of memory"),
        (Channel.PYTHON_EXCEPTION, "AssertionError: the user wrote: Torch not compiled with CUDA enabled"),
        (Channel.PYTHON_EXCEPTION, "ImportError: libportaudio.so.2: cannot open shared object file: No such file"),
        (Channel.PYTHON_EXCEPTION, "OSError: cannot find libcuda.so.1: cannot open shared object file"),
        (Channel.NVML, "error reading GPU 0 temperature: Not Supported"),
        (Channel.NVML, "Unable to get device count: Unknown Error"),
        (Channel.NVML, "prompt: tell me why: GPU is lost in thought about NVML"),
        (Channel.DMESG, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.82.07"),
        (Channel.WINDOWS_EVENT, "The driver VIDEO_TDR_FAILURES.SYS was loaded"),
    ],
)
def test_words_that_only_resemble_a_fault_call_for_nothing(channel: Channel, text: str) -> None:
    assert judge(Text(channel, text)).remedy is Remedy.NONE


def test_probe_names_the_cause_where_cuda_does() -> None:
    assert judge(Probed(ProbeOutcome.FAILED, 803)).label is Label.DRIVER_MISMATCH
    assert judge(Probed(ProbeOutcome.FAILED, 46)).remedy is Remedy.NONE
    assert judge(Probed(ProbeOutcome.FAILED, 719)).label is Label.PROBE_FAILED
