"""What is told of the mistakes that people make first, and that it helps."""

import pytest

from proxy.settings.load import config_errors

UP = "upstreams: {main: {base_url: 'practice:'}}\n"
DEFAULT = "pipelines:\n  default:\n    upstreams: [main]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            UP + DEFAULT + "    request:\n      - restore_interrupted:\n        show: both\n",
            "indent the options of 'restore_interrupted' further than its name",
        ),
        (
            UP + DEFAULT + "    request:\n      - redact: {}\n        recall: {}\n",
            "two steps stand here as one; begin each with '- '",
        ),
        (
            UP + DEFAULT + "    request:\n      redact:\n      recall:\n",
            "write a list; begin each item with '- '",
        ),
        (
            UP + "pipelines:\n  - default: {upstreams: [main]}\n",
            "write keys and values here, without '- ' or [ ]",
        ),
        (UP + DEFAULT + "    filters: [redact]\n", "unknown key 'filters'; did you mean 'request'?"),
        (UP + DEFAULT + "    steps: [redact]\n", "unknown key 'steps'; did you mean 'request'?"),
        (UP + DEFAULT + "    redact: {}\n", "'redact' is a filter; make it a step under 'request:'"),
        (UP + DEFAULT + "    speakable: {}\n", "'speakable' is a filter; make it a step under 'answer:'"),
        ("upstreams: {main: {url: 'practice:'}}\n" + DEFAULT, "unknown key 'url'; did you mean 'base_url'?"),
        ("upstreams: {main: {key: a}}\n" + DEFAULT, "unknown key 'key'; did you mean 'api_key'?"),
        ("memory: {store: 'memory:'}\n" + UP + DEFAULT, "unknown key 'store'; did you mean 'sessions'?"),
        (
            UP + DEFAULT + "    request:\n      - system_prompt: {text: You are: Ada}\n",
            "a text with ': ' or ', ' in it wants quotes",
        ),
        (
            "listen: {host: '127.0.0.1:9000'}\n" + UP + DEFAULT,
            "listen.host: write the port under listen.port",
        ),
    ],
)
def test_a_mistake_is_told_by_what_to_write_instead(tmp_path, text, said):
    (tmp_path / "c.yaml").write_text(text)
    assert said in "\n".join(map(str, config_errors(tmp_path / "c.yaml", {})))
