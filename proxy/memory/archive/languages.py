"""Tables of languages: stemmers, function words, irregular forms, synonyms and courtesies."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

ENGLISH: Final = "english"
COMPOUNDING: Final = ("german", "dutch")
"""Languages that write compounds as one word."""

STOP_WORDS: Final = frozenset(
    """
    a about after again ah all also am an and any are arent as at be because been before being but
    by can cant could couldnt did didnt do does doesnt doing done dont down er ever for from get
    gets getting go going gone gonna got had has hasnt have havent having he hed hello her here hers
    hey hi him his hmm how hows i id if ill im in into is isnt it its itself ive just know let lets
    like made make me mine mm more most much my myself no nor not now of off oh ok okay on once one
    only or other our ours out over own please really remember said say says shall she should so
    some something such sure tell tells than thank thanks that thats the their them then there
    theres these they theyre thing things think this those to told too uh uhm um up us very want was
    wasnt we well were weve what whats when where which while who whom whos why will with wont would
    yeah yes you youd youll your youre yours youve
    """.split()  # noqa: SIM905 - a table reads best as text
)
"""English words that hardly distinguish one turn from another."""

# The most frequent words of other languages, folded as in the index. They indicate the language of a text,
# and hardly distinguish turns.
FUNCTION_WORDS: Final = {
    "german": frozenset(
        """
        aber als am an auch auf aus bei bin bis bist da dann das dass dein deine dem den der des dich die dies
        diese dieser dieses dir doch du ein eine einem einen einer eines er es etwas euch fur ganz hab habe
        haben hast hat hatte hatten heisst ich ihm ihn ihnen ihr ihre ihren im in ist ja jetzt kann kein keine
        man mein meine meinem meinen meiner mich mir mit muss nach nein nicht noch nur oder schon sehr sein
        seine seit sich sie sind so uber um und uns unser unsere unter vom von vor war waren warum was
        welche welchem welchen welcher welches wann wenn wer werden wie wieder wir wird wo wohin wurde zu zum
        zur gesagt sagte sage
        """.split()  # noqa: SIM905
    ),
    "french": frozenset(
        """
        ai ait alors au aux avait avec avez avons c ca ce cela ces cet cette comme comment d dans de des du
        elle elles en est et etait etre eu il ils j je jai l la le les leur leurs lui m ma mais me mes moi mon
        n ne nos notre nous on ont ou par pas plus pour quand que quel quelle quelles quels quest qui quoi s
        sa sans se ses si son sont suis sur t ta te tes toi ton tout tu un une vos votre vous y dit ete
        """.split()  # noqa: SIM905
    ),
    "spanish": frozenset(
        """
        al algo ante como con cual cuales cuando cuanto de del desde donde el ella ellas ellos en era es esa
        ese eso esta estaba estan este esto estoy fue ha haba han has hasta hay he la las le les lo los mas me
        mi mis muy nada ni no nos nosotros nuestra nuestro o os para pero por porque que quien se ser si sin
        sobre son soy su sus te tengo tenia tiene todo tu tus un una uno unos y ya yo dije dijo
        """.split()  # noqa: SIM905
    ),
    "italian": frozenset(
        """
        abbiamo ai al alla alle anche avevo c che chi ci come con cosa cui da dal dalla dei del della delle
        di dove e ed era ero gli ha hai hanno ho i il in io l la le lei lo loro lui ma me mi mia mie miei mio
        ne nei nel nella noi non nostra nostro o per perche piu qual quale quali quando quanto questa questo
        se sei si siamo sono su sua sue suo sul sulla ti tra tu tuo un una uno voi detto
        """.split()  # noqa: SIM905
    ),
    "portuguese": frozenset(
        """
        ao aos as ate com como da das de dela dele do dos e ela elas ele eles em entre era essa esse esta este
        eu foi ha isso ja la lhe mais mas me mesmo meu meus minha minhas muito na nao nas nem no nos nossa
        nosso num numa o onde os ou para pela pelo por porque qual quais quando que quem se sem ser seu seus
        so sou sua suas tem tenho tinha tu um uma umas uns voce voces disse
        """.split()  # noqa: SIM905
    ),
    "dutch": frozenset(
        """
        aan als bij dan dat de deze die dit doen door een en er geen gezegd had heb hebben heeft hem het hier
        hij hoe hun ik in is ja jij je kan me met mijn naar niet niets nog of om onder ons onze ook op over
        te toch toen tot u uit van veel voor waar was wat welke wie wij wil wordt zal ze zei zich zij zijn zo
        """.split()  # noqa: SIM905
    ),
    "turkish": frozenset(
        """
        acaba ama ancak ben bana beni benim bir biri biz bize bu cok da daha de dedi dedim degil diye en gibi
        hangi hangisi hem icin ile ise kadar ki kim mi mu ne neden nerede nasil o olan olarak onu sen sana
        seni senin siz size su var ve veya ya yok zaman
        """.split()  # noqa: SIM905
    ),
}
# These are English words or names as well, and do not indicate the language of a text.
_ENGLISH_TOO: Final = frozenset(
    "ben comment dan door ella kim mia pour sage size son soy sue".split()  # noqa: SIM905
)
_LANGUAGES_OF: Final = {
    word: tuple(name for name, words in FUNCTION_WORDS.items() if word in words)
    for word in frozenset().union(*FUNCTION_WORDS.values()) - _ENGLISH_TOO
}
FUNCTION_CHARACTERS: Final = frozenset(
    "我你您他她它们的地得了着过吗呢吧啊哦嗯喂好对是行不没有在也都就还要会能很和跟与把被这那哪谁个네예응저나너그이내제"
)
"""Characters that distinguish nothing if they stand alone, as in an answer of one syllable."""
# Letters that indicate a language if function words do not; the first match counts.
_LETTERS: Final = (
    ("german", re.compile("[äß]")),
    ("turkish", re.compile("[ığş]")),
    ("portuguese", re.compile("[ãõ]")),
    ("spanish", re.compile("[ñ]")),
    ("german", re.compile("[öü]")),
)
# Scripts that determine the stemmer of their words.
_SCRIPTS: Final = (
    ("russian", re.compile("[\u0400-\u04ff]")),
    ("greek", re.compile("[\u0370-\u03ff\u1f00-\u1fff]")),
    ("arabic", re.compile("[\u0600-\u06ff]")),
    ("hindi", re.compile("[\u0900-\u097f]")),
    ("tamil", re.compile("[\u0b80-\u0bff]")),
    ("armenian", re.compile("[\u0530-\u058f]")),
)
_LATIN: Final = re.compile("[a-z\u00df-\u024f]")
STEMMED: Final = (ENGLISH, *FUNCTION_WORDS, *(name for name, _ in _SCRIPTS))
"""The languages with a stemmer, those in Latin letters first."""


def language(words: Sequence[str], spelt: str) -> str:
    """Returns the language of a text in Latin letters, by its folded words and its spelling; else English."""
    spoken = [*filter(_LANGUAGES_OF.__contains__, words)]
    english = sum(map(STOP_WORDS.__contains__, words)) if spoken else 0
    if len(spoken) > english:  # else no language has more function words than English
        names = [*chain.from_iterable(map(_LANGUAGES_OF.__getitem__, spoken))]
        best = max(FUNCTION_WORDS, key=names.count)
        if names.count(best) > english:
            return best
    if spelt.isascii():
        return ENGLISH
    return next((name for name, letters in _LETTERS if letters.search(spelt)), ENGLISH)


def script(word: str) -> str | None:
    """Returns the language that a word's script determines: empty for Latin letters, ``None`` if unknown."""
    if word.isascii() or _LATIN.match(word):
        return ""
    return next((name for name, letters in _SCRIPTS if letters.search(word)), None)


