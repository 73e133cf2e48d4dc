# ruff: noqa: RUF001 - words of many languages
import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.statements import LEXICON
from proxy.memory.archive.terms import GUESS, Lexicon, Stems, words
from proxy.memory.stores.sql import MIGRATIONS
from proxy.memory.stores.sqlite_file import TYPES
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


def spellings(question: str) -> set[str]:
    return {stem for group in PLAIN.question(question) for stem, worth in group.items() if worth >= GUESS}


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("my livingroom", "the living room"),
        ("flight LH438", "And LH 438?"),
        ("flight LH 438", "And LH438?"),
        ("A-48213-B", "order A48213B"),
        ("A48213B", "order A-48213-B"),
        ("A48213B", "what about a four eight two one three b"),
        ("A-48213-B", "48213"),
        ("Call 0171 555 2368.", "01715552368"),
        ("Call 01715552368.", "+49 171 5552368"),
        ("Call +49 171 5552368.", "0171/555 2368"),
        ("Call 0171 555 2368.", "null eins sieben eins fünf fünf fünf zwo drei sechs acht"),
        ("zero one seven one, five five five, two three six eight", "0171 5552368"),
        ("double five oh one two", "55012"),
        ("The PIN is 4 7 1 1 2.", "47112"),
        ("The PIN is 47112.", "vier sieben eins eins zwei"),
        ("card ending in 2368", "4929 1234 5678 2368"),
        ("He is forty-seven.", "47"),
        ("siebenundvierzig elf zwei", "47112"),
        ("٤٧١١٢", "47112"),
        ("I pay 4 for 48213.", "48213"),
        ("Meine Krankenversicherung zahlt.", "Und die Versicherung?"),
        ("Die Versicherung zahlt nicht.", "Zahlt die Krankenversicherung?"),
        ("Wir haben zwei Häuser.", "Wo ist mein Haus?"),
        ("Ich wohne in München.", "Muenchen"),
        ("I live in Muenchen.", "München"),
        ("Моя собака спит.", "где собаку"),
        ("Это было в Москве.", "Москва"),
        ("قرأت الكتاب", "كتاب"),
        ("İSTANBUL", "istanbul"),
        ("IŞIKLI sokak", "ışıklı"),
        ("İstanbul'da yaşıyorum.", "istanbul"),
        ("I bought a boat.", "What did I buy?"),
        ("I buy boats.", "What have I bought?"),
        ("Lives in Hamburg.", "Where do I live?"),
        ("She leaves at nine.", "When does she leave?"),
        ("Wears size 9 shoes.", "shoe size"),
        ("Mother: Ella.", "Ella"),
        ("Son Paul plays chess.", "my son"),
        ("Door code 4711", "Which door?"),
        ("Wohnt in Hamburg.", "Wo wohne ich?"),
        ("Ich wohne in Hamburg.", "Wo wohnt der Anrufer?"),
        ("Fährt einen Volvo.", "Was fahre ich?"),
        ("Woont in Utrecht.", "Waar woon ik?"),
        ("my children", "my child"),
        ("the children's room", "a child"),
        ("My kids are small.", "How old are my children?"),
        ("Married to Tom.", "Who is my husband?"),
        ("Born on 3 May 1990.", "How old am I?"),
        ("J'ai vu l'appartement.", "Quel appartement ?"),
        ("un caffè all'aperto", "aperto"),
        ("Mis hermanas viven lejos.", "¿Y mi hermana?"),
        ("Οι αδελφές μου", "η αδελφή"),
        ("मेरी किताबें", "किताब"),
        ("我家的猫叫咪咪。", "猫"),
        ("每天早上我喝茶。", "茶呢？ 茶"),
        ("우리 집은 서울에 있어요.", "집"),
    ],
)
def test_what_was_told_is_found_in_other_spellings_and_forms(said: str, question: str):
    assert spellings(question) & set(PLAIN.stems(said))


def test_a_long_number_is_in_the_index_by_its_ends_alone():
    assert PLAIN.stems("Call 01715552368.") == ["call", "5552368", "2368"]
    assert PLAIN.stems("Order 20190001715552368b.") == ["order", "20190001715552368b", "5552368", "2368"]


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("My appointment is at noon.", "apointment"),
        ("My apointment is at noon.", "appointment"),
        ("the restuarant", "restaurant"),
        ("a refridgerator", "refrigerator"),
        ("Der Schornsteinfeger", "Schornsteinfger"),
        ("我养了一只猫。", "我的猫呢?"),
        ("私は犬を飼っています。", "犬の名前は?"),
    ],
)
def test_one_typing_error_in_a_long_word_and_one_character_beside_a_particle_are_guesses(
    said: str, question: str
):
    asked = [stem for group in PLAIN.question(question) for stem, worth in group.items() if worth < GUESS]
    assert set(asked) & set(PLAIN.stems(said))


