"""What users of each platform report that it replays, and what must be remembered of it."""

import msgspec
import pytest

from filters.message import Message
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import QuestionRef, Session, decode, encode, message_of
from tests.memory.call import NOW, Call, asked, calling, marked, message, messages, missing, reconcile, result

JOKE = "Why did the scarecrow win an award? He was outstanding in his field."


# --- what was heard


def test_an_answer_is_held_as_generated_until_a_window_shows_it():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    assert call.memory == ["u:A joke!", f"a?:{JOKE}"]
    call.ask("u:A joke!", f"a:{JOKE}", "u:Another.")
    assert call.memory == ["u:A joke!", f"a:{JOKE}", "u:Another."]


def test_a_cut_answer_is_held_as_heard_with_what_was_generated():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", "a:Why did the scarecrow", "u:Stop.")
    assert call.memory == ["u:A joke!", f"a:Why did the scarecrow|{JOKE}", "u:Stop."]
    assert call.held.entries[1].interrupted


@pytest.mark.parametrize(
    "replayed",
    ["Why did the scare", "Why, did the Scarecrow", "Why did the scarecrow."],
)
def test_a_cut_answer_is_held_as_it_is_replayed(replayed: str):
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", f"a:{replayed}", "u:Stop.")
    assert call.memory == ["u:A joke!", f"a:{replayed}|{JOKE}", "u:Stop."]


@pytest.mark.parametrize(
    ("replayed", "heard"),
    [
        ("Why did the scarecrow...", "Why did the scarecrow"),
        ("Why did the scarecrow ...", "Why did the scarecrow"),
        ("why did the scarecrow…", "Why did the scarecrow"),
        ("Why did the scare...", "Why did the scare"),
    ],
)
def test_livekit_0_appends_dots_to_a_cut_answer(replayed: str, heard: str):
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    window = ["u:A joke!", f"a:{replayed}", "u:Stop."]
    shown = marked(call.held, messages(*window))[1]
    assert (shown.text, shown.interrupted, shown.original) == (heard, True, JOKE)
    call.ask(*window, answer="Well.")
    assert call.memory == ["u:A joke!", f"a:{heard}|{JOKE}", "u:Stop.", "a?:Well."]
    assert marked(call.held, messages(*window, "a:Well.", "u:And?"))[1].text == heard


def test_dots_that_were_said_are_held():
    call = Call()
    call.ask("u:A joke!", answer="Let me think... Why did the scarecrow?")
    call.ask("u:A joke!", "a:Let me think...", "u:Stop.")
    assert call.memory[1] == "a:Let me think...|Let me think... Why did the scarecrow?"


def test_vapi_replays_the_transcript_with_other_punctuation():
    call = Call()
    call.ask("a:Hello, can you hear me?", "u:Yes.", answer="Great, how can I help?")
    call.ask("a:Hello. Can you hear me?", "u:Yes", "a:Great. How can i help", "u:A table for two.")
    assert call.memory == [
        "a:Hello, can you hear me?",
        "u:Yes.",
        "a:Great, how can I help?",
        "u:A table for two.",
    ]


@pytest.mark.parametrize(
    ("generated", "replayed"),
    [
        ("Your code is one two three four. Anything else?", "Your code is 1234. Anything else?"),
        ("Options:\n\n1. Red\n2. Green\n3. Blue\n\nWhich one?", "Options: Red, Green, Blue. Which one?"),
        ('<speak>Hi <break time="1s"/> there</speak> my friend', "Hi there my friend"),
        ("Let me see... It is ten euros. Anything else?", "It is ten euros. Anything else?"),
    ],
)
def test_an_answer_that_is_spelt_with_fewer_words_is_held_whole(generated: str, replayed: str):
    call = Call()
    call.ask("u:Well?", answer=generated)
    window = ["u:Well?", f"a:{replayed}", "u:No."]
    assert marked(call.held, messages(*window)) == messages(*window)
    call.ask(*window, answer="Fine.")
    assert call.memory == ["u:Well?", f"a:{replayed}", "u:No.", "a?:Fine."]


