"""Test that the text of web pages survives, whatever the names and markup of its elements."""

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import page_content, page_markup
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.web_pages import extract_page_text
from tests.tasks.corpus.reader_helpers import get_texts
from tests.tasks.corpus.test_warc import make_page, read_archive

NAMES = [
    "search",
    "related",
    "legal",
    "menu",
    "gallery",
    "copyright",
    "sidebar",
    "banner",
    "dropdown",
    "nav",
    "navigation",
    "navbar",
    "featured",
    "popular",
    "trending",
    "recommended",
    "carousel",
    "sponsor",
    "donate",
    "right",
    "header",
    "wp-header",
    "link-list",
    "nav-container",
    "related-links",
]
SENTENCES = [
    "The mill by the river ground wheat for eleven villages until the spring flood.",
    "Its owner kept a ledger in which each sack was weighed, priced and signed for.",
    "A storm took the roof in the autumn, and the wheel stood still for two years.",
]
both_modes = pytest.mark.parametrize("main_content", [True, False])


def extract_words(inner, main_content=True, **options):
    page = f"<!DOCTYPE html><html><head><title>t</title></head><body>{inner}</body></html>"
    return " ".join(extract_page_text(page, main_content, **options).split())


# Names of page parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "footer", "cookie", "modal", "popup", "subscribe"])
@pytest.mark.parametrize("attribute", ["class", "id"])
@pytest.mark.parametrize(
    "content",
    [
        "<section {}><h2>On it</h2><p>{}</p></section>",
        "<div {}>{}</div>",
        "<p {}>{}</p>",
        "<div><div {}><div><p>{}</p></div></div></div>",
        "<table {}><tr><td>{}</table>",
        "<dl><dt>On it<dd {}>{}</dl>",
    ],
)
def test_prose_in_main_content_survives_whatever_it_is_called(name, attribute, content):
    names = f'{attribute}="{name}"'
    for wrap in ("<main>{}</main>", "<article>{}</article>", "<div role=main>{}</div>"):
        inner = f"<p>{SENTENCES[0]}</p>{content.format(names, SENTENCES[1])}"
        assert SENTENCES[1] in extract_words(wrap.format(inner))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attribute", ["class", "id"])
def test_prose_outside_main_content_survives(name, attribute):
    inner = f'<section {attribute}="{name}"><h2>On it</h2><p>{SENTENCES[1]}</p></section>'
    assert SENTENCES[1] in extract_words(f"<p>{SENTENCES[0]}</p>{inner}")


@pytest.mark.parametrize("name", [*NAMES, "footer", "cookie", "modal", "popup", "print-area"])
def test_the_element_with_most_prose_survives(name):
    prose = "".join(f"<p>{sentence}</p>" for sentence in SENTENCES * 2)
    page = f'<div id="{name}"><form><input>{prose}</form></div><div><p>{SENTENCES[0]}</p></div>'
    assert extract_words(page).count(SENTENCES[2]) == 2
    # Half of the prose is enough, and less is not.
    half = f'<div id="{name}"><form><input>{prose}</form></div>'
    links = f"<nav><a href=a>{SENTENCES[0]}</a></nav>"
    assert extract_words(half + prose + links).count(SENTENCES[2]) == 4
    assert extract_words(half + prose + "<p>And more.").count(SENTENCES[2]) == 2


@pytest.mark.parametrize(("word_count", "is_kept"), [(49, False), (50, True)])
def test_words_without_a_sentence_are_main_content_if_they_have_200_letters(word_count, is_kept):
    words = " ".join(["word"] * word_count)
    expected = f"One. {words}" if is_kept else "One."
    assert extract_words(f'<p>One.</p><div class="popular">{words}</div>') == expected


