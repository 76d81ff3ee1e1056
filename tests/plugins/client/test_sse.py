"""Server-sent events: the same, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

from infeng_client.sse import Event, Parser


def parse(*parts: bytes) -> list[Event]:
    parser = Parser()
    return [event for part in parts for event in parser.feed(part)]


TEXTS = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    """Draw a stream and the events that it stands for."""
    written, events, last = draw(st.sampled_from(["", "\ufeff"])), [], None
    for _ in range(draw(st.integers(0, 4))):
        end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
        lines, name = draw(st.lists(TEXTS, max_size=3)), draw(TEXTS)
        fields = [f"data:{' ' if line.startswith(' ') else draw(st.sampled_from(['', ' ']))}{line}" for line in lines]
        if draw(st.booleans()):
            last = draw(TEXTS)
            fields.insert(draw(st.integers(0, len(fields))), f"id: {last}")
        if name:
            fields.append(f"event: {name}")
        fields.insert(
            draw(st.integers(0, len(fields))), draw(st.sampled_from([": a comment", ":", "retry: 10", "what"]))
        )
        written += end.join(fields) + end + end
        if lines:
            events.append(Event("\n".join(lines), name, last))
    return written.encode(), events


@given(streams(), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(stream: tuple[bytes, list[Event]], data: st.DataObject):
    written, events = stream
    assert parse(written) == events
    assert parse(*(written[place : place + 1] for place in range(len(written)))) == events
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    parts = [written[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert parse(*parts) == events


def test_an_incomplete_event_at_the_end_is_dropped():
    whole = "id: a/1\ndata: 日本\n\n".encode()
    for length in range(len(whole)):
        assert parse(whole[:length]) == []
    assert parse(whole, b"id: a/2\ndata: x\n") == [Event("日本", "", "a/1")]


def test_an_id_stays_until_the_next_and_one_with_nul_is_ignored():
    events = parse(b"id: 1\ndata: a\n\ndata: b\n\nid: 2\x00\ndata: c\n\nid\ndata\n\n")
    assert events == [Event("a", "", "1"), Event("b", "", "1"), Event("c", "", "1"), Event("", "", "")]


def test_a_byte_order_mark_is_skipped_at_the_beginning_only():
    assert parse(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [Event("a")]
    assert parse(b"\xef\xbb", b"data: a\n\ndata: b\n\n") == [Event("b")]


def test_a_long_line_is_read_in_linear_time():
    parser, part = Parser(), b"x" * 1000
    assert parser.feed(b"data: ") == []
    for _ in range(5000):
        parser.feed(part)
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 5_000_000
