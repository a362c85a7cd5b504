// Shows one round as marked-up text and as a table.

import { DRAFTERS, element, fixed, quoted, visible } from "./words.js";

const ORIGINS = {
  accepted: "accepted draft",
  recovered: "recovered: sampled by the target in place of a rejected draft",
  bonus: "bonus: sampled by the target after all drafts were accepted",
  target: "sampled by the target: nothing was drafted",
  forced: "forced: the only token that the output's format allowed",
};

// Makes a node for each token of a round, with the text that it adds to the answer.
export function makeTokens(trace, content) {
  const texts = shareOut(content, trace.emitted);
  return trace.emitted.map((token, index) => {
    const node = element("span", { className: `token ${token.origin}`, text: texts[index] });
    const draft = token.origin === "accepted" ? trace.proposed[index] : undefined;
    node.title = [ORIGINS[token.origin], `round ${trace.round}`, ...(draft ? odds(draft, trace) : [])].join(", ");
    node.dataset.round = trace.round;
    return node;
  });
}

// A token's own text is not always what it adds: the end of text adds nothing, part of a character waits for the rest,
// and the beginning of a stop string is held back. Tokens that match at either end get their own text; the remainder
// goes to the last token between, or to the next one.
function shareOut(content, tokens) {
  const texts = tokens.map(() => "");
  let [first, last, start, end] = [0, tokens.length - 1, 0, content.length];
  for (; first <= last && content.startsWith(tokens[first].text, start); first++) {
    texts[first] = tokens[first].text;
    start += tokens[first].text.length;
  }
  for (; last >= first && content.slice(start, end).endsWith(tokens[last].text); last--) {
    texts[last] = tokens[last].text;
    end -= tokens[last].text.length;
  }
  const rest = content.slice(start, end);
  if (last >= first) texts[last] = rest;
  else if (first < tokens.length) texts[first] = rest + texts[first];
  else if (rest) texts[tokens.length - 1] += rest;
  return texts;
}

// Makes a node for each draft that was rejected or dropped.
export function makeRejected(trace) {
  return trace.proposed
    .map((draft, index) => ({ draft, index }))
    .filter(({ draft }) => !draft.accepted)
    .map(({ draft, index }) => {
      const text = draft.text.trim() === "" ? draft.text.replaceAll(" ", "␣") : draft.text.trim();
      const node = element("del", { className: "rejected", text: visible(text, draft.token_id) });
      node.title = [verdict(trace, index), `round ${trace.round}`, ...odds(draft, trace)].join(", ");
      node.dataset.round = trace.round;
      if (index > trace.num_accepted) node.classList.add("dropped");
      return node;
    });
}

function odds(draft, trace) {
  const numbers = ["q", "p", "r"].filter((name) => draft[name] != null).map((name) => `${name} ${fixed(draft[name], 3)}`);
  return [`drafted by ${DRAFTERS[trace.drafter] ?? trace.drafter}`, ...numbers];
}

function verdict(trace, index) {
  const draft = trace.proposed[index];
  if (draft.accepted) return "accepted";
  if (!trace.emitted.some((token) => token.origin === "recovered")) return "not needed: the text ended before it";
  if (index > trace.num_accepted) return "dropped: a draft before it was rejected";
  if (draft.target_text == null) return "rejected";
  return `rejected: the target drew ${quoted({ text: draft.target_text, token_id: draft.target_id })}`;
}

// Describes a round in a sentence.
export function summarize({ round, drafter, proposed, num_accepted, reason, ms }) {
  const who = DRAFTERS[drafter] ?? drafter;
  const did = proposed.length
    ? `${who} proposed ${proposed.length}, ${num_accepted} accepted`
    : `nothing proposed${reason ? `: ${reason}` : ""}`;
  const times = ["draft", "target", "queued", "rpc"].map((name) => `${name} ${fixed(ms[name], 1)} ms`);
  return `Round ${round}: ${did}; ${times.join(", ")}`;
}

export function makeTable(trace) {
  // The rule `match` has no probabilities.
  const numbers = ["q", "p", "r"].filter((name) => trace.proposed.some((draft) => draft[name] != null));
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["draft", ...numbers, "outcome"]) head.append(element("th", { text: name }));
  const body = table.createTBody();
  trace.proposed.forEach((draft, index) => {
    const row = body.insertRow();
    row.insertCell().textContent = quoted(draft);
    for (const name of numbers) row.insertCell().textContent = fixed(draft[name] ?? NaN, 3);
    row.insertCell().textContent = verdict(trace, index);
  });
  return table;
}
