"""The nouns, compounds and ambiguous nouns of the built-in language pair, as readable tables.

NOUNS and COMPOUNDS, one per line: English singular, plural | German with article | German plural | kinds.
Kinds select nouns for verbs and prepositions: `human`, `animal`, `food`, `thing`, `clothing`, `text`, `vehicle`, `idea`,
`part` (of a body), `place`; one can be inside of `in` and on top of `on`; other kinds are for a single verb. `weak` is the
German weak declension.
COMPOUNDS: several English words that are one German word.
AMBIGUOUS, two lines per word: one English noun, two German nouns; the cues of a sense (adjectives, or preposition:noun)
are words in the same sentence that disambiguate it.
"""

from __future__ import annotations

NOUNS = """
man men | der Mann | Männer | human
woman women | die Frau | Frauen | human
child children | das Kind | Kinder | human
boy boys | der Junge | Jungen | human weak
girl girls | das Mädchen | Mädchen | human
teacher teachers | der Lehrer | Lehrer | human
doctor doctors | der Arzt | Ärzte | human
baker bakers | der Bäcker | Bäcker | human
friend friends | der Freund | Freunde | human
sister sisters | die Schwester | Schwestern | human
brother brothers | der Bruder | Brüder | human
mother mothers | die Mutter | Mütter | human
father fathers | der Vater | Väter | human
uncle uncles | der Onkel | Onkel | human
aunt aunts | die Tante | Tanten | human
queen queens | die Königin | Königinnen | human ruler
king kings | der König | Könige | human ruler
prince princes | der Prinz | Prinzen | human weak ruler
painter painters | der Maler | Maler | human
singer singers | die Sängerin | Sängerinnen | human
judge judges | die Richterin | Richterinnen | human
soldier soldiers | der Soldat | Soldaten | human weak
student students | der Student | Studenten | human weak
guest guests | der Gast | Gäste | human
thief thieves | der Dieb | Diebe | human
poet poets | der Dichter | Dichter | human
captain captains | der Kapitän | Kapitäne | human
nurse nurses | die Pflegerin | Pflegerinnen | human
waiter waiters | der Kellner | Kellner | human
mayor mayors | die Bürgermeisterin | Bürgermeisterinnen | human
lawyer lawyers | die Anwältin | Anwältinnen | human
cook cooks | der Koch | Köche | human
witch witches | die Hexe | Hexen | human
hunter hunters | der Jäger | Jäger | human
tailor tailors | der Schneider | Schneider | human
dog dogs | der Hund | Hunde | animal
cat cats | die Katze | Katzen | animal
horse horses | das Pferd | Pferde | animal
cow cows | die Kuh | Kühe | animal
bird birds | der Vogel | Vögel | animal
frog frogs | der Frosch | Frösche | animal
rat rats | die Ratte | Ratten | animal
goose geese | die Gans | Gänse | animal
wolf wolves | der Wolf | Wölfe | animal
bear bears | der Bär | Bären | animal weak
fox foxes | der Fuchs | Füchse | animal
duck ducks | die Ente | Enten | animal
goat goats | die Ziege | Ziegen | animal
pig pigs | das Schwein | Schweine | animal
bee bees | die Biene | Bienen | animal
hen hens | das Huhn | Hühner | animal
owl owls | die Eule | Eulen | animal
donkey donkeys | der Esel | Esel | animal
snake snakes | die Schlange | Schlangen | animal
monkey monkeys | der Affe | Affen | animal weak
lion lions | der Löwe | Löwen | animal weak
apple apples | der Apfel | Äpfel | food
cake cakes | der Kuchen | Kuchen | food
egg eggs | das Ei | Eier | food
soup soups | die Suppe | Suppen | food
pear pears | die Birne | Birnen | food
bean beans | die Bohne | Bohnen | food
potato potatoes | die Kartoffel | Kartoffeln | food
carrot carrots | die Karotte | Karotten | food
cherry cherries | die Kirsche | Kirschen | food
sausage sausages | die Wurst | Würste | food
plum plums | die Pflaume | Pflaumen | food
salad salads | der Salat | Salate | food
nut nuts | die Nuss | Nüsse | food
ball balls | der Ball | Bälle | thing
bucket buckets | der Eimer | Eimer | thing in
bag bags | die Tasche | Taschen | thing in
box boxes | die Kiste | Kisten | thing in
cup cups | die Tasse | Tassen | thing fragile
knife knives | das Messer | Messer | thing tool
spoon spoons | der Löffel | Löffel | thing tool
fork forks | die Gabel | Gabeln | thing tool
plate plates | der Teller | Teller | thing fragile
bottle bottles | die Flasche | Flaschen | thing fragile
jar jars | das Glas | Gläser | thing fragile in
lamp lamps | die Lampe | Lampen | thing
candle candles | die Kerze | Kerzen | thing
clock clocks | die Uhr | Uhren | thing
chair chairs | der Stuhl | Stühle | thing
table tables | der Tisch | Tische | thing on
door doors | die Tür | Türen | thing opening
window windows | das Fenster | Fenster | thing opening fragile
stone stones | der Stein | Steine | thing
rope ropes | das Seil | Seile | thing
hammer hammers | der Hammer | Hämmer | thing tool
towel towels | das Handtuch | Handtücher | thing
mirror mirrors | der Spiegel | Spiegel | thing fragile
umbrella umbrellas | der Schirm | Schirme | thing
coin coins | die Münze | Münzen | thing
ring rings | der Ring | Ringe | thing
flower flowers | die Blume | Blumen | thing
picture pictures | das Bild | Bilder | thing drawing
line lines | die Linie | Linien | drawing
basket baskets | der Korb | Körbe | thing in
blanket blankets | die Decke | Decken | thing
broom brooms | der Besen | Besen | thing tool
drum drums | die Trommel | Trommeln | thing instrument
violin violins | die Geige | Geigen | thing instrument
flute flutes | die Flöte | Flöten | thing instrument
piano pianos | das Klavier | Klaviere | thing instrument
computer computers | der Computer | Computer | thing
ladder ladders | die Leiter | Leitern | thing
wheel wheels | das Rad | Räder | thing spare
camera cameras | die Kamera | Kameras | thing tool
bullet bullets | die Kugel | Kugeln | thing
arrow arrows | der Pfeil | Pfeile | thing
knot knots | der Knoten | Knoten | knot
pot pots | der Topf | Töpfe | thing in
log logs | der Baumstamm | Baumstämme | thing
nest nests | das Nest | Nester | thing in
fence fences | der Zaun | Zäune | thing
tree trees | der Baum | Bäume | thing
hat hats | der Hut | Hüte | clothing
coat coats | der Mantel | Mäntel | clothing
shirt shirts | das Hemd | Hemden | clothing
shoe shoes | der Schuh | Schuhe | clothing
dress dresses | das Kleid | Kleider | clothing
scarf scarves | der Schal | Schals | clothing
glove gloves | der Handschuh | Handschuhe | clothing
book books | das Buch | Bücher | text
newspaper newspapers | die Zeitung | Zeitungen | text
poem poems | das Gedicht | Gedichte | text
story stories | die Geschichte | Geschichten | text
song songs | das Lied | Lieder | song
map maps | die Karte | Karten | text
report reports | der Bericht | Berichte | text
page pages | die Seite | Seiten | text
sentence sentences | der Satz | Sätze | text
word words | das Wort | Wörter | text
car cars | das Auto | Autos | vehicle in
bus buses | der Bus | Busse | vehicle in scheduled
train trains | der Zug | Züge | vehicle in scheduled
boat boats | das Boot | Boote | vehicle
ship ships | das Schiff | Schiffe | vehicle scheduled
bicycle bicycles | das Fahrrad | Fahrräder | vehicle
cart carts | der Karren | Karren | vehicle
house houses | das Haus | Häuser | place in
garden gardens | der Garten | Gärten | place in
city cities | die Stadt | Städte | place in
village villages | das Dorf | Dörfer | place in
forest forests | der Wald | Wälder | place in
school schools | die Schule | Schulen | place in business
church churches | die Kirche | Kirchen | place in
kitchen kitchens | die Küche | Küchen | place in
market markets | der Markt | Märkte | place on
bridge bridges | die Brücke | Brücken | place on
river rivers | der Fluss | Flüsse | place
lake lakes | der See | Seen | place
castle castles | das Schloss | Schlösser | place in
station stations | der Bahnhof | Bahnhöfe | place in
tower towers | der Turm | Türme | place in
hotel hotels | das Hotel | Hotels | place in business
theatre theatres | das Theater | Theater | place in business
museum museums | das Museum | Museen | place in business
park parks | der Park | Parks | place in
street streets | die Straße | Straßen | place on
motorway motorways | die Autobahn | Autobahnen | place on
island islands | die Insel | Inseln | place on
mountain mountains | der Berg | Berge | place on
cave caves | die Höhle | Höhlen | place in
field fields | das Feld | Felder | place on
hill hills | der Hügel | Hügel | place on
barn barns | die Scheune | Scheunen | place in
farm farms | der Bauernhof | Bauernhöfe | place on business
harbour harbours | der Hafen | Häfen | place in
cellar cellars | der Keller | Keller | place in
tent tents | das Zelt | Zelte | place in
library libraries | die Bibliothek | Bibliotheken | place in business
office offices | das Büro | Büros | place in
hospital hospitals | das Krankenhaus | Krankenhäuser | place in business
shop shops | der Laden | Läden | place in business
factory factories | die Fabrik | Fabriken | place in business
stable stables | der Stall | Ställe | place in
stadium stadiums | das Stadion | Stadien | place in
wall walls | die Mauer | Mauern | place
roof roofs | das Dach | Dächer | place on
room rooms | das Zimmer | Zimmer | place in
plan plans | der Plan | Pläne | idea rule
question questions | die Frage | Fragen | idea question
idea ideas | die Idee | Ideen | idea
answer answers | die Antwort | Antworten | idea
problem problems | das Problem | Probleme | idea
dream dreams | der Traum | Träume | idea
secret secrets | das Geheimnis | Geheimnisse | idea
mistake mistakes | der Fehler | Fehler | idea
rule rules | die Regel | Regeln | idea rule
finger fingers | der Finger | Finger | part
eye eyes | das Auge | Augen | part
arm arms | der Arm | Arme | part
nose noses | die Nase | Nasen | part
body bodies | der Körper | Körper | part
"""

