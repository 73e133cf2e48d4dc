"""The hand-written exchanges for the conversations of ``bench.recall``, with questions that they answer.

An item is ``lines | question``. Lines are separated by ``>``; the caller and the assistant take turns, the
caller first, or the assistant if the item begins with ``<``. A line with ``*`` is the evidence. Names in
braces are filled from POOLS, with the same values in an item's lines and its question. Every other item of
each kind is held back from tuning.
"""

POOLS = {
    "woman": "Emma Ines Klara Priya Mei Sofia Hannah Noor Greta Lucia Agnes Yuki Olga Marta Nadia Ruth".split(),
    "man": "Ravi Joost Henrik Matteo Omar Felix Pavel Diego Kenji Lars Bruno Tariq Simon Adrian Milo Piotr".split(),
    "pet": "Bello Rex Luna Minka Pepper Oskar Nala Biscuit Toffee Simba Ziggy Mocha".split(),
    "city": "Leiden Porto Kraków Bergen Lyon Bologna Galway Tampere Graz Sevilla Ghent Aarhus".split(),
    "dish": "lasagne,ramen,paella,goulash,risotto,falafel,dumplings,moussaka,pierogi,tagine".split(","),
    "colour": "turquoise orange purple crimson olive beige".split(),
    "n": "three five six eight eleven fourteen".split(),
}

WORDS = """
*My dog is called {pet}, a border collie. > What a clever breed! | What is my dog called?
*I play the cello in the {city} youth orchestra. > How wonderful! | Which orchestra do I play in?
*The gate code of my garage is on a yellow note by the fridge. > Noted. | Where is the gate code of the garage?
*My landlord {man} refuses to repair the boiler. > Have you written to him? | Who refuses to repair the boiler?
*I am allergic to hazelnuts and penicillin. > I have made a note of it. | Which allergies do I have?
*My flight from {city} was cancelled because of fog. > I am sorry to hear it. | Why was my flight cancelled?
*The dentist put a crown on my upper left molar. > Did it hurt? | What did the dentist put on my molar?
*I lent my lawnmower to {man} next door. > Kind of you. | Who has my lawnmower?
*We painted the nursery {colour} last weekend. > That sounds cheerful. | Which colour is the nursery?
*The warranty of the dishwasher ends in {n} months. > Shall I remind you? | When does the dishwasher warranty end?
*My favourite restaurant is the one by the harbour in {city}, they make {dish}. > Mmm. | What is my favourite restaurant?
*I left my umbrella in the taxi. > Did you call the company? | Where did I leave my umbrella?
*Our wedding will be in the botanical garden of {city}. > Congratulations! | Where will our wedding be?
*The insurance wants a photo of the broken windscreen. > You can upload it. | What does the insurance want a photo of?
*{woman} from accounting approves the travel expenses. > Good to know. | Who approves travel expenses?
*My passport expires in {n} weeks. > Then it is time to renew it. | When does my passport expire?
*I signed up for the marathon in {city}. > Good luck with the training! | Which marathon did I sign up for?
*The wifi router stands in the cupboard under the stairs. > Understood. | Where is the router?
*For the party I ordered a cake with {n} layers. > It will be splendid. | How many layers does the cake have?
*My blood pressure was one hundred and fifty this morning. > That is a little high. | How high was my blood pressure?
*I prefer the window seat on trains. > Of course. | Which seat do I prefer on trains?
*The piano tuner is called {man}, he comes twice a year. > Lovely. | Who is the piano tuner?
*The heating makes a knocking noise at night. > Have the radiators been bled? | What noise does the heating make?
*My subscription to the chess magazine is too expensive. > Shall I cancel it? | Which magazine subscription is too expensive?
"""