@pytest.mark.parametrize(
    ("generated", "replayed"),
    [
        (
            "You owe me one two three euros. Is that right? And the rest? Is that right?",
            "You owe me 123 euros. Is that right?",
        ),
        ("I say yes to one and two. Then I say no.", "I say 1 no."),
        ("Take bus twenty five to the market, then walk on to the station.", "Take bus 25 to the market"),
    ],
)
def test_an_answer_that_ends_as_it_went_on_before_is_held_as_cut(generated: str, replayed: str):
    call = Call()
    call.ask("u:Well?", answer=generated)
    call.ask("u:Well?", f"a:{replayed}", "u:Stop.")
    assert call.memory[1] == f"a:{replayed}|{generated}"


PIECES = ["a:Why did the scarecrow", "a:win an award?", "a:He was outstanding in his field."]


@pytest.mark.parametrize("greeting", [[], ["a:Hello!"]])
def test_vapi_replays_one_answer_in_several_messages(greeting: list[str]):
    call = Call()
    call.ask(*greeting, "u:A joke!", answer=JOKE)
    window = [*greeting, "u:A joke!", *PIECES, "u:Ha!"]
    shown = messages(*window)
    assert marked(call.held, shown) is shown
    assert not missing(call.held, shown)
    call.ask(*window, answer="Another?")
    assert call.memory == [*greeting, "u:A joke!", f"a:{JOKE}", "u:Ha!", "a?:Another?"]
    assert marked(call.held, shown) is shown
    call.ask(*window, "a:Another?", "u:Yes.", answer="Well.")
    assert call.memory[-5:] == [f"a:{JOKE}", "u:Ha!", "a:Another?", "u:Yes.", "a?:Well."]


def test_an_answer_in_pieces_that_was_cut_is_marked_where_it_ends():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    window = ["u:A joke!", *PIECES[:2], "u:Stop."]
    for _ in range(2):
        shown = marked(call.held, messages(*window))
        assert [m.interrupted for m in shown] == [False, False, True, False]
        assert shown[2].content == "win an award?"
        assert shown[2].original == "win an award? He was outstanding in his field."
        call.ask(*window)
    assert call.memory == ["u:A joke!", f"a:Why did the scarecrow win an award?|{JOKE}", "u:Stop."]


def test_two_answers_in_a_row_are_two():
    call = Call()
    call.ask("u:A joke!", answer="Why did the scarecrow")
    window = ["u:A joke!", "a:Why did the scarecrow", "a:By the way.", "u:Stop."]
    call.ask(*window)
    assert call.memory == window


def test_an_answer_of_which_more_is_heard_later_is_held_whole():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", "a:Why did the", "u:Hm.")
    call.ask("u:A joke!", f"a:{JOKE}", "u:Hm.")
    assert call.memory == ["u:A joke!", f"a:{JOKE}", "u:Hm."]


def test_pipecat_jumbles_words():
    call = Call()
    call.ask("u:A joke!", answer="One two three four five.")
    call.ask("u:A joke!", "a:One three two four five.", "u:Hm.")
    assert call.memory == ["u:A joke!", "a:One two three four five.", "u:Hm."]


def test_livekit_drops_an_answer_that_was_not_played():
    call = Call()
    call.ask("a:Hello!", "u:A joke!", answer=JOKE, finished=False)
    call.ask("a:Hello!", "u:A joke!", "u:No, a story.", answer="Once upon a time.")
    assert call.memory == ["a:Hello!", "u:A joke!", "u:No, a story.", "a?:Once upon a time."]


def test_agora_leaves_out_the_only_answer_that_nobody_heard():
    call = Call()
    call.ask("1u:Tell me a story.", answer="Once upon a time.")
    call.ask("1u:Tell me a story.", "2u:No, a joke.", answer="Why did it?")
    assert call.memory == ["u:Tell me a story.", "u:No, a joke.", "a?:Why did it?"]
    told = ["1u:Tell me a story.", "1a:Once upon", "2u:No, a joke.", "2a:Why did it?", "3u:Ha!"]
    call.ask(*told, answer="Another?")
    assert call.memory == [
        "u:Tell me a story.",
        "a:Once upon|Once upon a time.",
        "u:No, a joke.",
        "a:Why did it?",
        "u:Ha!",
        "a?:Another?",
    ]