COMPOUNDS = """
apple tree | der Apfelbaum | Apfelbäume | thing
apple cake | der Apfelkuchen | Apfelkuchen | food
cherry tree | der Kirschbaum | Kirschbäume | thing
cherry cake | der Kirschkuchen | Kirschkuchen | food
plum tree | der Pflaumenbaum | Pflaumenbäume | thing
plum cake | der Pflaumenkuchen | Pflaumenkuchen | food
potato soup | die Kartoffelsuppe | Kartoffelsuppen | food
bean soup | die Bohnensuppe | Bohnensuppen | food
onion soup | die Zwiebelsuppe | Zwiebelsuppen | food
potato salad | der Kartoffelsalat | Kartoffelsalate | food
bean salad | der Bohnensalat | Bohnensalate | food
kitchen table | der Küchentisch | Küchentische | thing on
kitchen knife | das Küchenmesser | Küchenmesser | thing tool
kitchen chair | der Küchenstuhl | Küchenstühle | thing
kitchen window | das Küchenfenster | Küchenfenster | thing opening
kitchen door | die Küchentür | Küchentüren | thing opening
bread knife | das Brotmesser | Brotmesser | thing tool
pocket knife | das Taschenmesser | Taschenmesser | thing tool
pocket watch | die Taschenuhr | Taschenuhren | thing
wrist watch | die Armbanduhr | Armbanduhren | thing
garden chair | der Gartenstuhl | Gartenstühle | thing
garden door | die Gartentür | Gartentüren | thing opening
garden fence | der Gartenzaun | Gartenzäune | thing
garden house | das Gartenhaus | Gartenhäuser | place in
tree house | das Baumhaus | Baumhäuser | place in
summer house | das Sommerhaus | Sommerhäuser | place in
summer dress | das Sommerkleid | Sommerkleider | clothing
winter coat | der Wintermantel | Wintermäntel | clothing
winter shoe | der Winterschuh | Winterschuhe | clothing
winter garden | der Wintergarten | Wintergärten | place in
rain coat | der Regenmantel | Regenmäntel | clothing
rain hat | der Regenhut | Regenhüte | clothing
school book | das Schulbuch | Schulbücher | text
school bag | die Schultasche | Schultaschen | thing in
school bus | der Schulbus | Schulbusse | vehicle in scheduled
school garden | der Schulgarten | Schulgärten | place in
city map | der Stadtplan | Stadtpläne | text
city park | der Stadtpark | Stadtparks | place in
city wall | die Stadtmauer | Stadtmauern | place
city bus | der Stadtbus | Stadtbusse | vehicle in scheduled
village church | die Dorfkirche | Dorfkirchen | place in
village school | die Dorfschule | Dorfschulen | place in
village street | die Dorfstraße | Dorfstraßen | place on
church tower | der Kirchturm | Kirchtürme | place in
church door | die Kirchentür | Kirchentüren | thing opening
castle tower | der Schlossturm | Schlosstürme | place in
castle garden | der Schlossgarten | Schlossgärten | place in
railway bridge | die Eisenbahnbrücke | Eisenbahnbrücken | place on
fire engine | das Feuerwehrauto | Feuerwehrautos | vehicle in
living room | das Wohnzimmer | Wohnzimmer | place in
dining room | das Esszimmer | Esszimmer | place in
waiting room | das Wartezimmer | Wartezimmer | place in
dining table | der Esstisch | Esstische | thing on
washing machine | die Waschmaschine | Waschmaschinen | thing
sewing machine | die Nähmaschine | Nähmaschinen | thing
coffee machine | die Kaffeemaschine | Kaffeemaschinen | thing
coffee cup | die Kaffeetasse | Kaffeetassen | thing fragile
tea cup | die Teetasse | Teetassen | thing fragile
wine bottle | die Weinflasche | Weinflaschen | thing fragile
water bottle | die Wasserflasche | Wasserflaschen | thing fragile
wind mill | die Windmühle | Windmühlen | place
water mill | die Wassermühle | Wassermühlen | place
vacuum cleaner | der Staubsauger | Staubsauger | thing
traffic light | die Ampel | Ampeln | thing
guinea pig | das Meerschweinchen | Meerschweinchen | animal
polar bear | der Eisbär | Eisbären | animal weak
police officer | der Polizist | Polizisten | human weak
bus driver | der Busfahrer | Busfahrer | human
taxi driver | der Taxifahrer | Taxifahrer | human
train driver | die Lokführerin | Lokführerinnen | human
night watchman | der Nachtwächter | Nachtwächter | human
bus stop | die Bushaltestelle | Bushaltestellen | place
post office | das Postamt | Postämter | place in business
school bus driver | der Schulbusfahrer | Schulbusfahrer | human
city bus driver | der Stadtbusfahrer | Stadtbusfahrer | human
church tower clock | die Kirchturmuhr | Kirchturmuhren | thing
kitchen table lamp | die Küchentischlampe | Küchentischlampen | thing
washing machine factory | die Waschmaschinenfabrik | Waschmaschinenfabriken | place in business
ice cream shop | die Eisdiele | Eisdielen | place in business
ice cream seller | die Eisverkäuferin | Eisverkäuferinnen | human
"""