OTHER_WORDS = """
*I bought a second-hand motorbike from {man}. > Ride safely! | What did I buy from {man}?
*My kids are scared of thunderstorms. > Poor little ones. | What are my children afraid of?
*I drove to {city} to pick up the sofa. > A long way. | Where did I go by car for the couch?
*My husband {man} broke his wrist while skiing. > Oh no! | What injury did my spouse have?
*I quit my job at the bakery. > What will you do now? | Why am I out of work, where was I employed?
*My physician told me to cut down on salt. > Sound advice. | What did the doctor advise?
*We sold the flat in {city}. > Was it hard to let go? | Which apartment are we no longer owners of, did we sell it?
*My mum turns seventy in June. > How nice! | How old is my mother?
*I taught my niece to ride a bicycle. > Well done. | Who learned to ride a bike with me, whom did I teach?
*The movie about the lighthouse made me cry. > It is a moving one. | Which film touched me?
*I caught a cold on the ferry. > Get well soon. | Where did I get ill, when did I catch something?
*My auto needs new brakes. > Shall I look for a garage? | What is wrong with my car?
*I wrote a letter to the mayor about the potholes. > Bravely done. | To whom am I writing about the street?
*We ate {dish} at {woman}'s place. > Was it good? | What did we eat at {woman}'s house?
*My purse was stolen on the tram. > Did you block the cards? | Where did somebody steal my handbag?
*I flew to {city} for a funeral. > My condolences. | Where did I fly, and for what?
*The kitchen tap drips all night. > That is annoying. | What about the faucet?
*My spouse started a garden with tomatoes. > How lovely. | What does my wife grow?
*I got a present from {woman}, a fountain pen. > How thoughtful. | What gift did {woman} give me?
*My boss {man} wants the report on Monday. > Noted. | When does my manager want the report?
*I sang in a choir for {n} years. > Splendid. | How long did I sing with others?
*The holiday in {city} was far too hot. > Next time in spring. | How was the vacation in {city}?
*My feet hurt since the hike. > Rest them. | Which foot trouble have I after hiking?
*Our store begins to sell umbrellas. > Good timing. | What does our shop sell?
*My daughter {woman} chose biology at university. > A fine subject. | What does {woman} choose to study?
*I lost my keys near the swimming pool. > Have you asked there? | Where am I losing my key?
*My mates and I built a raft. > An adventure! | What did my friends build with me?
*The phone fell into the bath. > Put it into rice. | What happened to my mobile?
*My grandpa {man} kept bees. > Sweet. | What animals does my grandfather keep?
*I am worried about the exam in chemistry. > You will do well. | Which test makes me anxious?
"""

# No word of the question, and no synonym of one, is in the evidence: what it means has to be understood.
MEANING = """
*We got a golden retriever from the shelter last month. > What a lovely companion! | Do I own an animal?
*I haven't touched alcohol since my twenties. > That takes discipline. | Would I want wine with dinner?
*My hip replacement is scheduled for spring. > I wish you a quick recovery. | Am I going to have surgery?
*I can never fall asleep before three. > Have you tried tea? | Do I suffer from insomnia?
*The landlord raised what we pay every month by a fifth. > That is steep. | How did my rent change?
*I proposed to {woman} on the beach at sunset. > How romantic! | Am I engaged?
*Our roof leaks whenever there is a downpour. > A roofer should look at it. | What happens at my place in heavy rain?
*I passed the bar in {city} two summers ago. > Impressive. | What is my profession?
*We are expecting twins in autumn. > Congratulations! | Is somebody in my family pregnant?
*I switched to oat milk because dairy upsets my stomach. > Good choice. | Am I lactose intolerant?
*I sit in a wheelchair since the crash. > Thank you for telling me. | Do I have a disability?
*My pension starts next year. > Well deserved. | When will I retire?
*They let me go when the factory closed. > I am sorry. | Am I unemployed?
*I pray five times every day. > I see. | Am I religious?
*My eldest has left for the army. > You must be proud. | Is one of my children a soldier?
*I spend every weekend on the slopes with my board. > Sounds thrilling. | Which winter sport do I practise?
*The bank turned down our request for the house. > That is disappointing. | Did we get a mortgage?
*I have been clean of cigarettes for {n} months. > Keep going! | Do I smoke?
*I get seasick even in a bathtub. > Ha! | Should I book a cruise?
*Papa passed away in January. > My condolences. | Is my father still alive?
*My better half cooks and I do the washing up. > A fair deal. | Who prepares meals in our household?
*I was born and raised under the Eiffel Tower. > How charming. | Am I from Paris?
*Since the breakup I live by myself. > I hope you are well. | Am I single?
*I cannot tell red from green. > Good to know. | Am I colour-blind?
*My youngest brings home top marks in every subject. > Bravo! | Is my child good at school?
*The doctor says my sugar is too high and gave me insulin. > I have noted it. | Do I have diabetes?
*We spend Christmas in a cabin without electricity. > Cosy! | Where do we celebrate the holidays?
*I mend clocks for a living. > A fine craft. | What do I do professionally, am I a watchmaker?
*I hardly hear anything on my left side. > I will speak clearly. | Am I a little deaf?
*We swapped the diesel for one that you plug in. > Nice and quiet. | Do we own an electric car?
"""

