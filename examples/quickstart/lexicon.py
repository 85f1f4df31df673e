"""The quickstart corpus' dictionary: German and English words with what a grammar must know to
inflect them.

Tables are text, one entry a line, columns split at blanks or '|'; '_' stands for a blank inside a
column and lines that begin with '#' are comments. A German word that stands in a table twice has
several English translations: the classes of the noun (or the frame of the verb) decide which one a
sentence uses.
"""


def rows(table, separator=None):
    """The entries of a table, each a list of columns with '_' turned into a blank."""
    lines = [line.strip() for line in table.strip().splitlines()]
    split = [line.split(separator) for line in lines if line and not line.startswith("#")]
    return [[column.strip().replace("_", " ") for column in columns] for columns in split]


# gender (m f n; mw = masculine with weak -n endings), singular, genitive ('-': like the
# nominative), plural ('-': not countable), English, classes.
NOUNS = """
m Mann Mannes Männer man person
f Frau - Frauen woman person
n Kind Kindes Kinder child person
mw Junge Jungen Jungen boy person
n Mädchen Mädchens Mädchen girl person
m Lehrer Lehrers Lehrer teacher person,head
f Lehrerin - Lehrerinnen teacher person,head
m Arzt Arztes Ärzte doctor person,head
f Ärztin - Ärztinnen doctor person,head
m Doktor Doktors Doktoren doctor person
mw Student Studenten Studenten student person
f Studentin - Studentinnen student person
m Schüler Schülers Schüler pupil person
mw Nachbar Nachbarn Nachbarn neighbour person
f Nachbarin - Nachbarinnen neighbour person
m Freund Freundes Freunde friend person
f Freundin - Freundinnen friend person
m Bruder Bruders Brüder brother person
f Schwester - Schwestern sister person
m Vater Vaters Väter father person
f Mutter - Mütter mother person
f Tante - Tanten aunt person
m Onkel Onkels Onkel uncle person
f Tochter - Töchter daughter person
m Sohn Sohnes Söhne son person
f Großmutter - Großmütter grandmother person
m Großvater Großvaters Großväter grandfather person
m Bäcker Bäckers Bäcker baker person,head
m Koch Kochs Köche cook person,head
f Köchin - Köchinnen cook person,head
m Verkäufer Verkäufers Verkäufer salesman person,head
mw Kunde Kunden Kunden customer person,head
mw Polizist Polizisten Polizisten policeman person
f Polizistin - Polizistinnen policewoman person
m Gärtner Gärtners Gärtner gardener person
m Fahrer Fahrers Fahrer driver person,head
m Maler Malers Maler painter person
m Richter Richters Richter judge person
mw Bauer Bauern Bauern farmer person
mw Kollege Kollegen Kollegen colleague person
f Kollegin - Kolleginnen colleague person
m Gast Gastes Gäste guest person,head
mw Tourist Touristen Touristen tourist person
m Chef Chefs Chefs boss person
m Leiter Leiters Leiter head person,head
mw Soldat Soldaten Soldaten soldier person
m König Königs Könige king person
f Königin - Königinnen queen person
m Dieb Diebes Diebe thief person
m Sänger Sängers Sänger singer person
f Sängerin - Sängerinnen singer person
m Hund Hundes Hunde dog animal
f Katze - Katzen cat animal
n Pferd Pferdes Pferde horse animal
m Vogel Vogels Vögel bird animal
f Maus - Mäuse mouse animal
f Kuh - Kühe cow animal
n Schaf Schafes Schafe sheep animal
mw Bär Bären Bären bear animal
mw Affe Affen Affen monkey animal
m Hahn Hahns Hähne rooster animal
m Strauß Straußes Strauße ostrich animal
m Wolf Wolfes Wölfe wolf animal
m Esel Esels Esel donkey animal
m Tisch Tisches Tische table furniture,head
m Stuhl Stuhls Stühle chair furniture,head
n Regal Regals Regale shelf furniture,head
n Bett Bettes Betten bed furniture,head
n Sofa Sofas Sofas sofa furniture
f Bank - Bänke bench furniture,head
m Teppich Teppichs Teppiche carpet furniture,head
f Kiste - Kisten box thing,openable,head
m Koffer Koffers Koffer suitcase thing,openable,head
f Tasche - Taschen bag thing,openable,head
f Dose - Dosen tin thing,openable,head
f Flasche - Flaschen bottle thing,openable,head
f Tür - Türen door openable,head
n Fenster Fensters Fenster window openable,head
n Tor Tores Tore gate openable,head
m Schrank Schranks Schränke cupboard openable,head
m Schlüssel Schlüssels Schlüssel key thing,head
n Messer Messers Messer knife thing,head
m Löffel Löffels Löffel spoon thing,head
m Teller Tellers Teller plate thing,head
f Tasse - Tassen cup thing,head
n Glas Glases Gläser glass thing,head
m Ball Balles Bälle ball thing,toy,head
f Puppe - Puppen doll thing,toy,head
m Ring Ringes Ringe ring thing,head
f Uhr - Uhren clock thing,device,head
f Lampe - Lampen lamp thing,device,head
f Birne - Birnen light_bulb thing
f Decke - Decken blanket thing,head
n Schloss Schlosses Schlösser lock device
m Hahn Hahns Hähne tap device
f Leiter - Leitern ladder thing,head
f Karte - Karten map thing,head
n Bild Bildes Bilder picture thing,head
n Foto Fotos Fotos photo thing
m Strauß Straußes Sträuße bouquet gift
n Geschenk Geschenks Geschenke present gift,head
f Blume - Blumen flower gift,head
f Rose - Rosen rose gift
n Spielzeug Spielzeugs Spielzeuge toy gift,toy,head
n Handy Handys Handys mobile_phone thing,device
n Telefon Telefons Telefone telephone device,head
n Radio Radios Radios radio device,head
m Computer Computers Computer computer device,head
m Fernseher Fernsehers Fernseher television device
f Heizung - Heizungen heating device,head
f Maschine - Maschinen machine device,head
n Gerät Geräts Geräte device device,head
n Auto Autos Autos car vehicle,head
m Wagen Wagens Wagen car vehicle,head
n Fahrrad Fahrrads Fahrräder bicycle vehicle,head
n Motorrad Motorrads Motorräder motorbike vehicle
n Boot Bootes Boote boat vehicle,head
m Bus Busses Busse bus vehicle,head
m Zug Zuges Züge train train,head
f Bahn - Bahnen train train
n Schiff Schiffes Schiffe ship vehicle,head
n Flugzeug Flugzeugs Flugzeuge plane vehicle,head
n Buch Buches Bücher book document,head
m Brief Briefes Briefe letter document,head
f Zeitung - Zeitungen newspaper document,head
m Roman Romans Romane novel document,head
m Bericht Berichts Berichte report document,head
n Gedicht Gedichts Gedichte poem document,head
m Artikel Artikels Artikel article document,head
f Nachricht - Nachrichten message document,head
f Rechnung - Rechnungen bill document,head
m Vertrag Vertrags Verträge contract document,head
n Heft Heftes Hefte notebook document,head
n Brot Brotes Brote bread food,mass
m Käse Käses - cheese food,mass
n Fleisch Fleisches - meat food,mass
m Reis Reises - rice food,mass
f Butter - - butter food,mass
m Apfel Apfels Äpfel apple food
f Birne - Birnen pear food
f Orange - Orangen orange food
n Ei Eies Eier egg food
m Kuchen Kuchens Kuchen cake food,dish
f Suppe - Suppen soup food,dish
m Salat Salats Salate salad food,dish
n Gericht Gerichts Gerichte dish food
f Kartoffel - Kartoffeln potato food
f Tomate - Tomaten tomato food
m Fisch Fisches Fische fish food
n Wasser Wassers - water drink,mass
m Kaffee Kaffees - coffee drink,mass
m Tee Tees - tea drink,mass
f Milch - - milk drink,mass
n Bier Bieres - beer drink,mass
m Wein Weines - wine drink,mass
m Saft Saftes - juice drink,mass,juice
n Hemd Hemdes Hemden shirt clothes,head
n Kleid Kleides Kleider dress clothes,head
f Hose - Hosen pair_of_trousers garment
f Jacke - Jacken jacket clothes,head
m Mantel Mantels Mäntel coat clothes,head
m Hut Hutes Hüte hat clothes,head
m Schuh Schuhs Schuhe shoe clothes,head
m Rock Rockes Röcke skirt clothes,head
m Schal Schals Schals scarf clothes,head
f Mütze - Mützen cap clothes,head
n Haus Hauses Häuser house building,head
f Brücke - Brücken bridge building,head
m Turm Turmes Türme tower building,head
f Mauer - Mauern wall building,head
n Schloss Schlosses Schlösser castle building,place
f Kirche - Kirchen church building,place
f Fabrik - Fabriken factory building,place,head
n Krankenhaus Krankenhauses Krankenhäuser hospital building,place
n Hotel Hotels Hotels hotel building,place,head
n Museum Museums Museen museum building,place,head
n Theater Theaters Theater theatre building,place,head
f Schule - Schulen school place,head
f Universität - Universitäten university place
f Bank - Banken bank place
n Gericht Gerichts Gerichte court place
m Markt Marktes Märkte market place,head
m Bahnhof Bahnhofs Bahnhöfe station place
m Flughafen Flughafens Flughäfen airport place
m Park Parks Parks park place,head
m Wald Waldes Wälder forest place
m Garten Gartens Gärten garden place,head
f Küche - Küchen kitchen place,head
n Büro Büros Büros office place,head
n Restaurant Restaurants Restaurants restaurant place
n Café Cafés Cafés café place
n Kino Kinos Kinos cinema place,head
m Laden Ladens Läden shop place,head
n Geschäft Geschäfts Geschäfte shop place,head
f Bibliothek - Bibliotheken library place
n Dorf Dorfes Dörfer village place,head
f Stadt - Städte town place,head
m Strand Strandes Strände beach place
m See Sees Seen lake place
f Insel - Inseln island place
n Zimmer Zimmers Zimmer room place,head
f Wohnung - Wohnungen flat place,head
m Keller Kellers Keller cellar place,head
f Idee - Ideen idea abstract
n Problem Problems Probleme problem abstract,head
f Frage - Fragen question abstract,head
f Antwort - Antworten answer abstract
f Geschichte - Geschichten story abstract,tale,head
m Plan Planes Pläne plan abstract,head
f Aufgabe - Aufgaben task abstract,head
m Fehler Fehlers Fehler mistake abstract,head
f Regel - Regeln rule abstract,head
n Wort Wortes Wörter word abstract
m Vorschlag Vorschlags Vorschläge suggestion abstract
n Konzert Konzerts Konzerte concert event,head
n Fest Festes Feste party event,head
f Feier - Feiern party event,head
f Reise - Reisen journey event,head
f Prüfung - Prüfungen exam event,head
n Spiel Spiels Spiele game event,head
m Film Films Filme film event,head
m Kurs Kurses Kurse course event,head
"""

