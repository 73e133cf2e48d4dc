from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.dates import TimeRange
from proxy.memory.archive.search import Lookup, Passage, rank, word_matches

NOW = 1000.0
YEAR = 365 * 86_400.0
ASKED = Lookup(({"dog": 1.0}, {"name": 1.0, "oldname": 1.0}), ())


def passage(id_: int, terms: str, *, talk: int = 1, place: int = 0, at: float = 900.0) -> Passage:
    return Passage(id_, 1, id_, talk, place or 10 * id_, at, terms)


def order(question: Lookup, *passages: Passage) -> list[int]:
    matches = word_matches(question, passages, len(passages))
    return [one.id for _, one in rank(question, passages, matches, {})]


def test_more_words_of_the_question_go_first():
    assert order(ASKED, passage(1, "dog tea"), passage(2, "dog name"), passage(3, "tea")) == [2, 1, 3]


def test_a_rare_word_tells_more_than_a_common_one():
    common = [passage(i, "dog walk") for i in range(2, 9)]
    assert order(ASKED, passage(1, "oldname walk"), *common)[0] == 1


def test_a_fact_that_says_what_a_turn_said_makes_its_words_no_more_usual():
    turn, fact, others = passage(1, "dog rex"), Passage(90, 2, 90, 0, 0, 900.0, "dog rex"), range(2, 50)
    said = [turn, *(passage(i, "tea rex") for i in others)]
    alone, beside = (word_matches(ASKED, passages, 50).own_scores() for passages in (said, [*said, fact]))
    assert beside[1] == beside[90] == alone[1]


def test_among_three_lines_a_word_of_two_is_worth_telling():
    said = (passage(1, "dog rex"), passage(2, "tea"), Passage(3, 2, 3, 0, 0, 900.0, "dog rex"))
    own = word_matches(Lookup(({"dog": 1.0}, {"name": 1.0}, {"old": 1.0}), ()), said, 3).own_scores()
    assert own[1] == own[3] > 0.2


def test_a_neighbour_shares_and_a_stranger_does_not():
    there = passage(1, "dog name", place=5)
    beside, far, elsewhere = (
        passage(2, "tea", place=6),
        passage(3, "tea", place=9),
        passage(4, "tea", place=5, talk=2),
    )
    said = (there, beside, far, elsewhere)
    worth = {one.id: round(value, 3) for value, one in rank(ASKED, said, word_matches(ASKED, said, 4), {})}
    assert worth[1] > worth[2] > 0 == worth[3] == worth[4]


def test_a_word_that_all_around_repeat_tells_no_more_than_two_words_of_one_line():
    repeated = [passage(i, "dog", place=i) for i in range(1, 6)]
    others = [passage(i, "dog tea", place=1000 + 10 * i) for i in range(20, 24)]
    assert order(ASKED, *repeated, *others, passage(90, "dog name", talk=2))[0] == 90


def test_what_is_similar_counts_for_its_neighbours_too():
    said = (passage(1, "tea", place=1), passage(2, "tea", place=2), passage(3, "tea", place=9))
    found = {one.id: value for value, one in rank(ASKED, said, word_matches(ASKED, said, 3), {1: 0.5})}
    assert found[1] > found[2] > 0 == found[3]


def test_what_was_said_at_the_time_goes_first():
    timely = Lookup(ASKED.groups, (TimeRange(100.0, 200.0),))
    assert order(timely, passage(1, "dog"), passage(2, "dog", at=150.0)) == [2, 1]
    assert order(ASKED, passage(1, "dog"), passage(2, "dog", at=150.0)) == [1, 2]


def test_of_a_time_alone_what_tells_more_goes_first():
    timely = Lookup((), (TimeRange(100.0, 200.0),))
    assert order(timely, passage(1, "dog name tea", at=150.0), passage(2, "tea", at=160.0)) == [1, 2]


def test_of_the_same_worth_the_newer_goes_first():
    assert order(ASKED, passage(1, "dog", at=NOW - YEAR), passage(2, "dog")) == [2, 1]


def test_an_answer_that_repeats_its_question_comes_after_it():
    asked, answered = passage(1, "dog name", place=1), passage(2, "dog name" + " tea" * 20, place=2)
    assert order(ASKED, asked, answered) == [1, 2]


@given(st.lists(st.lists(st.sampled_from(["dog", "name", "oldname", "tea", "x"]), max_size=6), max_size=8))
def test_worth_is_bounded_and_nothing_is_lost(bags: list[list[str]]):
    passages = [passage(i, " ".join(bag)) for i, bag in enumerate(bags, 1)]
    found = rank(ASKED, passages, word_matches(ASKED, passages, len(passages)), {})
    assert {one.id for _, one in found} == {one.id for one in passages}
    assert all(0 <= worth < 4 for worth, _ in found)
    assert [worth for worth, _ in found] == sorted((worth for worth, _ in found), reverse=True)
