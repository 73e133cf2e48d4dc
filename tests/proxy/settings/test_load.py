"""The errors for mistakes that users make first, and the advice in them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config, load
from tests.configurations import ENVIRON, GOOD, SPLICES

TRIAL = FilterRegistry("trial_filters")
UPSTREAM = "upstreams:\n  main:\n    base_url: 'practice:'\n"
PIPELINE = "pipelines:\n  default:\n    upstreams: [main]\n"
SECRET = "s3cr:et,@/?"
NOTICES = """\
upstreams: {main: {base_url: 'practice:'}}
pipelines: {default: {upstreams: [main]}}
keys: "ann:one-long-secret,bob:other-long-secret"
webhooks:
  agora:
    secret: "${AGORA_WEBHOOK_SECRET:-}"
"""
WHOSE = "webhooks.agora.tenant: name one of those in 'keys': ann, bob"
UP = "upstreams: {main: {base_url: 'practice:'}}\n"
DEFAULT = "pipelines:\n  default:\n    upstreams: [main]\n"


@pytest.fixture
def errors_for(tmp_path):
    """What is wrong with a text, as ``line: path: message``."""

    def read(text, environ=None):
        file = tmp_path / "c.yaml"
        file.write_text(text)
        found = check_config(file, environ or {}, TRIAL).errors
        return [str(fault).removeprefix(f"{file}:") for fault in found]

    return read


@pytest.fixture
def good(tmp_path):
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    return check_config(file, ENVIRON, TRIAL).valid()


def test_a_good_file_becomes_settings(good):
    main = good.upstreams["main"]
    assert (good.listen.host, good.listen.port, good.listen.max_body) == ("127.0.0.1", 9090, 16_000_000)
    assert good.keys.find("one").tenant == "alice"
    assert (main.base_url, main.api_key.get_secret_value(), main.forward_key) == (
        "practice:",
        "sk-s3cret",
        True,
    )
    assert (main.connect, main.first_token, main.total) == (0.5, 5.0, 120.0)
    assert main.headers["x-team"].get_secret_value() == "t3am"
    assert main.forward_headers == ("x-trace",)
    assert good.upstreams["backup"].base_url == "https://api.example.com/v1"


def test_a_pipeline_holds_its_filters_ready_made(good):
    keep_last, shout = good.pipelines["default"].request
    assert (keep_last.turns, shout.word) == (6, "hey")
    assert good.pipelines["bare"].request == ()


def test_settings_and_all_in_them_are_frozen(good):
    for part in (good, good.listen, good.upstreams["main"], good.pipelines["default"]):
        with pytest.raises(ValueError, match="frozen"):
            part.model = "x"
    for mapping in (good.upstreams, good.pipelines, good.upstreams["main"].headers):
        with pytest.raises(TypeError):
            mapping["x"] = None


def test_settings_show_no_secret(good):
    assert "s3cret" not in repr(good)
    assert "t3am" not in repr(good)
    assert "s3cret" not in str(good.model_dump())


SOUND = UPSTREAM + PIPELINE


def test_upstreams_and_pipelines_are_enough(errors_for):
    assert errors_for(SOUND) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PIPELINE, ["1: upstreams: missing key; add it"]),
        (UPSTREAM, ["1: pipelines: missing key; add it"]),
        (UPSTREAM + "pipelines: {}", ["4: pipelines.default: this pipeline is missing; name one of the"]),
        (
            "upstreams: {}\npipelines: {default: {upstreams: []}}",
            ["1: upstreams: name at least one", "2: pipelines.default.upstreams: name at least one"],
        ),
        ("upstreams:\n  main: {model: x}\n" + PIPELINE, ["2: upstreams.main.base_url: missing key"]),
        (
            SOUND + "pipline:\n",
            ["7: pipline: unknown key 'pipline'; did you mean 'pipelines'? Available: listen,"],
        ),
        (
            UPSTREAM + "    modl:\n      x\n" + PIPELINE,
            ["4: upstreams.main.modl: unknown key 'modl'; did you mean 'model'?"],
        ),
        (
            SOUND + "    identity: {usr: []}\n",
            ["7: pipelines.default.identity.usr: unknown key 'usr'; did you mean 'user'?"],
        ),
        (
            SOUND + "    request:\n      - kep_last\n",
            ["8: pipelines.default.request.1: no filter named 'kep_last'; did you mean 'keep_last'?"],
        ),
        (
            SOUND + "    request:\n      - keep_last:\n          turn: 1\n",
            ["9: pipelines.default.request.1.keep_last.turn: unknown key 'turn'; did you mean 'turns'?"],
        ),
        (
            SOUND + "    request:\n      - keep_last:\n          turns: 0\n",
            ["9: pipelines.default.request.1.keep_last.turns: expected a number of at least 1"],
        ),
        (
            SOUND + "    request:\n      - keep_last: 5\n",
            ["8: pipelines.default.request.1.keep_last: expected keys and values"],
        ),
        (
            SOUND + "    request:\n      - keep_last:\n        turns: 5\n",
            ["8: pipelines.default.request.1: indent the options of 'keep_last' further than its name"],
        ),
        (SOUND + "    request: keep_last\n", ["7: pipelines.default.request: expected a list, such as"]),
        (
            SOUND + "    request:\n      - shout\n",
            ["8: pipelines.default.request.1.shout.word: missing key"],
        ),
        (
            SOUND + "    request:\n      - shout: {word: a, voice: {volum: 1}}\n",
            ["8: pipelines.default.request.1.shout.voice.volum: unknown key 'volum'; did you mean 'volume'?"],
        ),
        (
            SOUND + "    request:\n      - shout: {word: a, roles: [usr]}\n",
            ["8: pipelines.default.request.1.shout.roles.1: invalid value 'usr'; did you mean 'user'?"],
        ),
        (
            SOUND + "    request:\n      - shout: {word: too long}\n",
            ["8: pipelines.default.request.1.shout.word: 'too long' is too long"],
        ),
        (
            SOUND.replace("[main]", "\n      - main\n      - mian"),
            ["8: pipelines.default.upstreams.2: no upstream named 'mian'; did you mean 'main'?"],
        ),
        (
            UPSTREAM + "    accepts: opnai\n" + PIPELINE,
            ["4: upstreams.main.accepts: invalid value 'opnai'; did you mean 'openai'?"],
        ),
        (
            UPSTREAM + "    allow: [x]\n" + PIPELINE,
            ["4: upstreams.main.allow: field names work only with 'accepts: any'"],
        ),
        (
            UPSTREAM + "    connect: 5\n" + PIPELINE,
            ["4: upstreams.main.connect: write a duration above zero, with its unit, such as 50ms, 5s, 30m"],
        ),
        (SOUND + "listen: {max_body: 16}\n", ["7: listen.max_body: write a size"]),
        (SOUND + "listen: {port: http}\n", ["7: listen.port: expected an integer"]),
        (SOUND + "listen: {port: yes}\n", ["7: listen.port: expected an integer"]),
        (SOUND + "listen: {port: 65536}\n", ["7: listen.port: expected a number of at most 65535"]),
        (
            SOUND + "listen: {host: 0.0.0.0}\n",
            ["7: listen.host: without keys only this machine may call: set TURNKEEPER_KEYS"],
        ),
        (SOUND + "listen: {host: a..b}\nkeys: a:b\n", ["7: listen.host: no host is named so: between two"]),
        (
            SOUND + "opentelemetry: {endpoint: 'http://a..b/v1/traces'}\n",
            ["7: opentelemetry.endpoint: no host is named so: between two dots stand 1 to 63 characters"],
        ),
        (
            SOUND + "opentelemetry: {endpoint: 'http://h:x/v1/traces'}\n",
            ["7: opentelemetry.endpoint: write an OTLP address over HTTP, such as"],
        ),
        (SOUND + "listen: {host: ''}\nkeys: a:b\n", ["7: listen.host: expected at least 1 characters"]),
        (SOUND + "listen:\n", ["7: listen: expected keys and values, got nothing"]),
        (
            SOUND + "    model: 4\n",
            ["7: pipelines.default.model: expected a string, got 4; put it in quotes"],
        ),
        (
            SOUND + "    identity: {session: [X-Session-Id]}\n",
            ["7: pipelines.default.identity.session.1: write a place such as header:X-Session-Id"],
        ),
        (
            SOUND + "    identity: {user: [header:Cookie]}\n",
            ["7: pipelines.default.identity.user.1: this header is a secret, and ids are stored and shown"],
        ),
        (
            SOUND + "    identity: {session: [message:role]}\n",
            ["7: pipelines.default.identity.session.1: this place cannot contain an id; a message's speaker"],
        ),
        (SOUND + "  a b: {upstreams: [main]}\n", ["7: pipelines.?: a name has 1 to 64 letters"]),
        (
            UPSTREAM + "    forward_key: maybe\n" + PIPELINE,
            ["4: upstreams.main.forward_key: expected true or false"],
        ),
        (
            UPSTREAM + "    headers: {Host: a}\n" + PIPELINE,
            ["4: upstreams.main.headers.Host: 'host' is set automatically"],
        ),
        (SOUND + "  off: {upstreams: [main]}\n", ["7: pipelines.off: YAML reads this key as true or false"]),
        (SOUND + "listen: {port: '${PROT}'}\n", ["7: listen.port: the environment has no PROT; set it"]),
        ("", ["1: document: the file is empty"]),
        (SOUND + "listen: [\n", ["7: document: "]),
    ],
)
def test_each_fault_has_its_line_its_path_and_advice(errors_for, text, said):
    found = errors_for(text)
    assert len(found) == len(said), found
    for one, beginning in zip(found, said, strict=True):
        assert one.startswith(beginning)


def test_a_place_of_an_agents_id_is_one_where_ids_stand(tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text(SOUND + "    request: [{inject_episodes: {place: header:Authorization}}]\n")
    (fault,) = check_config(file, {}).errors
    assert (fault.line, fault.path) == (7, "pipelines.default.request.1")
    assert "this header is a secret" in fault.message


def test_all_faults_are_told_at_once_in_the_order_of_lines(errors_for):
    text = (
        SOUND.replace("[main]", "[mian]")
        + "keyz: x\nlisten: {port: '${NONE}', max_body: 1, host: 0.0.0.0}\nno: 1\n"
    )
    paths = [fault.split(": ")[1] for fault in errors_for(text)]
    assert paths[:2] == ["pipelines.default.upstreams.1", "keyz"]
    assert sorted(paths[2:-1]) == ["listen.host", "listen.max_body", "listen.port"]
    assert paths[-1] == "no"


def test_loading_raises_all_that_is_told(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(SOUND + "a: 1\nb: 2\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.message.splitlines() == [str(fault) for fault in check_config(file, {}).errors]
    assert len(caught.value.message.splitlines()) == 2


def test_with_keys_any_address_may_be_listened_on(errors_for):
    assert errors_for(SOUND + "listen: {host: 0.0.0.0}\nkeys: '${K}'\n", {"K": "a:b"}) == []


def test_keys_that_could_not_be_read_are_not_taken_for_none(errors_for):
    (fault,) = errors_for(SOUND + "listen: {host: 0.0.0.0}\nkeys: '${K}'\n")
    assert fault.startswith("8: keys: the environment has no K")


@pytest.mark.parametrize(
    "wrong",
    [
        "keys: '${S}'",
        "keys: {'s3cr': s3cr}",
        "keys: [s3cr]",
        "listen: {host: '${S}'}",
        "listen: {port: '${S}'}",
        "listen: {max_body: '${S}'}",
        "listen: '${S}'",
        "listen: {port:s3cr}",
        "upstreams: {main: {base_url: '${S}'}}",
        "upstreams: {main: {base_url: 'https://s3cr:s3cr@h/v1'}}",
        "upstreams: {main: {base_url: 'practice:', api_key: [s3cr]}}",
        "upstreams: {main: {base_url: 'practice:', api_key: {s3cr-: 1}}}",
        "upstreams: {main: {base_url: 'practice:', api_key: 's3cr s3cr'}}",
        "upstreams: {main: {base_url: 'practice:', api_key:s3cr}}",
        "upstreams: {main: {base_url: 'practice:', accepts: '${S}'}}",
        "upstreams: {main: {base_url: 'practice:', connect: '${S}'}}",
        "upstreams: {main: {base_url: 'practice:', forward_headers: ['${S}']}}",
        "upstreams: {main: {base_url: 'practice:', headers: 's3cr'}}",
        "upstreams: {main: {base_url: 'practice:', headers: {X-Key:s3cr}}}",
        "upstreams: {main: {base_url: 'practice:', headers: {X-Key: [s3cr]}}}",
        "upstreams: {main: {base_url: 'practice:', headers: {X-Key: 's3crét'}}}",
        "pipelines: {default: {upstreams: ['${S}']}}",
        "pipelines: {default: {upstreams: [main], request: ['${S}']}}",
        "pipelines: {default: {upstreams: [main], request: [shout: {word: '${S}'}]}}",
        "pipelines: {default: {upstreams: [main], request: [shout: {word: a, roles: ['${S}']}]}}",
        "pipelines: {default: {upstreams: [main], identity: {user: ['${S}']}}}",
        "api_key: !s3cr x",
        "api_key: *s3cr",
        "api_key: @s3cr",
    ],
)
def test_no_message_shows_a_secret_wherever_it_was_put(errors_for, wrong):
    parts = {"upstreams:": UPSTREAM, "pipelines:": PIPELINE}
    text = "".join(part for key, part in parts.items() if not wrong.startswith(key)) + wrong
    found = errors_for(text, {"S": SECRET})
    assert found
    assert not [fault for fault in found if "s3cr" in fault]


@pytest.mark.parametrize(
    "value", ["x\nkeys: a:b", "{a: 1}", "- a", "&a *a", "${HOME}", "!!int 5", "'", "a: b # c"]
)
def test_what_a_variable_holds_is_one_text(tmp_path, value):
    file = tmp_path / "c.yaml"
    file.write_text(SOUND + "    model: ${M}\n")
    settings = check_config(file, {"M": value, "HOME": "no"}, TRIAL).valid()
    assert settings.pipelines["default"].model == value


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path):
    for file in (tmp_path / "none.yaml", tmp_path, Path("nul\0.yaml")):
        (fault,) = check_config(file, {}).errors
        assert (fault.line, fault.path) == (1, "document")


@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), SPLICES | st.text(max_size=3)),
        min_size=1,
        max_size=4,
    )
)
def test_any_change_of_a_good_file_loads_or_is_told(tmp_path_factory, changes):
    text = GOOD
    for start, length, splice in changes:
        text = text[:start] + splice + text[start + length :]
    _check_any(tmp_path_factory, text.encode("utf-8", "surrogatepass"))


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_load_or_are_told(tmp_path_factory, data):
    _check_any(tmp_path_factory, data)


def _check_any(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(data)
    for fault in check_config(file, ENVIRON, TRIAL).errors:
        assert fault.line >= 1
        assert fault.path
        assert fault.message
        assert str(fault).isprintable()
        assert "s3cret" not in str(fault)


def test_notices_that_name_nobody_are_told_at_the_key_that_would(errors_for):
    assert errors_for(NOTICES) == []
    assert errors_for(NOTICES, {"AGORA_WEBHOOK_SECRET": "s"}) == [f"5: {WHOSE}"]
    assert errors_for(NOTICES + "    tenant: carl\n", {"AGORA_WEBHOOK_SECRET": "s"}) == [f"7: {WHOSE}"]
    assert errors_for(NOTICES + "    tenant: bob\n", {"AGORA_WEBHOOK_SECRET": "s"}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            UP + DEFAULT + "    request:\n      - restore_interrupted:\n        show: both\n",
            "indent the options of 'restore_interrupted' further than its name",
        ),
        (
            UP + DEFAULT + "    request:\n      - redact: {}\n        recall: {}\n",
            "two steps are written as one; begin each with '- '",
        ),
        (
            UP + DEFAULT + "    request:\n      redact:\n      recall:\n",
            "expected a list, such as [a, b]",
        ),
        (
            UP + "pipelines:\n  - default: {upstreams: [main]}\n",
            "expected keys and values, got a list; leave out '- ' and [ ]",
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
    assert said in "\n".join(map(str, check_config(tmp_path / "c.yaml", {}).errors))


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (
            "[{pattern: '(a', with: b}]",
            "rewrite.replace.1.pattern: '(a' is not a valid RE2 pattern: missing ): (a",
        ),
        ("[]", "rewrite.replace: expected at least 1 items, got a list"),
    ],
)
def test_a_wrong_item_of_a_list_is_not_a_missing_one_too(tmp_path: Path, replace: str, message: str) -> None:
    file = tmp_path / "turnkeeper.yaml"
    file.write_text(SOUND + f"    request:\n      - rewrite: {{replace: {replace}}}\n")
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert str(raised.value) == f"{file}:8: pipelines.default.request.1.{message}"


@pytest.mark.parametrize(("written", "end"), [("5", "or 90d; got 5"), ("five", "or 90d"), ("yes", "or 90d")])
def test_a_duration_without_its_unit_is_shown(tmp_path: Path, written: str, end: str) -> None:
    file = tmp_path / "turnkeeper.yaml"
    file.write_text(UPSTREAM + f"    connect: {written}\n" + PIPELINE)
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert str(raised.value).endswith(end)
