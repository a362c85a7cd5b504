"""Speculation policy: which drafter proposes in each round, and how many tokens.

By default (an adaptive number of draft tokens) a round makes the proposal with the largest gain, in tokens:

    gain = sum of chances  -  speed * (seconds with the drafts  -  seconds without)

    chance     that a draft and all before it are accepted. Of a looked-up token: how often such matches were right. Of a
               model's: how often its k-th drafts were, and once they are drafted, its own probability, calibrated.
    seconds    the servers' forward times, as they learn them, for as many tokens as all active generations feed if all do the
               same, and what rounds of each kind took beside them (`costs`)
    speed      tokens a second that the generation makes, or all that share forward passes with it

    decided                              by
    whether the model drafts at all      the largest gain; where several share forward passes, for all of them
    looked-up tokens                     the largest gain
    continued by a model, or not         the larger gain of the two
    which of several models              the largest gain, the reading of what it has missed included
    trials of a model that loses         a small share of the choices made without it, which must pay for them
    when the model stops                 chance so far * rate of a next draft < speed * seconds of one more
    drafts that the target verifies      the largest gain of those in hand

A choice uses decided tokens, times, and the draft model's probabilities. A token that was drawn from its own distribution
(rule `rejection`) is never dropped for what it is, only for those before it, which biases nothing; under `match` the
target's own choice is emitted whatever was drafted.
"""
