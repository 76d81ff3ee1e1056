"""What llama-index does through a server, as JSON: ``python llama_index_client.py URL MODEL ADAPTER PROMPT``."""

import asyncio
import json
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, model, adapter, prompt = sys.argv[1:]
base = {"api_base": f"{url}/v1", "api_key": "-", "temperature": 0, "max_tokens": 24, "max_retries": 0}
plain = OpenAILike(model=model, context_window=1024, is_chat_model=False, **base)
facts = {"complete": plain.complete(prompt).text}
facts["stream"] = "".join(part.delta or "" for part in plain.stream_complete(prompt))
facts["adapter"] = OpenAILike(model=adapter, context_window=1024, is_chat_model=False, **base).complete(prompt).text

chat = OpenAILike(model=model, context_window=1024, is_chat_model=True, is_function_calling_model=True,
                  **base | {"max_tokens": 96})  # fmt: skip
short = OpenAILike(model=model, context_window=1024, is_chat_model=True, **base)
messages = [ChatMessage(role="user", content=prompt)]
facts["chat"] = short.chat(messages).message.content
facts["chat stream"] = "".join(part.delta or "" for part in short.stream_chat(messages))


async def asynchronous() -> str:
    return "".join([part.delta or "" async for part in await short.astream_chat(messages)])


facts["async"] = asyncio.run(asynchronous())


def register(age: int) -> str:
    """Register a person."""
    return f"{age} years"


tool = FunctionTool.from_defaults(register)
answer = chat.chat_with_tools([tool], user_msg=prompt, tool_required=True)
(call,) = chat.get_tool_calls_from_response(answer)
facts["tool"] = [call.tool_name, call.tool_kwargs]
print(json.dumps(facts))
