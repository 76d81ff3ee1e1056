"""What langchain-openai does through a server, as JSON: ``python langchain_client.py URL MODEL ADAPTER PROMPT``."""

import contextlib
import json
import sys

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from openai import NotFoundError

url, model, adapter, prompt = sys.argv[1:]
base = {"base_url": f"{url}/v1", "api_key": "-", "temperature": 0, "max_tokens": 24, "max_retries": 0}
facts = {"complete": OpenAI(model=model, **base).invoke(prompt)}
facts["stream"] = "".join(OpenAI(model=model, **base).stream(prompt))
facts["adapter"] = OpenAI(model=adapter, **base).invoke(prompt)
facts["batch"] = OpenAI(model=model, **base).batch([prompt] * 3)

chat = ChatOpenAI(model=model, stream_usage=True, **base)
facts["chat"] = chat.invoke(prompt).content
chunks = list(chat.stream(prompt))
facts["chat stream"] = "".join(chunk.content for chunk in chunks)
facts["stream usage"] = next(chunk.usage_metadata for chunk in chunks if chunk.usage_metadata)
answer = chat.bind(logprobs=True, top_logprobs=2).invoke(prompt)
facts["chat logprobs"] = "".join(each["token"] for each in answer.response_metadata["logprobs"]["content"])

SCHEMA = {
    "title": "register",
    "description": "Register a person",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
longer = ChatOpenAI(model=model, **base | {"max_tokens": 96})
facts["json"] = longer.with_structured_output(SCHEMA, method="json_schema", strict=True).invoke(prompt)
call = longer.bind_tools([SCHEMA], tool_choice="register").invoke(prompt).tool_calls[0]
facts["tool"] = [call["name"], call["args"]]
called = None
for chunk in longer.bind_tools([SCHEMA], tool_choice="register").stream(prompt):
    called = chunk if called is None else called + chunk
facts["tool stream"] = [called.tool_calls[0]["name"], called.tool_calls[0]["args"]]
vectors = OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="-", check_embedding_ctx_length=False)
facts["embedding"] = None
with contextlib.suppress(NotFoundError):  # a server need not have them
    found = vectors.embed_documents(["a king", "a queen"])
    facts["embedding"] = [len(found), len(set(map(len, found))), isinstance(found[0][0], float)]
print(json.dumps(facts))
