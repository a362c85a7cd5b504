// Numbers and tokens as the reader sees them.

export const DRAFTERS = {
  model: "the draft model",
  hierarchical: "the draft model, with guesses",
  ngram: "n-grams",
  suffix: "a long match",
  custom: "the custom drafter",
  prediction: "the prediction",
  none: "nobody",
};

export function fixed(number, digits) {
  return Number.isFinite(number) ? number.toFixed(digits) : "–";
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// A token's text where white space must be seen.
export function visible(text, tokenId) {
  return text === "" ? `#${tokenId}` : text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

export function quoted(token) {
  return token === undefined ? "the end" : `“${visible(token.text, token.token_id)}”`;
}

export function element(name, { className = "", text = "" } = {}) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

export function clone(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}

// 128 random bits. randomUUID is for HTTPS and loopback alone.
export function randomText() {
  return [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");
}