BEHIND = """
< What is your daughter's name? > *{woman}. She has just turned {n}. | What is my daughter called?
< Which instrument are you learning? > *The oboe, since January. | Which instrument do I learn?
< Do you have any brothers or sisters? > *Just one, {man}, he is in the navy. | How many brothers and sisters do I have?
Can you suggest something for dinner? > Gladly. What do you like to eat? > *{dish}, every time! | What do I like to eat for dinner?
< Where did you grow up? > *In a village near {city}. | Where did I grow up?
I have booked the hotel. > Excellent. Which nights? > *From the third to the ninth. | Which nights is the hotel booked?
< What do you do for a living? > *I repair church organs. | What do I do for a living?
< How do you take your coffee? > *Black, with a spoon of honey. | How do I take my coffee?
My car is at the garage again. > What is it this time? > *The clutch, they say. | What is wrong with my car at the garage?
< Who is picking up the parcel? > *{man} will, after five. | Who picks up the parcel?
< Which size are your shoes? > *Forty-three. > Thanks, I have noted it. | Which size are my shoes?
I need a new doctor. > For what kind of complaint? > *My knees, they crack. | For what complaint do I need a doctor?
< When is your birthday? > *The second of October. | When is my birthday?
< What are you afraid of? > *Spiders, ever since I was little. | What am I afraid of?
I am planning a trip with my sister. > Where would you like to go? > *{city}, she has never been. | Where is the trip with my sister going?
< What is the name of your cat? > *{pet}, after a singer. | What is the name of my cat?
< Who should we call in an emergency? > *{woman}, my neighbour. | Who is to be called in an emergency?
We are renovating the bathroom. > Which colour will the tiles be? > *{colour}. | Which colour will the bathroom tiles be?
< Which school does your son go to? > *The one by the canal. | Which school does my son go to?
< What did you study? > *Geology, in {city}. | What did I study?
< How did you two meet? > *On a night train, he snored. | How did my partner and I meet?
My laptop crashed. > Which model is it? > *A grey one of {n} years, a Tuxedo. | Which model is my laptop?
< What is your favourite season? > *Autumn, for the mushrooms. | What is my favourite season?
< How much is the rent? > *Nine hundred and twenty, heating included. | How much is my rent?
"""

# MSC-like: what people say of themselves, and what a friend would ask a month later.
PERSONAS = """
*I have two cats and I work as a night nurse. > Busy nights! | What do I work as?
*I am a vegetarian, but I miss bacon. > Ha! | Do I eat meat?
*I collect old maps, the walls are full of them. > A beautiful hobby. | What do I collect?
*I live with my parents in {city} while I save money. > Sensible. | With whom do I live?
*I have run {n} marathons and hate every one of them. > And still you run! | How many marathons have I run?
*I speak Finnish with my grandmother. > A hard language. | Which language do I speak with my grandmother?
*I drive a red pickup truck named Bertha. > Hello Bertha. | What kind of truck do I drive?
*I grew up on a dairy farm and cannot stand milk. > Funny. | What can't I stand although I grew up on a farm?
*My hobby is restoring accordions. > Do you play as well? | What is my hobby?
*I am left-handed, and so is my twin {woman}. > Twins! | Who is left-handed like me?
*I teach mathematics at a secondary school. > To which grades? | Which subject do I teach?
*I have never seen snow. > Then you must travel. | Have I ever seen snow?
*I bake sourdough every Sunday. > I can almost smell it. | What do I bake on Sundays?
*I watch horror films with my brother {man}. > Brave. | Who watches horror films with me?
*I was a lifeguard in my twenties. > Useful. | What was I in my twenties?
*My favourite band is an old ska band from {city}. > Fun music. | What is my favourite band?
*I want to become a pilot one day. > Aim high. | What do I want to become?
*I have a tattoo of an octopus. > Where? | What is my tattoo?
*I am afraid of flying, so I take the night train. > A calm way. | Why do I take the night train?
*I keep chickens in the backyard, {n} of them. > Fresh eggs! | How many chickens do I keep?
"""

