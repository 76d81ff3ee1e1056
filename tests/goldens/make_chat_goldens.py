"""Write chat_prompts.json: what transformers makes of conversations with published templates.

Run it in an environment with transformers and jinja2: ``python tests/goldens/make_chat_goldens.py DIRECTORY`` with the
directory that holds the templates (``$INFENG_TEST_DATA/templates``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from goldens.chat_conversations import CALLED, CONVERSATIONS, REFUSED, SPECIAL, digest, variables
from transformers import __version__
from transformers.utils.chat_template_utils import render_jinja_template


def prompt(template: str, conversation: dict[str, Any]) -> str:
    """Return a prompt's digest."""
    try:
        given = {"add_generation_prompt": True, **variables(conversation), **SPECIAL}
        [text], _ = render_jinja_template(
            conversations=[conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=template,
            **given,
        )
    except Exception:
        return REFUSED
    return digest(text)


def main() -> None:
    """Write the file beside this one."""
    found = {
        path.stem: {
            name: prompt(path.read_text(encoding="utf-8"), conversation)
            for name, conversation in {**CONVERSATIONS, **CALLED}.items()
        }
        for path in sorted(Path(sys.argv[1]).glob("*.jinja"))
    }
    document = {"transformers": __version__, "prompts": found}
    target = Path(__file__).with_name("chat_prompts.json")
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
