"""Options that this wheel brings: what an answer has to be, in an engine and in a request to a server."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from infeng_grammar.options import GrammarOptions

from infeng_core import cli
from infeng_core.errors import UsageError

Capture = pytest.CaptureFixture[str]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    GrammarOptions().add(parser, "run")
    return parser.parse_args(words)


def test_each_option_becomes_the_processors_argument_and_a_field_of_a_request(tmp_path: Path) -> None:
    (tmp_path / "a.lark").write_text('start: "a"')
    (tmp_path / "a.gbnf").write_text('root ::= "a"')
    options = GrammarOptions()
    for words, argument, fields in (
        (["--json-schema", '{"type": "null"}'], {"json_schema": {"type": "null"}}, {"json": {"type": "null"}}),
        (["--regex", "a+"], {"regex": "a+"}, {"regex": "a+"}),
        (["--choice", "a", "--choice", "b"], {"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        (["--grammar", str(tmp_path / "a.lark")], {"lark": 'start: "a"'}, {"grammar": 'start: "a"'}),
    ):
        assert options.processors(parsed(*words)) == (("grammar", argument),)
        assert options.fields(parsed(*words)) == {"structured_outputs": fields}
    gbnf = parsed("--grammar", str(tmp_path / "a.gbnf"))
    assert options.processors(gbnf) == (("grammar", {"gbnf": 'root ::= "a"'}),)
    assert options.fields(gbnf) == {"grammar": 'root ::= "a"'}
    assert (options.processors(parsed()), options.fields(parsed())) == ((), {})


def test_an_unreadable_file_or_schema_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff")
    for words, said in (
        (["--json-schema", "{"], "it is not JSON"),
        (["--json-schema", str(tmp_path / "none")], "No such file"),
        (["--grammar", str(tmp_path / "bad")], "byte 0 is not UTF-8"),
    ):
        with pytest.raises(UsageError, match=said):
            GrammarOptions().processors(parsed(*words))


def test_the_options_exclude_each_other(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        parsed("--regex", "a", "--choice", "b")
    assert "not allowed with argument --regex" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run", "chat", "ask"])
def test_every_command_that_generates_text_has_the_grammar_options(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    assert "--json-schema FILE|JSON" in capsys.readouterr().out


def test_an_answer_of_run_matches_the_grammar_option(capsys: Capture) -> None:
    from infeng_demo import model_dir

    words = ["run", str(model_dir()), "-p", "Once", "--regex", "[0-9]{3}-[a-z]{2}", "-n", "16", "--seed", "1", "--json"]
    assert cli.main(words) == 0
    assert re.fullmatch("[0-9]{3}-[a-z]{2}", json.loads(capsys.readouterr().out)["text"])
