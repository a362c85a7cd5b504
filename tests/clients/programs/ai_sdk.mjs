import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Modules are looked for beside this file; the packages are elsewhere.
const { resolve } = createRequire(process.env.FOLDER + "/");
const load = async (name) => import(pathToFileURL(resolve(name)));
const { isStepCount, streamText, tool } = await load("ai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const { API, MODEL, PROMPT, URL } = process.env;
const options = { name: "paceline", baseURL: `${URL}/v1`, apiKey: "none" };
const models = {
  chat: () => createOpenAICompatible(options)(MODEL),
  responses: () => createOpenAI(options).responses(MODEL),
  messages: () => createAnthropic(options)(MODEL),
};
const write = tool({
  description: "Writes a file.",
  inputSchema: z.object({ path: z.string(), content: z.string() }),
  execute: async ({ path, content }) => (writeFileSync(path, content), "written"),
});
const result = streamText({
  model: models[API](),
  prompt: PROMPT,
  tools: { write },
  // Otherwise it refers to what a server of responses has stored.
  providerOptions: { openai: { store: false } },
  stopWhen: isStepCount(8),
  onError: ({ error }) => {
    console.error(error);
    process.exitCode = 1;
  },
});
for await (const text of result.textStream) process.stdout.write(text);