# First parts of compounds as they stand before the second part (so with their linking element),
# English, noun classes that they go with.
MODIFIERS = """
Haus house openable,furniture,thing,device
Küchen kitchen openable,furniture,thing,device
Garten garden openable,furniture,thing,device,building,event
Schul school openable,furniture,thing,document,vehicle,abstract,event,person
Stadt town building,place,document,abstract,event,vehicle
Dorf village building,place,event,person
Wald forest building,place,abstract
Berg mountain building,place,train,clothes
Land country building,place,person,event
Winter winter clothes,event,place,gift
Sommer summer clothes,event,place,building
Holz wooden openable,furniture,thing,building,gift
Metall metal openable,furniture,thing
Glas glass openable,furniture,building
Papier paper thing,clothes,gift
Leder leather clothes,thing,furniture
Woll woollen clothes,thing
Gold gold thing
Silber silver thing
Kinder children's furniture,thing,place,document,clothes,event,person,vehicle
Damen ladies' clothes,vehicle,event
Herren men's clothes,vehicle
Familien family event,document,place,abstract,vehicle
Hotel hotel furniture,place,person,openable,document
Büro office furniture,device,place,openable
Sport sports clothes,event,place,vehicle,person,document,thing
Musik music event,place,person,device,document
Kunst art event,document,person,abstract
Tanz dance clothes,event,person
Computer computer event,document,furniture,abstract,device,person
Arbeits work clothes,place,furniture,document,abstract
Geburtstags birthday event,gift,document
Weihnachts Christmas event,gift,place,document,abstract
Frühlings spring event,gift,clothes
Hochzeits wedding event,gift,clothes,document
Universitäts university place,building,person,event,document
Bahnhofs station building,place,openable,device
Straßen street device,event,place,abstract
Blumen flower place,gift,document
Reise travel thing,document,abstract,device
Auto car openable,document,thing,device,person
Fahrrad bicycle thing,place,openable
Schlaf sleeping place,furniture
Wohn living place
Bücher book furniture,thing
Liebes love document,abstract,event
Tages day document,event,thing
Jahres year's document,event
Landes state document,building,event
Nacht night device,train,event,vehicle,clothes
Abend evening clothes,event,document
Regen rain clothes
Kaffee coffee thing,device
Tee tea thing
Wein wine thing,place,event
Bier beer thing,event
Suppen soup thing
Obst fruit thing,place
Gemüse vegetable place
Fisch fish place
Keller cellar openable,place,device
Werkzeug tool thing,openable
Gefängnis prison openable,building,person
Firmen company vehicle,document,person,event
"""

