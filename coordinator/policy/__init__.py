"""Speculation policy: which drafter proposes in each round, and how many tokens.

By default (an adaptive number of draft tokens) every drafter plans what its tokens would gain: the tokens it expects to be
accepted, less what their time costs in tokens. The largest gain wins; if none is above 0, the round has no drafts.
Acceptance rates and times are measured.

A choice uses decided tokens, times, and how many tokens a draft model made before it was unsure. That number depends on
drafts that were then dropped, and biases nothing: under `match` the target's own choice is emitted whatever was drafted,
and under `rejection` the noise of a round is keyed by its position, so no round draws again what another has drawn.
"""
