"""``--lora`` and ``--adapter`` as texts."""

from __future__ import annotations

import pytest

from infeng_core.cli.lora import as_text, parse_adapter, parse_lora
from infeng_core.errors import UsageError


def test_paths_may_contain_separators():
    assert parse_lora("a=x:0.5") == ("a", "x", 0.5)
    assert parse_lora("a=C:/x=y") == ("a", "C:/x=y", 1.0)
    assert parse_lora("a=x:-1e-1") == ("a", "x", -0.1)
    with pytest.raises(UsageError):
        parse_lora("a=x:inf")


@pytest.mark.parametrize("text", ["base", "a", "a*0.5", "a,b", "a*2,b*-0.25"])
def test_printed_adapters_can_be_parsed_again(text: str):
    assert as_text(parse_adapter(text)) == text
