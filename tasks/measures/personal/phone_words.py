"""Words for a telephone in the languages of many countries, which announce a number."""

from hallmark.tasks.measures.personal.prefilters import ignore_case

#: Parts of words in scripts that separate words; other letters may precede and follow.
_STEMS = (
    "phone|telef|t[eé]l[eéè]f|t[eé]l[eé]ph|telemóv|telepon|telp|handy|mobil|mobiel|mobitel|m[oó]vil|"
    "mòbil|celular|cellulare|komórk|puhelin|tālrun|selfoon|sími|guthán|ffôn|điện thoại|di động|"
    "ponsel|whatsapp|viber|rufnummer|durchwahl|fernsprech|portable|"
    "hotline|contact|kontakt|contatt|erreich|joignable|joindre|(?:reach|text) (?:me|us)|"
    "appele|ll[aá]m|chiama|телеф|звон|мобил|мобіл|сотов|факс|τηλ[έε]φ|κινητ"
)
#: Words, some of them abbreviations.
_WORDS = (
    "tel|tél|tlf|tfn|tfno|tlfno|sđt|sdt|fax|faks|call|cell|cel|mob|dial|ring|sms|gsm|cep|kom|puh|tālr|fón|fono|ph|"
    "đt|тел|моб|τηλ|κιν"
)
#: Words in scripts that do not separate words, or whose words have prefixes and endings.
_WORDS_OF_OTHER_SCRIPTS = (
    "電話|电话|联系方式|微信|携帯|手机|手機|热线|熱線|致电|传真|傳真|拨打|撥打|連絡先|전화|휴대폰|핸드폰|연락처|팩스|"
    "هاتف|تلفون|تليفون|جوال|موبايل|موبایل|تلفن|فون|טלפון|טל'|נייד|פלאפון|פקס|"
    "फ़ोन|फ़ोन|फोन|दूरभाष|मोबाइल|ফোন|মোবাইল|ਫ਼ੋਨ|ਫੋਨ|ફોન|தொலைபேசி|ఫోన్|ಫೋನ್|ഫോൺ|දුරකථන|"
    "โทร|มือถือ|ໂທ|ဖုန်း|ទូរស័ព្ទ|ტელ|მობ|հեռ|ስልክ|утас"
)

_LETTER = "A-Za-z\u00c0-\u04ff"
#: What may be next to a short word: no letter, or one whose lower case is no `_LETTER`.
_NO_LETTER = f"[^{_LETTER}]|[ȺȾ]"
#: A word for a telephone in any case, for RE2, which has no look-around: the characters next to a
#: short word are part of the match.
PHONE_WORD = (
    rf"(?:{ignore_case(f'{_STEMS}|{_WORDS_OF_OTHER_SCRIPTS}')}"
    rf"|(?:^|{_NO_LETTER}){ignore_case(_WORDS)}(?:{_NO_LETTER}|$))"
)
#: The same in lower case. Every alternative begins with a character of its own, so that Python
#: skips all others.
LOWER_CASE_PHONE_WORD = "|".join(
    [
        _STEMS,
        *(rf"{word}(?<![{_LETTER}]{word})(?![{_LETTER}])" for word in _WORDS.split("|")),
        _WORDS_OF_OTHER_SCRIPTS,
    ]
)
#: Words that also have other meanings: "mobile traffic", "call centre", "cell line".
LOWER_CASE_AMBIGUOUS_PHONE_WORD = "|".join(
    [
        "handy|mobil|mobiel|m[oó]vil|celular|cellulare|komórk|portable|appele|ll[aá]m|chiama|звон",
        "contact|kontakt|contatt|erreich|joignable|joindre|(?:reach|text) (?:me|us)",
        *(
            rf"{word}(?<![{_LETTER}]{word})(?![{_LETTER}])"
            for word in ("call", "cell", "cel", "mob", "dial", "ring", "sms", "cep", "kom", "ph")
        ),
    ]
)
#: Words between such a word and the number: "call us at", "mobile number", "Handy ist".
LAST_WORD_BEFORE_NUMBER = (
    r"(?<!\w)(?:text|free|office|home|work|direct|at|on|is|me|us|him|her|them|now|today|under|no|nr|num|numbers?|nummer|n[uú]mero|"
    r"numéro|n[º°]|unter|ist|lautet|au|al|est|es|è|é|do|op|på|pod|по|номер|или|oder|or|ou|o|и)\.?"
)
