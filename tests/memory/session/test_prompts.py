"""A platform's own words that a window has marked once are left out when they come without the mark."""

from filters.message import Message
from proxy.memory.interchange import platform_messages, remainder_fields, restore_session
from proxy.memory.merge.calls import Agent, apply_history
from proxy.memory.session import Entry, Session, decode, encode
from proxy.memory.speakers import with_prompts
from proxy.memory.speech import speech_of
from tests.memory.exported import fields

T = 1_790_000_000.0
AGENT = Agent(id="a", start=T, stop=T + 100)
HELD = Session(
    entries=(
        Entry(role="user", turn=0, content="Hello.", recorded_at=T + 1),
        Entry(role="assistant", turn=0, content="Hello, Ann.", recorded_at=T + 2),
    ),
    next_turn=1,
)


def assistant(text, source=None):
    metadata = {} if source is None else {"metadata": {"source": source}}
    return Message(role="assistant", content=text, **metadata)


def showing(session, window):
    """A session once a window was shown."""
    return with_prompts(session, speech_of(window).prompts)


def after(session, *texts):
    """Returns the session after a history that ends with these lines of the assistant."""
    history = [Message(role="user", content="Hello."), assistant("Hello, Ann."), *map(assistant, texts)]
    return [entry.text for entry in apply_history(session, AGENT, history, now=T + 200)[0].entries]


def test_only_what_a_window_marked_is_left_out():
    window = [assistant("Still there?", "silence"), assistant("Try later.", "llm_failure")]
    window += [assistant("Welcome!", "greeting"), Message(role="user", content="Still there?")]
    session = decode(encode(showing(HELD, window)))
    assert after(session, "Still there?", "Try later.", "Welcome!", "Bye.")[2:] == ["Welcome!", "Bye."]
    assert after(HELD, "Still there?", "Bye.")[2:] == ["Still there?", "Bye."]


def test_letters_and_points_may_differ():
    assert after(showing(HELD, [assistant("Still there?", "silence")]), "still there")[2:] == []


def test_an_answer_that_says_the_same_is_held():
    session = showing(HELD, [assistant("Hello, Ann.", "silence")])
    assert after(session) == ["Hello.", "Hello, Ann."]
    assert after(session, "Bye.") == ["Hello.", "Hello, Ann.", "Bye."]


def test_a_session_keeps_few_digests_and_no_word():
    session = HELD
    for number in range(100):
        window = [assistant(f"Secret {number}", "silence")]
        session = showing(showing(session, window), window)
    assert after(session, "Secret 99")[2:] == []
    assert b"Secret" not in encode(session)
    assert len(encode(session)) < len(encode(HELD)) + 350
    assert showing(session, [assistant(" ", "silence")]) == session


def test_a_window_of_nothing_else_costs_no_more_than_sixteen():
    window = [assistant(f"Prompt {number}", "silence") for number in range(100)]
    session = showing(HELD, [*window, assistant("x" * 5000, "silence")])
    assert after(session, "Prompt 99", "Prompt 0")[2:] == ["Prompt 0"]
    assert len(session.prompts) == 15


def test_an_export_carries_them():
    session = showing(HELD, [assistant("Still there?", "silence")])
    assert (
        restore_session([*platform_messages(session.entries)], fields(**remainder_fields(session))).prompts
        == session.prompts
        != ()
    )
