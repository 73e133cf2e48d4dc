"""A good configuration for the trial filters, and what may be done to it."""

from hypothesis import strategies as st

GOOD = """\
listen: {host: "${HOST:-127.0.0.1}", port: "${PORT:-8080}", max_body: 16MB}
keys: "${TURNKEEPER_KEYS:-}"
upstreams:
  main:
    base_url: "${UPSTREAM_BASE_URL:-practice:}"
    api_key: "${UPSTREAM_API_KEY:-}"
    accepts: any
    allow: [extra]
    connect: 500ms
    total: 2m
    headers: {X-Team: "${TEAM:-t3am}"}
    forward_headers: [X-Trace]
    forward_key: "${FORWARD:-false}"
  backup: {base_url: "https://api.example.com/v1/"}
pipelines:
  default:
    upstreams: [main, backup]
    identity:
      session: ["header:X-Session-Id", "body:call.id"]
    request:
      - keep_last
      - shout: {word: "${WORD:-hey}", roles: [user]}
  bare: {upstreams: [backup]}
"""
ENVIRON = {"PORT": "9090", "FORWARD": "true", "TURNKEEPER_KEYS": "alice:one", "UPSTREAM_API_KEY": "sk-s3cret"}

SPLICES = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\t",
        ":",
        "- ",
        "[",
        "}",
        "&a ",
        "*a",
        "${",
        "${A}",
        "on: ",
        "!x ",
        "<<: ",
        "'",
        '"',
        "#",
        "~",
        "0",
        "? ",
    ]
)
