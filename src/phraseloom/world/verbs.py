"""The verbs, adjectives and function words of the built-in language pair, as readable tables.

VERBS, one per line: English base, third person, particle | German | companion | frame | subject kinds > object kinds.
  German: "auf+heben" is separable; a second word is the stem of the second and third person ("sehen sieh").
  Companion: other German words of the verb (light verbs: "decide" = "eine Entscheidung treffen"), "-" for none.
  Frame: `none`, `acc`, `dat`, `both` (dative and accusative), `goal` (a direction), `that`, `vor:dat` (object in a PP).
  Objects: kinds of nouns, or =noun for one noun. One English verb with disjoint objects has several translations.
"""

from __future__ import annotations

VERBS = """
see sees | sehen sieh | - | acc | human animal > human animal thing text vehicle place
hear hears | hören | - | acc | human animal > human animal song instrument
find finds | finden | - | acc | human animal > human animal thing clothing text food vehicle
hold holds | halten hält | - | acc | human > animal thing clothing text
carry carries | tragen träg | - | acc | human > thing food =log
kick kicks | treten tritt | - | acc | human animal > =ball =bucket =stone =door =wall
spill spills | verschütten | - | acc | human > =soup =bean =nut
smell smells | riechen | - | acc | animal human > food =rat =fox =flower
bite bites | beißen | - | acc | animal > human animal =bullet =apple =rope
throw throws | werfen wirf | - | acc | human > =ball =stone =towel =bottle =coin
cook cooks | kochen | - | acc | human > =soup =egg =potato =bean =carrot
eat eats | essen iss | - | acc | human > food
buy buys | kaufen | - | acc | human > food thing clothing text vehicle =farm
sell sells | verkaufen | - | acc | human > food thing clothing text vehicle business
steal steals | stehlen stiehl | - | acc | human > thing clothing vehicle food =horse =hen
paint paints | malen | - | acc | human > drawing animal place =tree
build builds | bauen | - | acc | human > place =boat =ship =fence =nest =ladder
wash washes | waschen wäsch | - | acc | human > clothing =towel =blanket =dog =car part
clean cleans | putzen | - | acc | human > place =lamp =window =mirror =car =shoe tool
read reads | lesen lies | - | acc | human > text
write writes | schreiben | - | acc | human > text song
burn burns | verbrennen | - | acc | human > text =log =boat =blanket =fence
repair repairs | reparieren | - | acc | human > vehicle =lamp =clock =door =fence =roof
love loves | lieben | - | acc | human > human animal food song text place
hate hates | hassen | - | acc | human > human animal food rule song
need needs | brauchen | - | acc | human animal > human thing food tool
seek seeks | suchen | - | acc | human animal > human animal thing clothing place
visit visits | besuchen | - | acc | human > human place
greet greets | grüßen | - | acc | human > human
beat beats | schlagen schläg | - | acc | human > =drum =donkey =thief
tie ties | binden | - | acc | human > =knot =rope =scarf =donkey =goat
cut cuts | schneiden | - | acc | human > food =rope =flower
catch catches | fangen fäng | - | acc | human animal > animal =ball =thief
feed feeds | füttern | - | acc | human > animal =child
count counts | zählen | - | acc | human > =bean =coin =sentence =page =bird =cow
guard guards | bewachen | - | acc | human animal > place =door =ring =queen =king
watch watches | beobachten | - | acc | human animal > human animal =clock =river
bet bets | verwetten | - | acc | human > =coin =ring =farm =horse =hat
climb climbs | besteigen | - | acc | human > =ladder =mountain =hill =tower
rock rocks | schaukeln | - | acc | human > =child =boat
have has | haben hat | - | acc | human > animal thing clothing vehicle =idea =plan =dream =question
forget forgets | vergessen vergiss | - | acc | human > human idea thing clothing =word
understand understands | verstehen | - | acc | human > idea text human
explain explains | erklären | - | acc | human > idea text
ride rides | reiten | - | acc | human > =horse =donkey
ride rides | fahren fähr | - | acc | human > =bicycle =cart
run runs | leiten | - | acc | human > business
save saves | retten | - | acc | human animal > human animal
save saves | speichern | - | acc | human > text
miss misses | verpassen | - | acc | human > scheduled =boat
miss misses | vermissen | - | acc | human animal > human animal
change changes | ändern | - | acc | human > rule text
change changes | wechseln | - | acc | human > spare =shirt =coin clothing
break breaks | brechen brich | - | acc | human > rule part
break breaks | zerbrechen zerbrich | - | acc | human animal > fragile
draw draws | zeichnen | - | acc | human > drawing =map =tree =line
draw draws | ziehen | - | acc | human animal > =cart =ladder
serve serves | servieren | - | acc | human > food
serve serves | dienen | - | dat | human > ruler
know knows | kennen | - | acc | human > human place song =answer
leave leaves | verlassen verläss | - | acc | human animal > place =nest
play plays | spielen | - | acc | human > instrument song
wear wears | tragen träg | - | acc | human > clothing =ring
answer answers | beantworten | - | acc | human > question
help helps | helfen hilf | - | dat | human animal > human animal
follow follows | folgen | - | dat | human animal > human animal vehicle
thank thanks | danken | - | dat | human > human
trust trusts | vertrauen | - | dat | human animal > human animal
obey obeys | gehorchen | - | dat | human animal > human
belong belongs to | gehören | - | dat | thing clothing text vehicle business > human
forgive forgives | vergeben vergib | - | dat | human > human
give gives | geben gib | - | both | human > thing food text clothing
show shows | zeigen | - | both | human > thing text clothing vehicle place
send sends | schicken | - | both | human > thing text clothing
lend lends | leihen | - | both | human > thing text clothing vehicle
bring brings | bringen | - | both | human animal > thing food text clothing
tell tells | erzählen | - | both | human > =story =secret =dream
sleep sleeps | schlafen schläf | - | none | human animal
work works | arbeiten | - | none | human animal
laugh laughs | lachen | - | none | human
sing sings | singen | - | none | human =bird
bark barks | bellen | - | none | =dog =fox
swim swims | schwimmen | - | none | human =duck =frog =dog =bear
wait waits | warten | - | none | human animal
cry cries | weinen | - | none | human
dance dances | tanzen | - | none | human =bear =bee
live lives | leben | - | none | human animal
stand stands | stehen steh | - | none | human animal thing place vehicle
sit sits | sitzen | - | none | human animal
lie lies | liegen | - | none | human animal thing clothing text
fall falls | fallen fäll | - | none | human animal thing text
shine shines | leuchten | - | none | =lamp =candle =ring =window
run runs | laufen läuf | - | goal | human animal
go goes | gehen | - | goal | human animal
drive drives | fahren fähr | - | goal | human vehicle
jump jumps | springen | - | goal | human animal
swim swims | schwimmen | - | goal | human =duck =frog
fly flies | fliegen | - | goal | =bird =owl =bee =goose =duck =ball
hurry hurries | eilen | - | goal | human animal
say says | sagen | - | that | human
think thinks | denken | - | that | human
know knows | wissen | - | that | human animal
believe believes | glauben | - | that | human
hope hopes | hoffen | - | that | human
hear hears | hören | - | that | human animal
dream dreams | träumen | - | that | human
claim claims | behaupten | - | that | human
pick picks up | auf+heben | - | acc | human > thing text clothing food =child
wake wakes up | auf+wecken | - | acc | human animal > human animal
turn turns on | ein+schalten | - | acc | human > =lamp =computer =camera =clock
turn turns off | aus+schalten | - | acc | human > =lamp =computer =camera
turn turns | um+drehen | - | acc | human > =table =page =wheel =picture =blanket =cake
put puts on | an+ziehen | - | acc | human > clothing
take takes off | aus+ziehen | - | acc | human > clothing
take takes along | mit+nehmen nimm | - | acc | human > thing clothing text food animal human
take takes | nehmen nimm | - | acc | human animal > thing food text =cake
let lets in | herein+lassen läss | - | acc | human > human animal
close closes | zu+machen | - | acc | human > opening thing =book
open opens | auf+machen | - | acc | human > opening =box =bag =bottle =jar =umbrella
call calls | an+rufen | - | acc | human > human
invite invites | ein+laden läd | - | acc | human > human
try tries on | an+probieren | - | acc | human > clothing
hang hangs up | auf+hängen | - | acc | human > clothing =picture =towel =mirror =hat
push pushes away | weg+schieben | - | acc | human > thing vehicle
push pushes | schieben | - | acc | human > vehicle =table =box
cross crosses out | durch+streichen | - | acc | human > =word =sentence =line
stir stirs | um+rühren | - | acc | human > =soup =salad =pot
pass passes on | weiter+geben gib | - | acc | human > idea =story =song =hat =report =ball
drop drops off | ab+setzen | - | acc | human vehicle > human
copy copies | ab+schreiben | - | acc | human > text song
prepare prepares | vor+bereiten | - | acc | human > food =report =plan
imitate imitates | nach+machen | - | acc | human animal > human animal
listen listens to | zu+hören | - | dat | human animal > human animal
stand stands by | bei+stehen steh | - | dat | human > human
arrive arrives | an+kommen | - | none | human animal vehicle
depart departs | ab+fahren fähr | - | none | vehicle
get gets up | auf+stehen steh | - | none | human animal
fall falls over | um+fallen fäll | - | none | human animal thing =tree
run runs away | weg+laufen läuf | - | none | human animal
come comes back | zurück+kommen | - | none | human animal vehicle
give gives up | auf+geben gib | - | none | human
leave leaves | weg+gehen | - | none | human
decide decides | treffen triff | eine Entscheidung | none | human
apologize apologizes | bitten | um Entschuldigung | none | human
vacuum vacuums | saugen | Staub | none | human
cycle cycles | fahren fähr | Rad | none | human
ski skis | fahren fähr | Ski | none | human
shower showers | nehmen nimm | eine Dusche | none | human
succeed succeeds | haben hat | Erfolg | none | human
blush blushes | werden | rot | none | human
recover recovers | werden | wieder gesund | none | human animal
rest rests | machen | eine Pause | none | human animal
fear fears | haben hat | Angst | vor:dat | human animal > human animal place
criticize criticizes | üben | Kritik | an:dat | human > human text rule place
influence influences | nehmen nimm | Einfluss | auf:acc | human > human rule
photograph photographs | machen | ein Foto | von:dat | human > human animal place vehicle
consider considers | ziehen | in Betracht | acc | human > idea
protect protects | nehmen nimm | in Schutz | acc | human animal > human animal
finish finishes | bringen | zu Ende | acc | human > text idea song
"""