@pytest.mark.parametrize(
    "question",
    [
        "is the",
        "Hello, good morning!",
        "Thank you, bye!",
        "Guten Morgen!",
        "Merci, au revoir !",
        "Allô, bonjour ?",
        "D'accord, à bientôt.",
        "Grüß Gott! Sind Sie noch da?",
        "Buenas, ¿me oye?",
        "De nada, hasta pronto.",
        "Salve, arrivederla.",
        "Alô, até amanhã.",
        "İyi günler, görüşürüz.",
        "Алло, пожалуйста.",
        "好的，谢谢。",
        "喂？又是我。",
        "もしもし。",
        "はい、すみません、失礼します。",
        "여보세요?",
        "감사합니다, 안녕히 계세요.",
        "شكرا، مع السلامة",
        "وعليكم السلام",
        "你好，再见！",
        "好。",
        "嗯，对。",
        "네.",
        "was ist das?",
    ],
)
def test_a_courtesy_or_function_words_ask_for_nothing(question: str):
    assert PLAIN.question(question) == []


def test_japanese_endings_ask_for_nothing_beside_a_word():
    assert {stem for group in PLAIN.question("新幹線はいつでしたか？") for stem in group} >= {"新幹", "幹線"}
    assert not set(PLAIN.stems("はい、どうなさいましたか？")) & spellings("新幹線はいつでしたか？")
    assert set(PLAIN.stems("ねこがすきです")) & spellings("ねこ")


def test_two_words_that_share_a_character_are_two():
    assert not spellings("机会") & set(PLAIN.stems("手机坏了"))


@given(st.text())
def test_a_question_asks_for_each_of_its_words_once(text: str):
    first = [next(iter(group)) for group in PLAIN.question(text)]
    assert len(first) == len(set(first))


@given(st.lists(st.from_regex(r"[a-z]{8,12}", fullmatch=True), min_size=1, max_size=3))
def test_a_long_word_less_a_letter_shares_a_half_with_it(spoken: list[str]):
    for word in spoken:
        halves = {term for term in PLAIN.stems(word) if term.startswith(("zx", "zy"))}
        for cut in range(len(word)):
            asked = PLAIN.question(word[:cut] + word[cut + 1 :])
            assert (
                not halves
                or len(word) < 9
                or not asked
                or halves & {stem for group in asked for stem in group}
            )


@given(st.text(), st.sampled_from([PLAIN, SEALED]))
def test_what_was_said_is_found_by_the_same_words(text: str, lexicon: Lexicon):
    kept = set(lexicon.terms(ANN, text).split())
    for group in lexicon.query_terms(ANN, ({stem: 1.0} for stem in lexicon.stems(text))):
        assert kept & group.keys()


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
    old = Lexicon([b"old" * 8]).terms(ANN, "barn")
    assert old in SEALED.query_terms(ANN, [{"barn": 1.0}])[0]
    assert old != SEALED.terms(ANN, "barn")


@given(st.lists(st.text("0123456789abcdefgsiy", min_size=1, max_size=12), max_size=30))
def test_words_with_digits_are_not_kept_in_memory(said: list[str]):
    lexicon, kept = Lexicon(), list[str]()

    class Recording(Stems):
        """Notes each word that goes through the cache of stems."""

        def _stem_of(self, tongue: str, word: str) -> str:
            kept.append(word)
            return super()._stem_of(tongue, word)

    lexicon._stems = stems = Recording()
    assert lexicon.stems(" ".join(["a table", *said])) == PLAIN.stems(" ".join(["a table", *said]))
    lexicon.question(" ".join(["a table", *said]))
    kept += [word for forms in stems._forms.values() for word in forms]
    assert kept.count("table") > 1
    assert not any(character.isdecimal() for word in kept for character in word)


def test_stems_are_the_same_from_several_threads():
    stems = Stems()
    spoken = [f"{word}s" for word in ("house", "running", "insurance", "versicherung") for _ in range(200)]
    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(lambda word: stems.stem("english", word), spoken)]
    assert made == [stems.stem("english", word) for word in spoken]


INDEXED = (
    "Call 01715552368 at half past eight, and room 12B. My customer number is 12345678, two pieces please.",
    "She was running to the shops; its about my flat no. 4 for 2, at 19:30 on 3rd May.",
    "Ich habe zwei Zimmer gebucht, Nummer 4711. 手机坏了 Café O'Neill's M as in Mike 7",
    "No.",
    "She lives here, and leaves at nine.",
)


def test_terms_are_those_that_an_index_was_made_of():
    """If they change, raise LEXICON and add a migration, which makes the index again."""
    terms = " ".join(PLAIN.terms(ANN, text) for text in INDEXED)
    assert (LEXICON, hashlib.sha256(terms.encode()).hexdigest()[:16]) == (4, "16a635152c7db699")


def test_what_an_older_lexicon_indexed_is_found_by_the_newest_index():
    statements = [each for migration in MIGRATIONS for each in migration(TYPES)]
    *_, newest = (each for each in statements if "CREATE INDEX" in each and "lexicon <" in each)
    assert newest.endswith(f"WHERE lexicon < {LEXICON}")
