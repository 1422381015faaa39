// Runs the Vercel AI SDK with its provider for compatible servers against `ironstar serve`.
//
// Usage: node ai.mjs SCRIPTED_URL NANO_URL. The first server plays play.json beside this file, the
// second has the bundled nano model. The folder that it runs in has the packages of package.json.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [scripted, nano] = process.argv.slice(2);
// The packages lie in the working folder and not beside this file.
const require = createRequire(`${process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const at = (url) =>
  createOpenAICompatible({
    name: "ironstar",
    baseURL: `${url}/v1`,
    includeUsage: true,
    supportsStructuredOutputs: true,
  })("m");
const [model, small] = [at(scripted), at(nano)];
const once = { maxRetries: 0 };
const text = "Hello, wörld \u{1f44b}!";
const city = jsonSchema({
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
});
const pet = jsonSchema({
  type: "object",
  properties: {
    name: { type: "string", maxLength: 12 },
    kind: { enum: ["cat", "dog"] },
    age: { type: "integer", minimum: 0, maximum: 99 },
  },
  required: ["name", "kind", "age"],
  additionalProperties: false,
});
const off = { providerOptions: { ironstar: { reasoningEffort: "none" } } };

/** Parts of a stream by their types, errors thrown. */
async function parts(stream) {
  const all = [];
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    all.push(part);
  }
  return all;
}

async function wholeAndStreamed() {
  const whole = await generateText({ ...once, model, prompt: "hi" });
  assert.equal(whole.text, text);
  assert.equal(whole.reasoningText, "I think about it.");
  assert.equal(whole.finishReason, "stop");
  const result = streamText({ ...once, model, prompt: "hi" });
  const kinds = new Set((await parts(result.fullStream)).map((part) => part.type));
  for (const kind of ["reasoning-delta", "text-delta", "finish"]) assert(kinds.has(kind), kind);
  assert.equal(await result.text, text);
  assert.equal(await result.finishReason, "stop");
  const [usage, other] = [await result.usage, whole.usage];
  assert.equal(usage.outputTokens, other.outputTokens);
  assert(usage.inputTokens > 0);
}

async function toolLoop() {
  const asked = [];
  const execute = async (input) => asked.push(input) && "25 degrees";
  const tools = { get_weather: tool({ inputSchema: city, execute }) };
  const result = streamText({
    ...once, model, tools, prompt: "weather", stopWhen: stepCountIs(3),
  });
  await parts(result.fullStream);
  assert.deepEqual(asked, [{ city: "Paris" }]);
  assert.equal(await result.text, "It is warm in Paris.");
  const steps = await result.steps;
  assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  const two = await generateText({
    ...once, model, tools, prompt: "two calls",
  });
  assert.deepEqual(two.toolCalls.map((call) => call.input.city), ["Paris", "Rome"]);
}

async function errors() {
  const failing = async (prompt, code) => {
    await assert.rejects(generateText({ ...once, model, prompt }), (error) => {
      assert.equal(error.statusCode, code, String(error));
      return true;
    });
  };
  await failing("long ".repeat(70000), 400);
  await failing("fail", 500);
  const result = streamText({ ...once, model, prompt: "fail", onError() {} });
  await assert.rejects(parts(result.fullStream), "a fault within a stream is an error");
}

async function leaving() {
  const controller = new AbortController();
  const result = streamText({
    ...once, model, prompt: "endless", abortSignal: controller.signal, onError() {},
  });
  let count = 0;
  try {
    for await (const part of result.fullStream) {
      if (part.type === "text-delta" && (count += 1) === 5) controller.abort();
    }
  } catch {
    // Leaving may be told as an error; what counts is the server.
  }
  // A minute, on a quiet machine: only what hangs takes so long.
  for (let round = 0; round < 3000; round += 1) {
    const health = await (await fetch(`${scripted}/health`)).json();
    if (health.requests_running === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail("the answer goes on though nobody reads it");
}

async function structured() {
  for (const seed of [0, 1]) {
    const { output } = await generateText({
      ...once, ...off, model: small, seed, maxOutputTokens: 200, prompt: "A pet as JSON.",
      output: Output.object({ schema: pet, name: "pet" }),
    });
    assert(["cat", "dog"].includes(output.kind) && output.age >= 0 && output.age <= 99, output);
  }
  const result = streamText({
    ...once, ...off, model: small, seed: 2, maxOutputTokens: 200, prompt: "A pet as JSON.",
    output: Output.object({ schema: pet, name: "pet" }),
  });
  await parts(result.fullStream);
  assert.equal(typeof (await result.output).name, "string");
}

async function demandedCall() {
  const tools = { get_weather: tool({ inputSchema: city, strict: true }) };
  const asked = { ...once, ...off, tools, maxOutputTokens: 200, prompt: "hello" };
  for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
    const { toolCalls } = await generateText({ ...asked, model: small, seed: 3, toolChoice });
    assert.equal(toolCalls[0].toolName, "get_weather");
    assert.equal(typeof toolCalls[0].input.city, "string");
  }
}

for (const check of [
  wholeAndStreamed, toolLoop, errors, leaving, structured, demandedCall,
]) {
  const begun = performance.now();
  await check();
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  console.log(`clients: ai.mjs ${check.name}: ok in ${seconds} s`);
}
