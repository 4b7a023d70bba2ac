"""Verdicts over time: the sequences that made other watchdogs restart healthy engines, and the ones that must count once."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from daemon.core.faults import Channel, Evidence, KernelLines, Label, Ours, Raised, Remedy, Stalled, Text, Verdict, judge
from daemon.core.faults_fold import (
    Correlation,
    Escalated,
    FoldEffect,
    FoldPolicy,
    Opened,
    OwnKill,
    Seen,
    TimedEvidence,
    correlate,
)

BOOT_BLOCK = (
    "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
    *("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",) * 4,
    *("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",) * 2,
)
MAKE_RESIDENT = KernelLines(("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",))
NOT_READY = Raised("RuntimeError", "CUDA driver error: device not ready")
TRIPLE = (
    "misc dxg: dxgk: dxgvmb_send_sync_msg: vmbus_sendpacket failed: fffffff5",
    "misc dxg: dxgk: create_existing_sysmem: failed set existing pages: fffffff5",
    "misc dxg: dxgk: dxgkio_create_allocation: Ioctl failed: -11",
)
KILLED_WAITER = KernelLines(("misc dxg: dxgk: dxgvmb_send_sync_msg: wait_for_completion failed: fffffe00",))


def seen(t: float, evidence: Evidence, about: str = "") -> Seen:
    return Seen(t, judge(evidence), about)


def fold(events: Iterable[TimedEvidence]) -> tuple[Correlation, list[FoldEffect]]:
    state, effects = Correlation(), list[FoldEffect]()
    for event in events:
        state, new = correlate(state, event)
        effects.extend(new)
    return state, effects


def test_twenty_boot_blocks_open_nothing() -> None:
    state, effects = fold(
        seen(100.0 * block + n, KernelLines((line,))) for block in range(20) for n, line in enumerate(BOOT_BLOCK)
    )
    assert (state.opened, effects) == (0, [])


def test_make_resident_alone_opens_nothing_however_often() -> None:
    state, effects = fold(seen(float(n), MAKE_RESIDENT) for n in range(200))
    assert (state.opened, effects) == (0, [])


def test_make_resident_before_an_exception_is_one_incident_with_a_smaller_budget() -> None:
    _, effects = fold([seen(10.0, MAKE_RESIDENT), seen(10.1, MAKE_RESIDENT), seen(12.0, NOT_READY, "b1")])
    assert len(effects) == 1
    assert isinstance(effects[0], Opened)
    assert effects[0].incident.remedy is Remedy.ENGINE_REBUILD
    assert effects[0].incident.label is Label.CUDA_DEVICE_NOT_READY
    assert sum("make_resident" in line for line in effects[0].incident.evidence) == 2


def test_make_resident_after_the_exception_escalates_the_same_incident() -> None:
    state, effects = fold([seen(12.0, NOT_READY, "b1"), seen(13.0, MAKE_RESIDENT)])
    assert [type(effect) for effect in effects] == [Opened, Escalated]
    assert [effect.incident.remedy for effect in effects] == [Remedy.PROCESS_RESTART, Remedy.ENGINE_REBUILD]
    assert state.opened == 1


def test_make_resident_long_before_an_exception_does_not_matter() -> None:
    _, effects = fold([seen(1.0, MAKE_RESIDENT), seen(12.0, NOT_READY, "b1")])
    assert [effect.incident.remedy for effect in effects] == [Remedy.PROCESS_RESTART]


def test_vmbus_triple_is_one_incident_in_any_grouping() -> None:
    for groups in ([TRIPLE], [(line,) for line in TRIPLE], [TRIPLE[:2], TRIPLE[2:]]):
        state, effects = fold(seen(5.0 + n / 10, KernelLines(tuple(group))) for n, group in enumerate(groups))
        assert len(effects) == 1, groups
        assert state.incident is not None
        assert (state.incident.remedy, state.incident.label, state.incident.count) == (
            Remedy.PROCESS_RESTART,
            Label.DXGKRNL_VMBUS,
            1,
        )


def test_burst_of_the_same_line_counts_once_and_is_counted() -> None:
    line = KernelLines(("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75",))
    state, effects = fold(seen(4.0 * n, line) for n in range(50))
    assert len(effects) == 1
    assert state.incident is not None
    assert state.incident.count == 50
    assert len(state.incident.evidence) <= 24


def test_same_fault_after_a_quiet_time_is_a_second_incident() -> None:
    state, effects = fold([seen(0.0, NOT_READY, "b1"), seen(100.0, NOT_READY, "b2")])
    assert (state.opened, len(effects)) == (2, 2)


def test_fault_of_the_next_engine_within_the_burst_is_a_second_incident() -> None:
    _, effects = fold([seen(0.0, NOT_READY, "b1"), seen(8.0, NOT_READY, "b2")])
    assert [type(effect) for effect in effects] == [Opened, Opened]


def test_echoes_of_our_own_kill_open_nothing() -> None:
    cleanup = KernelLines(("NVRM: Xid (PCI:0000:01:00): 45, pid=7, name=python, Ch 0000000b",))
    fault = KernelLines(("NVRM: Xid (PCI:0000:01:00): 43, pid=7, name=python, channel 0x00000030",))
    state, effects = fold(
        [
            OwnKill(50.0, "b1"),
            seen(50.1, KILLED_WAITER),
            seen(50.2, cleanup),
            seen(51.0, fault),
            seen(52.0, Stalled("decode", 61), "b1"),
        ]
    )
    assert (effects, state.masked) == ([], 2)


def test_mask_ends_and_spares_the_next_engine_and_greater_faults() -> None:
    lost = KernelLines(("misc dxg: dxgk: dxgkio_submit_command: Ioctl failed: -19",))
    kill = OwnKill(50.0, "b1")
    assert len(fold([kill, seen(61.0, NOT_READY)])[1]) == 1
    assert len(fold([kill, seen(55.0, NOT_READY, "b2")])[1]) == 1
    assert len(fold([kill, seen(52.0, lost)])[1]) == 1


def test_exception_followed_by_its_xid_is_one_incident_that_escalates() -> None:
    bus = KernelLines(("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",))
    state, effects = fold([seen(1.0, Raised("AcceleratorError", "CUDA error: unknown error", 999), "b1"), seen(1.5, bus)])
    assert [effect.incident.remedy for effect in effects] == [Remedy.PROCESS_RESTART, Remedy.HOST_REBOOT]
    assert state.opened == 1
    assert effects[1].incident.label is Label.GPU_FELL_OFF_BUS


def test_prompt_that_echoes_an_error_opens_nothing() -> None:
    text = "INFO 01-17 21:03:52 [logger.py:40] Received request chatcmpl-1: prompt: 'CUDA error: unknown error', params: x"
    _, effects = fold(
        [seen(1.0, Text(Channel.JOURNAL, text)), seen(2.0, Raised("ValueError", "bad: CUDA error: unknown error"), "b1")]
    )
    assert effects == []


def test_hang_with_memory_pressure_asks_for_a_smaller_budget() -> None:
    _, effects = fold([seen(60.0, MAKE_RESIDENT), seen(61.0, Stalled("decode", 60.0), "b1")])
    assert [effect.incident.remedy for effect in effects] == [Remedy.ENGINE_REBUILD]


verdicts = st.builds(Verdict, st.sampled_from(list(Remedy)), st.sampled_from(list(Label)), st.just(("line",)))


def _about(verdict: Verdict, boot: str) -> tuple[Verdict, str]:
    return verdict, boot


timeline = st.lists(
    st.tuples(st.floats(0, 20), st.one_of(st.builds(_about, verdicts, st.sampled_from(["", "b1", "b2"])), st.just(None))),
    max_size=40,
)


@given(timeline)
def test_any_sequence_opens_at_most_one_incident_an_event_and_never_lowers_a_remedy(
    steps: list[tuple[float, tuple[Verdict, str] | None]],
) -> None:
    """Effects come one at a time, numbers grow by one, an escalation is higher, and quiet evidence opens nothing."""
    state, now = Correlation(), 0.0
    for gap, what in steps:
        now += gap
        event: TimedEvidence = OwnKill(now, "b1") if what is None else Seen(now, what[0], what[1])
        before = state
        state, effects = correlate(before, event, FoldPolicy())
        assert len(effects) <= 1
        for effect in effects:
            match effect:
                case Opened(incident):
                    assert incident.number == before.opened + 1 == state.opened
                    assert isinstance(event, Seen)
                    assert not event.verdict.quiet
                case Escalated(incident):
                    assert before.incident is not None
                    assert incident.number == before.incident.number
                    assert incident.remedy > before.incident.remedy
        assert len(state.hints) <= 64


@given(st.lists(st.sampled_from(BOOT_BLOCK), max_size=60), st.floats(0, 3))
def test_routine_lines_at_any_pace_open_nothing(lines: list[str], gap: float) -> None:
    state, _ = fold(Seen(n * gap, judge(KernelLines((line,)), Ours())) for n, line in enumerate(lines))
    assert state.opened == 0
