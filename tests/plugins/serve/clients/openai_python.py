"""What openai-python does through a server, as JSON: ``python openai_python.py URL MODEL ADAPTER PROMPT``."""

import asyncio
import contextlib
import json
import sys

import openai
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

url, model, adapter, prompt = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=60)
greedy = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
question = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "register", "description": "Register a person", "parameters": SCHEMA}}
CHOICE = {"type": "function", "function": {"name": "register"}}
facts = {"version": openai.__version__, "models": [each.id for each in client.models.list()]}

done = client.completions.create(**greedy, logprobs=2)
facts["complete"] = done.choices[0].text
facts["usage"] = done.usage.model_dump()
facts["logprobs"] = [len(done.choices[0].logprobs.tokens), len(done.choices[0].logprobs.top_logprobs[0])]
facts["logprob tokens"] = "".join(done.choices[0].logprobs.tokens)
chunks = list(client.completions.create(**greedy, stream=True, stream_options={"include_usage": True}))
facts["stream"] = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
facts["stream usage"] = chunks[-1].usage.model_dump()
facts["adapter"] = client.completions.create(**greedy | {"model": adapter}).choices[0].text
several = client.completions.create(**greedy | {"temperature": 1.0}, n=3, seed=5)
facts["choices"] = [choice.text for choice in several.choices]

answer = client.chat.completions.create(**question, logprobs=True, top_logprobs=3)
facts["chat"] = answer.choices[0].message.content
facts["chat logprobs"] = "".join(each.token for each in answer.choices[0].logprobs.content)
with client.chat.completions.stream(**question) as stream:
    facts["chat events"] = "".join(event.delta for event in stream if event.type == "content.delta")
    facts["chat stream"] = stream.current_completion_snapshot.choices[0].message.content

schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
longer = question | {"max_tokens": 96}
facts["json"] = json.loads(client.chat.completions.create(**longer, response_format=schema).choices[0].message.content)
(call,) = client.chat.completions.create(**longer, tools=[TOOL], tool_choice=CHOICE).choices[0].message.tool_calls
facts["tool"] = [call.function.name, json.loads(call.function.arguments)]
with client.chat.completions.stream(**longer, tools=[TOOL], tool_choice=CHOICE) as stream:
    (call,) = stream.get_final_completion().choices[0].message.tool_calls
facts["tool stream"] = [call.function.name, json.loads(call.function.arguments)]

response = client.responses.create(model=model, input=prompt, max_output_tokens=24, temperature=0)
facts["response"] = response.output_text
events = list(client.responses.create(model=model, input=prompt, max_output_tokens=24, temperature=0, stream=True))
facts["response stream"] = "".join(event.delta for event in events if event.type == "response.output_text.delta")
facts["response last"] = events[-1].type

facts["embedding"] = None
with contextlib.suppress(NotFoundError):  # a server need not have them
    vectors = client.embeddings.create(model=model, input=["a king", "a queen"]).data
    lengths = {len(each.embedding) for each in vectors}
    facts["embedding"] = [len(vectors), len(lengths), isinstance(vectors[0].embedding[0], float)]

for name, kind, change in (
    ("unknown model", NotFoundError, {"model": "nobody"}),
    ("wrong value", BadRequestError, {"temperature": -1.0}),
):
    try:
        client.completions.create(**greedy | change)
    except kind as error:
        facts[name] = [error.status_code, error.param, bool(error.request_id)]


async def many() -> list[str]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:

        async def one() -> str:
            return "".join(
                [chunk.choices[0].text async for chunk in await client.completions.create(**greedy, stream=True)]
            )

        return await asyncio.gather(*(one() for _ in range(8)))


facts["async"] = asyncio.run(many())
print(json.dumps(facts))