@pytest.mark.parametrize(
    "content",
    [
        '<section id="legal"><h2>Legal aspects</h2><p>It is so.</p></section>',
        '<div class="section" id="search"><h2>The Search</h2><p>It is so.</p></div>',
        '<section id="related-work"><h2>1. Related work</h2><p>It is so.</p></section>',
        '<section id="popup"><h3>A popup</h3><p>It is so.</p></section>',
        '<h2 id="search">Search</h2><p>It is so.</p>',
        '<main><h2 class="menu">Search</h2><p>It is so.</p></main>',
        '<section id="search"><h2>Search<a href="#search">¶</a></h2><p>It is so.</p></section>',
        '<div id="legal"><h2><a href="a#legal">Legal</a></h2><p>It is so. It is by law.</p></div>',
        '<h2 id="search">Search <a href="#search">#</a></h2><p>It is so.</p>',
        '<pre class="menu">It is so.</pre>',
        '<blockquote class="twitter-tweet">It is so. <a href=a>@anna</a></blockquote>',
        "<blockquote><p>x</p><footer>It is so.</footer></blockquote>",
    ],
)
def test_anchors_headings_code_and_quotations_survive(content):
    assert "It is so." in extract_words(f"<p>{SENTENCES[0]}</p><div><div>{content}</div></div>")
    if "earch</h2>" in content:
        assert "earch" in extract_words(f"<p>{SENTENCES[0]}</p>{content}")


TEASER = "And then they lived happily, until the storm came."


@pytest.mark.parametrize(
    "content",
    [
        '<div class="related"><h3><a href=a>More</a></h3><p>{}</p></div>',
        '<div class="related"><a href=a><h3>More</h3></a><p>{}</p></div>',
        '<div class="related"><a href=a>{}</a></div>',
        '<a href=a><div class="related">{}</div></a>',
        '<div class="menu"><p>{}</p><ul><li><a>Home page</a><li><a>News of us</a></ul></div>',
        '<div class="search"><form><p>{}</p><input></form></div>',
        '<form class="search"><p>{}</p><select></select></form>',
        '<div id="sidebar"><p>{}</p><textarea></textarea></div>',
        '<div class="copyright"><p>© 2020. {}</p></div>',
        '<nav class="menu"><p>{}</p></nav>',
        '<footer class="legal"><p>{}</p></footer>',
        '<footer><div class="legal"><p>{}</p></div></footer>',
        '<header class="banner"><div class=menu><p>{}</p></div></header>',
        '<aside class="sidebar"><p>{}</p></aside>',
        "<aside><h3><a href=a>More</a></h3><p>{}</p></aside>",
        '<div class="related hidden"><p>{}</p></div>',
        '<div class="related is-invisible"><p>{}</p></div>',
        '<div class="related" style="display:none"><p>{}</p></div>',
        '<div class="related" hidden><p>{}</p></div>',
    ],
)
def test_teasers_forms_notices_and_hidden_parts_are_left_out(content):
    for wrap in ("<main>{}</main>", "{}"):
        page = wrap.format(f"<p>{SENTENCES[0]}</p>{content.format(TEASER)}<p>{SENTENCES[1]}</p>")
        assert extract_words(page) == f"{SENTENCES[0]} {SENTENCES[1]}"


@pytest.mark.parametrize("name", ["footer", "cookie-notice", "modal", "popup", "newsletter"])
def test_notices_outside_main_content_are_left_out(name):
    notice = (
        f'<div class="{name}"><h2>We care</h2><p>This site uses cookies. Do you agree?</p></div>'
    )
    page = f"<div><div><p>{SENTENCES[0]}</p>{notice}</div></div>"
    assert extract_words(page) == SENTENCES[0]


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("Rain again and again", False),
        ("Most popular of all stories", False),
        ("Most popular of all stories.", True),
        ("Wind. Rain, and more", False),
        ("最も人気のある記事は橋の建設についての記事でした。", True),
    ],
)
def test_outside_main_content_an_element_needs_a_sentence(text, is_kept):
    words = extract_words(f'<p>{SENTENCES[0]}</p><div class="popular">{text}</div>')
    assert (text in words) is is_kept


