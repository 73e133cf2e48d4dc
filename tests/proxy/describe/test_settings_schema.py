"""The schema takes what the loader takes, and underlines what it does not."""

import json
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from docs.make import ROOT
from proxy.describe.schema import lenient, model_schema, settings_schema
from proxy.settings.document import parse
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config
from tests.configurations import ENVIRON, GOOD, SPLICES

TRIAL = FilterRegistry("trial_filters", installed=False)
SHIPPED = sorted([*ROOT.glob("config/*.yaml"), *ROOT.glob("examples/*/*.yaml")])
SOUND = "upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main]}}\n"
PIPELINE = "upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main], %s}}\n"
STEP = "pipelines.default.request.0"
VALUES = st.sampled_from(
    [
        "1",
        "'1'",
        "1.0",
        "-1",
        "1e3",
        "true",
        "'yes'",
        "'On'",
        "''",
        "~",
        "5s",
        "1MB",
        "any",
        "'${A:-1}'",
        "$$",
        "[]",
        "{}",
        "[a, a]",
        "{a: b}",
        "user",
        "0x1F",
        "1_000",
        "' 7 '",
        "inf",
        "'.5'",
        "2001-01-01",
        "practice:",
        "keep_last",
    ]
)
EVERYTHING = parse((ROOT / "config/everything.yaml").read_text()).value
SHIPPED_EDITOR = Draft202012Validator(settings_schema(FilterRegistry(installed=False)))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-2, 11)
    | st.floats(-2, 11)
    | st.sampled_from(
        ["a", "b", "ab", "abcd", "5", " 5", "+5", "5.0", "1e1", "-inf", "nan", "TRUE", "off", "t", "1_0"]
    )
)
EDITOR = Draft202012Validator(settings_schema(TRIAL))


def underlined(text, editor=EDITOR):
    """Returns where an editor would underline a text, with its messages."""
    found = sorted(editor.iter_errors(parse(text).value), key=lambda error: list(map(str, error.path)))
    return [(".".join(map(str, error.path)), error.message) for error in found]


def test_it_is_a_schema():
    Draft202012Validator.check_schema(EDITOR.schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_is_not_underlined(path):
    editor = Draft202012Validator(json.loads((path.parent / "schema.json").read_text()))
    assert underlined(path.read_text(), editor) == []


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("pipelines: {default: {upstreams: [a]}}", "", "'upstreams' is a required property"),
        (SOUND + "keyz: a", "", "'keyz' was unexpected"),
        (SOUND + "listen: {prt: 1}", "listen", "'prt' was unexpected"),
        (SOUND + "listen:", "listen", "None is not of type 'object'"),
        (SOUND + "listen: {port: 70000}", "listen.port", "greater than the maximum of 65535"),
        (SOUND + "listen: {port: http}", "listen.port", "'http' does not match"),
        (SOUND + "listen: {max_body: 16}", "listen.max_body", "16 is not of type 'string'"),
        (SOUND + "listen: {max_body: 16Mb/s}", "listen.max_body", "does not match"),
        (SOUND.replace("default", "deflt"), "pipelines", "'default' is a required property"),
        (SOUND.replace("main: {", "main: {url: a, "), "upstreams.main", "'url' was unexpected"),
        (SOUND.replace("main: {", "main: {connect: 5, "), "upstreams.main.connect", "5 is not of type"),
        (
            SOUND.replace("main: {", "main: {connect: 5 sec, "),
            "upstreams.main.connect",
            "'5 sec' does not match",
        ),
        (
            SOUND.replace("main: {", "main: {forward_key: maybe, "),
            "upstreams.main.forward_key",
            "'maybe' does not",
        ),
        (
            SOUND.replace("main: {", "main: {accepts: opnai, "),
            "upstreams.main.accepts",
            "'opnai' is not one of",
        ),
        (SOUND.replace("practice:", "api.com"), "upstreams.main.base_url", "'api.com' does not match"),
        (PIPELINE % "identity: {user: [X-User]}", "pipelines.default.identity.user", "not valid under any"),
        (PIPELINE % "request: keep_last", "pipelines.default.request", "'keep_last' is not of type 'array'"),
        (PIPELINE % "request: [kep_last]", STEP, "'kep_last' is not one of ['keep_last']"),
        (PIPELINE % "request: [shout]", STEP, "'shout' is not one of ['keep_last']"),
        (PIPELINE % "request: [{shout: }]", f"{STEP}.shout", "None is not of type 'object'"),
        (PIPELINE % "request: [{kep_last: {}}]", STEP, "'kep_last' was unexpected"),
        (PIPELINE % "request: [{keep_last: , shout: {word: a}}]", STEP, "has too many properties"),
        (PIPELINE % "request: [5]", STEP, "5 is not of type 'object'"),
        (PIPELINE % "request: [keep_last: 5]", f"{STEP}.keep_last", "5 is not of type 'object'"),
        (PIPELINE % "request: [keep_last: {turn: 1}]", f"{STEP}.keep_last", "'turn' was unexpected"),
        (
            PIPELINE % "request: [keep_last: {turns: 0}]",
            f"{STEP}.keep_last.turns",
            "less than the minimum of 1",
        ),
        (PIPELINE % "request: [shout: {}]", f"{STEP}.shout", "'word' is a required property"),
        (PIPELINE % "request: [shout: {word: 1}]", f"{STEP}.shout.word", "1 is not of type 'string'"),
        (
            PIPELINE % "request: [shout: {word: a, roles: [usr]}]",
            f"{STEP}.shout.roles.0",
            "'usr' is not one of ['user', 'assistant']",
        ),
    ],
)
def test_what_is_wrong_is_underlined_where_it_stands(text, path, said):
    ((place, message),) = underlined(text)
    assert place == path
    assert said in message