def test_an_engine_without_numbers_may_never_show_an_answer():
    call = Call()
    call.ask("u:Tell me a story.", answer="Once upon a time.")
    call.ask("u:Tell me a story.", "u:No, a joke.", answer="Why did it?")
    assert call.memory == ["u:Tell me a story.", "a?:Once upon a time.", "u:No, a joke.", "a?:Why did it?"]


def test_livekit_commits_empty_content():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", "a:", "u:No, a story.")
    assert call.memory == ["u:A joke!", "u:No, a story."]


def test_livekit_puts_the_user_before_the_interrupted_answer():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", "u:Stop.", "a:Why did the", answer="Fine.")
    expected = ["u:A joke!", f"a:Why did the|{JOKE}", "u:Stop."]
    assert call.memory == [*expected, "a?:Fine."]
    call.ask("u:A joke!", "u:Stop.", "a:Why did the", "a:Fine.", "u:Bye.")
    assert call.memory == [*expected, "a:Fine.", "u:Bye."]


def test_livekit_commits_an_interrupted_answer_twice():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", "a:Why did the", "a:Why did the", "u:Stop.")
    assert call.memory == ["u:A joke!", f"a:Why did the|{JOKE}", "u:Stop."]
    call.ask("u:A joke!", "a:Why did the", "u:Stop.", "a:Why did the", "u:Go on.")
    assert call.memory[:3] == ["u:A joke!", f"a:Why did the|{JOKE}", "u:Stop."]


def test_livekit_sends_control_strings():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    call.ask("u:A joke!", f"a:{JOKE}", "u:<continue>")
    assert call.memory == ["u:A joke!", f"a:{JOKE}"]


def test_pipecat_loses_the_assistants_side():
    call = Call()
    call.ask("u:One.", answer="First.")
    call.ask("u:One.", "a:First.", "u:Two.", answer="Second.")
    call.ask("u:One.", "u:Two.", "u:Three.", answer="Third.")
    assert call.memory == ["u:One.", "a:First.", "u:Two.", "a?:Second.", "u:Three.", "a?:Third."]


# --- what was said


def test_agora_glues_unanswered_words_to_the_next_ones():
    call = Call()
    call.ask("a:Namaste!", "u:मुझे एक", answer="जी?", finished=False)
    call.ask("a:Namaste!", "u:मुझे एक What time is it?", answer="Noon.")
    assert call.memory == ["a:Namaste!", "u:मुझे एक What time is it?", "a?:Noon."]


def test_agora_glues_under_the_newer_turn_number():
    call = Call()
    call.ask("0a:Hello!", "1u:I want", answer="What?", finished=False)
    call.ask("0a:Hello!", "2u:I want a table.", answer="For when?")
    assert call.memory == ["a:Hello!", "u:I want a table.", "a?:For when?"]
    assert call.held.entries[1].turn_id == 2


@pytest.mark.parametrize(
    ("first", "then"), [("I want", "I want a table."), ("No", "Nothing else today"), ("5", "50 euros")]
)
def test_words_that_the_window_shows_by_themselves_were_said_by_themselves(first: str, then: str):
    call = Call()
    call.ask(f"u:{first}", answer="What?")
    call.ask(f"u:{first}", f"u:{then}", answer="For when?")
    call.ask(f"u:{first}", f"u:{then}", "a:For when?", "u:Today.")
    assert [line for line in call.memory if line[0] == "u"] == [f"u:{first}", f"u:{then}", "u:Today."]


@pytest.mark.parametrize("source", ["llm_failure", "silence", "command"])
def test_words_before_a_line_of_the_engines_own_are_not_glued(source: str):
    call = Call()
    call.ask("1u:Hello", answer="Hi.")
    own = message("1a:Are you there?", metadata={"source": source})
    call.ask("1u:Hello", own, "2u:Hello, can you hear me?", answer="Yes.")
    assert [line for line in call.memory if line[0] == "u"] == ["u:Hello", "u:Hello, can you hear me?"]


