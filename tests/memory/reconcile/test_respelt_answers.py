"""If a platform respells answers, a prompt still begins like the one before."""

from itertools import pairwise

import pytest

from proxy.memory.view import ChainNeeds, RequestView, prompt_view
from tests.memory.call import Call, message, messages

RESTORING = ChainNeeds(history=True)


def unpunctuated(text):
    return text.replace(".", "").replace(",", "")


def spaced(text):
    return text.replace(" ", "  ") + " "


def prompt(held, window, wanted=RESTORING):
    """What a model is shown of a window, by role and words."""
    snapshot, shown, _ = prompt_view(RequestView(window).view_of(held), wanted)
    return [(line.role, line.text) for line in (*snapshot.dropped, *shown)]


@pytest.mark.parametrize("size", [3, 4, 7, 100])
@pytest.mark.parametrize("spelt", [str, str.upper, unpunctuated, spaced])
@pytest.mark.parametrize("fields", [True, False], ids=["numbered", "unnumbered"])
def test_a_prompt_grows_at_its_tail_alone(fields, spelt, size):
    call, history, prompts = Call(), [], []
    for turn in range(8):
        number = {"turn_id": turn} if fields else {}
        history.append(message(f"u:Question {turn}.", **number))
        prompts.append(prompt(call.held, history[-size:]))
        text = f"Well, of number {turn} I know this."
        call.ask(*history[-size:], answer=text)
        heard = text if turn % 3 else "Well, of"
        history.append(message("a:" + spelt(heard), **number))
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before


def test_where_nothing_is_brought_back_an_answer_stays_as_the_engine_spells_it():
    call = Call()
    call.ask("u:Hi.", answer="Hello, Ann.")
    window = messages("u:Hi.", "a:hello ann", "u:Well?")
    assert prompt(call.held, window, ChainNeeds())[1] == ("assistant", "hello ann")
    assert prompt(call.held, window)[1] == ("assistant", "Hello, Ann.")


def test_a_jumbled_answer_without_a_number_before_all_that_have_one_is_the_one_that_is_held():
    call = Call()
    call.ask("1u:One.", answer="Here is the red one.")
    call.ask("1u:One.", "a:Here is the red one.", "2u:Two.", answer="Fine.")
    call.ask("a:Here is red the one.", "2u:Two.", "a:Fine.", "3u:Three.")
    assert call.memory == ["u:One.", "a:Here is the red one.", "u:Two.", "a:Fine.", "u:Three."]


def test_an_answer_without_a_number_behind_the_words_that_cut_it_is_the_one_that_is_held():
    call = Call()
    call.ask("1u:One.", answer="Here is the red one.")
    call.ask("1u:One.", "2u:Stop.", "a:Here is", "3u:Go on.")
    assert call.memory == ["u:One.", "a:Here is|Here is the red one.", "u:Stop.", "u:Go on."]
