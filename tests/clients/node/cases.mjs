// OpenAI's SDK for Node against a running Turnkeeper: a line per case, exit code 1 when any failed.
//
// TURNKEEPER_URL    where it serves, without /v1
// TURNKEEPER_KEY    a secret that it knows; without one it is taken to ask for none
// TURNKEEPER_MODEL  the model to ask for
//
// The model behind it must call a tool when `tool_choice` says so, and stream its answer in more than one piece.

import assert from "node:assert/strict";
import OpenAI, { APIUserAbortError, AuthenticationError, NotFoundError } from "openai";

const baseURL = `${process.env.TURNKEEPER_URL.replace(/\/$/, "")}/v1`;
const key = process.env.TURNKEEPER_KEY;
const model = process.env.TURNKEEPER_MODEL ?? "gpt-4o-mini";
const client = new OpenAI({ baseURL, apiKey: key ?? "none", maxRetries: 0, timeout: 10_000 });

const asked = { model, messages: [{ role: "user", content: "What is the weather in Bremen?" }] };
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a town.",
    parameters: { type: "object", properties: { town: { type: "string" } }, required: ["town"] },
  },
};
const withTool = { ...asked, tools: [weather], tool_choice: { type: "function", function: { name: "weather" } } };

async function wholeAnswer() {
  const { data, response } = await client.chat.completions.create(asked).withResponse();
  assert.equal(data.object, "chat.completion");
  assert.equal(data.choices[0].message.role, "assistant");
  assert.ok(data.choices[0].message.content);
  assert.ok(data.choices[0].finish_reason);
  assert.ok(response.headers.get("x-request-id"));
}

async function streamedAnswer() {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) chunks.push(chunk);
  const choices = chunks.flatMap((chunk) => chunk.choices);
  assert.ok(chunks.length > 1, "the answer came in one piece");
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.ok(choices.map((choice) => choice.delta.content ?? "").join(""));
  assert.equal(choices.filter((choice) => choice.finish_reason).length, 1);
}

async function usageOfAStream() {
  const chunks = [];
  const request = { ...asked, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(request)) chunks.push(chunk);
  assert.ok(chunks.at(-1).usage.total_tokens > 0);
}

async function toolCall() {
  const answer = await client.chat.completions.create(withTool);
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  JSON.parse(call.function.arguments);
}

async function streamedToolCall() {
  const message = await client.chat.completions.stream(withTool).finalMessage();
  const [call] = message.tool_calls;
  assert.ok(call.id);
  assert.equal(call.function.name, "weather");
  JSON.parse(call.function.arguments);
}

async function toolResult() {
  const call = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"town":"Bremen"}' } };
  const messages = [
    ...asked.messages,
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call_1", content: "Rain." },
  ];
  const answer = await client.chat.completions.create({ model, messages, tools: [weather] });
  assert.ok(answer.choices[0].message.content);
}

async function unknownModel() {
  const error = await failure(client.models.retrieve("no-such-model"));
  assert.ok(error instanceof NotFoundError, `got ${error}`);
  assertWorded(error);
}

async function unknownPipeline() {
  const other = new OpenAI({ baseURL: baseURL.replace(/v1$/, "pipelines/none/v1"), apiKey: key ?? "none", maxRetries: 0 });
  const error = await failure(other.chat.completions.create(asked));
  assert.ok(error instanceof NotFoundError, `got ${error}`);
  assertWorded(error);
}

async function unknownKey() {
  if (!key) return "skipped: TURNKEEPER_KEY is not set";
  const stranger = new OpenAI({ baseURL, apiKey: "not-a-key-of-anyone", maxRetries: 0 });
  const error = await failure(stranger.chat.completions.create({ ...asked, stream: true }));
  assert.ok(error instanceof AuthenticationError, `got ${error}`);
  assertWorded(error);
}

// What had arrived before the abort is still handed out, so that only the end and what comes after it can be judged.
async function abortOfAStream() {
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  for await (const _ of stream) stream.controller.abort();
  assert.ok(stream.controller.signal.aborted, "nothing was heard");
  await wholeAnswer();
}

async function abortOfAWholeAnswer() {
  const leaving = new AbortController();
  const answer = failure(client.chat.completions.create(asked, { signal: leaving.signal }));
  leaving.abort();
  assert.ok((await answer) instanceof APIUserAbortError);
  await wholeAnswer();
}

function assertWorded(error) {
  assert.deepEqual(Object.keys(error.error).sort(), ["code", "message", "param", "type"]);
  assert.ok(error.error.message);
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it was answered");
}

const cases = [
  wholeAnswer,
  streamedAnswer,
  usageOfAStream,
  toolCall,
  streamedToolCall,
  toolResult,
  unknownModel,
  unknownPipeline,
  unknownKey,
  abortOfAStream,
  abortOfAWholeAnswer,
];

for (const run of cases) {
  try {
    console.log(`${run.name}: ${(await run()) ?? "ok"}`);
  } catch (error) {
    process.exitCode = 1;
    console.log(`${run.name}: FAILED: ${String(error.message ?? error).replaceAll("\n", " ")}`);
  }
}