# First parts of dishes and juices.
TASTES = """
Apfel apple dish,juice
Kartoffel potato dish
Tomaten tomato dish,juice
Fisch fish dish
Käse cheese dish
Birnen pear dish,juice
Orangen orange dish,juice
Nudel noodle dish
Zwiebel onion dish
Gemüse vegetable dish,juice
Kirsch cherry dish,juice
Erdbeer strawberry dish
Schokoladen chocolate dish
Bohnen bean dish
Pilz mushroom dish
Trauben grape juice
"""

# How one is in a place and goes to it: noun and its English (for words with two meanings), German
# preposition for being there and for going there ('zu' takes the dative, the others the
# accusative), English prepositions.
PLACES = """
Schloss castle in in in into
Kirche church in in in into
Fabrik factory in in in to
Krankenhaus hospital in in in to
Hotel hotel in in at to
Museum museum in in in to
Theater theatre in in at to
Schule school in in at to
Universität university an zu at to
Bank bank in zu in to
Gericht court an zu at to
Markt market auf auf at to
Bahnhof station an zu at to
Flughafen airport an zu at to
Park park in in in to
Wald forest in in in into
Garten garden in in in into
Küche kitchen in in in into
Büro office in in in to
Restaurant restaurant in in in to
Café café in in in to
Kino cinema in in at to
Laden shop in in in into
Geschäft shop in in in into
Bibliothek library in in in to
Dorf village in in in to
Stadt town in in in to
Strand beach an an on to
See lake an an by to
Insel island auf auf on to
Zimmer room in in in into
Wohnung flat in in in into
Keller cellar in in in into
"""

