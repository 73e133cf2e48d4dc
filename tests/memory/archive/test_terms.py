import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.terms import Lexicon, Stemmer, words
from proxy.memory.stores.store import Owner

ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
PLAIN, SEALED = Lexicon(), Lexicon([b"new" * 8, b"old" * 8])


def test_stems_have_no_endings_and_no_stop_words():
    assert PLAIN.stems("I was running to the shops, wasn't I?") == ["run", "shop"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Café ÉCLAIR", ["cafe", "eclair"]),
        ("it's O'Neill's", ["its", "oneills"]),
        ("手机坏了", ["手机", "机坏", "坏了"]),
        ("我 of 東京tower", ["我", "of", "東京", "tower"]),
        ("foo_bar-baz 42", ["foo", "bar", "baz", "42"]),
        ("", []),
        ("नमस्ते, हिन्दी में बात।", ["नमस्ते", "हिन्दी", "में", "बात"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("ਪੰਜਾਬੀ ગુજરાતી తెలుగు", ["ਪੰਜਾਬੀ", "ગુજરાતી", "తెలుగు"]),
        ("ಕನ್ನಡ മലയാളം සිංහල", ["ಕನ್ನಡ", "മലയാളം", "සිංහල"]),
        ("ක්\u200dෂ ක්ෂ ন\u200cয়", ["ක්ෂ", "ක්ෂ", "নয়"]),
        ("བོད་ཡིག", ["བོད", "ཡིག"]),
        ("مُحَمَّد محمد", ["محمد", "محمد"]),
        ("أحمد", ["أحمد"]),
        ("שָׁלוֹם שלום", ["שלום", "שלום"]),
        ("ไทย \u0901 \u2764\ufe0f", ["ไท", "ทย"]),
        ("tea\u0e31", ["tea", "\u0e31"]),
    ],
)
def test_words(text: str, found: list[str]):
    assert list(words(text)) == found


@pytest.mark.parametrize(
    ("question", "spelt"),
    [
        ("the living room", {"live": ["livingroom"], "room": ["livingroom"]}),
        ("flight LH438", {"flight": ["flightlh438"], "lh438": ["lh", "438", "flightlh438"]}),
        ("order a 48213", {"order": [], "48213": ["a48213"]}),
        ("dogs, a dog", {"dog": []}),
        ("tower 东京tower", {"tower": [], "东京": []}),
        ("is the", {}),
    ],
)
def test_a_word_of_a_question_may_be_spelt_in_several_ways(question: str, spelt: dict[str, list[str]]):
    assert PLAIN.spellings(question) == spelt


@given(st.text())
def test_a_question_asks_for_all_its_stems(text: str):
    assert list(PLAIN.spellings(text)) == list(dict.fromkeys(PLAIN.stems(text)))


@given(st.text(), st.sampled_from([PLAIN, SEALED]))
def test_what_was_said_is_found_by_the_same_words(text: str, lexicon: Lexicon):
    kept = set(lexicon.terms(ANN, text).split())
    for group in lexicon.query_terms(ANN, ((stem,) for stem in lexicon.stems(text))):
        assert kept & set(group)


@given(st.text())
def test_terms_hold_nothing_that_an_index_takes_for_syntax(text: str):
    terms = PLAIN.terms(ANN, text)
    assert set(terms).isdisjoint("\"'\\&|!:*()<>-+^\0\t\n")
    assert terms == terms.casefold()


@pytest.mark.parametrize("lexicon", [PLAIN, SEALED])
def test_no_two_owners_share_a_term(lexicon: Lexicon):
    owners = [ANN, BOB, Owner("acme"), Owner("acmea", "nn"), Owner("other", "ann")]
    terms = [set(lexicon.terms(owner, "dog cat").split()) for owner in owners]
    assert len(set.union(*terms)) == 2 * len(owners)


def test_sealed_terms_tell_no_word_and_an_older_key_still_finds():
    assert "scarecrow" in PLAIN.terms(ANN, "scarecrow")
    assert "scarecrow" not in SEALED.terms(ANN, "scarecrow")
    old = Lexicon([b"old" * 8]).terms(ANN, "scarecrow")
    assert old in SEALED.query_terms(ANN, [("scarecrow",)])[0]
    assert old != SEALED.terms(ANN, "scarecrow")


@given(st.lists(st.text("0123456789abcdefgsiy", min_size=1, max_size=12), max_size=30))
def test_words_with_digits_are_stemmed_alike_and_not_remembered(said):
    stemmer, fresh = Stemmer(), Stemmer()
    assert stemmer.stems(said) == stemmer.stems(said) == [fresh.stems([word])[0] for word in said]
    assert not any(character.isdecimal() for word in stemmer._cache for character in word)
