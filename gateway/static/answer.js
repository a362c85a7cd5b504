// Shows an answer while it streams: tokens, figures, rounds, and why it does not speculate.

import { Calls } from "./calls.js";
import { Strip } from "./strip.js";
import { makeRejected, makeTokens } from "./tokens.js";
import { clone, count, element, fixed } from "./words.js";

export class Answer {
  constructor(heading) {
    this.heading = heading;
    this.element = clone("answer-template");
    this.element.querySelector("h3").textContent = heading;
    this.body = this.element.querySelector(".text");
    this.calls = new Calls(this.element.querySelector(".calls"));
    this.strip = new Strip(this.element.querySelector(".strip"), this.element.querySelector(".round"), this.body);
    // The answer's text, and its tokens with their nodes.
    Object.assign(this, { text: "", tokens: [], traces: [], end: null, finishReason: null, isWhole: false });
    this.firstAt_ms = this.lastAt_ms = NaN;
    this.startedAt_ms = performance.now();
    this.#showFigures();
  }

  // Adds a chunk of /v1/chat/completions or /v1/completions.
  add(chunk) {
    const choice = chunk.choices[0];
    if (choice === undefined) {
      this.end = chunk;
      return;
    }
    const reasoning = choice.delta?.reasoning_content ?? "";
    const content = choice.delta?.content ?? choice.text ?? "";
    // The first content after reasoning begins a paragraph.
    if (content && !this.text && this.body.querySelector(".reasoning")) this.body.append("\n\n");
    this.text += content;
    this.calls.add(choice.delta?.tool_calls ?? []);
    this.finishReason = choice.finish_reason ?? this.finishReason;
    if (choice.paceline?.emitted.length) this.#addRound(choice.paceline, reasoning || content, reasoning !== "");
    else if (content) this.body.append(element("span", { text: content }));
  }

  #addRound(trace, content, isReasoning) {
    this.lastAt_ms = performance.now();
    if (Number.isNaN(this.firstAt_ms)) this.firstAt_ms = this.lastAt_ms;
    this.traces.push(trace);
    const nodes = makeTokens(trace, content);
    if (isReasoning) for (const node of nodes) node.classList.add("reasoning");
    nodes.forEach((node, index) => this.tokens.push({ ...trace.emitted[index], node }));
    // A call's drafts are shown only in the strip.
    const rejected = content === "" && this.calls.made.length > 0 ? [] : makeRejected(trace);
    this.body.append(...nodes.slice(0, trace.num_accepted), ...rejected, ...nodes.slice(trace.num_accepted));
    this.strip.add(trace);
    this.#notice(this.#isIdle(trace) && trace.reason ? `Not speculating: ${trace.reason}.` : "");
    this.#showFigures();
  }

  // Ends an answer whose stream is complete.
  finish() {
    this.isWhole = true;
    this.close();
  }

  // Ends an answer, complete or not.
  close() {
    this.#showFigures();
    const unenforced = this.end?.paceline?.unenforced;
    this.#notice([this.#explainIdle(), unenforced ? `Not enforced: ${unenforced.join("; ")}.` : ""].join(" ").trim());
    const { rounds, length } = this.figures();
    this.strip.describe(`${count(rounds, "round")} after the first, ${fixed(length, 2)} tokens per round`);
  }

  // As the conversation's next message.
  get message() {
    const calls = this.calls.made;
    return { role: "assistant", content: this.text, ...(calls.length > 0 && { tool_calls: calls }) };
  }

  get isEmpty() {
    return this.text === "" && this.calls.made.length === 0;
  }

  fail(words) {
    const error = this.element.querySelector(".error");
    error.textContent = words;
    error.hidden = false;
  }

  // The first round reads the prompt and never has drafts.
  #isIdle(trace) {
    return trace !== this.traces[0] && trace.proposed.length === 0;
  }

  #explainIdle() {
    const later = this.traces.slice(1);
    const idle = later.filter((trace) => trace.proposed.length === 0);
    const reasons = [...new Set(idle.map((trace) => trace.reason).filter(Boolean))].join("; ");
    if (!reasons) return idle.length && idle.length === later.length ? "Not speculating: nothing was proposed." : "";
    if (idle.length === later.length) return `Not speculating: ${reasons}.`;
    return `Not speculating in ${idle.length} of ${later.length} rounds: ${reasons}.`;
  }

  #notice(words) {
    const notice = this.element.querySelector(".notice");
    notice.textContent = words;
    notice.hidden = words === "";
  }

  // Uses the server's figures once they have arrived, and this page's clock until then. Rates leave out the first round,
  // which reads the prompt and is quick if the prompt is cached.
  figures() {
    const later = this.traces.slice(1);
    const laterTokens = later.reduce((sum, trace) => sum + trace.emitted.length, 0);
    const proposed = this.traces.reduce((sum, trace) => sum + trace.proposed.length, 0);
    const accepted = this.traces.reduce((sum, trace) => sum + trace.num_accepted, 0);
    const timing = this.end?.paceline?.timing_ms;
    const first_ms = timing?.first_token ?? this.firstAt_ms - this.startedAt_ms;
    const later_ms = timing ? timing.total - timing.first_token : this.lastAt_ms - this.firstAt_ms;
    const own = this.end?.paceline?.speculation;
    return {
      tokens: this.end?.usage?.completion_tokens ?? this.tokens.length,
      first_ms,
      perSecond: later_ms > 0 ? (1000 * laterTokens) / later_ms : NaN,
      rounds: own?.rounds ?? later.length,
      length: own?.mean_acceptance_length ?? laterTokens / later.length,
      rate: (own?.accepted ?? accepted) / (own?.proposed ?? proposed),
    };
  }

  #showFigures() {
    const { tokens, first_ms, perSecond, length, rate } = this.figures();
    const shown = {
      tokens: [String(tokens), "in the answer"],
      "tokens/s": [fixed(perSecond, 1), "after the first token"],
      "acceptance length": [fixed(length, 2), "tokens per target forward pass after the first"],
      "acceptance rate": [Number.isFinite(rate) ? `${fixed(100 * rate, 0)} %` : "–", "accepted drafts / proposed drafts"],
      "first token": [Number.isFinite(first_ms) ? `${fixed(first_ms, 0)} ms` : "–", "after the request was received"],
    };
    const nodes = Object.entries(shown).map(([name, [value, title]]) => {
      const group = element("div");
      group.title = title;
      group.append(element("dt", { text: name }), element("dd", { text: value }));
      return group;
    });
    this.element.querySelector(".figures").replaceChildren(...nodes);
  }
}
