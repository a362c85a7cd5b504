"""Choosing: which source proposes in a round and how many tokens, where a request asks for adaptive drafts.

Every source says what its drafts would gain: the drafts it expects to be accepted, less what their time would bring in
tokens. The largest gain wins; if none is above 0, the round has no drafts. What sources know about acceptance and times
is measured (see `experience`).

A choice uses decided tokens, times, and how many drafts a model made before it was unsure. That number depends on drafts
that were then dropped, and biases nothing: under `match` the target's own choice comes out whatever was drafted, and under
`rejection` the noise of a round is keyed by where it begins, so no round draws again what an earlier one has drawn.
"""
