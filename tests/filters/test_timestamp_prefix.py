import pytest
from pydantic import ValidationError

from filters.base import Context, Snapshot
from filters.timestamp_prefix import TimestampPrefix
from tests.conversations import message_of

AT = 1678901235  # 17:27:15 on 15 March 2023, in UTC


def a_message(timestamp=AT, role="user", content="Hi", **fields):
    return message_of({"role": role, "content": content, "timestamp": timestamp, **fields})


def shown(*messages, began=None, **options):
    context = Context(now=0.0, memory=Snapshot(began=began))
    return [m.content for m in TimestampPrefix(**options).apply(messages, context)]


@pytest.mark.parametrize("timestamp", [AT, AT + 0.5, AT * 1000, AT * 1000 + 999, float(AT)])
def test_seconds_and_milliseconds_are_the_same_time(timestamp):
    assert shown(a_message(timestamp)) == ["[17:27] Hi"]


@pytest.mark.parametrize("timestamp", [None, 1e300, -1e300, 2**62, 253402300800000, -5, -AT * 1000])
@pytest.mark.parametrize("relative", [False, True])
def test_a_time_that_cannot_be_is_no_time(timestamp, relative):
    messages = [a_message(timestamp) if timestamp else message_of({"role": "user", "content": "Hi"})]
    assert TimestampPrefix(relative=relative).apply(messages, Context(now=0.0)) is messages


def test_a_time_that_is_past_the_calendar_in_the_east_alone_passes():
    assert shown(a_message(253402300799000), timezone="Asia/Tokyo") == ["Hi"]


@pytest.mark.parametrize("content", [None, "", []])
def test_what_has_no_words_gets_no_prefix(content):
    assert shown(a_message(content=content)) == [content]


def test_a_picture_gets_its_time_before_it():
    assert shown(a_message(content=[{"type": "image_url"}])) == [
        [{"type": "text", "text": "[17:27] "}, {"type": "image_url"}]
    ]


def test_the_clock_hangs_where_it_is_said_and_knows_summer_time():
    assert shown(a_message(), a_message(AT + 90 * 86400), timezone="Europe/Berlin") == [
        "[18:27] Hi",
        "[19:27] Hi",
    ]


def test_a_format_finer_than_a_minute_is_told_exactly():
    assert shown(a_message(AT), a_message(AT + 1), format="%H:%M:%S") == ["[17:27:15] Hi", "[17:27:16] Hi"]
    assert shown(a_message(AT + 0.25), a_message(AT + 0.5), format="%f") == ["[250000] Hi", "[500000] Hi"]
    assert shown(a_message(AT), a_message(AT + 60), format="%X") == ["[17:27:15] Hi", "[17:28:15] Hi"]


def test_roles_and_sources_say_whose():
    both = [a_message(), a_message(role="assistant")]
    assert shown(*both) == ["[17:27] Hi", "Hi"]
    assert shown(*both, roles=["assistant"]) == ["Hi", "[17:27] Hi"]
    assert shown(a_message(), a_message(metadata={"source": "asr"}), sources=["asr"]) == ["Hi", "[17:27] Hi"]


def test_relative_time_counts_from_the_first_timestamp():
    told = [
        message_of({"role": "user", "content": "Hi"}),
        a_message(AT, "assistant"),
        a_message(AT + 3725),
        a_message(AT - 5),
    ]
    assert shown(*told, relative=True) == ["Hi", "Hi", "[+62:05] Hi", "[+00:00] Hi"]


def test_relative_time_counts_from_what_memory_holds_when_the_engine_dropped_it():
    whole = [a_message(AT), a_message(AT + 60), a_message(AT + 120)]
    assert shown(*whole[1:], began=whole[0].seconds, relative=True) == shown(*whole, relative=True)[1:]


def test_a_time_that_cannot_be_is_not_where_a_talk_starts():
    assert shown(a_message(-5), a_message(AT), a_message(AT + 1), relative=True) == [
        "Hi",
        "[+00:00] Hi",
        "[+00:01] Hi",
    ]


def test_times_are_not_remembered_without_bound():
    step = TimestampPrefix()
    step.apply([a_message(AT + 60 * minute) for minute in range(10_000)], Context(now=0.0))
    assert step._prefix_of.cache_info().currsize < 5000


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"format": "HH:MM"}, "no directive of strftime, such as %H"),
        ({"format": "100%%"}, "contains no directive"),
        ({"format": "%H:%Q"}, "'%Q' is not a directive"),
        ({"format": "%H:%"}, "'%' is not a directive"),
        ({"timezone": "Europe/Berln"}, "no time zone 'Europe/Berln'"),
        ({"timezone": "../../etc/passwd"}, "no time zone"),
        ({"timezone": "America"}, "no time zone"),
        ({"timezone": ""}, "no time zone"),
        ({"roles": []}, "at least 1 item"),
        ({"template": "[] "}, "must contain {time}"),
        ({"template": "[{time}] {user}: "}, "{user} is not a name"),
    ],
)
def test_a_setting_that_cannot_work_is_a_fault(options, fault):
    with pytest.raises(ValidationError, match=fault):
        TimestampPrefix(**options)
