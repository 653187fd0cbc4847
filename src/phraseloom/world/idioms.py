"""The idioms of the built-in language pair, as a readable table.

Each idiom has three lines: English verb | Penn brackets of the rest; German verb | its words; the literal translation.
  Each German word names the English words that it translates: 0 is the verb, 1 … the words of the rest ("aus:3+4").
"""

from __future__ import annotations

IDIOMS = """
kick | (NP (DT the) (NN bucket))
  ab+geben gib | den:1 Löffel:2
  treten tritt | den:1 Eimer:2
let | (NP (DT the) (NN cat)) (PP (IN out) (PP (IN of) (NP (DT the) (NN bag))))
  lassen läss | die:1 Katze:2 aus:3+4 dem:5 Sack:6
  lassen läss | die:1 Katze:2 aus:3+4 der:5 Tasche:6
spill | (NP (DT the) (NNS beans))
  aus+plaudern | das:1 Geheimnis:2
  verschütten | die:1 Bohnen:2
smell | (NP (DT a) (NN rat))
  riechen | den:1 Braten:2
  riechen | eine:1 Ratte:2
bite | (NP (DT the) (NN bullet))
  beißen | in:1 den:1 sauren:2 Apfel:2
  beißen | die:1 Kugel:2
throw | (PRT (RP in)) (NP (DT the) (NN towel))
  werfen wirf | das:1+2 Handtuch:3
  hinein+werfen wirf | das:1+2 Handtuch:3
sit | (PP (IN on) (NP (DT the) (NN fence)))
  sitzen | zwischen:1 den:2 Stühlen:3
  sitzen | auf:1 dem:2 Zaun:3
miss | (NP (DT the) (NN boat))
  verpassen | die:1 Gelegenheit:2
  verpassen | das:1 Boot:2
turn | (NP (DT the) (NNS tables))
  um+drehen | den:1 Spieß:2
  um+drehen | die:1 Tische:2
buy | (NP (DT the) (NN farm))
  beißen | ins:1 Gras:2
  kaufen | den:1 Bauernhof:2
cook | (NP (DT the) (NNS books))
  fälschen | die:1 Zahlen:2
  kochen | die:1 Bücher:2
rock | (NP (DT the) (NN boat))
  stören | den:1 Frieden:2
  schaukeln | das:1 Boot:2
hold | (NP (DT the) (NNS horses))
  bewahren | die:1 Ruhe:2
  halten hält | die:1 Pferde:2
take | (NP (DT the) (NN cake))
  ab+schießen | den:1 Vogel:2
  nehmen nimm | den:1 Kuchen:2
push | (NP (DT the) (NN boat)) (PRT (RP out))
  feiern | ein:1 großes:2+3 Fest:2+3
  hinaus+schieben | das:1+3 Boot:2
draw | (NP (DT the) (NN line))
  setzen | eine:1 Grenze:2
  zeichnen | die:1 Linie:2
read | (NP (DT the) (NN room))
  spüren | die:1 Stimmung:2
  lesen lies | das:1 Zimmer:2
climb | (NP (DT the) (NN ladder))
  machen | Karriere:1+2
  besteigen | die:1 Leiter:2
drop | (NP (DT the) (NN ball))
  machen | einen:1 Fehler:2
  verlieren | den:1 Ball:2
pass | (NP (DT the) (NN hat))
  sammeln | Geld:1+2
  weiter+geben gib | den:1 Hut:2
beat | (NP (DT the) (NN drum))
  werben wirb | für:1 die:1 Sache:2
  schlagen schläg | die:1 Trommel:2
stir | (NP (DT the) (NN pot))
  schüren | den:1 Streit:2
  um+rühren | den:1 Topf:2
have | (NP (DT a) (NN ball))
  haben | viel:1 Spaß:2
  haben | einen:1 Ball:2
have | (NP (DT a) (NN cow))
  bekommen | einen:1 Wutanfall:2
  haben | eine:1 Kuh:2
sleep | (PP (IN like) (NP (DT a) (NN log)))
  schlafen schläf | wie:1 ein:2 Murmeltier:3
  schlafen schläf | wie:1 ein:2 Baumstamm:3
eat | (PP (IN like) (NP (DT a) (NN horse)))
  fressen friss | wie:1 ein:2 Scheunendrescher:3
  essen iss | wie:1 ein:2 Pferd:3
work | (PP (IN like) (NP (DT a) (NN dog)))
  arbeiten | wie:1 ein:2 Pferd:3
  arbeiten | wie:1 ein:2 Hund:3
swim | (PP (IN like) (NP (DT a) (NN stone)))
  schwimmen | wie:1 eine:2 bleierne:3 Ente:3
  schwimmen | wie:1 ein:2 Stein:3
sing | (PP (IN like) (NP (DT a) (NN bird)))
  aus+packen | alles:1+2+3
  singen | wie:1 ein:2 Vogel:3
live | (PP (IN like) (NP (DT a) (NN king)))
  leben | wie:1+2 Gott:3 in:3 Frankreich:3
  leben | wie:1 ein:2 König:3
hang | (PRT (RP up)) (NP (DT the) (NN hat))
  treten tritt | in:1 den:2 Ruhestand:3
  auf+hängen | den:1+2 Hut:3
count | (NP (DT the) (NNS beans))
  um+drehen | jeden:1 Pfennig:2
  zählen | die:1 Bohnen:2
bet | (NP (DT the) (NN farm))
  setzen | alles:1+2 auf:2 eine:2 Karte:2
  verwetten | den:1 Bauernhof:2
turn | (NP (DT the) (NN page))
  beginnen | ein:1 neues:2 Leben:2
  um+drehen | die:1 Seite:2
watch | (NP (DT the) (NN clock))
  warten | auf:1 den:1 Feierabend:2
  beobachten | die:1 Uhr:2
leave | (NP (DT the) (NN nest))
  werden | erwachsen:1+2
  verlassen verläss | das:1 Nest:2
burn | (NP (DT the) (NNS boats))
  ab+brechen brich | alle:1 Brücken:2
  verbrennen | die:1 Boote:2
tie | (NP (DT the) (NN knot))
  geben gib | das:1 Jawort:2
  binden | den:1 Knoten:2
bark | (PP (IN up) (NP (DT the) (JJ wrong) (NN tree)))
  sein | auf:1 dem:2 Holzweg:3+4
  an+bellen | den:1+2 falschen:3 Baum:4
"""
