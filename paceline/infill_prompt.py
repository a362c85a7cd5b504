from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infill:
    """Asks a model trained for it (fill-in-the-middle) for the text between `prefix` and `suffix`.

    extra: other files, as (name, text), the most useful last: if all is too long, the first are left out.
    prompt: the text after `prefix`, which editors send apart: the line up to the cursor.
    """

    prefix: str
    suffix: str
    extra: tuple[tuple[str, str], ...] = ()
    prompt: str = ""