LANGUAGES = """
*Meine Krankenversicherung zahlt die Brille nicht. > Das tut mir leid. | Was zahlt die Versicherung nicht?
*Wir wohnen in zwei alten Häusern am Fluss. > Wie schön. | Wo steht mein Haus?
*Ich ziehe im Herbst nach München. > Viel Erfolg beim Umzug! | Ziehe ich nach Muenchen?
*Der Hausschlüssel liegt unter der Matte. > Verstanden. | Wo liegt der Schlüssel?
*Mein Zahnarzttermin wurde verschoben. > Auf wann? | Was ist mit meinem Termin?
*Die Bücher aus der Stadtbibliothek sind überfällig. > Oh je. | Welches Buch ist überfällig?
*Unsere Waschmaschine macht seltsame Geräusche. > Seit wann? | Welche Maschine macht ein Geräusch?
*Ich habe gestern Äpfel und Nüsse gekauft. > Lecker. | Wo ist der Apfel her, den ich gekauft habe?
*Meine Tochter spielt in der Fußballmannschaft. > Toll! | In welcher Mannschaft spielt meine Tochter?
*Der Mietvertrag läuft im Juni aus. > Ich merke es mir. | Wann endet der Vertrag?
*Der Kühlschrank in der Küche ist undicht. > Soll ich jemanden rufen? | Was ist mit dem Kuehlschrank?
*Mein Großvater züchtet Brieftauben. > Ein schönes Hobby. | Was züchtet der Grossvater?
*У меня живёт собака по имени Шарик. > Отлично! | Как зовут мою собаку?
*Мы переехали из Москвы в Казань. > Удачи! | Когда я жил в Москве?
*Мой брат работает врачом в больнице. > Понятно. | Где работает врач, мой брат?
*Я купила новую машину красного цвета. > Поздравляю! | Какого цвета моя машина?
*Я учу испанский язык по вечерам. > Молодец. | Что я говорил об испанском языке?
*Моя бабушка печёт пироги с капустой. > Вкусно! | С чем пирог бабушки?
*اشتريت الكتاب من المكتبة القديمة. > جميل. | أي كتاب اشتريت من مكتبة؟
*أعمل في المستشفى منذ سنتين. > ممتاز. | في أي مستشفى أعمل؟
*أختي تدرس الهندسة في الجامعة. > رائع. | ماذا تدرس أختي في جامعة؟
*نسيت المفتاح في السيارة. > لا بأس. | أين مفتاح؟
*İstanbul'da küçük bir dükkanım var. > Ne güzel! | istanbul dükkan
*Annem IŞIKLI sokakta oturuyor. > Anladım. | ışıklı sokak hangisi?
*İzmir'e taşınmak istiyorum. > Harika. | izmir ne zaman?
*Kedimin adı Pamuk, iki yaşında. > Tatlı! | kedi adı nedir?
*Ma fille apprend le violon au conservatoire. > Bravo ! | Quel instrument apprend ma fille ?
*Nous avons acheté deux chevaux en Normandie. > Magnifique. | Où ai-je acheté un cheval ?
*Je suis allergique aux crevettes. > C'est noté. | À quoi suis-je allergique ?
*Mon médecin m'a prescrit des comprimés. > D'accord. | Qu'est-ce que le medecin a prescrit ?
*Mi hermana vive en Sevilla con sus perros. > Qué bien. | ¿Dónde vive mi hermana con el perro?
*Trabajo de camarero en un café del puerto. > Entiendo. | ¿De qué trabajo en el cafe?
*Los niños tienen miedo a la oscuridad. > Pobrecitos. | ¿A qué tiene miedo el niño?
*Compré unas gafas nuevas de montaña. > Perfecto. | ¿Qué gafas he comprado?
*Mia sorella lavora in una libreria di {city}. > Bello! | Dove lavorano le mie sorelle?
*Ho perso le chiavi della bicicletta. > Mi dispiace. | Dove ho perso la chiave?
*O meu irmão mora em Coimbra com duas gatas. > Que bom. | Onde moram os meus irmãos?
*Comprei uma mesa de madeira escura. > Que bonita. | Que mesas comprei?
*我的狗叫旺财，三岁了。 > 真可爱。 | 我的狗叫什么？
*我对花生过敏。 > 记下了。 | 我对什么过敏？
*上个周末我们去爬了黄山。 > 好玩吗？ | 我们爬了哪座山，黄山吗？
*我女儿在学钢琴。 > 很好。 | 我女儿学什么乐器，钢琴吗？
*猫の名前はタマです。 > かわいいですね。 | 猫の名前は何ですか？
*卵アレルギーがあります。 > わかりました。 | アレルギーは何ですか？
*大阪の実家に帰ります。 > お気をつけて。 | 実家はどこですか？
*息子は野球をしています。 > いいですね。 | 息子のスポーツは野球ですか？
*제 강아지 이름은 초코예요. > 귀엽네요. | 강아지 이름이 뭐예요?
*저는 부산에서 태어났어요. > 그렇군요. | 부산에서 무슨 일이 있었어요?
*แมวของฉันชื่อมะลิ > น่ารักมาก | แมวชื่ออะไร
*ฉันทำงานที่โรงพยาบาล > ดีมาก | โรงพยาบาลที่ฉันทำงาน
*मेरी बेटी डॉक्टर बनना चाहती है। > बहुत अच्छा। | बेटी क्या बनना चाहती है?
*मेरे कुत्ते का नाम शेरू है। > प्यारा नाम। | कुत्ते का नाम क्या है?
*Ο σκύλος μου λέγεται Αζόρ. > Ωραία! | Πώς λέγεται ο σκύλος;
*Η αδελφή μου μένει στη Θεσσαλονίκη. > Καταλαβαίνω. | Πού μένουν οι αδελφές μου;
"""

