// What npm's openai does through a server, as JSON: `node openai_node.mjs URL MODEL ADAPTER PROMPT`.
import OpenAI from "openai";

const [url, model, adapter, prompt] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "-", maxRetries: 0 });
const greedy = { model, prompt, max_tokens: 24, temperature: 0 };
const question = { model, messages: [{ role: "user", content: prompt }], max_tokens: 24, temperature: 0 };
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", maximum: 99 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "register", description: "Register a person", parameters: schema } }];
const tool_choice = { type: "function", function: { name: "register" } };
const facts = { models: (await client.models.list()).data.map((each) => each.id) };

facts.complete = (await client.completions.create(greedy)).choices[0].text;
facts.stream = "";
for await (const chunk of await client.completions.create({ ...greedy, stream: true })) {
  facts.stream += chunk.choices[0]?.text ?? "";
}
facts.adapter = (await client.completions.create({ ...greedy, model: adapter })).choices[0].text;
const answer = (await client.chat.completions.create({ ...question, logprobs: true, top_logprobs: 2 })).choices[0];
facts.chat = answer.message.content;
facts["chat logprobs"] = answer.logprobs.content.map((each) => each.token).join("");
const stream = client.chat.completions.stream({ ...question, stream_options: { include_usage: true } });
facts["chat events"] = "";
stream.on("content", (delta) => (facts["chat events"] += delta));
facts["chat stream"] = await stream.finalContent();
facts["stream usage"] = await stream.totalUsage();

const longer = { ...question, max_tokens: 96 };
const response_format = { type: "json_schema", json_schema: { name: "person", schema, strict: true } };
facts.json = JSON.parse((await client.chat.completions.create({ ...longer, response_format })).choices[0].message.content);
const call = (await client.chat.completions.create({ ...longer, tools, tool_choice })).choices[0].message.tool_calls[0];
facts.tool = [call.function.name, JSON.parse(call.function.arguments)];
const calling = client.chat.completions.stream({ ...longer, tools, tool_choice });
const called = (await calling.finalChatCompletion()).choices[0].message.tool_calls[0];
facts["tool stream"] = [called.function.name, JSON.parse(called.function.arguments)];

facts.response = (await client.responses.create({ model, input: prompt, max_output_tokens: 24, temperature: 0 })).output_text;
try {
  const vectors = (await client.embeddings.create({ model, input: ["a king", "a queen"] })).data;
  const lengths = new Set(vectors.map((each) => each.embedding.length));
  facts.embedding = [vectors.length, lengths.size, typeof vectors[0].embedding[0] === "number"];
} catch (error) {
  if (!(error instanceof OpenAI.NotFoundError)) throw error; // a server need not have them
  facts.embedding = null;
}
try {
  await client.completions.create({ ...greedy, model: "nobody" });
} catch (error) {
  facts["unknown model"] = [error.status, error instanceof OpenAI.NotFoundError];
}
console.log(JSON.stringify(facts));