AMBIGUOUS = """
bat bats | die Fledermaus | Fledermäuse | blind in:cave under:roof
bat bats | der Schläger | Schläger | wooden beside:ball
seal seals | die Robbe | Robben | fat hungry on:island
seal seals | das Siegel | Siegel | broken on:report on:map
crane cranes | der Kranich | Kraniche | shy beside:lake
crane cranes | der Kran | Kräne | rusty beside:factory in:harbour
key keys | der Schlüssel | Schlüssel | rusty for:door for:stable
key keys | die Taste | Tasten | on:computer on:piano
letter letters | der Brief | Briefe | friendly for:aunt in:bag
letter letters | der Buchstabe | Buchstaben | in:sentence in:word
nail nails | der Nagel | Nägel | rusty in:wall
nail nails | der Fingernagel | Fingernägel | clean on:finger
match matches | das Streichholz | Streichhölzer | dry in:box beside:candle
match matches | das Spiel | Spiele | exciting in:stadium on:field
pupil pupils | der Schüler | Schüler | lazy in:school in:library
pupil pupils | die Pupille | Pupillen | in:eye
jam jams | die Marmelade | Marmeladen | sweet in:jar
jam jams | der Stau | Staus | long on:motorway on:street
note notes | der Zettel | Zettel | on:door on:table
note notes | der Ton | Töne | loud in:song
organ organs | die Orgel | Orgeln | loud in:church
organ organs | das Organ | Organe | sick in:body
scale scales | die Waage | Waagen | in:kitchen on:market
scale scales | die Schuppe | Schuppen | shiny on:snake
fan fans | der Ventilator | Ventilatoren | broken in:office
fan fans | der Anhänger | Anhänger | loyal in:stadium
mole moles | der Maulwurf | Maulwürfe | blind on:field in:garden
mole moles | das Muttermal | Muttermale | on:arm on:nose
bulb bulbs | die Glühbirne | Glühbirnen | broken in:lamp
bulb bulbs | die Blumenzwiebel | Blumenzwiebeln | dry in:garden
ruler rulers | das Lineal | Lineale | wooden in:bag
ruler rulers | der Herrscher | Herrscher | cruel in:castle
file files | die Akte | Akten | secret in:office
file files | die Feile | Feilen | rusty beside:hammer
spring springs | die Feder | Federn | broken in:clock
spring springs | die Quelle | Quellen | clear in:forest
pen pens | der Stift | Stifte | on:table in:bag
pen pens | das Gehege | Gehege | beside:stable beside:barn
bow bows | der Bogen | Bögen | wooden beside:arrow
bow bows | die Schleife | Schleifen | pretty on:dress on:hat
horn horns | das Horn | Hörner | sharp on:goat
horn horns | die Hupe | Hupen | loud in:car in:bus
square squares | der Platz | Plätze | quiet in:city in:village
square squares | das Quadrat | Quadrate | tiny on:page on:map
"""