# Places without an English article; German ones with an article have their gender in front.
CITIES = """
Berlin Berlin
Hamburg Hamburg
München Munich
Köln Cologne
Wien Vienna
Zürich Zurich
Dresden Dresden
Leipzig Leipzig
Nürnberg Nuremberg
Rom Rome
Paris Paris
London London
Prag Prague
Warschau Warsaw
Deutschland Germany
Österreich Austria
Frankreich France
Italien Italy
Spanien Spain
Polen Poland
England England
Japan Japan
"""
COUNTRIES_WITH_ARTICLE = """
f Schweiz Switzerland
f Türkei Turkey
m Iran Iran
f Ukraine Ukraine
"""

NAMES = """
f Anna
m Peter
f Maria
m Paul
f Julia
m Thomas
f Laura
m Martin
f Sophie
m Daniel
f Eva
m Stefan
f Clara
m Johannes
f Emma
m Jakob
f Katharina
m Felix
f Hannah
m Simon
f Lena
m Robert
f Ida
m Karl
f Greta
m Anton
"""

# attributive stem ('=': the word itself), predicative, comparative, English, English comparative,
# classes.
ADJECTIVES = """
= alt älter old older any
= neu neuer new newer thing
= groß größer big bigger any
= klein kleiner small smaller any
= jung jünger young younger living
= schön schöner beautiful more_beautiful any
= hässlich hässlicher ugly uglier any
= schwer schwerer heavy heavier thing
= leicht leichter light lighter thing
= lang länger long longer long
= kurz kürzer short shorter long
teur teuer teurer expensive more_expensive thing
= billig billiger cheap cheaper thing
= klug klüger clever cleverer living
= schlau schlauer clever cleverer living
= dumm dümmer stupid more_stupid living
= stark stärker strong stronger living
= schwach schwächer weak weaker living
= freundlich freundlicher friendly friendlier person
= nett netter nice nicer person
= fleißig fleißiger hard-working more_hard-working person
= faul fauler lazy lazier living
müd müde müder tired more_tired living
= krank kränker ill more_ill living
= gesund gesünder healthy healthier living
= glücklich glücklicher happy happier person
= traurig trauriger sad sadder person
= arm ärmer poor poorer person
= reich reicher rich richer person
= berühmt berühmter famous more_famous person
= höflich höflicher polite more_polite person
= ehrlich ehrlicher honest more_honest person
= neugierig neugieriger curious more_curious living
= hungrig hungriger hungry hungrier living
= schmutzig schmutziger dirty dirtier thing
sauber sauber sauberer clean cleaner thing
= kaputt kaputter broken more_broken device
= modern moderner modern more_modern thing
= praktisch praktischer practical more_practical thing
= nützlich nützlicher useful more_useful thing
= bequem bequemer comfortable more_comfortable furniture
= rot röter red redder thing
= blau blauer blue bluer thing
= grün grüner green greener thing
= gelb gelber yellow yellower thing
= schwarz schwärzer black blacker thing
= weiß weißer white whiter thing
dunkl dunkel dunkler dark darker thing
hoh hoch höher high higher building
= wichtig wichtiger important more_important abstract
= schwierig schwieriger difficult more_difficult abstract
= schwer schwerer difficult more_difficult abstract
= leicht leichter easy easier abstract
= einfach einfacher easy easier abstract
= interessant interessanter interesting more_interesting abstract
= langweilig langweiliger boring more_boring abstract
= lustig lustiger funny funnier abstract
= ruhig ruhiger quiet quieter place
= laut lauter loud louder place
= warm wärmer warm warmer food
= kalt kälter cold colder food
= frisch frischer fresh fresher food
= süß süßer sweet sweeter food
"""

