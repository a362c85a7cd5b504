// One round as marked-up text, and as a table.

import { DRAFTERS, element, fixed, quoted, visible } from "./words.js";

const ORIGINS = {
  accepted: "accepted draft",
  recovered: "recovered: the target's, in place of a rejected draft",
  bonus: "bonus: the target's, after all drafts were accepted",
  target: "the target's: nothing was drafted",
};

// Nodes of the tokens emitted in a round, each with the text that became certain with it.
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

// A token's own text is not always what it shows: the end of the text shows nothing, half a character waits for its
// other half, and the beginning of a stop string is held back. What fits from both ends is theirs; the rest goes to the
// last token between, or to the next one.
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

// Nodes of the drafts that did not stand.
export function makeRejected(trace) {
  return trace.proposed
    .map((draft, index) => ({ draft, index }))
    .filter(({ draft }) => !draft.accepted)
    .map(({ draft, index }) => {
      const text = draft.text.trim() === "" ? draft.text.replaceAll(" ", "␣") : draft.text.trim();
      const node = element("del", { className: "rejected", text: visible(text, draft.token_id) });
      node.title = [verdict(trace, index), `round ${trace.round}`, ...odds(draft, trace)].join(", ");
      node.dataset.round = trace.round;
      if (index > trace.num_accepted) node.classList.add("behind");
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
  if (index > trace.num_accepted) return "dropped: it stood behind a rejected draft";
  if (draft.target_text == null) return "rejected";
  return `rejected: the target drew ${quoted({ text: draft.target_text, token_id: draft.target_id })}`;
}

// What happened in a round, for the reader who chose it.
export function summarise({ round, drafter, proposed, num_accepted, reason, ms }) {
  const who = DRAFTERS[drafter] ?? drafter;
  const did = proposed.length
    ? `${who} proposed ${proposed.length}, ${num_accepted} accepted`
    : `nothing proposed${reason ? `: ${reason}` : ""}`;
  const times = ["draft", "target", "queued", "wire"].map((name) => `${name} ${fixed(ms[name], 1)} ms`);
  return `Round ${round}: ${did}; ${times.join(", ")}`;
}

export function makeTable(trace) {
  // Under the rule `match` there are no probabilities to show.
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