def test_of_overlapping_requests_the_later_supersedes():
    call = Call()
    call.ask("a:Hello!", "u:I want to", answer="What?", finished=False)
    call.ask("a:Hello!", "u:I want to book", answer="Book what?")
    assert call.memory == ["a:Hello!", "u:I want to book", "a?:Book what?"]


def test_an_early_request_that_is_recorded_late_changes_nothing():
    call = Call()
    call.ask("a:Hello!", "u:I want to book", answer="Book what?")
    held = call.held
    assert call.ask("a:Hello!", "u:I want to", answer="What?", pause=-0.5) is None
    assert call.held == held


def test_an_answer_to_superseded_words_is_not_held():
    call = Call()
    early = call.ask("a:Hello!", "u:I want to")
    call.ask("a:Hello!", "u:I want to book", answer="Book what?")
    held = call.held
    assert apply_answer(held, Answer(question=early, text="What?"), now=NOW) == held


def test_volcengine_prefills_what_is_not_yet_said():
    call = Call()
    call.ask("u:Wh", answer="Pardon?")
    call.ask("u:What is", answer="What?", pause=-0.5)
    call.ask("u:What is the time?", answer="Noon.", pause=0.1)
    assert call.memory == ["u:What is the time?", "a?:Noon."]


def test_elevenlabs_revises_the_last_words():
    call = Call()
    call.ask("a:Hello!", "u:Call Ann.", answer="Calling Ann.")
    call.ask("a:Hello!", "u:Tall man.", answer="Who?")
    assert call.memory == ["a:Hello!", "u:Tall man.", "a?:Who?"]


def test_elevenlabs_withdraws_a_turn():
    call = Call()
    call.ask("a:Hello!", "u:One.", answer="First.")
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Er", answer="Yes?")
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Three.", answer="Third.")
    assert call.memory == ["a:Hello!", "u:One.", "a:First.", "u:Three.", "a?:Third."]


def test_elevenlabs_history_gets_shorter():
    call = Call()
    call.ask("a:Hello!", "u:One.", answer="First.")
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Two.", answer="Second.")
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Two.", "a:Second.", "u:Er", answer="Yes?")
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Two.", answer="Second again.")
    assert call.memory == ["a:Hello!", "u:One.", "a:First.", "u:Two.", "a?:Second again."]


def test_short_words_said_again_are_other_turns():
    call = Call()
    call.ask("u:Yes", answer="First?")
    call.ask("u:Yes", "a:First?", "u:Yes", answer="Second?")
    call.ask("u:Yes", "a:First?", "u:Yes", "u:Yes", answer="Third?")
    assert call.memory == ["u:Yes", "a:First?", "u:Yes", "u:Yes", "a?:Third?"]


def test_hume_ends_words_with_an_expression():
    call = Call()
    call.ask("u:I am fine. {slightly doubtful, very slightly calm}", answer="Good.")
    call.ask("u:I am fine. {slightly doubtful, very slightly calm}", "a:Good.", "u:{user} {0} {very happy}")
    assert call.memory == ["u:I am fine.", "a:Good.", "u:{user} {0}"]


def test_agora_prompts_are_not_speech():
    sources = {"silence": "Still there?", "llm_failure": "Sorry?", "greeting": "Hello!"}
    lines = [message(f"a:{text}", metadata={"source": source}) for source, text in sources.items()]
    call = Call()
    call.ask("s:Be brief.", *lines, "u:", "u:Yes.")
    assert call.memory == ["a:Hello!", "u:Yes."]
    assert call.held.entries[0].source == "greeting"


def test_injected_thoughts_are_not_the_humans():
    call = Call()
    call.ask(message("u:The door opened.", metadata={"source": "command"}))
    assert call.held.entries[0].source == "command"


# --- windows and lives


def test_a_call_that_is_joined_in_the_middle_is_recorded_whole():
    call = Call()
    call.ask("a:Hello!", "u:One.", "a:First.", "u:Two.")
    assert call.memory == ["a:Hello!", "u:One.", "a:First.", "u:Two."]
    assert call.turns == [(0, 0), (0, 1), (0, 1), (0, 2)]


