"""The policy with settings as they come from a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import infeng_fair
import pytest
import yaml
from infeng_fair.policy import Fair
from infeng_fair.shares import Terms

from infeng_core.api.engines import Limits

MakeFair = Callable[..., Callable[[Limits], Fair]]


@pytest.fixture(scope="session")
def fair() -> MakeFair:
    """Return ``fair(setting=value, ...)``: a factory of the policy, its other settings as plugin.yaml says."""
    declared = yaml.safe_load(Path(infeng_fair.__file__).with_name("plugin.yaml").read_text())["settings"]
    defaults = {name: setting["default"] for name, setting in declared.items()}

    def make(**settings: Any) -> Callable[[Limits], Fair]:
        terms = Terms.read({**defaults, **settings})
        return lambda limits: Fair(terms, limits)

    return make
