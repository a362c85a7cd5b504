"""What an older client reads from a newer server."""

from paceline.rpc.generation_messages import chunk_from_message
from paceline.v1 import generation_pb2

NEWER = 99


def test_unknown_origins_and_reasons_leave_the_text() -> None:
    response = generation_pb2.GenerateResponse(text="ab", token_ids=[5, 6], text_lengths=[1, 1])
    response.origins.extend([generation_pb2.ORIGIN_TARGET, NEWER])  # type: ignore[list-item]
    response.finish.reason = NEWER  # type: ignore[assignment]
    chunk = chunk_from_message(generation_pb2.GenerateResponse.FromString(response.SerializeToString()))
    assert (chunk.text, chunk.origins) == ("ab", "T?")
    assert chunk.finish is not None
    assert chunk.finish.reason == "unknown"
