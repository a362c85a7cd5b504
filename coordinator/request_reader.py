import hashlib
from array import array
from collections.abc import Sequence

from coordinator.format_grammars import make_rules, make_schema
from coordinator.grammars import Grammars
from coordinator.policy.policies import Policies
from coordinator.prompt_reader import Prompt, PromptReader, check_length
from coordinator.request import Request
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import Tokenizer
from coordinator.tools.offered_tools import NONE, Tools
from coordinator.tools.tool_results import ToolResults
from coordinator.trials import Part
from paceline.checks import require, require_at_most, with_known
from paceline.errors import InvalidArgument, Unavailable
from paceline.grammar import GRAMMAR_ENGINE, Grammar, Rules, grammar_text
from paceline.keys import private_salt
from paceline.noise import fresh_seed
from paceline.rpc.metadata import caller
from paceline.rpc.model_messages import format_from_message, sampling_from_message, speculation_from_message
from paceline.sampling_params import MAX_ID_CHARACTERS, MAX_SALT_CHARACTERS, SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2


class RequestReader:
    """Validates and tokenizes requests. Raises InvalidArgument naming the field and its range."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        grammars: Grammars,
        policies: Policies,
        defaults: SpeculationParams,
        shares_between_keys: bool = False,
    ) -> None:
        self.prompts = PromptReader(tokenizer)
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._tool_results = ToolResults(tokenizer)
        self._policies = policies
        self._defaults = defaults
        self._shares_between_keys = shares_between_keys

    async def read(self, message: generation_pb2.GenerateRequest, model_info: model_pb2.ModelInfo) -> Request:
        require_at_most(MAX_ID_CHARACTERS, len(message.request_id), "request_id", "characters")
        require_at_most(MAX_SALT_CHARACTERS, len(message.cache_salt), "cache_salt", "characters")
        sampling = sampling_from_message(message.sampling)
        eos_token_ids = tuple(dict.fromkeys([*model_info.eos_token_ids, *self.prompts.ending_ids(message)]))
        sampling.check_token_ids(model_info.vocab_size, () if sampling.ignore_eos else eos_token_ids)
        speculation = self._defaults.overruled_by(speculation_from_message(message.speculation), sampling)
        if sampling.seed is None:
            sampling = with_known(sampling, seed=fresh_seed())
        speculation.check(sampling)
        require(not message.trace or sampling.beams == 1, "trace", message.trace, "left out with beams")
        lacks_states = 0 < model_info.num_states < sampling.beams
        require(
            not lacks_states, "beams", sampling.beams, f"at most {model_info.num_states}, the target's recurrent states"
        )
        self._policies.check(speculation)
        prompt = await self.prompts.read(message, model_info)
        require(len(prompt.token_ids) >= 1, "prompt", "0 tokens", "at least one token")
        check_length("prompt", len(prompt.token_ids), model_info, reserved=min(1, sampling.max_tokens))
        chats = self.prompts.chats
        opens_reasoning = chats.opens_reasoning(prompt.token_ids, prompt.tools) if prompt.messages else None
        salt, left_out = self._salt(message.cache_salt), list[str]()
        try:
            tools, grammar_text, grammar = await self._read_grammar(
                message, prompt, sampling, model_info, opens_reasoning, left_out
            )
        except RecursionError:
            # Of Python's own steps; what the library can't take is refused by its trial.
            raise InvalidArgument("tools" if message.chat.tools else "format", "nests too deeply") from None
        return Request(
            request_id=message.request_id,
            prompt=prompt.token_ids,
            sampling=sampling,
            speculation=speculation,
            eos_token_ids=eos_token_ids,
            max_length=model_info.max_model_len,
            vocab_size=model_info.vocab_size,
            stop_strings=await self._stop_strings(sampling.stop),
            prediction=await self.prompts.read_prediction(message, model_info),
            is_chat=bool(prompt.messages),
            cache_salt=salt,
            trace=message.trace,
            owner=caller.get(),
            grammar=grammar,
            grammar_text=grammar_text,
            left_out=left_out,
            tools=tools,
            opens_reasoning=opens_reasoning,
            prompt_digest=hashlib.sha256(array("Q", prompt.token_ids).tobytes()).hexdigest() if tools else "",
            tool_results=await self._tool_results.read(prompt.messages, salt) if tools and speculation.enabled else [],
        )

    async def _stop_strings(self, stop: Sequence[str]) -> StopStrings | None:
        return await self._tokenizer.run(lambda: StopStrings(stop), sum(map(len, stop))) if stop else None

    def _salt(self, given: str) -> str:
        owner = caller.get()
        return given if owner is None or self._shares_between_keys else private_salt(owner, given)

    async def _read_grammar(
        self,
        message: generation_pb2.GenerateRequest,
        prompt: Prompt,
        sampling: SamplingParams,
        model_info: model_pb2.ModelInfo,
        opens_reasoning: bool | None,
        left_out: list[str],
    ) -> tuple[Tools | None, str, Grammar | None]:
        """Returns the tools that may be called, and the grammar of the format or of calls.

        `left_out` gets what of schemas the grammar does not enforce.
        """
        wanted, tools, chats = format_from_message(message.format), prompt.tools, self.prompts.chats
        if tools is not None and tools.choice == NONE:
            tools = None
        if tools is not None:
            is_json = wanted is None or wanted.json_object or bool(wanted.json_schema)
            require(is_json, "format", "not JSON", "a JSON format beside tools, or left out")
        elif wanted is None:
            return None, "", None

        def make() -> tuple[str, str, Sequence[Part]]:
            rules: Rules
            field, parts = "tools", list[Part]()
            if tools is not None:
                answer = None if wanted is None else make_schema(wanted, left_out)
                calls = chats.call_grammar(tools, answer)
                left_out.extend(calls.left_out)
                rules, parts = {"lark_grammar": calls.text}, calls.parts
            else:
                assert wanted is not None
                rules, field = make_rules(wanted, left_out), wanted.kind
            whole = chats.with_reasoning(rules, opens_reasoning, model_info.eos_token_ids, tools)
            return field, grammar_text(*whole), parts

        field, text, parts = await self._tokenizer.run(make, len(message.chat.tools) + message.format.ByteSize())
        grammar = await self._compile(field, text, self._salt(message.cache_salt), parts, sampling, model_info)
        return tools, text, grammar

    async def _compile(
        self,
        field: str,
        text: str,
        salt: str,
        parts: Sequence[Part],
        sampling: SamplingParams,
        model_info: model_pb2.ModelInfo,
    ) -> Grammar:
        """Raises InvalidArgument naming `field` or a part's, and Unavailable if the target server can't follow."""
        require(not sampling.ignore_eos, "ignore_eos", True, f"left out with {field}")
        if model_info.grammar_engine != GRAMMAR_ENGINE:
            theirs = model_info.grammar_engine or "none"
            raise Unavailable(f"formats need {GRAMMAR_ENGINE} on the target server too; it has {theirs}")
        try:
            return await self._grammars.compile(text, salt, parts)
        except InvalidArgument as error:
            raise error.renamed(field) if error.field == "format" else error from None
