// The page: the conversation, sending and stopping, status and errors.

import { Answer } from "./answer.js";
import { ApiError, getJson, setKey, stream } from "./api.js";
import { compare } from "./compare.js";
import { Controls } from "./controls.js";
import { clone, count, fixed, randomText } from "./words.js";

const FOLLOW_PX = 160;
const NARROW = matchMedia("(max-width: 900px)");
const [box, sendButton, stopButton, clearButton, retryButton, keyForm] = [
  "prompt", "send", "stop", "clear", "retry", "key-form",
].map((id) => document.getElementById(id));
const conversation = document.getElementById("conversation");
const welcome = document.getElementById("welcome");
const controls = new Controls(document.getElementById("settings"));

// The conversation so far, and its last answer. `model` is null until it is known, `running` while nothing runs.
let messages = [];
let last = null;
let model = null;
let running = null;

function say(words) {
  document.getElementById("status").textContent = words;
}

function complain(error) {
  if (!(error instanceof ApiError)) console.error(error);
  document.getElementById("error").textContent = error.message;
  if (error.status === 401) {
    keyForm.hidden = false;
    document.getElementById("key").focus();
  }
}

function forgive() {
  document.getElementById("error").textContent = "";
}

// Fetches the model and the deployment. Returns whether a request can be sent.
async function connect() {
  retryButton.hidden = true;
  forgive();
  try {
    const models = await getJson("v1/models");
    const deployment = await getJson("v1/deployment");
    keyForm.hidden = true;
    if (model === null) controls.fill(deployment);
    model = models.data[0].id;
    describe(deployment);
  } catch (error) {
    complain(error);
    retryButton.hidden = error.status === 401;
    return false;
  }
  return true;
}

function describe({ version, target, draft, running, max_num_seqs }) {
  const parts = [target.name, draft ? `drafts by ${draft.name}` : "no draft model"];
  parts.push(`${running} of ${max_num_seqs} running`, `version ${version}`);
  document.getElementById("deployment").textContent = parts.join(" · ");
}

function setRunning(controller) {
  const hadFocus = [sendButton, stopButton].includes(document.activeElement);
  running = controller;
  sendButton.disabled = clearButton.disabled = controller !== null;
  stopButton.disabled = controller === null;
  if (hadFocus) (controller ? stopButton : box).focus();
}

function send() {
  const prompt = box.value;
  if (prompt.trim() !== "") goOn(prompt, [{ role: "user", content: prompt }]);
}

// Sends what the user or tools say next. `prompt`: how the page shows it.
async function goOn(prompt, said) {
  if (running || !controls.check()) return;
  setRunning(new AbortController());
  forgive();
  try {
    if (model !== null || (await connect())) await answer(prompt, said);
  } catch (error) {
    complain(error);
  } finally {
    setRunning(null);
  }
}

async function answer(prompt, next) {
  const isChat = controls.isChat;
  const asked = [...messages, ...next];
  const sampling = { ...controls.readSampling(), ...controls.readOutput() };
  const modes = controls.compares ? [false, true] : [controls.enabled];
  const speculations = modes.map((enabled) => controls.readSpeculation(enabled));
  const turn = addTurn(prompt, sampling.seed, modes.length);
  box.value = "";
  const answers = [];
  // One after the other, so that neither slows the other.
  for (const speculation of speculations) {
    const pane = new Answer(speculation.enabled ? "With speculation" : "Without speculation");
    turn.querySelector(".panes").append(pane.element);
    answers.push(pane);
    const request = { model, stream: true, stream_options: { include_usage: true }, trace: true, speculation };
    // Keeps the second answer from being drafted from the first.
    if (modes.length > 1) request.cache_salt = randomText();
    const text = isChat ? { messages: asked } : { prompt };
    await run(pane, isChat ? "v1/chat/completions" : "v1/completions", { ...request, ...text, ...sampling });
    if (!pane.isWhole) break;
  }
  const said = answers.findLast((pane) => !pane.isEmpty);
  // Results still stand in their boxes.
  const isLost = said === undefined && !answers.at(-1).isWhole && next[0].role === "user";
  if (isLost && box.value === "") box.value = prompt;
  if (isChat && said) {
    last?.calls.endResults();
    last = said;
    messages = [...asked, said.message];
    const calls = said.calls.made;
    if (calls.length > 0 && said.isWhole) said.calls.askResults((results) => goOn(results.map((each) => each.content).join("\n"), results));
  }
  if (modes.length === 2) showVerdict(turn, answers, speculations[1], sampling);
  await refresh();
}

function addTurn(prompt, seed, panes) {
  for (const rounds of conversation.querySelectorAll(".rounds")) rounds.open = false;
  const turn = clone("turn-template");
  turn.querySelector(".prompt").textContent = prompt;
  const repeat = turn.querySelector(".seed");
  repeat.textContent = seed;
  repeat.addEventListener("click", () => (controls.seed = seed));
  turn.querySelector(".panes").classList.toggle("two", panes === 2);
  welcome.hidden = true;
  conversation.append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

async function run(pane, path, body) {
  say(`${pane.heading} …`);
  try {
    for await (const chunk of stream(path, body, running.signal)) follow(() => pane.add(chunk));
    follow(() => pane.finish());
    const why = pane.finishReason === "length" ? " It reached max tokens." : "";
    say(`${pane.heading}: ${count(pane.tokens.length, "token")}.${why}`);
  } catch (error) {
    pane.close();
    const end = `after ${count(pane.tokens.length, "token")}`;
    if (running.signal.aborted) {
      say(`Stopped ${end}.`);
      return;
    }
    say(`Ended ${end}.`);
    pane.fail(error.message);
    complain(error);
  }
}

// Keeps the end of the conversation in view if the user is reading there.
function follow(change) {
  const main = document.querySelector("main");
  const below_px = main.getBoundingClientRect().bottom - innerHeight;
  change();
  if (Math.abs(below_px) < FOLLOW_PX) scrollBy(0, Math.max(0, main.getBoundingClientRect().bottom - innerHeight));
}

function showVerdict(turn, answers, speculation, { temperature }) {
  const isWhole = answers.length === 2 && answers.every((pane) => pane.isWhole);
  const verdict = turn.querySelector(".verdict");
  const redraws = temperature > 0 && speculation.rule === "rejection";
  const words = isWhole ? compare(...answers, redraws) : "Not compared: an answer is incomplete.";
  follow(() => (verdict.textContent = words));
  // The verdict says it all.
  if (isWhole) say("");
}

// Updates the number of running generations. The next request reports a failure.
async function refresh() {
  await getJson("v1/deployment").then(describe, () => {});
}

document.getElementById("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  } else if (event.key === "Escape") running?.abort();
});
stopButton.addEventListener("click", () => running?.abort());
clearButton.addEventListener("click", () => {
  messages = [];
  last = null;
  conversation.replaceChildren();
  welcome.hidden = false;
  say("");
  forgive();
  box.focus();
});
retryButton.addEventListener("click", connect);
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = document.getElementById("key");
  setKey(key.value.trim());
  key.value = "";
  connect();
});
document.getElementById("settings").addEventListener("change", () => {
  document.getElementById("prompt-label").textContent = controls.isChat ? "Message" : "Text to continue";
});
document.getElementById("hide-rejected").addEventListener("change", ({ target }) => {
  document.body.classList.toggle("hides-rejected", target.checked);
});
for (const example of document.querySelectorAll("#examples button")) {
  example.addEventListener("click", () => {
    box.value = example.textContent;
    box.focus();
  });
}
document.getElementById("fold").open = !NARROW.matches;
connect();
