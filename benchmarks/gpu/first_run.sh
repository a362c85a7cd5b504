#!/usr/bin/env bash
# Measures a GPU for the first time: all parts of benchmarks/gpu, within a given time.
#
#   benchmarks/gpu/first_run.sh fetch [PYTHON_VERSION]    with a network: packages for the GPU's machine into .wheels
#   benchmarks/gpu/first_run.sh [TOTAL_S] [OPTION...]     on the GPU's machine: TOTAL_S seconds (540), no network needed
#
# PYTHON: an interpreter with torch, Triton, transformers, Numba, Matplotlib and pytest (python3). OUT: the folder for results
# (gpu_results). OPTIONs: python -m benchmarks.gpu.first_run --help.
# Exits with 0 if all parts finished, 3 without a GPU, else 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${PYTHON:-python3}"

if [ "${1:-}" = fetch ]; then
    platforms=()
    for version in 2_17 2_24 2_26 2_27 2_28 2_31 2_34; do
        platforms+=(--platform "manylinux_${version}_x86_64")
    done
    # An older file would be installed as well.
    rm -rf .wheels
    exec "$python" -m pip download --no-deps --only-binary=:all: --dest .wheels \
        --implementation cp --python-version "${2:-3.12}" "${platforms[@]}" --platform manylinux2014_x86_64 \
        --requirement benchmarks/gpu/wheels.txt --constraint constraints.txt
fi

total_s=540
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
    total_s="$1"
    shift
fi
out="${OUT:-gpu_results}"
mkdir -p "$out"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
if compgen -G ".wheels/*.whl" >/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" .wheels/*.whl ||
        echo "the packages in .wheels do not fit this Python; the run goes on without them"
fi
export PYTHONPATH="$site:$PWD" PYTHONUNBUFFERED=1
"$python" -m benchmarks.gpu.first_run --total-s "$((total_s - SECONDS))" --out "$out" "$@" 2>&1 | tee "$out/log.txt"