_IRREGULAR: Final = """
    be been being | become became | begin began begun | bend bent | bite bit bitten | blow blew blown |
    break broke broken | bring brought | build built | burn burnt | buy bought | catch caught | choose
    chose chosen | come came | cost costs | cut cuts cutting | deal dealt | dig dug | draw drew drawn |
    dream dreamt | drink drank drunk | drive drove driven | eat ate eaten | fall fell fallen | feed fed
    | feel felt | fight fought | find found | fly flew flown flight flights | forget forgot forgotten |
    forgive forgave forgiven | freeze froze frozen | give gave given | grow grew grown | hang hung |
    hear heard | hide hid hidden | hold held | hurt hurts | keep kept | lead led | learn learnt | leave
    left | lend lent | lose lost losing | mean meant | meet met | pay paid | read reads | ride rode
    ridden | ring rang rung | rise rose risen | run ran running | see saw seen | sell sold | send sent |
    sew sewn | shake shook shaken | shine shone | shoot shot | show shown | shrink shrank shrunk | sing
    sang sung | sink sank sunk | sit sat | sleep slept | slide slid | speak spoke spoken | spell spelt |
    spend spent | spill spilt | spoil spoilt | stand stood | steal stole stolen | stick stuck | strike
    struck | swear swore sworn | sweep swept | swim swam swum | take took taken | teach taught | tear
    tore torn | throw threw thrown | understand understood | wake woke woken | wear wore worn | win won
    | write wrote written | child children | man men | woman women | foot feet | tooth teeth | mouse
    mice | goose geese | person people | knife knives | wife wives | half halves | loaf loaves | wolf
    wolves | shelf shelves | thief thieves | scarf scarves | ox oxen | die dying dead death | good
    better best | bad worse worst | marry married marriage | choice choices
"""
# Groups of related words: a question often uses other words than the turn that it is about.
_SYNONYMS: Final = """
    child kid son daughter | mother mum mom mama | father dad papa | grandfather grandpa grandad |
    grandmother grandma granny | husband wife spouse partner marry | brother sister sibling | baby newborn
    infant | car auto automobile vehicle | bike bicycle cycle | truck lorry pickup | plane flight
    airplane fly | holiday vacation trip travel journey | house home | flat apartment | sofa couch |
    shop store | film movie cinema | photo picture image | phone telephone mobile cell cellphone |
    doctor physician | medicine medication pill drug tablet | hospital clinic | illness sick ill disease
    | pain ache hurt | injury | injure wound break | cold flu | job work employ employer employment |
    boss manager supervisor | colleague coworker | salary wage pay income | quit resign leave | company
    firm business | money cash | buy purchase get | sell sale | price cost | present gift | big large
    huge | small little tiny | begin start | end finish stop expire | repair fix mend | wrong problem
    trouble issue broken | hobby pastime | like love enjoy favourite favorite prefer | hate dislike |
    afraid scared fear frightened scary | worried anxious nervous worry | happy glad | sad unhappy cry |
    angry mad upset | tired exhausted | friend mate buddy pal | neighbour neighbor | pet dog cat animal
    | dog puppy | cat kitten | food meal eat dish | dinner supper | lunch noon | breakfast morning |
    drink beverage | purse handbag bag | key keys | exam test | school class | university college study
    | teach teacher instructor | learn study | drive car | walk hike | run jog race marathon | rain
    storm weather | faucet tap | fridge refrigerator | garbage trash rubbish | colour color | name call
    | birthday birth born old age turn | marry wedding spouse | move relocate | road street | city
    town | garden yard grow | music band song sing | choir sing | book novel read | letter write mail |
    email mail | talk speak chat | ask question | need require | lend borrow | steal theft rob | lose
    missing | live reside | language speak | country nation | kind type sort | vegetarian meat | allergy
    allergic | gym workout exercise | game match | baker bakery | computer laptop | attorney lawyer |
    police cop | insurance policy | contract agreement | invoice bill | reservation book | appointment
    meeting | cancel call off | delivery deliver parcel package | advice advise recommend suggest
"""


