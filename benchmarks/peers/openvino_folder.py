"""Exports a model for OpenVINO with optimum-intel."""

import os
import shutil
import subprocess
from pathlib import Path

# optimum's name of each format, and ours. bfloat16 weights of this size are exact in float16; the pipeline computes in
# bfloat16.
FORMATS = {"bf16": "fp16", "int8": "int8"}


def openvino_folder(model_folder: Path, weights: str, folder: Path, python: Path) -> Path:
    """Returns the exported model, made on first use. `weights`: bf16 or int8; `python`: of the environment with
    optimum-intel.
    """
    made = folder / f"{model_folder.name}.openvino-{weights}"
    if not made.exists():
        unfinished = made.with_suffix(f".{os.getpid()}")
        command = [
            python.with_name("optimum-cli"), "export", "openvino", "--model", model_folder,
            "--task", "text-generation-with-past", "--weight-format", FORMATS[weights], unfinished,
        ]  # fmt: skip
        try:
            subprocess.run(
                command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, capture_output=True, text=True
            )
            unfinished.rename(made)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return made