def test_what_slides_out_of_the_window_is_missing_and_still_held():
    call = Call()
    call.ask("u:One.", answer="First.")
    call.ask("u:One.", "a:First.", "u:Two.", answer="Second.")
    window = messages("a:Second.", "u:Three.")
    assert [m.text for m in missing(call.held, window)] == ["One.", "First.", "Two."]
    call.ask(*window)
    assert call.memory == ["u:One.", "a:First.", "u:Two.", "a:Second.", "u:Three."]
    assert [m.text for m in missing(call.held, window)] == ["One.", "First.", "Two."]


def test_tencent_sends_no_history():
    call = Call()
    for words, answer in [("One.", "First."), ("Two.", "Second."), ("Three.", "Third.")]:
        call.ask(f"u:{words}", answer=answer)
    assert call.memory == ["u:One.", "a?:First.", "u:Two.", "a?:Second.", "u:Three.", "a?:Third."]


def test_agora_counts_anew_when_the_channel_returns():
    call = Call()
    call.ask("0a:Hello!", "1u:One.", answer="First.")
    call.ask("0a:Hello!", "1u:One.", "1a:First.", "2u:Two.", answer="Second.")
    call.ask("0a:Hello!", "1u:Me again.", answer="Welcome.")
    assert call.memory[4:] == ["a?:Second.", "a:Hello!", "u:Me again.", "a?:Welcome."]
    assert call.turns[5:] == [(1, 0), (1, 1), (1, 1)]
    assert not missing(call.held, messages("0a:Hello!", "1u:Me again."))


def test_a_new_life_is_seen_by_what_is_missing_before_it_is_held():
    call = Call()
    call.ask("0a:Hello!", "1u:One.", answer="First.")
    call.ask("0a:Hello!", "1u:One.", "1a:First.", "2u:Two.", answer="Second.")
    assert missing(call.held, messages("1u:Me again.")) == ()


@pytest.mark.parametrize("unit", [1, 1000], ids=["seconds", "milliseconds"])
def test_one_turn_a_day_after_a_call_of_one_turn_is_another_call(unit):
    call = Call()
    call.ask(message("1u:Where is my order?", timestamp=1_700_000_000 * unit), answer="On its way.")
    call.ask(message("1u:Cancel it, please.", timestamp=1_700_086_400 * unit), answer="It is cancelled.")
    assert call.memory == [
        "u:Where is my order?",
        "a?:On its way.",
        "u:Cancel it, please.",
        "a?:It is cancelled.",
    ]
    assert call.turns == [(0, 0), (0, 0), (1, 0), (1, 0)]


def test_one_turn_with_other_words_seconds_later_is_revised():
    call = Call()
    call.ask(message("1u:Where is my order?", timestamp=1_700_000_000), answer="On its way.")
    call.ask(message("1u:Cancel it, please.", timestamp=1_700_000_020), answer="It is cancelled.")
    assert call.memory == ["u:Cancel it, please.", "a?:It is cancelled."]


def test_a_revised_text_is_no_new_life():
    call = Call()
    call.ask("0a:Hello!", "1u:Call Ann.", answer="Calling.")
    call.ask("0a:Hello!", "1u:Tall man.", "1a:Calling.", "2u:No.", answer="Sorry.")
    assert call.memory == ["a:Hello!", "u:Tall man.", "a:Calling.", "u:No.", "a?:Sorry."]
    assert call.held.call == 0


def test_agoras_own_marks_are_held():
    marks = {"interrupted": True, "interrupt_timestamp": 7, "original": JOKE, "source": "llm"}
    call = Call()
    call.ask("1u:A joke!", answer=JOKE)
    cut = message("1a:Why did the ", timestamp=5, metadata=marks)
    call.ask("1u:A joke!", cut, "2u:Stop.")
    assert call.memory == ["u:A joke!", f"a:Why did the |{JOKE}", "u:Stop."]
    assert message_of(call.held.entries[1]) == cut


def test_two_answers_of_one_turn_keep_their_order():
    call = Call()
    call.ask("0a:Hello!", "1u:One.", answer="First.")
    call.ask("0a:Hello!", "1u:One.", "1a:First.", "1a:By the way.", "2u:Two.")
    call.ask("1a:By the way.", "2u:Two.")
    assert call.memory == ["a:Hello!", "u:One.", "a:First.", "a:By the way.", "u:Two."]