def test_only_some_of_many_named_elements_are_read(monkeypatch):
    page = f"<main><p>x</p>{f'<p class=related>{SENTENCES[0]}</p>' * 3}</main>"
    assert extract_words(page).count(SENTENCES[0]) == 3
    monkeypatch.setattr(page_content, "MAX_READS", 0)
    assert extract_words(page) == "x"


@pytest.mark.parametrize("tag", ["div class=related"])
def test_only_some_of_many_nested_elements_are_examined(tag):
    nested = [f"<main>{f'<{tag}>' * depth}{SENTENCES[0]}</main>" for depth in (8, 9)]
    assert [extract_words(page) for page in nested] == [SENTENCES[0], ""]
    siblings = f"<{tag}>{SENTENCES[0]}</{tag.split()[0]}>" * 9
    assert extract_words(f"<main>{siblings}</main>").count(SENTENCES[0]) == 9


@pytest.mark.parametrize(
    "tags",
    [
        "<ul>",
        "<label>",
        "<div id=a>",
        "<div class=related>",
        "<div class=x role=dialog>",
        "<aside>",
    ],
)
@pytest.mark.parametrize("main_content", [True, False])
def test_thousands_of_nested_elements_are_read_in_little_time(tags, main_content):
    """Lists took 12 s and labels 35 s; now about 1 s, so allow 4 s for any machine."""
    page = f"<main><p>{SENTENCES[0]}</p>{tags * 6000}<p>{SENTENCES[1]}"
    start = time.process_time()
    words = extract_words(page, main_content)
    assert time.process_time() - start < 4
    assert words.startswith(SENTENCES[0])


def test_content_is_protected_up_to_a_depth():
    block = f'<div class="related"><p>{SENTENCES[1]}</p></div>'
    for depth, is_kept in ((80, True), (120, False)):
        page = f"<main>{'<div>' * depth}{block}{f'<p>{SENTENCES[0]}</p>' * 600}"
        assert (SENTENCES[1] in extract_words(page)) is is_kept


@pytest.mark.parametrize(
    ("content", "is_kept"),
    [
        ("<aside><p>{}</p></aside>", True),
        ("<aside class=note>{}</aside>", True),
        ("<aside><form><p>{}</p></form></aside>", False),
        ("<aside><p>{}</p><p><a href=a>All of our other news and stories</a></aside>", False),
        ("<aside><p>More news</p></aside>", False),
        ("<aside><p>More of our other news and stories</p></aside>", False),
    ],
)
def test_notes_beside_the_main_content_survive(content, is_kept):
    content = content.format(SENTENCES[1])
    page = f"<article><p>{SENTENCES[0]}</p>{content}<p>{SENTENCES[2]}</p></article>"
    expected = [SENTENCES[0], *([SENTENCES[1]] if is_kept else []), SENTENCES[2]]
    assert extract_words(page) == " ".join(expected)
    outside = f"{content}<article><p>{SENTENCES[0]}</p></article>"
    assert extract_words(outside) == SENTENCES[0]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<p>The <span class=share>share</span> rose.</p>", "The share rose."),
        ("<p>See <a class=next href=a>the next</a>, too.</p>", "See the next, too."),
        ("<dl><dt>x<dd>Our <b class=sponsor>sponsor</b> pays.</dl>", "x Our sponsor pays."),
        ("<p>By <a rel=author href=a>Ann</a></p>", "By Ann"),
        ("<p>It was <span itemprop=datePublished>May</span>.</p>", "It was May."),
        ("<p>x <span class='share hidden'>share</span> y</p>", "x y"),
        ("<p>x</p><p><a class=next href=a>next</a></p>", "x"),
        ("<p>x</p><p><a rel=author href=a>Ann</a> <b class=share>2</b></p>", "x"),
    ],
)
def test_words_of_sentences_survive_whatever_they_are_called(inner, expected):
    assert extract_words(f"<div><div>{inner}</div></div>") == expected