# German verbs whose forms do not follow from the infinitive: third person (with 'second/third'
# where the second person is irregular, too), preterite, participle, auxiliary. A compound verb
# inherits from its base.
STRONG_VERBS = """
gehen geht ging gegangen sein
fahren fährt fuhr gefahren sein
fliegen fliegt flog geflogen sein
kommen kommt kam gekommen sein
laufen läuft lief gelaufen sein
reisen reist reiste gereist sein
wandern wandert wanderte gewandert sein
schwimmen schwimmt schwamm geschwommen sein
bleiben bleibt blieb geblieben sein
steigen steigt stieg gestiegen sein
folgen folgt folgte gefolgt sein
begegnen begegnet begegnete begegnet sein
schlafen schläft schlief geschlafen haben
lesen liest las gelesen haben
schreiben schreibt schrieb geschrieben haben
sprechen spricht sprach gesprochen haben
essen isst aß gegessen haben
fressen frisst fraß gefressen haben
trinken trinkt trank getrunken haben
sehen sieht sah gesehen haben
finden findet fand gefunden haben
verlieren verliert verlor verloren haben
nehmen nimmt nahm genommen haben
geben gibt gab gegeben haben
helfen hilft half geholfen haben
treffen trifft traf getroffen haben
tragen trägt trug getragen haben
waschen wäscht wusch gewaschen haben
vergessen vergisst vergaß vergessen haben
verstehen versteht verstand verstanden haben
stehen steht stand gestanden haben
sitzen sitzt saß gesessen haben
liegen liegt lag gelegen haben
schließen schließt schloss geschlossen haben
rufen ruft rief gerufen haben
laden lädt lud geladen haben
singen singt sang gesungen haben
beginnen beginnt begann begonnen haben
fangen fängt fing gefangen haben
ziehen zieht zog gezogen haben
bringen bringt brachte gebracht haben
denken denkt dachte gedacht haben
kennen kennt kannte gekannt haben
wissen weißt/weiß wusste gewusst haben
bekommen bekommt bekam bekommen haben
erhalten erhältst/erhält erhielt erhalten haben
senden sendet sandte gesandt haben
bieten bietet bot geboten haben
stehlen stiehlt stahl gestohlen haben
brechen bricht brach gebrochen haben
gefallen gefällt gefiel gefallen haben
empfehlen empfiehlt empfahl empfohlen haben
leihen leiht lieh geliehen haben
versprechen verspricht versprach versprochen haben
betreten betrittst/betritt betrat betreten haben
verlassen verlässt verließ verlassen haben
unterschreiben unterschreibt unterschrieb unterschrieben haben
übersetzen übersetzt übersetzte übersetzt haben
besitzen besitzt besaß besessen haben
hängen hängt hing gehangen haben
beißen beißt biss gebissen haben
bellen bellt bellte gebellt haben
mögen magst/mag mochte gemocht haben
haben hast/hat hatte gehabt haben
sein bist/ist war gewesen sein
werden wirst/wird wurde geworden sein
"""

