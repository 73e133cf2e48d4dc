# The official image, which is built with --enable-optimizations and --with-lto; the digest is that of its index, for
# every platform. Name another base of the same kind with --build-arg BASE=….
ARG BASE=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${BASE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /venv
WORKDIR /build
# With the extras that a configuration may ask for: nobody can install them later.
COPY requirements-image.lock ./
RUN /venv/bin/python -m pip install --require-hashes -r requirements-image.lock
COPY pyproject.toml LICENSE README.md ./
COPY filters ./filters
COPY proxy ./proxy
COPY config ./config
COPY turnkeeper ./turnkeeper
# What installs is of no use to what serves, and of some to an intruder.
RUN /venv/bin/python -m pip install --no-deps --no-build-isolation . \
    && /venv/bin/python -m pip uninstall --yes setuptools pip

FROM ${BASE}
LABEL org.opencontainers.image.title="Turnkeeper" \
      org.opencontainers.image.description="An OpenAI-compatible LLM proxy for voice agents: it knows what a turn is." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The base leaves the standard library uncompiled, and nobody can write beside it later: each start would compile it.
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|tkinter|ensurepip)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# On 0.0.0.0 anyone may call, so that keys must be given: docker run -e TURNKEEPER_KEYS=name:secret …
# Nothing is written but to /data and /tmp: --read-only --tmpfs /tmp -v turnkeeper:/data works.
ENV PATH=/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOST=0.0.0.0 \
    PORT=8080 \
    TURNKEEPER_CONFIG=/app/config/agora.yaml
COPY --from=builder /venv /venv
COPY config /app/config
RUN install -d -o 10001 -g 10001 /data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# By the shell that is there: a Python that starts each ten seconds costs more than many calls.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${PORT:-8080} && printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r -t 2 _ status _ <&3 && [ \"$status\" = 200 ]"]
STOPSIGNAL SIGTERM
CMD ["turnkeeper", "serve"]