TYPOS = """
*My appointment with the orthodontist is at noon. > Noted. | When is the apointment?
*The restuarant on the corner has closed. > A pity. | What about the restaurant?
*The plumber found a leak behind the refrigerator. > Glad he did. | What was behind the refridgerator?
*My accordeon needs new reeds. > Do you know a workshop? | What does the accordion need?
*We visited the archaeological museum. > Interesting! | Which archeological museum?
*I ordered a trampoline for the garden. > Fun! | Where is the trampolin for?
*My colleague brought homemade marmalade. > Yum. | Who brought marmelade?
*The physiotherapist showed me exercises. > Keep at it. | What did the fysiotherapist show?
*I spilled varnish on the parquet. > Try turpentine. | What helps with varnsih?
*My neighbour breeds chinchillas. > Cute. | Who breeds chinchilas?
*Der Schornsteinfeger kommt am Freitag. > Gut. | Wann kommt der Schornsteinfger?
*Das Schlafzimmer ist frisch gestrichen. > Schön. | Was ist mit dem Schalfzimmer?
"""

# Nothing of an archive bears on these.
SMALL_TALK = """
Hello, good morning!
Thank you, bye!
Hi there, how are you today?
Okay, thanks a lot.
Good evening!
Yes, please.
No, that's all, thank you. Have a nice day!
Hallo, guten Morgen!
Vielen Dank, tschüss!
Bonjour, comment allez-vous ?
Merci beaucoup, au revoir !
Hola, buenos días.
Muchas gracias, adiós.
Great, see you later!
Guten Tag, wie geht es Ihnen?
Alright, good night.
Can you hear me?
Hello? Are you there?
你好，早上好！
谢谢，再见！
おはようございます。
ありがとうございます。
Ciao, buongiorno!
Obrigado, bom dia!
"""

