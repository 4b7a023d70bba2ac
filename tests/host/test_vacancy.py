"""When a dead engine's GPU memory counts as back."""

from dataclasses import dataclass, field

from daemon.host.vacancy import INNOCENT_SECONDS, SLACK_MIB, UsedMemory, Vacancy


@dataclass
class Gauge:
    """Readings as the test likes."""

    reading: UsedMemory | None = None
    asked: list[bool] = field(default_factory=list[bool])

    def used_mib(self) -> UsedMemory | None:
        return self.reading

    def read_soon(self) -> None:
        self.asked.append(True)


def test_machine_without_readings_waits_for_nothing() -> None:
    gauge = Gauge()
    vacancy = Vacancy(gauge)
    vacancy.remember(2)
    assert vacancy.vacated(5)
    assert gauge.asked == []


def test_only_a_reading_made_after_the_end_counts() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500}))
    vacancy = Vacancy(gauge)
    vacancy.remember(2)
    assert not vacancy.vacated(5)
    assert gauge.asked == [True]
    gauge.reading = UsedMemory(6, {0: 9000})
    assert not vacancy.vacated(5)
    assert vacancy.words() == "GPU 0: 9000 MiB used, 500 before"
    gauge.reading = UsedMemory(7, {0: 500 + SLACK_MIB})
    assert vacancy.vacated(5)


def test_gpu_that_does_not_answer_any_more_has_not_come_back() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500, 1: 600}))
    vacancy = Vacancy(gauge)
    vacancy.remember(2)
    gauge.reading = UsedMemory(6, {0: 500})
    assert not vacancy.vacated(5)
    assert vacancy.words() == "GPU 1: unknown MiB used, 600 before"
    gauge.reading = None
    assert not vacancy.vacated(5)
    assert vacancy.words() == "no reading of the GPUs' memory"


def test_gpus_of_other_engines_do_not_matter() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500, 1: 600}))
    vacancy = Vacancy(gauge, frozenset({0}))
    vacancy.remember(2)
    gauge.reading = UsedMemory(6, {0: 500, 1: 11_000})
    assert vacancy.vacated(5)


def test_first_reading_of_all_may_come_while_the_engine_still_imports() -> None:
    """NVML wakes as slowly as an engine starts; what it reads once weights are loaded is no measure."""
    early, late = Gauge(), Gauge()
    for gauge, t in ((early, 2 + INNOCENT_SECONDS), (late, 2.1 + INNOCENT_SECONDS)):
        vacancy = Vacancy(gauge)
        vacancy.remember(2)
        gauge.reading = UsedMemory(t, {0: 500})
        vacancy.notice()
        gauge.reading = UsedMemory(60, {0: 9000})
        vacancy.notice()
        assert vacancy.vacated(50) is (gauge is late)