@pytest.mark.parametrize("role", ["alert", "banner", "complementary", "presentation", "search"])
def test_prose_in_main_content_survives_with_any_role(role):
    block = f'<div class="x" role="{role}"><p>{SENTENCES[1]}</p></div>'
    page = f"<p>{SENTENCES[0]}</p>{block}"
    assert extract_words(f"<main>{page}</main>") == f"{SENTENCES[0]} {SENTENCES[1]}"
    assert extract_words(f"<div>{page}</div>") == SENTENCES[0]


@pytest.mark.parametrize("attribute", ["role=dialog", "data-ad", "data-ad=1", "role=tab"])
@pytest.mark.parametrize("name", ["", "class=x", "id=x"])
def test_prose_in_main_content_survives_in_dialogs_and_whatever_is_called_an_advertisement(
    attribute, name
):
    block = f"<div {name} {attribute}><p>{SENTENCES[1]}</p></div>"
    page = f"<p>{SENTENCES[0]}</p>{block}<p>{SENTENCES[2]}</p>"
    assert extract_words(f"<article>{page}</article>") == " ".join(SENTENCES)
    long = f"<div {name} {attribute}>{''.join(f'<p>{s}</p>' for s in SENTENCES * 2)}</div>"
    assert extract_words(f"<p>Mill</p>{long}") == f"Mill {' '.join(SENTENCES * 2)}"


@pytest.mark.parametrize(
    "content",
    [
        "<div class=x role=dialog><p>{}</p><button>OK</button></div>",
        "<div class=x role=dialog><p>{}</p><a role=button>OK</a></div>",
        "<div class=x role=dialog><form>{}</form></div>",
        "<div class=x data-ad><a href=a>{}</a></div>",
        "<div class=x data-ad><h3><a href=a>Mill</a></h3>{}</div>",
    ],
)
def test_dialogs_with_buttons_and_linked_advertisements_are_left_out(content):
    page = f"<main><p>{SENTENCES[0]}</p>{content.format(SENTENCES[1])}</main>"
    assert extract_words(page) == SENTENCES[0]


@pytest.mark.parametrize(
    "tag",
    [
        "div id=onetrust-consent-sdk",
        "div id=CybotCookiebotDialog",
        'div class="cc-window cc-banner"',
        "section id=cookie-law-info-bar",
        "aside class=cookieconsent",
        "dialog open id=cookie-consent",
        "form id=cookie-notice",
        "div id=sp_message_container_7",
    ],
)
def test_a_notice_of_a_consent_tool_is_left_out(tag):
    name = tag.split()[0]
    notice = f"<{tag}><div><p>We value your privacy. {SENTENCES[1]}</p></div></{name}>"
    for page in ("<div><p>{}</p></div>{}", "{1}<main><p>{0}</p></main>", "<p>{}</p>{}<p>"):
        assert extract_words(page.format(SENTENCES[0], notice)) == SENTENCES[0]
    assert extract_words(notice) == ""
    assert SENTENCES[1] in extract_words(notice, main_content=False)


def test_a_page_about_consent_to_cookies_is_kept():
    section = f"<section id=cookie-consent><h2>Notice</h2><p>{SENTENCES[1]}</p></section>"
    page = f"<main><p>{SENTENCES[0]}</p>{section}</main>"
    assert extract_words(page) == f"{SENTENCES[0]} Notice {SENTENCES[1]}"


@pytest.mark.parametrize("tag", ["tbody", "tr", "caption", "address", "center", "fieldset", "li"])
def test_prose_survives_in_elements_of_every_kind(tag):
    opening, closing = {
        "tbody": ("<table>", "</table>"),
        "tr": ("<table>", "</table>"),
        "caption": ("<table>", "</table>"),
        "li": ("<ol>", "</ol>"),
    }.get(tag, ("", ""))
    cell = f"<td>{SENTENCES[1]}" if tag in ("tbody", "tr") else SENTENCES[1]
    block = f'{opening}<{tag} class="related">{cell}</{tag}>{closing}'
    words = extract_words(f"<main><p>{SENTENCES[0]}</p>{block}</main>")
    assert words.replace("1. ", "") == f"{SENTENCES[0]} {SENTENCES[1]}"