# --- tools


def test_a_tool_group_is_held_with_what_it_calls_and_what_comes_back():
    call = Call()
    calls = calling("call_0", "call_1").tool_calls
    call.ask("u:Look.", tool_calls=calls)
    assert call.memory == ["u:Look.", "calls call_0 call_1"]
    call.ask("u:Look.", calling("call_0", "call_1"), result("call_0"), result("call_1"), answer="Here.")
    whole = ["u:Look.", "calls call_0 call_1", "result call_0", "result call_1"]
    assert call.memory == [*whole, "a?:Here."]
    call.ask("u:Look.", calling("call_0", "call_1"), result("call_0"), result("call_1"), "a:Here.", "u:Ah.")
    assert call.memory == [*whole, "a:Here.", "u:Ah."]
    assert call.held.entries[1].tool_calls == calls


def test_call_ids_that_are_counted_anew_are_other_calls():
    call = Call()
    for i in range(3):
        before = [
            m for e in call.held.entries for m in [msgspec.structs.replace(message_of(e), turn_id=None)]
        ]
        call.ask(*before, f"u:Look {i}.", tool_calls=calling("call_0").tool_calls)
        before += messages(f"u:Look {i}.", calling("call_0"), result("call_0"))
        call.ask(*before, answer=f"Here {i}.")
    assert [line for line in call.memory if line[0] in "cr"] == ["calls call_0", "result call_0"] * 3
    assert len(call.memory) == 12


# --- marks


def test_interruptions_are_marked_where_the_engine_does_not():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    window = messages("s:Be brief.", "u:A joke!", "a:Why did the", "u:Stop.")
    shown = marked(call.held, window)
    assert shown[2].interrupted and shown[2].original == JOKE and shown[2].content == "Why did the"
    assert [shown[0], shown[1], shown[3]] == [window[0], window[1], window[3]]
    held = reconcile(call.held, window, now=NOW)
    assert marked(held, window) == shown


def test_a_window_that_needs_no_marks_is_handed_back():
    call = Call()
    call.ask("u:A joke!", answer=JOKE)
    window = messages("u:A joke!", f"a:{JOKE}", "u:Stop.")
    assert marked(call.held, window) is window


# --- failures


@pytest.mark.parametrize("text", ["", " "])
def test_a_failed_turn_changes_nothing(text: str):
    held = reconcile(Session(), messages("u:Hello."), now=NOW)
    assert apply_answer(held, Answer(question=QuestionRef(0, 0), text=text), now=NOW) is held


def test_nothing_comes_of_a_window_without_speech():
    assert reconcile(Session(), [], now=NOW) == Session()
    assert asked(Session(), []) is None
    assert reconcile(Session(), messages("u: "), now=NOW) == Session()
    assert reconcile(Session(), messages("s:Be brief.", "u: "), now=NOW).entries == ()


def test_a_session_survives_its_store():
    call = Call()
    call.ask(Message(role="user", content=[{"type": "text", "text": "Look!"}], timestamp=1.5), answer="Hm.")
    assert decode(encode(call.held)) == call.held


def test_a_doubled_answer_is_not_taken_for_one_that_is_like_it():
    call = Call()
    call.ask("u:One.", answer="The red house stands by a lake.")
    call.ask("u:One.", "u:Two.", answer="The red house stands by a hill.")
    call.ask("a:The red house stands by a hill.", "a:The red house stands by a hill.", "u:Three.")
    assert call.memory == [
        "u:One.",
        "a?:The red house stands by a lake.",
        "u:Two.",
        "a:The red house stands by a hill.",
        "u:Three.",
    ]


@pytest.mark.xfail(
    strict=True, reason="one line of words alone tells no revision from an engine without history"
)
def test_a_first_text_that_is_put_in_other_words_without_any_history():
    call = Call()
    call.ask("u:Call Ann.", answer="Calling.")
    call.ask("u:Tall man.", answer="Who?")
    assert call.memory == ["u:Tall man.", "a?:Who?"]
