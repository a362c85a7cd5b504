// Formats numbers and tokens.

export const DRAFTERS = {
  model: "the draft model",
  hierarchical: "the draft model with n-grams",
  head: "the target's draft head",
  ngram: "n-grams",
  suffix: "suffix matching",
  custom: "the custom drafter",
  prediction: "the prediction",
  none: "no drafter",
};

export function fixed(number, digits) {
  return Number.isFinite(number) ? number.toFixed(digits) : "–";
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// A token's text with visible white space.
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

// 128 random bits. randomUUID needs HTTPS or loopback.
export function randomText() {
  return [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");
}