ADJECTIVES = """
old | alt | any
small | klein | any
big | groß | any
young | jung | human animal
tired | müde müd | human animal
happy | glücklich | human
sad | traurig | human
hungry | hungrig | human animal
clever | klug | human animal
brave | mutig | human animal
friendly | freundlich | human
rich | reich | human
poor | arm | human
lazy | faul | human
sick | krank | human animal
famous | berühmt | human place text song
strong | stark | human animal
shy | schüchtern | human
loyal | treu | human animal
cruel | grausam | human
blind | blind | human animal
wild | wild | animal
fat | dick | animal text
white | weiß | animal thing clothing
black | schwarz | animal thing clothing vehicle
red | rot | thing clothing vehicle
green | grün | thing clothing vehicle
blue | blau | thing clothing vehicle
new | neu | thing clothing vehicle text idea place song rule
heavy | schwer | thing
broken | kaputt | thing vehicle
clean | sauber | thing clothing place part
dirty | schmutzig | thing clothing vehicle part
cheap | billig | thing clothing food vehicle
expensive | teuer teur | thing clothing food vehicle
wooden | hölzern | tool
rusty | rostig | tool
sharp | scharf | tool
shiny | glänzend | tool
wet | nass | clothing
warm | warm | clothing food
sweet | süß | food
fresh | frisch | food
dry | trocken | food
long | lang | text part drawing
short | kurz | text idea drawing
exciting | spannend | text
boring | langweilig | text idea
important | wichtig | idea text rule
wrong | falsch | idea thing text
good | gut | idea text food song
bad | schlecht | idea text food song
secret | geheim | idea text
quiet | ruhig | place
beautiful | schön | place song thing clothing
dark | dunkel dunkl | place
loud | laut | song
fast | schnell | vehicle
slow | langsam | vehicle
pretty | hübsch | thing
tiny | winzig | thing animal
clear | klar | idea
"""