# Uses of verbs: German infinitive ('|' would split the columns, so the separable prefix ends with
# '+'), frame, English verb ('+' before a particle). Frames: I; A:classes accusative object;
# D:classes dative object; DA:classes dative person and accusative; P:preposition:case:English
# preposition:classes; G going somewhere; L being somewhere; C that-clause; Z infinitive with zu;
# 'r' in front: reflexive.
VERB_USES = """
arbeiten | I | work
arbeiten | L | work
schlafen | I | sleep
schlafen | L | sleep
lachen | I | laugh
weinen | I | cry
tanzen | I | dance
tanzen | L | dance
singen | I | sing
kochen | I | cook
lernen | I | study
lernen | L | study
auf+stehen | I | get +up
ein+schlafen | I | fall +asleep
auf+wachen | I | wake +up
schwimmen | I | swim
schwimmen | L | swim
spielen | L | play
warten | L | wait
wohnen | L | live
leben | L | live
bleiben | L | stay
sitzen | L | sit
gehen | G | go
fahren | G | go
fahren | G | drive
fliegen | G | fly
laufen | G | run
reisen | G | travel
kommen | G | come
wandern | G | walk
zurück+kommen | I | come +back
zurück+fahren | G | drive +back
weg+laufen | I | run +away
um+ziehen | G | move
kaufen | A:thing,clothes,garment,vehicle,document,food,gift,furniture,device,building | buy
verkaufen | A:thing,clothes,garment,vehicle,document,furniture,device,building | sell
suchen | A:thing,clothes,document,person,animal,garment | look +for
finden | A:thing,clothes,document,person,animal,garment | find
verlieren | A:thing,clothes,document | lose
sehen | A:person,animal,thing,vehicle,building,train,furniture | see
malen | A:person,animal,thing,building,gift | paint
fotografieren | A:person,animal,building,vehicle,gift | photograph
holen | A:thing,clothes,food,document | fetch
bringen | A:thing,food,document,gift | bring
mit+bringen | A:thing,food,document,gift,person | bring +along
mit+nehmen | A:thing,clothes,document,person,animal | take +along
nehmen | A:train,thing,vehicle | take
brauchen | A:thing,clothes,vehicle,device,document,furniture,person,garment | need
haben | A:thing,vehicle,animal,abstract,device,document,garment | have
besitzen | A:thing,vehicle,building,animal,furniture,device | own
stehlen | A:thing,vehicle,document,gift | steal
tragen | A:clothes,garment | wear
tragen | A:thing,furniture,person | carry
an+ziehen | A:clothes,garment | put +on
aus+ziehen | A:clothes,garment | take +off
waschen | A:clothes,vehicle,garment,animal | wash
putzen | A:openable,furniture,device,clothes | clean
reparieren | A:device,vehicle,furniture,openable | repair
ein+schalten | A:device | turn +on
an+machen | A:device | turn +on
aus+schalten | A:device | turn +off
aus+machen | A:device | turn +off
öffnen | A:openable,document | open
auf+machen | A:openable | open
schließen | A:openable | close
zu+machen | A:openable | close
lesen | A:document | read
vor+lesen | A:document | read +out
schreiben | A:document | write
unterschreiben | A:document | sign
übersetzen | A:document | translate
ab+schicken | A:document,gift | send +off
bezahlen | A:food,train,document | pay +for
bauen | A:building,furniture,vehicle | build
essen | A:food | eat
kochen | A:dish | cook
bestellen | A:food,drink,thing,clothes | order
probieren | A:food,drink | try
trinken | A:drink | drink
kennen | A:person,place,building,document | know
treffen | A:person | meet
kennen+lernen | A:person | meet
begegnen | D:person,animal | meet
besuchen | A:person,place,event | visit
ein+laden | A:person | invite
an+rufen | A:person | call
rufen | A:person,animal | call
lieben | A:person,animal | love
mögen | A:person,animal,food,drink,event,place | like
fragen | A:person | ask
ab+holen | A:person,gift | pick +up
verstehen | A:abstract,person | understand
erklären | A:abstract | explain
vergessen | A:abstract,thing,clothes,document | forget
lösen | A:abstract | solve
diskutieren | A:abstract | discuss
vor+bereiten | A:event,food | prepare
organisieren | A:event | organise
verpassen | A:train,event | miss
betreten | A:building,place | enter
verlassen | A:building,place,person | leave
helfen | D:person,animal | help
danken | D:person | thank
folgen | D:person,animal | follow
vertrauen | D:person | trust
antworten | D:person | answer
zu+hören | D:person | listen +to
gratulieren | D:person | congratulate
geben | DA:thing,food,document,gift,clothes | give
zeigen | DA:thing,document,building,vehicle,animal,gift | show
schenken | DA:gift,thing,document,clothes | give
schicken | DA:document,gift,thing | send
senden | DA:document,gift | send
leihen | DA:thing,vehicle,document,clothes | lend
empfehlen | DA:document,food,event,place | recommend
erzählen | DA:tale | tell
verkaufen | DA:vehicle,thing,furniture,building | sell
an+bieten | DA:food,drink,thing | offer
zurück+geben | DA:thing,document,vehicle | give +back
warten | P:auf:acc:for:person,train,document | wait
denken | P:an:acc:of:person,event,abstract | think
sprechen | P:mit:dat:to:person | talk
reden | P:mit:dat:to:person | talk
spielen | P:mit:dat:with:person,animal,toy | play
sprechen | P:über:acc:about:abstract,event,document,person | talk
lachen | P:über:acc:about:abstract,event | laugh
träumen | P:von:dat:of:person,animal,event,vehicle,building | dream
fragen | P:nach:dat:for:person,document | ask
suchen | P:nach:dat:for:person,thing,document,animal | look
arbeiten | P:an:dat:on:document,abstract,vehicle,device | work
freuen | rP:über:acc:about:gift,document,event | be_happy
freuen | rP:auf:acc:to:event | look_forward
erinnern | rP:an:acc::person,event,abstract,building | remember
interessieren | rP:für:acc:in:building,event,abstract,document | be_interested
kümmern | rP:um:acc:of:person,animal,place | take_care
ärgern | rP:über:acc:about:person,abstract,event | be_annoyed
beschweren | rP:über:acc:about:food,person,abstract | complain
verlieben | rP:in:acc:with:person | fall_in_love
wissen | C | know
glauben | C | believe
denken | C | think
sagen | C | say
hoffen | C | hope
hören | C | hear
vergessen | C | forget
behaupten | C | claim
versuchen | Z | try
vergessen | Z | forget
versprechen | Z | promise
beginnen | Z | start
an+fangen | Z | start
hoffen | Z | hope
planen | Z | plan
auf+hören | Z | stop
"""

