import contextlib
import sys
from typing import Annotated

import typer
from rich.console import Console

from paceline.cli import options
from paceline.cli.command import naming_the_flag
from paceline.cli.printing import VISIBLE, ReasoningPrinter, colored, legend
from paceline.client import Client, Completion
from paceline.errors import ConfigError, InvalidArgument, RequestError
from paceline.output_format import OutputFormat
from paceline.rpc.channel import COORDINATOR_ADDRESS
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

with contextlib.suppress(ImportError):
    # Gives input() line editing and a history.
    import readline  # noqa: F401

HOW_TO_LEAVE = "An empty line, Ctrl-D or Ctrl-C ends the conversation; Ctrl-C during an answer ends the answer."


def chat(
    address: options.Address = COORDINATOR_ADDRESS,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.95,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    json_schema: options.JsonSchema = None,
    compact_json: options.CompactJson = False,
    choice: options.Choice = None,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    speculation: options.SpeculationSwitch = None,
    drafter: options.DrafterName = None,
    num_speculative_tokens: options.DraftTokens = None,
    draft_min: options.DraftMin = None,
    draft_max: options.DraftMax = None,
    entropy_beta: options.EntropyBeta = None,
    rule: options.RuleName = None,
    draft_temperature: options.DraftTemperature = None,
    draft_model: options.DraftName = "",
) -> None:
    """Talks with the target model. An empty line, Ctrl-D or Ctrl-C ends the conversation."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
    )  # fmt: skip
    length = options.given_length(num_speculative_tokens, draft_min, draft_max, entropy_beta)
    given = options.given_speculation(
        speculation, drafter, length, rule, draft_temperature=draft_temperature, draft_model=draft_model
    )
    format = options.given_format(json_schema, compact_json, choice, regex, grammar)
    # The synchronous client: input() and Ctrl-C belong to the main thread.
    key, tls = options.read_key(api_key_file), options.read_tls(tls_ca, tls_cert, tls_key)
    with naming_the_flag(), Client(address, key, tls) as client:
        # Before the user writes anything, so that an unreachable coordinator is reported now.
        description = client.describe()
        if description.tokenizer.chat_template is None:
            model = description.target.name
            raise ConfigError(f"{model} has no chat template; `paceline generate --raw` continues a text without one")
        asked = description.defaults.overruled_by(given, sampling) if given else None
        conversation = ChatSession(client, system, sampling, asked, format)
        conversation.banner(description.target.name)
        while question := ask():
            conversation.answer(question)


def ask() -> str:
    try:
        return input("> ").strip()
    except UnicodeDecodeError:
        raise InvalidArgument("the question on stdin", "is not UTF-8 text") from None
    except (EOFError, KeyboardInterrupt):
        print()
        return ""


class ChatSession:
    def __init__(
        self, client: Client, system: str | None, sampling: SamplingParams, speculation: SpeculationParams | None,
        format: OutputFormat | None,
    ) -> None:  # fmt: skip
        self._client = client
        self._sampling = sampling
        self._speculation = speculation
        self._format = format
        self._messages = [] if system is None else [{"role": "system", "content": system}]
        self._console = Console(highlight=False, soft_wrap=True)

    def banner(self, model: str) -> None:
        self._console.print(f"{model.translate(VISIBLE)}. {HOW_TO_LEAVE}", style="dim", markup=False)
        if self._console.is_terminal and not self._console.no_color:
            self._console.print(legend(self._format is not None))

    def answer(self, question: str) -> None:
        """Streams an answer until it ends or the user stops it. Drops a question that is refused."""
        self._messages.append({"role": "user", "content": question})
        answer, mark, reasoning_printer = Completion(), "", ReasoningPrinter(self._console)
        try:
            chunks = self._client.stream(self._messages, self._sampling, self._speculation, format=self._format)
            with contextlib.closing(chunks):
                for chunk in chunks:
                    answer.add(chunk)
                    reasoning_printer.chunk(chunk)
                    self._console.print(colored(chunk, self._console), end="")
            mark = self._mark(answer)
        except KeyboardInterrupt:
            mark = "[ended by Ctrl-C]"
        except RequestError as error:
            print("error:", str(error).translate(VISIBLE), file=sys.stderr)
        self._console.print(f" {mark}\n" if mark else "\n", style="dim", markup=False)
        if answer.text:
            self._messages.append({"role": "assistant", "content": answer.text})
        else:
            self._messages.pop()

    def _mark(self, answer: Completion) -> str:
        assert answer.finish is not None
        if answer.finish.reason != "length":
            return ""
        tokens = answer.finish.completion_tokens
        if tokens < self._sampling.max_tokens:
            return f"[cut at {tokens} tokens: the model's context is full]"
        return f"[cut at {tokens} tokens: --max-tokens]"
