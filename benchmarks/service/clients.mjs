// The Node clients of `python -m benchmarks.service.clients`: node clients.mjs CLIENT BASE_URL KEY MODEL, in a directory with the packages.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [client, baseURL, apiKey, model] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${process.cwd()}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));

const QUESTION = "When is the kickoff?";
const PARAMETERS = {
  type: "object",
  properties: { keywords: { type: "array", items: { type: "string" } } },
  required: ["keywords"],
  additionalProperties: false,
};

const CLIENTS = {
  async "openai-node chat"() {
    const { default: OpenAI } = await load("openai");
    const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
    const asked = { model, messages: [{ role: "user", content: QUESTION }], max_completion_tokens: 20 };
    const whole = await openai.chat.completions.create(asked);
    assert.equal(typeof whole.choices[0].message.content, "string");
    const tools = [{ type: "function", function: { name: "search_inbox", description: "Find mail", parameters: PARAMETERS } }];
    const streamed = await openai.chat.completions.stream({ ...asked, tools }).finalChatCompletion();
    assert.ok(streamed.choices[0].finish_reason);
  },

  async "openai-node responses"() {
    const { default: OpenAI } = await load("openai");
    const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
    const asked = { model, input: QUESTION, max_output_tokens: 20 };
    const first = await openai.responses.create(asked);
    assert.equal(typeof first.output_text, "string");
    await openai.responses.create({ ...asked, previous_response_id: first.id });
    const tools = [{ type: "function", name: "search_inbox", description: "Find mail", parameters: PARAMETERS, strict: true }];
    const streamed = await openai.responses.stream({ ...asked, tools }).finalResponse();
    assert.ok(["completed", "incomplete"].includes(streamed.status));
  },

  async "Vercel AI SDK openai()"() {
    const { provider, ai } = await vercel();
    await useVercel(ai, provider(model));
  },

  async "Vercel AI SDK openai.chat()"() {
    const { provider, ai } = await vercel();
    await useVercel(ai, provider.chat(model));
  },

  async "Vercel AI SDK generateObject"() {
    const { provider, ai } = await vercel();
    const { z } = await load("zod");
    const schema = z.object({ answer: z.string().max(5) });
    const { object } = await ai.generateObject({ model: provider(model), schema, prompt: QUESTION, maxRetries: 0 });
    assert.equal(typeof object.answer, "string");
  },
};

async function vercel() {
  const [{ createOpenAI }, ai] = [await load("@ai-sdk/openai"), await load("ai")];
  return { provider: createOpenAI({ baseURL, apiKey }), ai };
}

/** Two turns as text, and a loop of tool calls, whole and streamed. */
async function useVercel({ generateText, streamText, jsonSchema, stepCountIs, tool }, languageModel) {
  const shared = { model: languageModel, maxRetries: 0, maxOutputTokens: 60 };
  const user = { role: "user", content: QUESTION };
  const first = await generateText({ ...shared, messages: [user] });
  await generateText({ ...shared, messages: [user, ...first.response.messages, { role: "user", content: "And where?" }] });

  const called = [];
  const execute = async ({ keywords }) => (called.push(keywords), "m41 Kickoff moved");
  const tools = { search_inbox: tool({ description: "Find mail", inputSchema: jsonSchema(PARAMETERS), execute }) };
  const asked = { ...shared, tools, stopWhen: stepCountIs(3), system: "Answer.", prompt: QUESTION };
  await generateText(asked);
  assert.ok(called.length >= 1, "the tool was not called");
  const seen = called.length;
  const failures = [];
  const stream = streamText({ ...asked, onError: ({ error }) => failures.push(error) });
  await stream.consumeStream();
  if (failures.length) throw failures[0];
  assert.ok(called.length > seen, "the tool was not called in a stream");
}

try {
  await CLIENTS[client]();
} catch (error) {
  console.error(`${error.name}: ${error.message}${error.responseBody ? ` ${error.responseBody}` : ""}`.slice(0, 400));
  process.exit(1);
}