@pytest.mark.parametrize(
    "text",
    [
        SOUND + 'listen: {host: "${HOST}", port: "${PORT:-8080}", max_body: "${MAX:-1MB}"}\nkeys: "${KEYS}"',
        SOUND + "listen: {port: '8080', max_body: 16 mib}",
        SOUND.replace("main: {", "main: {accepts: '${KIND:-any}', forward_key: '${F}', connect: 500ms, "),
        SOUND.replace("'practice:'", "'${URL:-practice:}'"),
        SOUND.replace("main: {", "main: {forward_key: 'yes', max_connections: 5.0, first_token: 0.5m, "),
        PIPELINE % "request: [keep_last, {keep_last: }, {keep_last: {}}, keep_last: {turns: '${T:-4}'}]",
        PIPELINE % "request: ['${STEP:-keep_last}', shout: {word: '${W}', voice: {volume: '${V}'}}]",
        PIPELINE % "request: [shout: {word: a, voice: }]",
        PIPELINE % "identity: {user: ['${P}'], session: }",
    ],
)
def test_what_loads_is_not_underlined(text):
    assert underlined(text) == []


@given(st.data())
def test_a_value_that_the_loader_takes_is_not_underlined(tmp_path_factory, data):
    """Any value of a good file in place of any other."""
    lines = GOOD.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    head, colon, _ = lines[number].rpartition(": ")
    lines[number] = f"{head}{colon}{data.draw(VALUES)}"
    _compare(tmp_path_factory, "\n".join(lines))


@given(st.integers(0, len(GOOD)), st.integers(0, 8), SPLICES | VALUES)
def test_a_text_that_the_loader_takes_is_not_underlined(tmp_path_factory, start, length, splice):
    _compare(tmp_path_factory, GOOD[:start] + splice + GOOD[start + length :])


def _compare(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "compared.yaml"
    file.write_text(text)
    if check_config(file, ENVIRON, TRIAL).errors == []:
        assert underlined(text) == []


def places(value, place=()):
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*place, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*place, key))


@given(
    st.sampled_from(list(places(EVERYTHING))),
    st.deferred(lambda: GIVEN) | st.lists(st.text("a${}:1"), max_size=2),
)
def test_no_option_of_any_filter_is_underlined_while_it_loads(tmp_path_factory, place, value):
    """Any value of the file that shows everything in place of any other."""
    changed = json.loads(json.dumps(EVERYTHING))
    inner = changed
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    file = tmp_path_factory.getbasetemp() / "everything.yaml"
    file.write_text(yaml.safe_dump(changed))
    if check_config(file, {}).errors == []:
        assert underlined(file.read_text(), SHIPPED_EDITOR) == []


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    yes: bool = True


class Odd(BaseModel):
    model_config = ConfigDict(extra="forbid")

    whole: Annotated[int, Field(ge=1, le=9)] = 1
    real: Annotated[float, Field(gt=0)] = 1
    truth: bool = False
    text: Annotated[str, Field(min_length=2, max_length=3, pattern="^[a-z]+$")] = "ab"
    choice: Literal["a", "b"] = "a"
    sure: Literal["c"] = "c"
    several: frozenset[Literal["a", "b"]] = frozenset()
    either: int | list[int] | None = None
    inner: Inner | None = None
    inners: dict[str, Inner] = {}
    before: Annotated[int, BeforeValidator(lambda given: len(str(given)))] = 1
    kinds: tuple[int, str] = (1, "a")


ODD = Draft202012Validator(lenient(model_schema(Odd)))
GIVEN = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("yes"), inner)
)


@given(
    st.dictionaries(
        st.sampled_from([*Odd.model_fields, "none"]), GIVEN | st.lists(GIVEN, max_size=3), max_size=2
    )
)
def test_whatever_pydantic_takes_the_schema_takes(value):
    try:
        Odd.model_validate(value)
    except ValueError:
        return
    assert list(ODD.iter_errors(value)) == []


@pytest.mark.parametrize(
    "value",
    [
        {"whole": True},
        {"real": True},
        {"real": "1e3"},
        {"truth": 1.0},
        {"truth": "oFF"},
        {"several": ["a", "a", "b"]},
        {"either": "7"},
        {"either": ["7"]},
        {"inners": {"x": {"yes": "t"}}},
        {"before": {}},
    ],
)
def test_what_pydantic_makes_a_value_of_is_taken(value):
    assert Odd.model_validate(value)
    assert list(ODD.iter_errors(value)) == []


def test_what_cannot_be_text_of_the_kind_is_underlined_all_the_same():
    wrong = {"whole": "x", "truth": "maybe", "choice": "c", "sure": "d", "text": "a", "inner": {"no": 1}}
    assert len(list(ODD.iter_errors(wrong))) == len(wrong)
