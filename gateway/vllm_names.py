"""vLLM's names for the gateway's counts: dashboards, autoscalers and benchmark tools ask for them."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.metrics import GatewayMetrics

# Ours and vLLM's, without the suffixes that their kind brings.
VLLM_NAMES = {
    "vllm:num_requests_running": "paceline_gateway_answers_running",
    "vllm:num_requests_waiting": "paceline_gateway_answers_waiting",
    "vllm:request_success": "paceline_gateway_generations",
    "vllm:prompt_tokens": "paceline_gateway_prompt_tokens",
    "vllm:generation_tokens": "paceline_gateway_generated_tokens",
    "vllm:prefix_cache_queries": "paceline_gateway_prompt_tokens",
    "vllm:prefix_cache_hits": "paceline_gateway_cached_prompt_tokens",
    "vllm:time_to_first_token_seconds": "paceline_gateway_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "paceline_gateway_time_between_outputs_seconds",
    "vllm:e2e_request_latency_seconds": "paceline_gateway_generation_seconds",
    "vllm:spec_decode_num_drafts": "paceline_gateway_drafted_rounds",
    "vllm:spec_decode_num_draft_tokens": "paceline_gateway_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "paceline_gateway_accepted_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "paceline_gateway_accepted_draft_tokens_per_position",
}
# vLLM's labels by ours.
LABELS = {"reason": "finished_reason"}


class VllmNames(Collector):
    """The same numbers under vLLM's names, with vLLM's labels."""

    def __init__(self, metrics: GatewayMetrics, model_name: str | None) -> None:
        """`model_name`: as clients call the model; None: as its own name says, once a coordinator has told it."""
        self._metrics = metrics
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        common = {"engine": "0", "model_name": self._model_name or self._metrics.target_name}
        own = {metric.name: metric for metric in self._metrics.registry.collect()}
        for name, source in VLLM_NAMES.items():
            metric = own[source]
            alias = Metric(name, metric.documentation, metric.type)
            for sample in metric.samples:
                labels = {LABELS.get(key, key): value for key, value in sample.labels.items()}
                alias.samples.append(Sample(name + sample.name.removeprefix(source), common | labels, sample.value))
            yield alias
