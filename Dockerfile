# CPU image: docker build --tag fedbench . && docker run --rm fedbench
# Results stay with --volume fedbench:/results; any command: docker run fedbench .venv/bin/fedbench methods
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /work
# Apart from the leaderboards of the package, which a volume would hide.
ENV FEDBENCH_STORE=/results
# PyTorch's CPU wheels before the rest: the default ones bring 4 GB of CUDA libraries.
RUN python -m venv .venv && .venv/bin/pip install --no-cache-dir torch torchvision \
    --index-url https://download.pytorch.org/whl/cpu
COPY . .
RUN .venv/bin/pip install --no-cache-dir --editable . && touch .venv/.installed
CMD ["make", "demo"]