# What an animal does.
ANIMAL_USES = """
schlafen | I | sleep
schlafen | L | sleep
weg+laufen | I | run +away
bellen | I | bark
fressen | A:food | eat
sehen | A:person,animal | see
folgen | D:person,animal | follow
hören | A:person,animal | hear
suchen | A:person,animal | look +for
beißen | A:person,animal | bite
"""
# English verbs: base, past, participle ('=' like the past), and the -ing form where it is not
# regular.
IRREGULAR_ENGLISH = """
be was been
have had = having
do did done
sleep slept =
sing sang sung
get got = getting
fall fell fallen
wake woke woken
swim swam swum swimming
sit sat = sitting
stand stood =
lie lay lain lying
hang hung =
put put = putting
go went gone
drive drove driven
fly flew flown
run ran run running
come came come
buy bought =
sell sold =
find found =
lose lost =
see saw seen
bring brought =
take took taken
steal stole stolen
wear wore worn
read read =
write wrote written
send sent =
pay paid =
build built =
eat ate eaten
drink drank drunk
know knew known
meet met =
understand understood =
forget forgot forgotten forgetting
leave left =
give gave given
show showed shown
lend lent =
tell told =
think thought =
say said =
hear heard =
try tried =
plan planned = planning
stop stopped = stopping
travel travelled = travelling
bite bit bitten
cry cried =
study studied =
carry carried =
look looked =
begin began begun beginning
"""
# English verbs without a progressive form.
STATIVE = """
be know love like need own have understand see hear trust believe hope forget think want remember find lose meet
recommend promise miss claim say
""".split()