def test_items_of_a_menu_of_dishes_survive():
    items = "".join(f'<li class="menu-item related" id="search">{x}</li>' for x in ("Soup", "Fish"))
    assert extract_words(f"<p>x</p><ul class=menu>{items}</ul>") == "x • Soup • Fish"


@settings(deadline=None)
@given(
    names=st.lists(st.sampled_from([*NAMES, "a", "wide", "l-grid"]), min_size=1, max_size=3),
    tags=st.lists(st.sampled_from(["div", "section", "article", "table><tr><td"]), max_size=3),
    attribute=st.sampled_from(["class", "id"]),
)
def test_a_paragraph_in_main_survives_in_any_named_elements(names, tags, attribute):
    opening = "".join(f'<{tag} {attribute}="{" ".join(names)}">' for tag in tags)
    closing = "".join(f"</{tag.split('>')[0]}>" for tag in reversed(tags))
    page = f'<main>{opening}<p {attribute}="{names[0]}">{SENTENCES[0]}</p>{closing}</main>'
    assert extract_words(page) == SENTENCES[0]


# Whole pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "<footer><p>{}</p></footer>",
        "<aside><p>{}</p></aside>",
        "<nav><ul><li>{}</li></ul></nav>",
        '<div class="signin"><span class="hidden">{}</span></div>',
    ],
)
def test_a_page_without_main_content_is_kept_whole(write, body):
    page = make_page(f"<html><body>{body.format(SENTENCES[0])}</body></html>".encode())
    documents, errors, _ = read_archive(write, page)
    assert [record.is_whole_page for record in documents] == [True]
    assert (" ".join(get_texts(documents)[0].split()).removeprefix("• "), errors) == (
        SENTENCES[0],
        [],
    )


def test_whole_pages_are_counted(write, session):
    pages = [
        "<footer><p>First, all of the text of this page is in its footer.</p></footer>",
        "<footer><p>Not this.</p></footer><p>The main text of this page is not in its footer.</p>",
        "<p></p>",
    ]
    archive = b"".join(make_page(page.encode()) for page in pages)
    path = write("a.warc", archive)
    for main_content, is_whole_page in ((True, [True, False]), (False, [False, False])):
        source = {
            "name": "s",
            "kind": "warc",
            "path": str(path),
            "licence": "CC0-1.0",
            "main_content": main_content,
        }
        artifact = ingest(IngestConfig(sources=[source]))
        (row,) = artifact["sources"].read().to_pylist()
        assert row["whole_pages"] == sum(is_whole_page)
        origins = sorted(artifact["origins"].read().to_pylist(), key=lambda row: row["location"])
        assert [origin["is_whole_page"] for origin in origins] == is_whole_page


# XHTML -------------------------------------------------------------------------------------------

XHTML_STARTS = [
    '<?xml version="1.0"?><html>',
    "<!DOCTYPE html PUBLIC '-//W3C//DTD XHTML 1.0 Strict//EN' 'x.dtd'><html>",
    '<html lang="en" xmlns="http://www.w3.org/1999/xhtml">',
    "<!DOCTYPE html>\n<HTML xmlns='http://www.w3.org/1999/xhtml'>",
]


