FROM python:3.13-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /venv
WORKDIR /build
# With the extras that a configuration may ask for: nobody can install them later.
COPY requirements-image.lock ./
RUN /venv/bin/python -m pip install --require-hashes -r requirements-image.lock
COPY pyproject.toml LICENSE README.md ./
COPY filters ./filters
COPY proxy ./proxy
# What installs is of no use to what serves, and of some to an intruder.
RUN /venv/bin/python -m pip install --no-deps --no-build-isolation . \
    && /venv/bin/python -m pip uninstall --yes setuptools pip

FROM python:3.13-slim
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
# Past any HTTP_PROXY: the question is whether this container answers.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('PORT', '8080') + '/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["turnkeeper", "serve"]
