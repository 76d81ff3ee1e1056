"""The features of the processor, without the masked ones."""

from __future__ import annotations

import pytest

from infeng_core import _native
from infeng_core.errors import UsageError
from infeng_core.machine.cpu import NEEDS, closure, detect, parse_mask

OTHERS = ("avx512_vnni", "avx512_bf16", "amx_tile")
SERVER = frozenset(["avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512dq", *OTHERS])


def test_without_a_mask_everything_that_was_found_may_be_used():
    assert detect({}).features == frozenset(_native.cpu_info().features)


def test_every_feature_that_can_be_found_has_a_place_in_the_order():
    assert detect({}).features <= NEEDS.keys()


def test_masking_a_feature_masks_all_that_need_it():
    masked = parse_mask("-avx512f", SERVER)
    assert set(masked) == {name for name in SERVER if name.startswith("avx512")}
    assert masked["avx512f"] == "masked by INFENG_CPU_FEATURES"
    assert masked["avx512_vnni"] == "masked by INFENG_CPU_FEATURES: needs avx512f"
    assert set(parse_mask("-avx512_vnni , -amx_tile", SERVER)) == {"avx512_vnni", "amx_tile"}
    assert set(parse_mask("-avx", SERVER)) == SERVER - {"bmi2", "amx_tile"}


def test_masking_an_absent_feature_is_no_error():
    assert parse_mask("-sve", SERVER) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("avx512_bf16", "can only be taken away, never added: write -avx512_bf16"),
        ("+avx512_bf16", "can only be taken away"),
        ("-avx512vnni", r"unknown feature: did you mean `avx512_vnni`\?"),
        ("-pentium", "unknown feature: known here: .*avx2"),
    ],
)
def test_a_wrong_mask_is_an_error(text, words):
    with pytest.raises(UsageError, match=words):
        detect({"INFENG_CPU_FEATURES": text})


def test_the_order_has_no_cycle_and_no_unknown_feature():
    for name in NEEDS:
        assert closure([name]) <= NEEDS.keys()
        assert all(name not in closure(NEEDS[name]) for name in NEEDS)