@both_modes
@pytest.mark.parametrize("start", XHTML_STARTS)
@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ('<script src="a"/>', "<p>one</p>", "one"),
        ("<title/>", "<p>one</p>", "one"),
        ("<style />", "<p>one</p>", "one"),
        ("", "<p>one</p><iframe src='a>b'/><p>two</p>", "one two"),
        ("", "<p>one</p><textarea\n/><p>two</p><noscript/>three", "one two three"),
        ("", '<div class="nav"/><p>one</p><div id="menu" /><p>two</p>', "one two"),
        ("", '<nav/><p>one<a id="x"/>two</p>', "onetwo"),
        ("", "<p>a <![CDATA[b < c & <d>]]> e</p>", "a b < c & <d> e"),
        ("", "<p>one<br></br>two<br/>three</p>", "one two three"),
        ("", "<?php echo 'a>b' ?><p>one</p>", "one"),
        ("", "<p>one<!-- a --><?x y</p>", "one"),
        ("", "<!-- <title/> <![CDATA[x]]> --><p>one</p>", "one"),
        ("<script>//<![CDATA[\nif (a<b) '<title/>'\n//]]></script>", "<p>one</p>", "one"),
        ("<script>//<![CDATA[ </script>", "<p>one ]]> two</p>", "one ]]> two"),
        ("<style type='a'>/*<![CDATA[*/ x /*]]>*/</style>", "<p>one</p>", "one"),
        ("", "<p>one</p><!-- two <title/>", "one"),
    ],
)
def test_xhtml_is_read_as_xml(start, head, body, expected, main_content):
    page = f"{start}<head>{head}</head><body>{body}</body></html>"
    assert " ".join(extract_page_text(page, main_content).split()) == expected


@both_modes
def test_a_document_type_with_entities_is_no_text(main_content):
    page = (
        '<?xml version="1.0"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0//EN" "x.dtd" ['
        '<!ENTITY a "b"> <!ENTITY c "d"> ]><html><body><p>one</p></body></html>'
    )
    assert extract_page_text(page, main_content) == "one"


@both_modes
def test_xhtml_may_have_a_prefix(main_content):
    page = (
        '<?xml version="1.0"?><h:html xmlns:h="http://www.w3.org/1999/xhtml"><h:head><h:title/>'
        "</h:head><h:body><h:p>one</h:p><h:p>two</h:p></h:body></h:html>"
    )
    assert extract_page_text(page, main_content) == "one\n\ntwo"


@pytest.mark.parametrize(
    "piece", ["<!--", "<![CDATA[", "<script ", "<a", "<a '\"", "<?", "<!DOCTYPE x ["]
)
def test_the_time_for_xhtml_is_linear(piece):
    start = time.process_time()
    page_markup.repair_markup('<?xml version="1.0"?>' + piece * 200_000, main_content=True)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("kind", "expected"), [("application/xhtml+xml", "one two"), ("text/html", "one")]
)
def test_the_content_type_may_say_xhtml(write, kind, expected):
    page = make_page(b"<html><body><p>one</p><iframe/><p>two</p></body></html>", kind=kind)
    documents, _, _ = read_archive(write, page)
    assert " ".join(get_texts(documents)[0].split()) == expected


@both_modes
def test_html_is_not_read_as_xml(main_content):
    assert extract_words("<p>one</p><iframe src=x /><p>two</p>", main_content) == "one"
    page = '<?xml version="1.0"?><p><a href=http://a.example/>one</a> two</p>'
    assert extract_page_text(page, main_content) == "one two"
    assert page_markup.repair_markup(page, main_content) == page.replace(
        '<?xml version="1.0"?>', ""
    )


@settings(deadline=None)
@given(
    tag=st.sampled_from(["script", "title", "div", "i", "iframe", "x-y", "textarea", "svg"]),
    values=st.lists(st.text("ab<>/'& \n"), max_size=3),
    space=st.sampled_from(["", " ", "\n"]),
)
def test_an_element_that_closes_itself_hides_no_text(tag, values, space):
    attributes = "".join(f' a{n}="{value}"' for n, value in enumerate(values))
    page = f"{XHTML_STARTS[0]}<body><p>one</p><{tag}{attributes}{space}/><p>two</p></body></html>"
    assert extract_page_text(page, main_content=True).split() == ["one", "two"]


# Buttons, formulas, lists and code ---------------------------------------------------------------


