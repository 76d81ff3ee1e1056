// What the AI SDK does through a server, as JSON: `node ai_sdk.mjs URL MODEL ADAPTER PROMPT`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [url, model, adapter, prompt] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "infeng", baseURL: `${url}/v1`, apiKey: "-", includeUsage: true, supportsStructuredOutputs: true,
});
const greedy = { temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
const schema = jsonSchema({
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", maximum: 99 } },
  required: ["name", "age"],
  additionalProperties: false,
});
const longer = { ...greedy, maxOutputTokens: 96 };
const tools = { register: tool({ description: "Register a person", inputSchema: schema }) };
const toolChoice = { type: "tool", toolName: "register" };
const facts = {};

facts.complete = (await generateText({ model: provider.completionModel(model), prompt, ...greedy })).text;
facts.chat = (await generateText({ model: provider(model), prompt, ...greedy })).text;
const stream = streamText({ model: provider(model), prompt, ...greedy });
facts["chat stream"] = "";
for await (const part of stream.textStream) facts["chat stream"] += part;
facts["stream usage"] = await stream.usage;
facts.adapter = (await generateText({ model: provider(adapter), prompt, ...greedy })).text;
facts.json = (await generateObject({ model: provider(model), prompt, schema, ...longer })).object;
const called = await generateText({ model: provider(model), prompt, tools, toolChoice, ...longer });
facts.tool = called.toolCalls.map((each) => [each.toolName, each.input])[0];
const calling = streamText({ model: provider(model), prompt, tools, toolChoice, ...longer });
facts["tool stream"] = (await calling.toolCalls).map((each) => [each.toolName, each.input])[0];
console.log(JSON.stringify(facts));
