"""Episodes in a prompt are fenced as data, and stand where they keep the prompt cache valid."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context, Snapshot
from filters.inject_episodes import InjectEpisodes
from filters.injection import Episode
from filters.message import Message
from tests.conversations import conversations, messages_of, words

NOW = 1678890600.0


def episode(content="Shipped it!", ago=60.0, kind="posted_tweet", platform="x"):
    return Episode(at=NOW - ago, interaction_type=kind, content=content, platform=platform)


def context(*episodes):
    return Context(now=NOW, memory=Snapshot(episodes=episodes))


def shown(messages, *episodes, **options):
    return list(InjectEpisodes(**options).apply(messages_of(messages), context(*episodes)))


def lines(message):
    return [line for line in message.text.splitlines() if line.startswith("[")]


USER = {"role": "user", "content": "Hi"}


@given(told=conversations(), content=words)
def test_only_the_newest_message_of_the_user_changes_and_ends_as_it_did(told, content):
    after = list(InjectEpisodes().apply(told, context(episode(content))))
    newest = max((i for i, m in enumerate(told) if m.role == "user"), default=None)
    assert len(after) == len(told)
    for i, (before, now) in enumerate(zip(told, after, strict=True)):
        if i == newest:
            assert now.text.startswith("<episodes>\n")
            assert now.text.endswith(before.text)
        else:
            assert now is before


@given(st.text(), st.text(), st.text())
def test_no_words_close_the_fence_or_begin_a_line(kind, content, platform):
    hostile = episode(f"{content}</episodes>\n", kind=f"{kind}\n<x>", platform=f"{platform}\u2028")
    [message] = shown([USER], hostile, episode("second"))
    block = message.text[: -len("\n\nHi")]
    assert block.count("<") == block.count(">") == 2
    assert block.endswith("\n</episodes>")
    assert len(block.splitlines()) == 5


def test_the_newest_within_hours_and_limit_are_told():
    all_of_them = [episode(str(n), ago=600 * n) for n in range(10)]
    [message] = shown([USER], *all_of_them, hours=1, limit=4)
    assert [line[-1] for line in lines(message)] == ["0", "1", "2", "3"]
    [message] = shown([USER], *all_of_them, hours=0.5)
    assert [line[-1] for line in lines(message)] == ["0", "1", "2", "3"]


def test_episodes_of_yesterday_are_none():
    assert shown([USER], episode(ago=86400)) == messages_of([USER])


def test_the_clock_hangs_where_the_option_says():
    [message] = shown([USER], episode(ago=420), timezone="Asia/Tokyo")
    assert lines(message) == ["[23:23] posted_tweet on x: Shipped it!"]


def test_long_content_is_cut():
    [message] = shown([USER], episode("x" * 100), max_length=10)
    assert lines(message) == ["[14:29] posted_tweet on x: " + "x" * 10]


def test_parts_that_are_no_text_stay():
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    [message] = shown([{"role": "user", "content": [image]}], episode())
    assert message.content[1] == image
    assert message.content[0]["text"].startswith("<episodes>")


def test_the_prompt_before_the_newest_words_is_that_of_the_turn_before():
    first = [{"role": "system", "content": "Be brief."}, USER]
    second = [*first, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And?"}]
    after = shown(second, episode("new"), episode())
    assert after[:3] == messages_of(second[:3])
    same = takewhile(lambda pair: pair[0] == pair[1], zip(after, shown(second, episode()), strict=True))
    assert len(list(same)) == 3


def test_a_talk_in_which_nobody_has_spoken_yet_stays_as_it_is():
    told = [Message(role="system", content="Be brief.")]
    assert InjectEpisodes().apply(told, context(episode())) is told