IRREGULAR_PLURALS = """
man men
woman women
child children
policeman policemen
policewoman policewomen
salesman salesmen
mouse mice
sheep sheep
fish fish
wolf wolves
shelf shelves
knife knives
thief thieves
scarf scarves
potato potatoes
tomato tomatoes
pair_of_trousers pairs_of_trousers
"""

# German, English, times of the sentence that it fits: now (habit or state), going (in progress),
# past, future, since (German present, English perfect).
TIMES = """
heute | today | past future
gestern | yesterday | past
vorgestern | the_day_before_yesterday | past
morgen | tomorrow | future
übermorgen | the_day_after_tomorrow | future
jetzt | now | going
gerade | right_now | going
im_Moment | at_the_moment | going
heute_Morgen | this_morning | past
heute_Abend | tonight | future
gestern_Abend | last_night | past
jeden_Tag | every_day | now
jeden_Abend | every_evening | now
jede_Woche | every_week | now
jedes_Jahr | every_year | now
am_Abend | in_the_evening | now past
am_Morgen | in_the_morning | now past
am_Nachmittag | in_the_afternoon | now past
am_Wochenende | at_the_weekend | now future
in_der_Nacht | at_night | now
letzte_Woche | last_week | past
letzten_Monat | last_month | past
letztes_Jahr | last_year | past
nächste_Woche | next_week | future
nächsten_Monat | next_month | future
nächstes_Jahr | next_year | future
im_Sommer | in_the_summer | now past
im_Winter | in_the_winter | now past
im_Herbst | in_the_autumn | now past
bald | soon | future
damals | at_that_time | past
früher | in_the_past | past
"""
WEEKDAYS = (
    "Montag Monday Dienstag Tuesday Mittwoch Wednesday Donnerstag Thursday Freitag Friday "
    "Samstag Saturday Sonntag Sunday"
)
MONTHS = (
    "Januar January März March April April Mai May Juni June Juli July August August "
    "September September Oktober October Dezember December"
)
FREQUENCIES = """
oft often
häufig often
immer always
stets always
manchmal sometimes
selten rarely
nie never
niemals never
"""
MANNERS = """
schnell quickly
langsam slowly
laut loudly
leise quietly
gut well
allein alone
lange for_a_long_time
"""

# Where something is in relation to a piece of furniture: the preposition takes the dative, with
# movement the accusative.
POSITIONS = """
auf on
unter under
neben next_to
hinter behind
vor in_front_of
"""
UNITS_DE = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn".split()
TENS_DE = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
UNITS_EN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen "
    "eighteen nineteen"
).split()
TENS_EN = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
