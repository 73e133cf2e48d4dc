// Three turns as the AI SDK takes them: one that is interrupted, another, one with a tool call.
//
// TURNKEEPER_URL  where it serves, without /v1

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, streamText, tool } from "ai";

const turnkeeper = createOpenAICompatible({
  name: "turnkeeper",
  baseURL: `${process.env.TURNKEEPER_URL}/v1`,
  apiKey: "none",
  headers: { "X-Session-Id": "room-1", "X-User-Id": "ann" },
});
const weather = tool({
  description: "The weather outside.",
  inputSchema: jsonSchema({ type: "object", properties: {} }),
});

// What is said, which tools are called, and the messages that the conversation goes on with.
async function answered(messages) {
  const result = streamText({ model: turnkeeper("fake"), messages, tools: { weather }, maxRetries: 0 });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  return { text, calls: await result.toolCalls, messages: (await result.response).messages };
}

const talk = [{ role: "user", content: "Tell me a joke." }];
let answer = await answered(talk);
assert.equal(answer.text, "Why did the scarecrow win an award?");
await pause(500);

// The caller interrupts: an application keeps what was played.
talk.push({ role: "assistant", content: "Why did the scarecrow" }, { role: "user", content: "A story, please." });
answer = await answered(talk);
assert.equal(answer.text, "Once upon a time.");
await pause(500);

talk.push(...answer.messages, { role: "user", content: "Is it raining?" });
answer = await answered(talk);
const [call] = answer.calls;
assert.equal(call.toolName, "weather");

const output = { type: "text", value: "Mild." };
talk.push(...answer.messages, {
  role: "tool",
  content: [{ type: "tool-result", toolCallId: call.toolCallId, toolName: "weather", output }],
});
answer = await answered(talk);
assert.equal(answer.text, "It is mild.");
