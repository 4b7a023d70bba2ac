"""Answers as sections, for the families that know blocks or items: whatever the model writes and however it is cut."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from daemon.api.renaming import Names
from daemon.api.sections import Begun, More, Over, Section, SectionEvent, SectionKind, Sections
from daemon.chat.parsing import CallArguments, CallEnd, CallStart, ContentDelta, Delta, Final, FinishReason, ReasoningDelta, fold
from daemon.core.errors import InvalidRequest

TEXTS = st.text(min_size=1, max_size=3)
PIECES = st.one_of(TEXTS.map(ContentDelta), TEXTS.map(ReasoningDelta))


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """Deltas as parsers give them: one call at a time, each completed, broken or cut at the end."""
    deltas: list[Delta] = []
    calls = 0
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            deltas.append(draw(PIECES))
            continue
        deltas.append(CallStart(calls, f"call_{calls}", f"f{calls}"))
        deltas += [CallArguments(calls, text) for text in draw(st.lists(TEXTS, max_size=3))]
        if draw(st.booleans()):
            deltas.append(CallEnd(calls))
        calls += 1
    return deltas


def events_of(deltas: Sequence[Delta], cuts: Sequence[int], *, cut: bool) -> list[SectionEvent]:
    """The events of deltas that come in several feeds."""
    sections = Sections()
    events: list[SectionEvent] = []
    places = [0, *sorted(place % (len(deltas) + 1) for place in cuts), len(deltas)]
    for start, end in pairwise(places):
        events += sections.feed(deltas[start:end])
    return events + sections.finish(cut=cut)


@given(answers(), st.lists(st.integers(0, 30), max_size=4), st.booleans())
def test_sections_follow_each_other_and_hold_their_text(deltas: list[Delta], cuts: list[int], cut: bool) -> None:
    open_: Section | None = None
    texts: list[str] = []
    count = 0
    for event in events_of(deltas, cuts, cut=cut):
        match event:
            case Begun(section):
                assert open_ is None
                assert section.index == count
                open_, texts, count = section, [], count + 1
            case More(section, text):
                assert section is open_
                assert text
                texts.append(text)
            case Over(section, text, _):
                assert section is open_
                assert text == "".join(texts)
                open_ = None
    assert open_ is None


@given(answers(), st.lists(st.integers(0, 30), max_size=4), st.booleans())
def test_sections_say_what_the_folded_message_says(deltas: list[Delta], cuts: list[int], cut: bool) -> None:
    message = fold(deltas, Final((), FinishReason.STOP, inside_reasoning=False))
    over = [event for event in events_of(deltas, cuts, cut=cut) if isinstance(event, Over)]
    assert "".join(event.text for event in over if event.section.kind is SectionKind.TEXT) == (message.content or "")
    assert "".join(event.text for event in over if event.section.kind is SectionKind.THOUGHT) == (message.reasoning or "")
    calls = [event for event in over if event.section.kind is SectionKind.CALL and event.complete]
    assert [(call.section.call_id, call.section.name, call.text) for call in calls] == [
        (call.id, call.name, call.arguments) for call in message.tool_calls
    ]


def test_only_the_open_section_is_cut() -> None:
    deltas = [ReasoningDelta("hm"), ContentDelta("Hel")]
    whole = [event.complete for event in events_of(deltas, [], cut=False) if isinstance(event, Over)]
    cut = [event.complete for event in events_of(deltas, [], cut=True) if isinstance(event, Over)]
    assert (whole, cut) == ([True, True], [True, False])


# --- names of fields --------------------------------------------------------------------------------------------------

NAMES = Names([(r"tools\[(\d+)\]\.function", r"tools[\1]"), ("messages", "input")]).with_paths(
    [("messages[1].content[0]", "input[0].content[2]")]
)


def test_field_is_told_in_the_familys_name_in_both_places() -> None:
    cases = {
        "tools[12].function.name": "tools[12].name",
        "tools[1].functional": "tools[1].functional",
        "messages[1].content[0].text": "input[0].content[2].text",
        "messages[1].content[01]": "input[1].content[01]",
        "messages_": "messages_",
        "temperature": "temperature",
    }
    for old, new in cases.items():
        error = NAMES.own(InvalidRequest(f"`{old}` is wrong; `messages` too.", old, "invalid_value"))
        assert (error.param, error.code) == (new, "invalid_value")
        assert error.message.startswith(f"`{new}` is wrong")


def test_error_without_a_field_stays_as_it_is() -> None:
    error = InvalidRequest("`messages` is wrong")
    assert NAMES.own(error) is error