ADVERBS = """
today | heute | time
now | jetzt | time
soon | bald | time
tomorrow | morgen | time
tonight | heute Abend | time
daily | jeden Tag | time
yearly | jedes Jahr | time
immediately | auf der Stelle | time
meanwhile | in der Zwischenzeit | time
often | oft | frequency
always | immer | frequency
seldom | selten | frequency
never | nie | frequency
sometimes | ab und zu | frequency
slowly | langsam | manner
quickly | schnell | manner
quietly | leise | manner
gladly | gern | manner
carefully | vorsichtig | manner
there | dort | place
here | hier | place
outside | draußen | place
upstairs | oben | place
inside | drinnen | place
downstairs | unten | place
"""

PREPOSITIONS = """
in | in | dat | in
on | auf | dat | on
near | bei | dat | place thing vehicle human
behind | hinter | dat | place thing vehicle human
beside | neben | dat | place thing vehicle human
under | unter | dat | table tree
next to | neben | dat | place thing vehicle
in front of | vor | dat | place thing vehicle
with | mit | dat | animal clothing tool instrument
without | ohne | acc | clothing tool
for | für | acc | cue
into | in | acc | goal:in
to | zu | dat | goal:place
through | durch | acc | goal:in
"""

FIRST_NAMES = """
Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karla Leo Mila Noah Olga Paul Rosa Simon Tina Viktor
Ada Bruno Elsa Fritz Hanna Ivan Julia Kurt Lena Max Nina Otto Petra Rudi Sofia Theo Ulla Vera Walter Zoe
"""
