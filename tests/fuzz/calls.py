"""Calls at the coordinator's service: good ones, changed."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

from paceline.v1 import generation_pb2, model_pb2
from tests.fuzz.mutations import changed, encoded
from tests.fuzz.values import messages

# Nobody waits for long texts, but for one in so many.
LONG_ONE_IN = 100
MOST_TOKENS, MOST_SAMPLES = 6, 3
MOST_SHOWN_BYTES = 1000
LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """One call with one message; `is_left`: its caller goes away after the first answer."""

    method: str
    data: bytes
    is_left: bool = False

    def __len__(self) -> int:
        """Messages."""
        return 1

    @property
    def is_large(self) -> bool:
        return len(self.data) >= LARGE_BYTES

    def __str__(self) -> str:
        return f"{self.method} {shown(self.data)}"


def shown(data: bytes) -> str:
    """The whole of it, but for what makes a message large."""
    return f"{len(data)} bytes {data[:MOST_SHOWN_BYTES]!r}"


IDS = {"ids": [3, 14, 15, 92]}
GENERATES = [
    generation_pb2.GenerateRequest(
        token_ids=IDS, sampling={"max_tokens": 4, "seed": 1}, speculation={"drafter": "model", "num_speculative_tokens": 4}
    ),
    generation_pb2.GenerateRequest(
        text="t1 t2 t3", request_id="r", cache_salt="s", trace=True, prediction_text="t4 t5 t6",
        sampling={
            "max_tokens": 5, "min_tokens": 2, "temperature": 0.7, "top_k": 8, "top_p": 0.9, "min_p": 0.01, "seed": 2, "stop": ["t9", "t7 t8"],
            "stop_token_ids": [9], "n": 2, "logprobs": 3, "prompt_logprobs": 2,
        },
        speculation={"enabled": True, "drafter": "hybrid", "rule": 2, "draft_mode": 1, "adaptive": {"min": 0, "max": 8}, "lenience": 0.8},
    ),
    generation_pb2.GenerateRequest(
        chat={"messages": [{"role": "system", "content": "t1"}, {"role": "user", "content": "t2"}], "template_options": '{"language": "en"}'},
        prediction_token_ids=IDS,
        sampling={
            "max_tokens": 4, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {5: 2.0, 7: -100.0},
            "allowed_token_ids": list(range(40)), "banned_token_ids": [1, 2], "ignore_eos": True,
        },
        speculation={"drafter": "model", "rule": 1, "draft_mode": 3, "entropy": {"bounds": {"min": 1, "max": 6}, "ema_beta": 0.5}},
    ),
    generation_pb2.GenerateRequest(
        token_ids={"ids": [7] * 480}, sampling={"max_tokens": 6, "temperature": 1.5, "seed": 2**64 - 1, "top_k": 0},
        speculation={"drafter": "suffix", "num_speculative_tokens": 16},
    ),
]  # fmt: skip
TOKENIZES = [
    generation_pb2.TokenizeRequest(text="t1 t2", add_special_tokens=True),
    generation_pb2.TokenizeRequest(chat=GENERATES[2].chat, add_generation_prompt=False),
    generation_pb2.TokenizeRequest(token_ids=IDS),
]
DETOKENIZES = [generation_pb2.DetokenizeRequest(token_ids=[1, 2, 3], skip_special_tokens=False)]
DESCRIBES = [generation_pb2.DescribeRequest()]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """To any method of Generation."""
    method, goods = draw(st.sampled_from(_METHODS))
    message = draw(_messages_like(goods))
    if method.endswith("/Generate") and draw(st.integers(1, LONG_ONE_IN)) != LONG_ONE_IN:
        _shorten(message)
    is_left = draw(st.integers(1, 10)) == 10
    return Call(method, draw(encoded(message)), is_left)


def _messages_like(goods: list[Message]) -> st.SearchStrategy[Any]:
    like_good = st.sampled_from(goods).flatmap(changed)
    return st.one_of(like_good, like_good, like_good, like_good, messages(type(goods[0])))


def _methods(service: str, goods_and_weights: dict[str, tuple[list[Any], int]]) -> list[tuple[str, list[Any]]]:
    """Each as often as its weight says."""
    return [
        (f"/paceline.v1.{service}/{name}", goods)
        for name, (goods, weight) in goods_and_weights.items()
        for _ in range(weight)
    ]


_METHODS = _methods(
    "Generation",
    {
        "Generate": (GENERATES, 6),
        "Tokenize": (TOKENIZES, 2),
        "Detokenize": (DETOKENIZES, 1),
        "Describe": (DESCRIBES, 1),
    },
)


def _shorten(message: Any) -> None:
    """What is out of range stays so."""
    sampling = message.sampling
    if not sampling.HasField("max_tokens") or MOST_TOKENS < sampling.max_tokens < 2**31:
        if sampling.min_tokens <= sampling.max_tokens:
            sampling.min_tokens = min(sampling.min_tokens, MOST_TOKENS)
        sampling.max_tokens = MOST_TOKENS
    if MOST_SAMPLES < sampling.n <= 64:
        sampling.n = MOST_SAMPLES


UNARY = _methods(
    "Model",
    {
        "Describe": ([model_pb2.DescribeModelRequest()], 1),
        "Truncate": ([model_pb2.TruncateRequest(session_id="nobody", sequence_id=1, length=2)], 2),
        "Release": ([model_pb2.ReleaseRequest(session_id="nobody", sequence_id=1)], 2),
        "Tokenizer": ([model_pb2.TokenizerRequest()], 1),
    },
)


@st.composite
def unary_calls(draw: st.DrawFn) -> Call:
    """To a model server's methods besides Session."""
    method, goods = draw(st.sampled_from(UNARY))
    return Call(method, draw(encoded(draw(_messages_like(goods)))))