# What is said in each call beside the items.
CHATTER = """
Hello, good morning! > Good morning! How can I help you today?
Hi there, it's me again. > Welcome back! What can I do for you?
Good evening! > Good evening, nice to hear from you.
Thank you, bye! > Goodbye, have a nice day!
That's all, thanks. > You are welcome. Have a good one, bye!
Okay, great, see you later. > Talk to you soon!
How is the weather over there? > A little cloudy, with sun in the afternoon.
Can you hear me? > Yes, loud and clear.
Give me a second, please. > Take your time.
Tell me a joke. > Why did the scarecrow win a prize? It was outstanding in its field.
What time is it? > Just after ten.
I am a bit tired today. > Then let us keep it short.
It has been a long week. > I hope the weekend brings some rest.
Did you watch the game? > I did not, but I hear that it was close.
The traffic was awful. > That must have been tiring.
I am just making tea. > Enjoy it while it is hot.
Could you repeat that? > Of course, once more and slowly.
I'm thinking about what to cook. > Something quick, or something for the whole evening?
My day was fine, nothing special. > Sometimes that is the best kind.
The news is depressing lately. > A walk may help.
"""

# Each year the same is done again: only the date tells which is meant.
YEARLY = {
    "en": ("I ordered {thing} for the office.", "What did I order {when}?"),
    "de": ("Ich habe {thing} für das Büro bestellt.", "Was habe ich {when} bestellt?"),
    "fr": ("J'ai commandé {thing} pour le bureau.", "Qu'est-ce que j'ai commandé {when} ?"),
    "es": ("He pedido {thing} para la oficina.", "¿Qué pedí {when}?"),
    "it": ("Ho ordinato {thing} per l'ufficio.", "Che cosa ho ordinato {when}?"),
    "pt": ("Encomendei {thing} para o escritório.", "O que encomendei {when}?"),
    "zh": ("我给办公室订了{thing}。", "我{when}订了什么？"),
    "ja": ("オフィスに{thing}を注文しました。", "{when}何を注文しましたか？"),
}
THINGS = {
    "en": "lamps,chairs,whiteboards,plants,curtains,shelves,monitors,rugs",
    "de": "Lampen,Stühle,Tafeln,Pflanzen,Vorhänge,Regale,Bildschirme,Teppiche",
    "fr": "des lampes,des chaises,des tableaux,des plantes,des rideaux,des étagères,des écrans,des tapis",
    "es": "lámparas,sillas,pizarras,plantas,cortinas,estantes,pantallas,alfombras",
    "it": "lampade,sedie,lavagne,piante,tende,scaffali,schermi,tappeti",
    "pt": "lâmpadas,cadeiras,quadros,plantas,cortinas,estantes,ecrãs,tapetes",
    "zh": "台灯,椅子,白板,绿植,窗帘,书架,显示器,地毯",
    "ja": "ランプ,椅子,黒板,植物,カーテン,本棚,モニター,絨毯",
}
MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "zh": "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
    "ja": "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
}
# By language: a month of a year, a day of a year, a day of the last twelve months.
WHEN = {
    "en": ("in {month} {year}", "on {day} {month} {year}", "on {month} {day}"),
    "de": ("im {month} {year}", "am {day}. {month} {year}", "am {day}. {month}"),
    "fr": ("en {month} {year}", "le {day} {month} {year}", "le {day} {month}"),
    "es": ("en {month} de {year}", "el {day} de {month} de {year}", "el {day} de {month}"),
    "it": ("a {month} {year}", "il {day} {month} {year}", "il {day} {month}"),
    "pt": ("em {month} de {year}", "em {day} de {month} de {year}", "no dia {day} de {month}"),
    "zh": ("{year}年{month}", "{year}年{month}{day}日", "{month}{day}号"),
    "ja": ("{year}年{month}に", "{year}年{month}{day}日に", "{month}{day}日に"),
}
TWO_YEARS_AGO = {
    "en": "two years ago",
    "de": "vor zwei Jahren",
    "fr": "il y a deux ans",
    "es": "hace dos años",
    "it": "due anni fa",
    "pt": "há dois anos",
    "zh": "两年前",
    "ja": "二年前に",
}
LAST_WEEKDAY = {
    "en": ("last {}", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "de": ("letzten {}", "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
    "fr": ("{} dernier", "lundi mardi mercredi jeudi vendredi samedi dimanche"),
    "es": ("el {} pasado", "lunes martes miércoles jueves viernes sábado domingo"),
    "it": ("{} scorso", "lunedì martedì mercoledì giovedì venerdì sabato domenica"),
    "pt": ("na última {}", "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo"),
    "zh": ("上周{}", "一 二 三 四 五 六 日"),
    "ja": ("先週の{}", "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日"),
}
DIGITS = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
}
