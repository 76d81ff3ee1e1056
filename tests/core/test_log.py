"""Logs are quiet by default, and text or JSON on request."""

from __future__ import annotations

import json

import pytest

from infeng_core import cli, log
from infeng_core.errors import UsageError


@pytest.fixture(autouse=True)
def restored():
    yield
    log.configure()


def test_only_warnings_are_printed_by_default(capsys):
    log.configure()
    logger = log.get_logger("x")
    logger.info("quiet")
    logger.warning("heard", plugin="avx2", reason="two words")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "infeng: warning: heard plugin=avx2 reason='two words'\n"


def test_json_is_one_object_per_line(capsys):
    log.configure_from("json,debug")
    log.get_logger("room").debug("event", count=3)
    event = json.loads(capsys.readouterr().err)
    assert event["event"] == "event" and event["count"] == 3
    assert event["level"] == "debug" and event["module"] == "room"
    assert event["timestamp"].endswith("Z")


def test_a_logger_made_before_follows_the_new_configuration(capsys):
    log.configure()
    logger = log.get_logger("x")
    log.configure(level="debug")
    logger.debug("now")
    assert "debug: now" in capsys.readouterr().err


def test_an_exception_is_shown_with_its_trace(capsys):
    log.configure()
    try:
        raise ValueError("inside")
    except ValueError:
        log.get_logger("x").exception("it failed")
    err = capsys.readouterr().err
    assert err.startswith("infeng: error: it failed\n")
    assert err.rstrip().endswith("ValueError: inside")


def test_no_text_forges_a_line_or_moves_the_cursor(capsys):
    log.configure()
    logger = log.get_logger("x")
    logger.warning("heard\ninfeng: error: forged", path="a\ninfeng: error: b", other="\x1b[2J two", long="x" * 5000)
    try:
        raise ValueError("inside\ninfeng: error: forged")
    except ValueError:
        logger.exception("it failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "infeng: warning: heard\\ninfeng: error: forged path='a\\ninfeng: error: b' other='\\x1b[2J"
    )
    assert len(first) < 1300
    assert [line for line in others if line.startswith("infeng:")] == ["infeng: error: it failed"]


def test_the_structlog_of_the_application_is_left_alone():
    import structlog

    before = structlog.get_config()
    log.configure(json=True, level="debug")
    log.get_logger("x").debug("event")
    assert structlog.get_config() == before
    assert not structlog.is_configured()


def test_an_unknown_log_setting_is_an_error():
    with pytest.raises(UsageError, match=r"INFENG_LOG=verbose: unknown word 'verbose': known: json, debug"):
        log.configure_from("verbose")
    with pytest.raises(UsageError, match="log level 'loud'"):
        log.configure(level="loud")


def test_a_warning_is_given_once(capsys):
    log.configure()
    logger = log.get_logger("x")
    for _ in range(3):
        log.warn_once(logger, "the same thing", reason="again")
    assert capsys.readouterr().err.count("the same thing") == 1


def test_a_commands_messages_are_events_under_json(capsys, monkeypatch):
    log.configure_from("info,json")
    cli.say("listening at http://127.0.0.1", to_stderr=True)
    assert cli.main(["run", "/no/such/model", "-p", "x"]) == 2
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in err.splitlines()]
    assert out == "" and events[0]["event"] == "listening at http://127.0.0.1" and events[0]["level"] == "info"
    assert events[-1]["level"] == "error" and "/no/such/model" in events[-1]["event"]
    log.configure()
    cli.say("listening", to_stderr=True)
    assert capsys.readouterr().err == "listening\n"


def test_a_wrong_log_variable_hides_no_error(monkeypatch, capsys):
    monkeypatch.setenv("INFENG_LOG", "loud")
    monkeypatch.setattr(log, "_settings", log._Settings())
    assert cli.main(["plugins", "why", "no-such-op"]) != 0
    assert capsys.readouterr().err.startswith("infeng: error: ")
