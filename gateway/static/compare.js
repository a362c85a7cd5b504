// Compares two answers to one prompt: tokens and speed.

import { count, fixed, quoted } from "./words.js";

// Describes the comparison and marks the first tokens that differ. `redraws`: the rule preserves the distribution, not
// the tokens.
export function compare(plain, speculative, redraws) {
  const index = firstDifference(plain.tokens, speculative.tokens);
  const [off, on] = [plain.figures().perSecond, speculative.figures().perSecond];
  const speeds = `${fixed(on / off, 2)} times as fast (${fixed(on, 1)} vs. ${fixed(off, 1)} tokens/s after the first token)`;
  if (index === -1) return `Identical: ${count(plain.tokens.length, "token")}, ${speeds}.`;
  for (const answer of [plain, speculative]) answer.tokens[index]?.node.classList.add("differs");
  const difference = `First difference at token ${index + 1}: ${quoted(plain.tokens[index])} without speculation, `;
  const why = redraws ? " The rejection rule preserves the distribution, not the tokens." : "";
  return `${difference}${quoted(speculative.tokens[index])} with it; ${speeds}.${why}`;
}

function firstDifference(ours, theirs) {
  const length = Math.max(ours.length, theirs.length);
  for (let index = 0; index < length; index++) {
    if (ours[index]?.token_id !== theirs[index]?.token_id) return index;
  }
  return -1;
}
