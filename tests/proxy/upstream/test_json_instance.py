"""Minimal instances are valid, and are made of any schema that has one."""

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.json_instance import minimal_instance

DEEP = {"type": "object"}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}


def bounds(number):
    ends = st.tuples(number, number).map(sorted)
    closed = ends.map(lambda pair: {"minimum": pair[0], "maximum": pair[1]})
    half = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
    return closed | st.dictionaries(half, number, max_size=1)


integers = bounds(st.integers(-50, 50)).map(lambda each: {"type": "integer", **each})
numbers = bounds(st.integers(-50, 50)).map(lambda each: {"type": "number", **each})
strings = st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": st.integers(0, 9)})
formats = st.sampled_from(["date", "date-time", "email", "ipv4", "ipv6", "uuid", "x"])
simple = (
    integers
    | numbers
    | strings
    | formats.map(lambda name: {"type": "string", "format": name})
    | st.sampled_from(
        [True, {}, {"type": "boolean"}, {"type": ["null", "string"]}, {"const": 7}, {"enum": ["x"]}]
    )
)
names = st.sampled_from("abcd")


def compound(inner):
    return (
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(names, inner, max_size=3),
                "required": st.lists(names, unique=True, max_size=3),
            },
            optional={"minProperties": st.integers(0, 4)},
        )
        | st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "minItems": st.integers(0, 3)},
            optional={"prefixItems": st.lists(inner, min_size=1, max_size=2)},
        )
        | st.lists(inner, min_size=1, max_size=2).map(lambda each: {"anyOf": each})
        | inner.map(lambda each: {"allOf": [each]})
        | inner.map(lambda each: {"$defs": {"a/b": each}, "properties": {"x": {}}, "anyOf": [each, True]})
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(simple, compound, max_leaves=8))
def test_an_instance_is_valid(schema):
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.validate(
        minimal_instance(schema), schema, jsonschema.Draft202012Validator, format_checker=checker
    )


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "integer", "exclusiveMinimum": 3, "multipleOf": 2}, 4),
        ({"type": "integer", "exclusiveMaximum": 0}, -1),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, None),
        ({"required": ["a"], "properties": {"a": {"minLength": 2}}}, {"a": "xx"}),
        (
            {
                "$defs": {"a/b": {"required": ["a"]}, "c": {"required": ["b"]}},
                "allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c"}],
            },
            {"a": {}, "b": {}},
        ),
        ({"prefixItems": [{"const": 7}, {"$ref": "#/prefixItems/0"}], "minItems": 2}, [7, 7]),
        # As drafts before 2020-12 have it.
        ({"items": [{"const": 1}], "additionalItems": {"const": 2}, "minItems": 3}, [1, 2, 2]),
        ({"anyOf": [False, {"const": 3}]}, 3),
    ],
)
def test_an_instance_is_minimal(schema, instance):
    assert minimal_instance(schema) == instance


def test_a_schema_may_be_deep():
    jsonschema.validate(minimal_instance(DEEP), DEEP)


DOUBLING = {
    f"d{i}": {"required": ["a", "b"], "properties": {key: {"$ref": f"#/$defs/d{i + 1}"} for key in "ab"}}
    for i in range(30)
}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"required": ["a"], "properties": {"a": {"$ref": "#"}}}, "# refers to itself without end"),
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"type": "array", "minItems": 10**9}, "more than 10000"),
        ({"type": "string", "minLength": 10**9}, "more than 10000"),
        ({"type": "object", "minProperties": 10**9}, "more than 10000"),
        ({"$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d30": {}}}, "more than 10000"),
        (False, "takes nothing"),
        ({"anyOf": [False, {"$ref": "#/x"}]}, "does not exist"),
    ],
)
def test_what_has_no_instance_is_refused(schema, message):
    with pytest.raises(ValueError, match=message):
        minimal_instance(schema)
