// One bar per round: proposed and accepted drafts above, time below.

import { makeTable, summarize } from "./tokens.js";
import { element } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const STEP_PX = 9;
const BAR_PX = 7;
const BAND_PX = 40;
const GAP_PX = 6;
// Keeps a single draft's bar short.
const LEAST_DRAFTS = 4;
const PARTS = ["target", "draft", "queued", "rpc"];

export class Strip {
  // `text`: the element that holds the rounds' tokens.
  constructor(box, details, text) {
    Object.assign(this, { box, details, text, traces: [], chosen: -1 });
    this.svg = draw("svg", { height: 2 * BAND_PX + GAP_PX, role: "img" }, box);
    // Nested pictures clip bars higher than their band: the first round reads the whole prompt.
    this.drafts = draw("g", {}, draw("svg", { height: BAND_PX }, this.svg));
    this.times = draw("g", {}, draw("svg", { y: BAND_PX + GAP_PX, height: BAND_PX }, this.svg));
    this.covers = draw("g", {}, this.svg);
    box.addEventListener("keydown", (event) => this.#onKey(event));
    box.addEventListener("click", (event) => this.#onClick(event));
    text.addEventListener("click", (event) => this.#onClick(event));
  }

  add(trace) {
    const x = this.traces.length * STEP_PX;
    this.traces.push(trace);
    // Bars are drawn upwards in tokens and milliseconds; the groups scale them.
    draw("rect", { class: "proposed", x, width: BAR_PX, height: trace.proposed.length }, this.drafts);
    draw("rect", { class: "accepted", x, width: BAR_PX, height: trace.num_accepted }, this.drafts);
    let y = 0;
    for (const part of PARTS) {
      const height = trace.ms[part] ?? 0;
      draw("rect", { class: part, x, y, width: BAR_PX, height }, this.times);
      y += height;
    }
    const cover = draw("rect", { class: "cover", x: x - 1, width: STEP_PX, height: 2 * BAND_PX + GAP_PX }, this.covers);
    cover.dataset.round = trace.round;
    draw("title", {}, cover).textContent = summarize(trace);
    this.svg.setAttribute("width", x + STEP_PX);
    this.#scale();
    this.box.scrollLeft = this.box.scrollWidth;
  }

  // Sets the text for screen readers.
  describe(words) {
    this.svg.setAttribute("aria-label", words);
  }

  #scale() {
    const most = Math.max(LEAST_DRAFTS, ...this.traces.map((trace) => trace.proposed.length));
    const timed = this.traces.length > 1 ? this.traces.slice(1) : this.traces;
    const longest_ms = Math.max(0.001, ...timed.map(({ ms }) => PARTS.reduce((sum, part) => sum + (ms[part] ?? 0), 0)));
    this.drafts.setAttribute("transform", `translate(1 ${BAND_PX}) scale(1 ${-BAND_PX / most})`);
    this.times.setAttribute("transform", `translate(1 ${BAND_PX}) scale(1 ${-BAND_PX / longest_ms})`);
  }

  #onKey(event) {
    const last = this.traces.length - 1;
    const next = { ArrowRight: this.chosen + 1, ArrowLeft: this.chosen - 1, Home: 0, End: last }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.#choose(Math.min(Math.max(next, 0), last));
  }

  #onClick(event) {
    const round = event.target.dataset?.round;
    // A click that selects text does not select a round.
    if (round === undefined || !getSelection().isCollapsed) return;
    this.#choose(this.traces.findIndex((trace) => trace.round === Number(round)));
  }

  #choose(index) {
    this.chosen = index;
    const trace = this.traces[index];
    for (const node of [...this.text.children, ...this.covers.children]) {
      node.classList.toggle("chosen", node.dataset.round === String(trace.round));
    }
    this.details.replaceChildren(element("p", { text: summarize(trace) }));
    if (trace.proposed.length) this.details.append(makeTable(trace));
    const left = index * STEP_PX;
    if (left < this.box.scrollLeft || left + STEP_PX > this.box.scrollLeft + this.box.clientWidth) {
      this.box.scrollLeft = left - this.box.clientWidth / 2;
    }
  }
}

function draw(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return parent.appendChild(node);
}
