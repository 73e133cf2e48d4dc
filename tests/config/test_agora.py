from pathlib import Path

import yaml

from proxy.configuration import faults, load

AGORA = Path(__file__).parents[2] / "config" / "agora.yaml"


def test_the_shipped_file_needs_no_environment():
    settings = load(AGORA, {})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert settings.upstreams["main"].base_url == "practice:"
    assert len(settings.pipelines["default"].request) == 3


def test_the_environment_says_where_and_whom_to_ask():
    environ = {
        "HOST": "0.0.0.0",
        "PORT": "80",
        "TURNKEEPER_KEYS": "alice:one",
        "UPSTREAM_BASE_URL": "https://api.example.com/v1",
        "UPSTREAM_API_KEY": "sk",
        "UPSTREAM_MODEL": "large",
    }
    settings = load(AGORA, environ)
    main = settings.upstreams["main"]
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 80)
    assert (main.base_url, main.model) == ("https://api.example.com/v1", "large")


def test_each_step_that_is_ready_to_uncomment_works(tmp_path):
    text = AGORA.read_text()
    names = (
        "user_context",
        "timestamp_prefix",
        "merge_consecutive",
        "system_prompt",
        "rewrite",
        "redact",
        "set_parameters",
        "trim_history",
    )
    for name in names:
        assert f"# - {name}" in text
        text = text.replace(f"# - {name}", f"- {name}")
    file = tmp_path / "agora.yaml"
    file.write_text(text)
    assert faults(file, {}) == []
    assert len(yaml.safe_load(text)["pipelines"]["default"]["request"]) == 3 + len(names)
