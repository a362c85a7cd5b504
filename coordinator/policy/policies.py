"""Makes each request's policy."""

from dataclasses import replace

from coordinator.drafters.drafter import NoDrafter, Resources, load_factory
from coordinator.drafters.prediction import PredictionDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.policy.experience import Experience
from coordinator.policy.policy import FixedPolicy, Policy, PredictionPolicy
from coordinator.request import Request
from paceline.checks import require
from paceline.speculation_params import MAX_DRAFT_TOKENS, Bounds, SpeculationParams
from paceline.speculation_params import Drafter as DrafterName


class Policies:
    """Makes each request's policy."""

    def __init__(self, resources: Resources, experience: Experience) -> None:
        self.resources = resources
        self._experience = experience
        self._factories = {name: load_factory(name) for name in DrafterName}

    def check(self, speculation: SpeculationParams) -> None:
        """Raises InvalidArgument for a drafter or a draft model that this coordinator does not have."""
        name, draft_model, pool = speculation.drafter, speculation.draft_model, self.resources.draft
        missing = {each: factory.missing(self.resources) for each, factory in self._factories.items()}
        *others, last = [each.value for each in missing if not missing[each]]
        require(not missing[name], "drafter", name.value, f"{', '.join(others)} or {last}: {missing[name]}")
        if draft_model:
            models = [] if pool is None else pool.models
            # A server that is not listed or was not reached yet may have it.
            known = [] if pool is None else [each.model or each.link.is_refused for each in pool.endpoints]
            may_come = pool is not None and not (known and all(known))
            allowed = f"one of {', '.join(models)}" if models else "left out: there is no draft server"
            require(draft_model in models or may_come, "draft_model", draft_model, allowed)

    def make(self, request: Request) -> Policy:
        speculation, prediction = request.speculation, request.prediction
        length = speculation.num_speculative_tokens
        if not speculation.enabled or length == 0:
            return FixedPolicy(NoDrafter(), 0)
        factory = self._factories[speculation.drafter]
        if isinstance(length, Bounds):
            drafters = factory.make_set(self.resources, request)
            if prediction:
                drafters = replace(drafters, lookups=[PredictionDrafter(prediction), *drafters.lookups])
            return AdaptivePolicy(drafters, length, self._experience, request.sampling.is_greedy)
        # The draft server applies the entropy rule; here it is only a limit.
        num_draft_tokens = length if isinstance(length, int) else length.bounds.max
        policy = FixedPolicy(factory.fixed(self.resources, request), num_draft_tokens)
        if not prediction:
            return policy
        # The entropy rule's limit is for the draft model alone.
        num_predicted = length if isinstance(length, int) else MAX_DRAFT_TOKENS
        return PredictionPolicy(PredictionDrafter(prediction), num_predicted, policy)