def _groups(table: str) -> list[list[str]]:
    return [group.split() for group in table.split("|")]


LEMMAS: Final = {form: group[0] for group in _groups(_IRREGULAR) for form in group[1:]}
"""Irregular English forms, each with its base form."""


def synonyms(stem: Callable[[str], str]) -> dict[str, frozenset[str]]:
    """Returns by the stem of each word the stems of the other words in its groups."""
    of: dict[str, set[str]] = {}
    for group in _groups(_SYNONYMS):
        stems = {*map(stem, group)}
        for one in stems:
            of.setdefault(one, set()).update(stems - {one})
    return {word: frozenset(others) for word, others in of.items()}


# Courtesies, which are about no subject; in lower case.
_COURTESIES: Final = (
    r"good (?:morning|afternoon|evening|night|day|bye)",
    r"thank you(?: (?:so|very) much)?|thanks(?: a lot)?|cheers",
    r"have a (?:nice|good|great|lovely) (?:day|evening|one|night|weekend|time)",
    r"how (?:are|is|s) (?:you|it|things)(?: doing| going)?(?: today)?|nice to (?:meet|hear|see)",
    r"(?:see|talk to) you(?: later| soon| tomorrow)?|take care",
    r"(?:good)?bye(?: bye)?|(?:hello|hi|hey)(?: there| again)?|welcome",
    r"can you hear me|are you (?:still )?there|excuse me",
    r"guten (?:morgen|tag|abend)|gute nacht|hallo|wie geht(?:s|'s| es)?(?: ihnen| dir)?",
    r"(?:vielen |herzlichen )?dank|danke(?: schön| sehr)?|bitte(?: schön| sehr)?|tschüss",
    r"auf wieder(?:sehen|hören)|(?:schönen|guten) (?:tag|abend)(?: noch)?|servus|moin",
    r"grüß gott|sind sie noch da|hören sie mich|bis (?:bald|dann|später)",
    r"bonjour|bonsoir|merci(?: beaucoup)?|au revoir|salut|s'il vous plaît",
    r"comment (?:allez[- ]vous|ça va)|bonne (?:journée|soirée|nuit)|ça va",
    r"allô|à bientôt|de rien",
    r"hola|buen[oa]s(?: (?:días|tardes|noches))?|(?:muchas )?gracias|adiós",
    r"hasta (?:luego|pronto|mañana)|¿?cómo está[s]?|por favor|qué tal",
    r"(?:me|nos) oyes?|de nada|igualmente",
    r"ciao|buon(?:giorno|asera|anotte)|grazie(?: mille)?|arriveder(?:ci|la)",
    r"salve|a presto|di niente|prego|come (?:va|stai)",
    r"olá|bo[am] (?:dia|tarde|noite)|obrigad[oa]|tchau|alô|até (?:logo|amanhã|breve)",
    r"merhaba|teşekkür(?:ler| ederim)|günayd\u0131n",
    r"i\u0307?yi (?:günler|ak\u015famlar|geceler)|görü\u015fürüz",
    r"привет|алло|пожалуйста",
)
# Courtesies that are also matched within words, as many scripts have no spaces.
_COURTESIES_ANYWHERE: Final = (
    r"здравствуйте|добр(?:ый|ое|ой) (?:день|утро|вечер|ночи)|спасибо|до свидания",  # noqa: RUF001
    r"你好|您好|早上好|下午好|晚上好|晚安|谢谢|再见|拜拜|不客气|(?<!\w)又是我(?!\w)",
    r"おはよう(?:ございます)?|こんにち[はわ]|こんばん[はわ]|ありがとう(?:ございます|ございました)?|さようなら|お疲れ様(?:です)?",
    r"もしもし|すみません(?:でした)?|失礼し(?:ます|ました)|(?<!\w)どうも(?!\w)",
    r"안녕하세요|안녕히(?: ?(?:계|가)세요)?|여보세요|감사합니다|고맙습니다|สวัสดี|ขอบคุณ|धन्यवाद",
    r"السلام عليكم|و?عليكم السلام|مع السلامة|شكرا|مرحبا",
)
# These ask for nothing either, but may answer a question, and so do not count as greetings.
_ASSENT: Final = (
    r"(?:great|alright|perfect|sorry|no problem|that(?:s| is|'s) (?:all|it|fine)|kein problem|d'accord)",
)
_ASSENT_ANYWHERE: Final = r"没关系|(?<!\w)(?:好的|はい|いいえ|ええ)(?!\w)"


def _any_of(words: Iterable[str], anywhere: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern of ``words``, matched only as whole words, and of others, matched ``anywhere``."""
    return re.compile("|".join((rf"\b(?:{'|'.join(words)})\b", *anywhere)))


_COURTESY: Final = _any_of((*_COURTESIES, *_ASSENT), (*_COURTESIES_ANYWHERE, _ASSENT_ANYWHERE))
_GREETING: Final = _any_of(_COURTESIES, _COURTESIES_ANYWHERE)


def without_courtesies(question: str) -> str:
    """Returns a question in lower case, without greetings, thanks, farewells and assent."""
    return _COURTESY.sub(" ", question.lower().replace("\u2019", "'"))


def is_greeting(text: str) -> bool:
    """Whether a text has no words except greetings, thanks and farewells."""
    return not any(map(str.isalnum, _GREETING.sub(" ", text.lower().replace("\u2019", "'"))))
