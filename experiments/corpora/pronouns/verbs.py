# SPDX-License-Identifier: Apache-2.0
"""The verbs in three languages, with the preposition and the German case of their object.

All take "haben" and "avoir". No English past equals its base form ("put"), so the English sentence
determines the tense.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

NO_PREPOSITION = ("", "", "")


# eq=False compares by identity: there is one object per verb.
@dataclass(frozen=True, slots=True, eq=False)
class EnglishVerb:
    """English forms: base, third person singular, past, past participle."""

    base: str
    third: str
    past: str
    participle: str


@dataclass(frozen=True, slots=True, eq=False)
class GermanVerb:
    """German forms of the third person; the present plural is the infinitive."""

    infinitive: str
    present: str
    past: str
    past_plural: str
    participle: str


@dataclass(frozen=True, slots=True, eq=False)
class FrenchVerb:
    """French forms of the third person, and the past participle."""

    present: str
    present_plural: str
    future: str
    future_plural: str
    participle: str


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with one object, direct or after a preposition.

    Attributes:
      name: English base form with its preposition; the key of the row.
      preposition: the English, German and French preposition, or `NO_PREPOSITION`.
      german_case: case of the German object, "accusative" or "dative".
      french_imperfect: singular and plural imparfait of a verb of state ("fits into"), which is its
        past in place of the passé composé; such verbs have no perfect here.
    """

    name: str
    english: EnglishVerb
    german: GermanVerb
    french: FrenchVerb
    preposition: tuple[str, str, str]
    german_case: str
    french_imperfect: tuple[str, str] | None

    @property
    def state(self) -> bool:
        """Whether the verb describes a state, not an action."""
        return self.french_imperfect is not None


def _verb(
    english: str,
    german: str,
    french: str,
    preposition: tuple[str, str, str] = NO_PREPOSITION,
    german_case: str = "accusative",
    french_imperfect: tuple[str, str] | None = None,
) -> Verb:
    forms = EnglishVerb(*english.split())
    return Verb(
        f"{forms.base} {preposition[0]}".strip(),
        forms,
        GermanVerb(*german.split()),
        FrenchVerb(*french.split()),
        preposition,
        german_case,
        french_imperfect,
    )


# English: base third past participle.  German: infinitive present past past-plural participle.
# French: present singular plural, future singular plural, participle.
# fmt: off
_ROWS = (
    _verb("cross crosses crossed crossed",
          "überqueren überquert überquerte überquerten überquert",
          "traverse traversent traversera traverseront traversé"),
    _verb("use uses used used",
          "benutzen benutzt benutzte benutzten benutzt",
          "utilise utilisent utilisera utiliseront utilisé"),
    _verb("block blocks blocked blocked",
          "blockieren blockiert blockierte blockierten blockiert",
          "bloque bloquent bloquera bloqueront bloqué"),
    _verb("climb climbs climbed climbed",
          "erklimmen erklimmt erklomm erklommen erklommen",
          "escalade escaladent escaladera escaladeront escaladé"),
    _verb("avoid avoids avoided avoided",
          "meiden meidet mied mieden gemieden",
          "évite évitent évitera éviteront évité"),
    _verb("leave leaves left left",
          "verlassen verlässt verließ verließen verlassen",
          "quitte quittent quittera quitteront quitté"),
    _verb("eat eats ate eaten",
          "fressen frisst fraß fraßen gefressen",
          "mange mangent mangera mangeront mangé"),
    _verb("drink drinks drank drunk",
          "trinken trinkt trank tranken getrunken",
          "boit boivent boira boiront bu"),
    _verb("drink drinks drank drunk",
          "trinken trinkt trank tranken getrunken",
          "boit boivent boira boiront bu",
          ("from", "aus", "dans"), "dative"),
    _verb("sleep sleeps slept slept",
          "schlafen schläft schlief schliefen geschlafen",
          "dort dorment dormira dormiront dormi",
          ("in", "in", "dans"), "dative"),
    _verb("sleep sleeps slept slept",
          "schlafen schläft schlief schliefen geschlafen",
          "dort dorment dormira dormiront dormi",
          ("on", "auf", "sur"), "dative"),
    _verb("pull pulls pulled pulled",
          "ziehen zieht zog zogen gezogen",
          "tire tirent tirera tireront tiré"),
    _verb("push pushes pushed pushed",
          "schieben schiebt schob schoben geschoben",
          "pousse poussent poussera pousseront poussé"),
    _verb("carry carries carried carried",
          "tragen trägt trug trugen getragen",
          "porte portent portera porteront porté"),
    _verb("transport transports transported transported",
          "transportieren transportiert transportierte transportierten transportiert",
          "transporte transportent transportera transporteront transporté"),
    _verb("open opens opened opened",
          "öffnen öffnet öffnete öffneten geöffnet",
          "ouvre ouvrent ouvrira ouvriront ouvert"),
    _verb("catch catches caught caught",
          "fangen fängt fing fingen gefangen",
          "attrape attrapent attrapera attraperont attrapé"),
    _verb("chase chases chased chased",
          "verfolgen verfolgt verfolgte verfolgten verfolgt",
          "poursuit poursuivent poursuivra poursuivront poursuivi"),
    _verb("see sees saw seen",
          "sehen sieht sah sahen gesehen",
          "voit voient verra verront vu"),
    _verb("watch watches watched watched",
          "beobachten beobachtet beobachtete beobachteten beobachtet",
          "observe observent observera observeront observé"),
    _verb("find finds found found",
          "finden findet fand fanden gefunden",
          "trouve trouvent trouvera trouveront trouvé"),
    _verb("fit fits fitted fitted",
          "passen passt passte passten gepasst",
          "tient tiennent tiendra tiendront tenu",
          ("into", "in", "dans"), "accusative", ("tenait", "tenaient")),
)
# fmt: on

VERBS: Mapping[str, Verb] = MappingProxyType({verb.name: verb for verb in _ROWS})
