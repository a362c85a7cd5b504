from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infill:
    """Asks a model trained for it (fill-in-the-middle) for the text between `prefix` and `suffix`.

    extra: other files, as (name, text). They tell more if the nearest comes last; the first are left out first.
    prompt: the beginning of the middle. The answer continues it.
    """

    prefix: str
    suffix: str
    extra: tuple[tuple[str, str], ...] = ()
    prompt: str = ""
