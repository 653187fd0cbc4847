"""Stop-words: words that do not make a phrase of their own, in lower case, as the Moses tokeniser splits them.

Articles, pronouns, forms of the auxiliary and modal verbs, prepositions, conjunctions and particles. We wrote the lists.
"""

from __future__ import annotations

from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.text.lines import read_lines

_ENGLISH = """
a an the this that these those
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves one oneself
who whom whose which what whoever whatever whichever
am is are was were be been being have has had having do does did doing done
can could may might must shall should will would ought cannot
and or but nor so yet if because as until while although though unless since whether than
of at by for with without about against between among into onto through during before after above below to from up down in
out on off over under upon within along across behind beyond near toward towards
again further then once here there when where why how
all any both each few more most other another some such every either neither many much several
no not only own same too very just also even still ever never now
s t d m o ll re ve don didn doesn isn aren wasn weren hasn haven hadn won wouldn couldn shouldn mustn needn ain
's 't 'd 'm 'll 're 've n't
&apos;s &apos;t &apos;d &apos;m &apos;ll &apos;re &apos;ve n&apos;t
"""

_GERMAN = """
der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner keines dieser diese dieses diesen
diesem jener jene jenes jenen jenem derselbe dieselbe dasselbe solcher solche solches solchen solchem ich mich mir du dich dir
er ihn ihm sie es wir uns ihr euch ihnen sich selbst man einander mein meine meinen meinem meiner meines dein deine deinen
deinem deiner deines sein seine seinen seinem seiner seines ihre ihren ihrem ihrer ihres unser unsere unseren unserem unserer
unseres euer eure euren eurem eurer eures wer wen wem wessen was welcher welche welches welchen welchem wann wo woher wohin
warum weshalb wieso wie bin bist ist sind seid war warst waren wart wäre wärst wären gewesen habe hast hat haben habt hatte
hattest hatten hattet hätte hättest hätten hättet gehabt werde wirst wird werden werdet wurde wurdest wurden wurdet würde
würdest würden würdet worden geworden kann kannst können könnt konnte konntest konnten könnte könntest könnten muss musst
müssen müsst musste musstest mussten müsste müssten darf darfst dürfen dürft durfte durften dürfte dürften mag magst mögen
mochte mochten möchte möchtest möchten möchtet soll sollst sollen sollt sollte solltest sollten will willst wollen wollt
wollte wolltest wollten und oder aber denn sondern doch dass daß ob wenn weil da als obwohl während bevor nachdem bis falls
damit sobald solange indem sowie in im ins an am ans auf aufs aus bei beim mit nach seit von vom zu zum zur durch für fürs
gegen ohne um über übers unter vor vorm hinter hinterm neben zwischen wegen trotz statt ab außer innerhalb außerhalb entlang
gegenüber nicht nichts nie niemals nur auch noch schon sehr so zu mehr viel viele vielen wenig wenige alle allem allen aller
alles jede jedem jeden jeder jedes manche manchen mancher einige einigen einiger etwas jemand niemand beide beiden andere
anderen anderer anderes hier da dort dann nun jetzt immer wieder ja nein mal eben halt wohl also gar ganz zwar dabei dafür
dagegen daher damals danach daran darauf daraus darin darum darunter darüber davon davor dazu hin her gern gerne gerade einmal
' s dessen deren denen sei seien derselben denselben demselben dieselben derjenige diejenige dasjenige diejenigen ums hinters
unters weder sowohl jedoch deshalb deswegen womit wofür wobei mehrere mehreren per pro samt ’
"""

_FRENCH = """
le la les l' un une des du de d' au aux ce cet cette ces c' ça cela ceci je j' me m' moi tu te t' toi il elle on se s' soi
nous vous ils elles eux lui leur leurs en y mon ma mes ton ta tes son sa ses notre nos votre vos mien mienne tien tienne sien
sienne nôtre vôtre même mêmes qui que qu' quoi dont où quel quelle quels quelles lequel laquelle lesquels lesquelles auquel
duquel quand comment pourquoi combien suis es est sommes êtes sont étais était étions étiez étaient serai seras sera serons
serez seront serais serait seraient fut furent soit sois soyez soient étant être ai as a avons avez ont avais avait aviez
avaient aurai auras aura aurons aurez auront aurais aurait auraient eut eurent aie ait aient eu ayant avoir peux peut pouvons
pouvez peuvent pouvait pourrait pouvoir dois doit devons devez doivent devait devrait devoir veux veut voulons voulez veulent
voulait voudrait vais vas va allons allez vont et ou mais ni car donc si comme lorsque lorsqu' puisque puisqu' quoique quoiqu'
parce afin alors tandis à dans par pour sur sous avec sans entre vers chez contre depuis dès pendant avant après devant
derrière jusque jusqu' selon malgré parmi hors près loin lors ne n' pas plus jamais rien aucun aucune non oui très trop peu
beaucoup bien aussi encore déjà toujours tout toute tous toutes autre autres chaque plusieurs quelque quelques certain
certaine certains certaines tel telle tels telles ici là puis ensuite ainsi cependant seulement moins tant autant ' est-ce
celui celle ceux celles chacun chacune quelqu' miens miennes tiens tiennes siens siennes nôtres vôtres soyons ayons ayez fût
eût pouvaient devaient pourraient devraient voudraient faut via durant sauf voici voilà l d j n c m t s qu ’
"""

# The released code rejects a phrase with any of these.
_RELEASED = "the an a ve ll i s d m re t"

_OF_LANGUAGES = {"en": _ENGLISH, "de": _GERMAN, "fr": _FRENCH}
LANGUAGES = frozenset(_OF_LANGUAGES)
STOP_WORDS = {
    name: frozenset(text.split()) for name, text in {**_OF_LANGUAGES, "released": _RELEASED, "none": ""}.items()
}


def read_stop_words(path: str | Path) -> frozenset[str]:
    """The words of a file (plain, .gz, .xz), one per line, in lower case; blank lines are skipped. Raises DataError."""
    words = set()
    for number, line in enumerate(read_lines(path), 1):
        word = line.strip()
        if " " in word:
            raise DataError(
                f"{word!r} is more than one word", file=path, line=number, hint="write one stop-word per line"
            )
        words.add(word.lower())
    return frozenset(words - {""})
