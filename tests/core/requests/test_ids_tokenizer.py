"""The tokenizer of ids: a text is a list of token ids."""

from pathlib import Path

import pytest

from infeng_core.errors import RequestError
from infeng_core.requests.idstokenizer import IdsTokenizer
from infeng_core.settings.config import EngineConfig


def test_token_ids_are_a_text_of_their_own():
    tokenizer = IdsTokenizer(Path(), EngineConfig())
    assert tokenizer.encode(["1 2,3\n4", ""]) == [[1, 2, 3, 4], []]
    assert tokenizer.decode([5, 6]) == "5 6"
    stream = tokenizer.detokenizer([1])
    assert [stream.push(5), stream.push(6), stream.finish()] == [" 5", " 6", ""]
    assert tokenizer.token_bytes(12) == b"12"
    for wrong in ("1 two", "-1", "99999999999", "٣", "1.0"):
        with pytest.raises(RequestError, match="is not a token id"):
            tokenizer.encode([wrong])
