"""A context becomes the draft model's tokens one by one, and only tokens that both models have are drafts."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.drafters.translated import TranslatedDrafter
from coordinator.tokenizer import Tokenizer
from coordinator.vocabulary_translation import DraftContext, Translation, Vocabularies
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.errors import ConfigError
from tests.byte_fallback import byte_fallback_tokenizer
from tests.byte_level import write_byte_level_model
from tests.coordinator.contexts import decide, make_context
from tests.coordinator.test_remote_model import FakeDraft, fill_with, linked, placement

# Characters of three and four bytes, which the target's tokens split.
TEXT = "Élodie says 東京は夜 🎉 twice\n"
# Of the target's tokenizer.
EOS, BOS, PAD = 0, 1, 2


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("target")
    write_byte_level_model(folder)
    return Tokenizer({file.name: file.read_bytes() for file in folder.glob("*.json")})


def byte_level(words: Sequence[str] = (), special: Sequence[str] = ()) -> Backend:
    """Bytes, and words without merges that would make them."""
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    backend = Backend(models.BPE({piece: id for id, piece in enumerate(pieces)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return backend


def reader(draft: Backend) -> AsyncMock:
    return AsyncMock(return_value={"tokenizer.json": draft.to_str().encode()})


def translation(target: Tokenizer, draft: Backend) -> Translation:
    vocabularies = Vocabularies(target, len(target.vocabulary))

    async def find() -> Translation:
        # As endpoints of a pool ask that connect at once: generations move among those with the same one.
        asked = [
            vocabularies.translation("other", "fingerprint", draft.get_vocab_size(), reader(draft)) for _ in range(2)
        ]
        one, other = await asyncio.gather(*asked)
        assert one is other
        return one

    return asyncio.run(find())


DRAFTS: dict[str, Callable[[], Backend]] = {
    "bytes": byte_level,
    "words": lambda: byte_level(["Ġs", "says", "twi", "Ġtwice"]),
    "byte fallback": byte_fallback_tokenizer,
}


@pytest.mark.parametrize("name", DRAFTS)
def test_each_token_is_the_same_text_in_both(target: Tokenizer, name: str) -> None:
    draft = DRAFTS[name]()
    tokens, found = target.encode(TEXT, add_special_tokens=False), translation(target, draft)
    context = DraftContext(found, tokens)
    # The same text, however much is known of it when.
    grown = DraftContext(found, tokens[:3])
    for end in range(3, len(tokens) + 1):
        grown.extend(tokens[:end])
    assert grown.tokens == context.tokens
    assert draft.decode(context.tokens) == TEXT
    for length in range(len(tokens) + 1):
        read = DraftContext(found, tokens[:length])
        assert read.tokens == context.tokens[: context.offset(length)]
        assert read.tokens + read.after(tokens[length:]) == context.tokens


def test_a_token_that_both_have_is_one_and_another_is_the_longest_that_fit(target: Tokenizer) -> None:
    draft = byte_level(["Ġs", "say", "Ġtwice", "wi"])
    found, ids = translation(target, draft), draft.token_to_id
    says, twice = target.encode(" says", False), target.encode(" twice", False)
    assert len(says) == len(twice) == 1
    assert found.pieces(says[0]) == [ids("Ġs"), ids("a"), ids("y"), ids("s")]
    assert found.pieces(twice[0]) == [ids("Ġtwice")]
    assert found.shared.to_draft(twice) == [ids("Ġtwice")]
    assert found.shared.to_draft(says) == []


def test_special_tokens_are_the_same_by_name_and_no_text_becomes_one(target: Tokenizer) -> None:
    draft = byte_level(["<bos>"], special=["<pad>", "<eos"])
    found = translation(target, draft)
    assert found.pieces(PAD) == [draft.token_to_id("<pad>")]
    # Here it is text like any other.
    assert found.pieces(BOS) == [draft.token_to_id("<bos>")]
    assert BOS not in found.shared.in_target
    assert draft.decode(found.pieces(EOS), skip_special_tokens=True) == "<eos>"


def test_a_text_begins_as_the_draft_models_texts_begin(target: Tokenizer) -> None:
    from tokenizers import processors

    draft = byte_level(special=["<s>"])
    draft.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    found, a = translation(target, draft), target.encode("a", False)
    assert found.begins == ([BOS], [0])
    begun = DraftContext(found, [BOS, *a])
    assert (begun.tokens, begun.offset(0), begun.offset(1), begun.offset(2)) == ([0, *found.pieces(a[0])], 1, 1, 2)
    assert DraftContext(found, a).tokens == found.pieces(a[0])


def test_tokens_that_write_nothing_are_left_out(target: Tokenizer) -> None:
    unwritten = len(target.vocabulary) + 1
    context = DraftContext(translation(target, byte_level()), [unwritten, unwritten])
    assert (context.tokens, context.offset(2)) == ([], 0)


def wordpiece() -> Backend:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


REFUSED: dict[str, tuple[Callable[[], Backend], str]] = {
    "no token in common": (
        lambda: Backend.from_str(dummy_tokenizer_files(32)["tokenizer.json"].decode()),
        "draft model 'other' has another tokenizer than the target, and they have no token in common",
    ),
    "a decoder that is not known": (
        wordpiece,
        "draft model 'other' has another tokenizer than the target, and what the tokens of the draft model write is not "
        "known: the decoder has a step 'WordPiece'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_draft_model_whose_tokens_tell_nothing_is_refused(target: Tokenizer, name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        translation(target, make())
    assert str(caught.value) == said


async def test_a_tokenizer_is_read_once_whatever_is_found(target: Tokenizer) -> None:
    vocabularies = Vocabularies(target, len(target.vocabulary))
    for draft in (byte_level(), wordpiece()):
        read = reader(draft)
        for _ in range(2):
            with contextlib.suppress(ConfigError):
                await vocabularies.translation("other", str(id(draft)), draft.get_vocab_size(), read)
        read.assert_awaited_once()


async def test_a_draft_that_the_draft_model_lacks_is_refused_and_drafting_pauses(
    target: Tokenizer, tmp_path: Path
) -> None:
    found = await asyncio.to_thread(translation, target, byte_level())
    [shared], [other] = target.encode("a", False), target.encode(" twice", False)
    context = make_context(target.encode(TEXT, False))
    for token, is_taken in ((shared, True), (other, False)):
        async with linked(FakeDraft(fill_with(tokens=[token])), tmp_path) as pool:
            drafter = TranslatedDrafter(placement(pool), context.request, DraftDeadline(), found)
            proposal = await drafter.propose(context, 4)
            assert (proposal.tokens == [token], drafter.absence(context) == "") == (is_taken, is_taken)


async def test_the_draft_models_maximum_length_counts_its_own_tokens(target: Tokenizer, tmp_path: Path) -> None:
    """Of which the fake has room for 512."""
    found = await asyncio.to_thread(translation, target, byte_level())
    [twice], [a] = target.encode(" twice", False), target.encode("a", False)
    async with linked(FakeDraft(fill_with(tokens=[a])), tmp_path) as pool:
        for num_words, absence in ((85, ""), (86, "past the draft model's maximum length")):
            context = make_context([twice] * num_words)
            drafter = TranslatedDrafter(placement(pool), context.request, DraftDeadline(), found)
            assert drafter.absence(context) == absence
        context = make_context([twice] * 85)
        drafter = TranslatedDrafter(placement(pool), context.request, DraftDeadline(), found)
        assert (await drafter.propose(context, 8)).tokens == [a]
        assert len((await drafter.propose(context, 8, after=[twice])).tokens) == 0


async def test_what_is_sent_goes_on_from_what_is_cached(target: Tokenizer, tmp_path: Path) -> None:
    found = await asyncio.to_thread(translation, target, byte_level(["Ġtwice"]))
    prompt, [twice], [a, b, says] = target.encode("東", False), target.encode(" twice", False), [
        target.encode(text, False)[0] for text in ("a", "b", " says")
    ]  # fmt: skip
    fake = FakeDraft(fill_with(tokens=[twice, a, b], num_fed_drafts=2))
    async with linked(fake, tmp_path) as pool:
        context = make_context(prompt)
        drafter = TranslatedDrafter(placement(pool), context.request, DraftDeadline(), found)
        await drafter.propose(context, 3, after=[says])
        # Undecided were ` says`, spelled with five tokens, and the drafts. Of them ` says` and the first are right.
        decide(context, [says, twice, b])
        drafter.truncate(len(context) - 1)
        assert drafter.num_cached(context) == len(context) - 1
        await drafter.propose(context, 3)
    first, second = fake.asked
    spelled = [piece for token in prompt for piece in found.pieces(token)]
    assert list(first.tail_tokens) == [*spelled, *found.pieces(says)]
    assert (first.position, first.target_position) == (0, len(prompt) + 1)
    assert (second.position, second.target_position) == (len(spelled) + 5 + 1, len(prompt) + 3)
    assert list(second.tail_tokens) == found.pieces(b)


async def test_a_stop_saves_steps_where_the_server_takes_one_after_the_other(target: Tokenizer, tmp_path: Path) -> None:
    found = await asyncio.to_thread(translation, target, byte_level())
    request = make_context(target.encode(TEXT, False)).request
    async with linked(FakeDraft(fill_with()), tmp_path) as pool:
        model_info = pool.endpoints[0].link.model_info
        assert model_info is not None
        plain = RemoteDrafter(placement(pool), request, DraftDeadline())
        translated = TranslatedDrafter(placement(pool), request, DraftDeadline(), found)
        for model_info.multi_steps, model_info.num_mask_tokens, stops in (
            (0, 0, (True, True)), (8, 0, (False, True)), (0, 3, (False, False)),
        ):  # fmt: skip
            assert (plain.stops_early, translated.stops_early) == stops
