// Shows an answer's function calls while they stream, and asks for their results.

import { element } from "./words.js";

export class Calls {
  constructor(node) {
    this.node = node;
    // As a message sends them back.
    this.made = [];
    this.shown = [];
  }

  // Adds the pieces of calls in a chunk.
  add(pieces) {
    for (const { index, id, function: { name, arguments: piece } } of pieces) {
      if (this.made[index] === undefined) this.#open(index, id, name);
      this.made[index].function.arguments += piece;
      this.shown[index].textContent += piece;
    }
  }

  #open(index, id, name) {
    this.made[index] = { id, type: "function", function: { name, arguments: "" } };
    this.shown[index] = element("code");
    const call = element("p", { className: "call" });
    call.append(element("b", { text: name }), " ", this.shown[index]);
    this.node.append(call);
    this.node.hidden = false;
  }

  // Shows a box for each call's result. `send` gets the messages of the tools.
  askResults(send) {
    const form = element("form", { className: "results" });
    const boxes = this.made.map((call) => {
      const label = element("label", { className: "field wide", text: `Result of ${call.function.name}` });
      const box = Object.assign(element("textarea"), { rows: 1, spellcheck: false });
      label.append(box);
      form.append(label);
      return box;
    });
    const button = Object.assign(element("button", { text: "Send results" }), { type: "submit" });
    form.append(button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send(this.made.map(({ id }, index) => ({ role: "tool", tool_call_id: id, content: boxes[index].value })));
    });
    this.node.append(form);
  }

  // Removes the boxes once the conversation goes on.
  endResults() {
    this.node.querySelector(".results")?.remove();
  }
}