@both_modes
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<p>The <button>mill</button> ground wheat.</p>", "The mill ground wheat."),
        ("<p>The <label for=x><b>old</b> mill</label> stood.</p>", "The old mill stood."),
        ("<p><button>Mill</button> is a noun.</p>", "Mill is a noun."),
        ("<p>This is a <button>mill</button>.</p>", "This is a mill."),
        ("<h3><button aria-expanded=false>Why a mill?</button></h3>", "Why a mill?"),
        ("<details open><summary><label>Why?</label></summary>x</details>", "Why?x"),
        ("<main><p>x</p><input id=a><label for=a>Why?</label></main>", "x Why?"),
        ("<main><ul><li><label><input> Buy milk</label></li></ul></main>", "• Buy milk"),
        ("<main><p>x</p><form><div><label>Name</label></div></form></main>", "x"),
        ("<p>x</p><div><button>Share</button></div>", "x"),
        ("<p>x</p><p><label>Name</label> <input></p>", "x"),
        ("<p>x</p><div><label>Name</label>*<input></div>", "x *"),
        ("<p>x</p><form><label>Name</label> <button>Go</button></form>", "x"),
    ],
)
def test_buttons_and_labels_in_sentences_are_text(inner, expected, main_content):
    assert extract_words(inner, main_content) == expected


@both_modes
@pytest.mark.parametrize(
    "formula",
    [
        "<math><semantics><mi>x</mi><annotation encoding='application/x-tex'>y</annotation>"
        "</semantics></math>",
        "<math><semantics><mi>x</mi><annotation-xml>y</annotation-xml></semantics></math>",
        "<span class=katex><span class=katex-mathml><math><semantics><mi>x</mi>"
        "<annotation>y</annotation></semantics></math></span>"
        "<span class=katex-html>x</span></span>",
    ],
)
def test_a_formula_is_not_doubled(formula, main_content):
    assert extract_words(f"<p>Let {formula} be.</p>", main_content) == "Let x be."


def test_a_hidden_formula_next_to_its_image_is_text():
    formula = "<math><mi>x</mi></math>"
    hidden = f'<span><span style="display: none" class="a">{formula}</span><img alt="x"></span>'
    assert extract_words(f"<p>Let {hidden} be.</p>") == "Let x be."


@both_modes
@pytest.mark.parametrize(
    ("opening", "items", "expected"),
    [
        ("<ol>", "<li>a<li>b", "1. a 2. b"),
        ("<ol start=5>", "<li>a<li><p>b</p>", "5. a 6. b"),
        ("<ol start='-1'>", "<li>a<li>b<li>c", "-1. a 0. b 1. c"),
        ("<ol start=x>", "<li>a<li>b", "1. a 2. b"),
        ("<ol start=5>", "<li>1. \ufdd0a<li><b>b</b>", "5. 1. a 6. b"),
        ("<ol>", "<li>a<li value=7>b<li>c", "1. a 7. b 8. c"),
        ("<ol reversed>", "<li>a<li>b<li>c", "3. a 2. b 1. c"),
        ("<ol reversed start=9>", "<li>a<li>b", "9. a 8. b"),
        ("<ol type=a start=26>", "<li>a<li>b", "z. a aa. b"),
        ("<ol type=A>", "<li>a<li>b", "A. a B. b"),
        ("<ol type=i start=3>", "<li>a<li>b", "iii. a iv. b"),
        ("<ol type=I start=1994>", "<li>a", "MCMXCIV. a"),
        ("<ol type=I start=4000>", "<li>a", "4000. a"),
        ("<ol type=I start=3999>", "<li>a", "MMMCMXCIX. a"),
        ("<ol type=I start=3888>", "<li>a", "MMMDCCCLXXXVIII. a"),
        ("<ol type=I start=444>", "<li>a", "CDXLIV. a"),
        ("<ol type=i>", "<li>a", "i. a"),
        ("<ol type=i start=0>", "<li>a", "0. a"),
        ("<ol type=a start=0>", "<li>a", "0. a"),
        ("<ol start=5>", "<li>a<ol start=2><li>x</ol><li>b", "5. a 2. x 6. b"),
        ("<ol start=5>", "<li><li>b", "6. b"),
    ],
)
def test_the_numbers_of_lists_are_kept(opening, items, expected, main_content):
    assert extract_words(f"<p>x</p>{opening}{items}</ol>", main_content) == f"x {expected}"


