"""How users begin: left to itself the target asks for advice, plans and recipes, and little else."""

from importlib.resources import files


def read_openings() -> list[str]:
    """From openings.txt, a line each; lines with # are comments."""
    lines = files("distillation").joinpath("openings.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