def test_a_number_is_written_before_a_text_far_inside_its_item(monkeypatch):
    monkeypatch.setattr(page_markup, "MAX_SEARCHED_NODES", 4)
    page = "<ol start=5><li><b><i>a</i></b><li><b><i><u>b</u></i></b></ol>"
    assert extract_words(page) == "5. a 2. b"


@both_modes
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<ul><li>x<pre>a\n  b\n\nc</pre></ul>", "  • x\n    a\n      b\n\n    c"),
        ("<ul><li><pre>a\n  b</pre><li>y</ul>", "  • a\n      b\n  • y"),
        ("<ol><li>x<ul><li><pre>a\nb</pre></ul></ol>", "  1. x\n    • a\n      b"),
        ("<ul><li>x<pre><b>a\n</b><i>b\n</i>c</pre></ul>", "  • x\n    a\n    b\n    c"),
        ("<ul><li>x<pre>a<br>  b\nc</pre></ul>", "  • x\n    a\n      b\n    c"),
        ("<ul><li>x<pre><div>a</div><div>  b</div></pre></ul>", "  • x\n    a\n      b"),
        ("<ul><li>x<pre>\n\na\nb</pre></ul>", "  • x\n    \n    a\n    b"),
        ("<li>x<pre>a\n  b</pre>", "  • x\n    a\n      b"),
        ("<pre>a\n  b</pre>", "a\n  b"),
    ],
)
def test_code_in_lists_is_indented_alike(inner, expected, main_content):
    page = f"<main>{inner}</main>"
    text = extract_page_text(page, main_content)
    assert text == expected


@settings(deadline=None)
@given(
    lines=st.lists(st.text("ab (", min_size=1), min_size=1, max_size=6),
    depth=st.integers(1, 4),
    has_text=st.booleans(),
)
def test_lines_of_code_keep_their_distances(lines, depth, has_text):
    assume(lines[0].strip() and lines[-1].strip())
    opening, closing = "<ul><li>" * depth, "</ul>" * depth
    page = f"<main>{opening}{'x' * has_text}<pre>{chr(10).join(lines)}</pre>{closing}</main>"
    text_lines = extract_page_text(page, main_content=True).split("\n")[-len(lines) :]
    indentation = "  " * (depth + 1)
    text_lines[0] = text_lines[0].replace("• ", "  ", 1)
    assert text_lines == [f"{indentation}{line}" for line in lines[:-1]] + [
        f"{indentation}{lines[-1]}".rstrip()
    ]


@pytest.mark.parametrize(("main_content", "expected"), [(True, "x"), (False, "A cat x")])
def test_captions_are_not_main_content(main_content, expected):
    inner = "<figure><img><FIGCAPTION class=a>A cat</FIGCAPTION></figure><p>x</p>"
    assert extract_words(inner, main_content) == expected


# Limits of what is content -----------------------------------------------------------------------

MAIN_TEXT = f"<p>{'A long paragraph of the page that is its main text. ' * 8}</p>"


@pytest.mark.parametrize("page", ["{}{}", "<main>{}{}</main>"])
@pytest.mark.parametrize(("size", "is_kept"), [(19, False), (20, True)])
def test_an_element_with_a_name_of_a_part_needs_20_characters(page, size, is_kept):
    prose = "x" * (size - 1) + "."
    words = extract_words(page.format(MAIN_TEXT, f'<div class="related">{prose}</div>'))
    assert (prose in words) == is_kept


@pytest.mark.parametrize(
    ("page", "is_kept"),
    [("<main>{}{}</main>", True), ("{}{}", True), ("{}<nav>{}</nav>", False)],
)
def test_a_list_of_links_after_a_paragraph_is_content_outside_navigation(page, is_kept):
    links = "<p>See:</p><ul><li><a href=a>alpha one</a><li><a href=b>beta two</a></ul>"
    words = extract_words(page.format(MAIN_TEXT, links))
    assert ("• alpha one • beta two" in words) == is_kept
