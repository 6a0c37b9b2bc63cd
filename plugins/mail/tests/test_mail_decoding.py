"""Decoding of single mails: headers, charsets, bodies; and that no bytes at all raise."""

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learnloop_mail.reading import mail_message, mime_parts
from learnloop_mail.reading.html_text import html_to_text
from learnloop_mail.reading.mail_headers import header_text, mailboxes, moment
from learnloop_mail.reading.mail_message import MAX_BODY_CHARACTERS, NotAMail, decode_mail
from learnloop_mail.reading.mail_text import clean_text, decode_bytes
from learnloop_mail.reading.mime_parts import MailParts, MailRefused, Part
from learnloop_service.environment.email_search.mail_addresses import people


def mail(body: bytes, *fields: str) -> bytes:
    return "\r\n".join(("From: Ann <ann@a.example>", *fields, "", "")).encode("utf-8") + body


def multipart(kind: str, *parts: tuple[str, str]) -> bytes:
    inner = "".join(f"--b\nContent-Type: {content_type}\n\n{text}\n" for content_type, text in parts)
    return mail(f"{inner}--b--\n".encode(), f"Content-Type: multipart/{kind}; boundary=b")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("=?utf-8?q?Caf=C3=A9_au_lait?=", "Café au lait"),
        ("=?ISO-8859-1?Q?a?= =?ISO-8859-1?Q?b?=", "ab"),
        ("=?utf-8?b?ww==?= =?utf-8?b?pA==?=", "ä"),
        ("=?utf-8?q?=C3?= =?utf-8?q?=A4?=", "ä"),
        ("=?utf-8*de?q?Gr=C3=BC=C3=9Fe?= to you", "Grüße to you"),
        ("=?no-such-charset?q?caf=C3=A9?=", "café"),
        ("=?utf-8?b?not base64?=", "=?utf-8?b?not base64?="),
        ("folded\r\n  line\twith\x00 NUL", "folded line with NUL"),
        ("Gr\udcc3\udcbc\udcc3\udc9fe", "Grüße"),
        ("caf\udce9", "café"),
        ("=?UTF-8?Q?Pr=C3=BCfung??=", "Prüfung?"),
        ("=?UTF-8?Q?What?_When??= =?utf-8?q?_=C3=A4?=", "What? When? ä"),
        ("=?utf-8?q?two words?= and =?utf-8?b?w6Q=?=", "two words and ä"),
        ("=?utf-8?q?cut_=C3=A4_he", "cut ä he"),
        ("=?ISO-2022-JP?B?GyRCLSEbKEI=?=", "①"),
    ],
)
def test_header_text(field: str, text: str) -> None:
    assert header_text(field) == text


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("ann@a.example", ("ann@a.example",)),
        ("Ann Lee <ann@a.example>, b@b.example", ("Ann Lee <ann@a.example>", "b@b.example")),
        ('"Lee, Ann" <ann@a.example>', ('"Lee, Ann" <ann@a.example>',)),
        ("=?utf-8?q?Lee=2C_=C3=84nn?= <ann@a.example>", ('"Lee, Änn" <ann@a.example>',)),
        ("ann at a.example (Ann Lee)", ("Ann Lee <ann@a.example>",)),
        ("undisclosed-recipients:;", ()),
        ("", ()),
    ],
)
def test_mailboxes(field: str, expected: tuple[str, ...]) -> None:
    assert mailboxes([field]) == expected


def test_a_decoded_name_adds_no_address() -> None:
    [sender] = mailboxes(["=?utf-8?q?x=22_=3Cboss=40a=2Eexample=3E=2C?= <mallory@b.example>"])
    assert [address for _, address in people(sender)] == ["mallory@b.example"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thu, 01 Nov 2001 11:19:12 +0200", datetime(2001, 11, 1, 9, 19, 12, tzinfo=UTC)),
        ("Thu Nov  1 11:19:12 2001", datetime(2001, 11, 1, 11, 19, 12, tzinfo=UTC)),
        ("Thu, 01 Nov 2001 11:19:12 -0000", datetime(2001, 11, 1, 11, 19, 12, tzinfo=UTC)),
        ("Thu, 01 Nov 9999 23:00:00 -2300", None),
        ("Thu, 41 Nov 2001 11:19:12 +0000", None),
        ("Thu, 01 Nov 2001 11:19:12 +9999999999", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_moment(text: str, expected: datetime | None) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize(
    ("fields", "envelope", "expected"),
    [
        (("Date: Thu, 01 Nov 2001 11:00:00 +0000",), "", datetime(2001, 11, 1, 11, tzinfo=UTC)),
        (
            ("Date: rubbish", "Received: by a; Fri, 02 Nov 2001 11:00:00 +0000"),
            "",
            datetime(2001, 11, 2, 11, tzinfo=UTC),
        ),
        ((), "ann@a.example Sat Nov  3 11:00:00 2001", datetime(2001, 11, 3, 11, tzinfo=UTC)),
        ((), "1234@xxx Wed Nov 25 15:35:51 +0000 2015", datetime(2015, 11, 25, 15, 35, 51, tzinfo=UTC)),
        ((), "", None),
    ],
)
def test_the_date_comes_from_header_received_or_envelope(
    fields: tuple[str, ...], envelope: str, expected: datetime | None
) -> None:
    assert decode_mail(mail(b"", *fields), envelope).sent_at == expected


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        (b"caf\xe9", "iso-8859-1", "café"),
        ("café".encode(), "iso-8859-1", "cafÃ©"),
        ("café".encode(), "no-such", "café"),
        ("café".encode(), "us-ascii", "café"),
        (b"caf\xe9", "utf-8", "café"),
        (b"caf\xe9", None, "café"),
        (b"\x93quoted\x94", "latin-1", "“quoted”"),
        ("漢字".encode("gbk"), "GB2312", "漢字"),
        ("日本".encode("iso-2022-jp"), "ISO-2022-JP", "日本"),
        (b"text", "punycode", "text"),
        (b"text", "zip", "text"),
        (b"text", "utf-8\x00", "text"),
        (b"\x81\x8d", None, "\ufffd\ufffd"),
        (b"\x1b$B-!\x1b(B", "ISO-2022-JP", "①"),
        (b"\x1b$B-!F|K\\|b\x1b(B", None, "①日本髙"),
        (b"\x1b$B-!F|K\\\x1b(B.", "cp50221", "①日本."),
        (b"\x1b$B-!\nno escape back", "ISO-2022-JP", "①\nno escape back"),
        (b"\x1b(I1\x1b(B\x1b$B-!\x1b(B", "ISO-2022-JP", "ｱ①"),
        (b"\xad\xa1" + "日本".encode("euc-jp"), "EUC-JP", "①日本"),
        ("日本".encode("iso-2022-jp") + b"\x1b$B\x7e\x7e\x1b(B", "ISO-2022-JP", "日本\ufffd"),
        ("日本".encode("cp932"), "x-sjis", "日本"),
        ("€ 碁銹".encode("cp950"), "Big5", "€ 碁銹"),
        ("שלום".encode("iso-8859-8"), "ISO-8859-8-I", "שלום"),
        ("привет".encode("cp1251"), "win-1251", "привет"),
        ("привет, мир".encode("cp1251") + b"\x98", "windows-1251", "привет, мир\ufffd"),
        ("Заказ ".encode() + b"\xd0 " + "во вторник".encode(), "utf-8", "Заказ \ufffd во вторник"),
        ("Заказ ".encode() + b"\xd0 " + "во вторник".encode(), None, "Заказ \ufffd во вторник"),
        ("漢字漢字".encode("gbk") + b"\xff!", "gb2312", "漢字漢字\ufffd!"),
        ("Grüße".encode(), "utf-16", "Grüße"),
        ("Grüße".encode("utf-16"), None, "Grüße"),
        (b"\xef\xbb\xbfok", "us-ascii", "ok"),
    ],
)
def test_charsets(data: bytes, charset: str | None, text: str) -> None:
    assert decode_bytes(data, charset) == text


@given(st.sampled_from(["utf-8", "cp932", "euc_jp", "iso2022_jp", "gb18030", "big5", "cp949"]), st.integers(0, 41))
def test_one_broken_byte_costs_no_other_word(charset: str, position: int) -> None:
    """Characters next to the byte can be lost as well, because some charsets read it together with them."""
    text = "三山川田日本人木 三山川田日本人木 三山川田日本人木"
    data = text.encode(charset)
    broken = decode_bytes(data[:position] + b"\xff" + data[position:], charset)
    assert broken.count("三山川田日本人木") >= 1
    assert sum(map(broken.count, "三山川田日本人木")) >= 12


@given(st.sampled_from(["utf-8", "gb18030", "cp932", "big5", "utf-16"]), st.integers(0, 9))
def test_a_cut_within_a_character_leaves_only_that_one_out(charset: str, left_out: int) -> None:
    data = ("山田" * 20).encode(charset)
    assert ("山田" * 20).startswith(decode_bytes(data[: len(data) - left_out], charset, cut=True))
    assert len(decode_bytes(data[: len(data) - left_out], charset, cut=True)) >= 40 - left_out / 2 - 1


def test_what_a_long_part_has_within_its_limit_is_whole() -> None:
    text = "a" + "日本語の文" * 100_000
    for encoded in ((), ("Content-Transfer-Encoding: base64",)):
        data = b64encode(text.encode()) if encoded else text.encode()
        body = decode_mail(mail(data, "Content-Type: text/plain; charset=utf-8", *encoded)).body
        assert (body.text, body.truncated) == (text[:MAX_BODY_CHARACTERS], True)


@pytest.mark.parametrize(
    "page",
    [
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">',
        "<META charset='windows-1251'>",
        '<?xml version="1.0" encoding="windows-1251"?>',
    ],
)
@pytest.mark.parametrize("declared", ["text/html", "text/html; charset=us-ascii", "text/html; charset=x-unknown"])
def test_a_charset_that_only_the_page_names(page: str, declared: str) -> None:
    data = f"<html><head>{page}</head><p>Встреча в пятницу</p></html>".encode("cp1251")
    assert decode_mail(mail(data, f"Content-Type: {declared}")).body.text == "Встреча в пятницу"


def test_fields_and_parts_without_a_charset_are_in_that_of_the_mail() -> None:
    part = "--b\nContent-Type: text/plain\n\nжизнь\n--b\nContent-Type: text/html; charset=koi8-r\n\n<p>x\n--b--\n"
    raw = f"From: Иван <i@x.example>\nSubject: тема\nContent-Type: multipart/alternative; boundary=b\n\n{part}"
    mail = decode_mail(raw.encode("koi8-r"))
    assert (mail.sender, mail.subject, mail.body.text) == ("Иван <i@x.example>", "тема", "жизнь")


def test_clean_text_keeps_words_and_lines_only() -> None:
    assert clean_text("a\x00b \r\nc\x07\r\rd\n\n\n\ne\u00adf \ud800\n") == "ab\nc\n\nd\n\nef ?"


def test_html_becomes_lines_with_links() -> None:
    page = """<!DOCTYPE html><html><head><title>T</title><style>p {color: red}</style></head><body>
      <h1>News &amp; more</h1><p>See <a href="https://a.example/x">our
      page</a> or <a href='https://a.example/'>https://a.example</a>.<br>Bye</p>
      <script>alert("<p>no</p>")</script ><!-- hidden <b>no</b> -->
      <ul><li>one<li>two</ul><table><tr><td>1</td><td>2</td></tr></table><pre>  a
  b</pre>5 < 6 <img src=x alt="A logo"> <a href="javascript:x()">click</a></body>"""
    assert html_to_text(page).split("\n") == [
        "News & more",
        "",
        "See our page (https://a.example/x) or https://a.example.",
        "Bye",
        "",
        "- one",
        "- two",
        "",
        " 1 2",
        "",
        "  a",
        "  b",
        "",
        "5 < 6 A logo click",
    ]


@pytest.mark.parametrize("unit", ["<a", "<!--", "<![", "<script>", "&#9", "</p", "<a href='", '<a href=x b="', "<pre>"])
def test_html_that_is_slow_or_fatal_for_a_naive_parser_is_read(unit: str) -> None:
    assert isinstance(html_to_text(unit * 50_000), str)


def test_a_character_reference_with_thousands_of_digits_is_no_error() -> None:
    assert html_to_text("a&#" + "9" * 10_000 + ";b") == "a\ufffdb"


def test_plain_text_is_preferred_and_attachments_are_counted() -> None:
    alternatives = multipart("alternative", ("text/html", "<p>rich</p>"), ("text/plain", "plain"))
    assert decode_mail(alternatives).body == mail_message.Body("plain", plain=True)
    mixed = multipart(
        "mixed",
        ("text/plain", "see file"),
        ("application/pdf", "%PDF"),
        ("text/calendar", "BEGIN"),
        ("text/html", "<b>x</b>"),
    )
    assert decode_mail(mixed).body == mail_message.Body("see file\n\nx", attachments=2, plain=True, html=True)


def test_an_html_only_mail_becomes_text() -> None:
    body = decode_mail(mail(b"<p>Hello <b>you</b></p>", "Content-Type: text/html")).body
    assert body == mail_message.Body("Hello you", html=True)


def test_a_text_file_attached_is_left_out() -> None:
    body = decode_mail(mail(b"log", "Content-Disposition: attachment; filename=x.log")).body
    assert body == mail_message.Body(attachments=1)


def test_a_forwarded_mail_is_part_of_the_text() -> None:
    inner = "From: Bo <bo@b.example>\nSubject: =?utf-8?q?=C3=84?=\n\nThe original."
    body = decode_mail(multipart("mixed", ("text/plain", "fyi"), ("message/rfc822", inner))).body
    assert body.text == "fyi\n\nForwarded message\nFrom: Bo <bo@b.example>\nSubject: Ä\n\nThe original."


def test_transfer_encodings_and_their_garbage() -> None:
    quoted = "Content-Transfer-Encoding: quoted-printable"
    assert decode_mail(mail(b"caf=C3=A9=\r\n au lait =ZZ .", quoted)).body.text == "café au lait =ZZ ."
    encoded = "Content-Transfer-Encoding: base64"
    assert decode_mail(mail(b64encode("Grüße".encode()), encoded)).body.text == "Grüße"
    assert isinstance(decode_mail(mail(b"!!! not base64", encoded)).body.text, str)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b64encode(b"Hello you\n") + b"\n________\nlist mailing list\nl@x.example\n",
         "Hello you\n________\nlist mailing list\nl@x.example"),
        (b64encode(b"Hello me") + b"\r\n-- \r\nSent by us\r\n", "Hello me\n--\nSent by us"),
        (b64encode(b"Hello") + b"\nUnsubscribe: https://x.example/u\n", "Hello\nUnsubscribe: https://x.example/u"),
        (b"The text is plain, not base64.", "The text is plain, not base64."),
        (b"SGVs!bG8=", "Hello"),
        (b"SGVsbG8=SGVsbG8=", "HelloHello"),
        (b"SGVsbG8gd29ybGQ", "Hello world"),
        (b"SGVsbG8gd29ybGQhI", "Hello world!"),
    ],
)  # fmt: skip
def test_base64_that_is_not_all_base64(data: bytes, text: str) -> None:
    assert decode_mail(mail(data, "Content-Transfer-Encoding: base64")).body.text == text


@pytest.mark.parametrize("encoding", ["base64", "BASE64 (sap)"])
@pytest.mark.parametrize("kind", ["multipart/mixed; boundary=b", "message/rfc822"])
def test_parts_that_are_encoded_as_a_whole(encoding: str, kind: str) -> None:
    inner = (
        b"Subject: s\n\ninside"
        if kind.startswith("message")
        else b"--b\n\ninside\n--b\nContent-Type: image/png\n\nx\n--b--"
    )
    body = decode_mail(mail(b64encode(inner), f"Content-Type: {kind}", f"Content-Transfer-Encoding: {encoding}")).body
    assert body.text.endswith("inside")
    assert body.attachments == (not kind.startswith("message"))


@pytest.mark.parametrize(
    "head",
    [
        b"\xef\xbb\xbfFrom: Ann <ann@a.example>\nSubject: gate\nTo: bo@b.example",
        b"\r\n \r\nFrom: Ann <ann@a.example>\r\nSubject: gate\r\nTo: bo@b.example",
        b">From ann@a.example Thu Nov  1 11:19:12 2001\nFrom: Ann <ann@a.example>\nSubject: gate\nTo: bo@b.example",
        b"From : Ann <ann@a.example>\nSubject\t: gate\nTo : bo@b.example",
        b"From: Ann <ann@a.example>\nX-Scan: a\nrest of it\n\xff\xfe\nSubject: gate\nTo: bo@b.example",
    ],
)
def test_odd_lines_cost_no_other_field(head: bytes) -> None:
    mail = decode_mail(head + b"\n\nThe code is 4412.\nSubject: no field\n")
    assert (mail.sender, mail.subject, mail.to) == ("Ann <ann@a.example>", "gate", ("bo@b.example",))
    assert mail.body.text == "The code is 4412.\nSubject: no field"


@pytest.mark.parametrize("field", ["<>", "< >", "", "null", "<(null)>", "<@>", "<undefined>"])
def test_no_message_id_is_that_of_many(field: str) -> None:
    assert decode_mail(mail(b"x", f"Message-ID: {field}")).message_id is None
    assert decode_mail(mail(b"x", "Message-ID: none-42")).message_id == "<none-42>"


def test_a_long_body_is_cut() -> None:
    body = decode_mail(mail(b"x" * (MAX_BODY_CHARACTERS + 1))).body
    assert len(body.text) == MAX_BODY_CHARACTERS
    assert body.truncated
    assert not decode_mail(mail(b"x" * MAX_BODY_CHARACTERS)).body.truncated


_MIXED = "Content-Type: multipart/mixed; boundary=b"


@pytest.mark.parametrize(
    ("bomb", "limit"),
    [
        (mail(b"--b\n\nx\n" * 10_001, _MIXED), "more than 10,000 parts"),
        (b"From: a@a.example\n" + b"Content-Type: message/rfc822\n\n" * 60, "parts nested more than 50 deep"),
        (mail(b"x" * 4_000_001), "more than 4,000,000 bytes of text"),
        (mail(b"=\n" * 2_000_001, "Content-Transfer-Encoding: quoted-printable"), "more than 4,000,000 bytes of text"),
        (mail(b"--b\n\n" + b"x" * 3_000_000 + b"\n--b\n\n" + b"y" * 3_000_000, _MIXED), "bytes of text"),
        (mail(b"x", "Content-Type: multipart/mixed; boundary=" + "b" * 201), "a boundary of more than 200 characters"),
        (mail(b"x", "Content-Type: multipart/mixed" + ";" * 9_000), "a Content-Type of more than 8,000 bytes"),
        (mail(b"x", *["X: y"] * 200_000), "a header of more than 1,000,000 bytes"),
    ],
    ids=["parts", "depth", "text", "encoded", "texts", "boundary", "parameters", "header"],
)
def test_a_mail_beyond_a_limit_is_refused(bomb: bytes, limit: str) -> None:
    with pytest.raises(MailRefused, match=limit):
        decode_mail(bomb)


def test_a_mail_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mime_parts, "MAX_SECONDS", 0.0)
    with pytest.raises(MailRefused, match="more than 0 s to read"):
        decode_mail(mail(b"--b\n\nx\n--b--", _MIXED))


def test_attachments_count_neither_as_text_nor_as_time() -> None:
    attached = multipart("mixed", ("text/plain", "see file"), ("application/zip", "x" * 5_000_000))
    assert decode_mail(attached).body == mail_message.Body("see file", attachments=1, plain=True)


@pytest.mark.parametrize("data", [b"", b"\x00\x01\x02", b"just some text\n", b"Note: a text file\n\nwith a colon"])
def test_what_has_no_field_of_a_mail_is_refused(data: bytes) -> None:
    with pytest.raises(NotAMail, match="no header field"):
        decode_mail(data)


def test_subject_names_and_addresses_are_bounded() -> None:
    decoded = decode_mail(mail(b"", "Subject: " + "s" * 9_000, f"To: {'n' * 9_000} <{'a' * 9_000}@b.example>"))
    assert len(decoded.subject) == 1_000
    assert len(decoded.to[0]) < 600


_raw_field = st.text(st.characters(max_codepoint=127) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF))
_markup = st.lists(
    st.sampled_from(
        ["<", ">", "</", "<!--", "-->", "a", "pre", "script", "href=", "'", '"', "&", "#x", "9", ";", " ", "\n"]
    )
).map("".join)
_mail_lines = st.lists(
    st.sampled_from(
        [
            b"From: =?utf-8?b?w6Q=?= <a@b.c>",
            b"Content-Type: multipart/alternative; boundary=b",
            b"Content-Type: message/rfc822",
            b"Content-Type: text/html; charset=utf-7",
            b"Content-Type: text/plain; charset*0*=x''%ff; charset*1=9",
            b"Content-Transfer-Encoding: base64",
            b"Content-Transfer-Encoding: x-uuencode",
            b"begin 644 x",
            b"--b",
            b"--b--",
            b"",
            b" folded",
            b"+2AA-",
        ]
    )
    | st.binary(max_size=40)
).map(b"\n".join)


@given(_raw_field)
def test_no_field_raises(field: str) -> None:
    assert "\n" not in header_text(field)
    moment(field)
    for mailbox in mailboxes([field, field]):
        mailbox.encode("utf-8")
        assert list(people(mailbox))


@given(st.binary(), st.sampled_from(["utf-7", "utf-16", "hz", "idna", "rot13", "iso-2022-jp-3", "", None]) | st.text())
def test_no_bytes_and_charset_raise(data: bytes, charset: str | None) -> None:
    clean_text(decode_bytes(data, charset)).encode("utf-8")


@given(_markup | st.text())
def test_no_markup_raises(page: str) -> None:
    html_to_text(page)


@given(_mail_lines, st.text(max_size=40))
@example(b"+2AA-\n\x80\nContent-Type: text/html; charset=utf-7", "")  # half a surrogate pair in a field of UTF-7
def test_no_mail_raises(lines: bytes, envelope: str) -> None:
    decoded = decode_mail(b"Date: x\n" + lines, envelope)
    for text in (decoded.message_id or "", decoded.sender, *decoded.to, decoded.subject, decoded.body.text):
        text.encode("utf-8")
        assert "\x00" not in text


_structure = st.lists(
    st.sampled_from(
        [
            b"Content-Type: multipart/mixed; boundary=a",
            b"Content-Type: multipart/digest; boundary=b",
            b"Content-Type: message/rfc822",
            b"Content-Type: text/plain",
            b"X-Folded: x\n  y",
            b"",
            b"--a",
            b"--a  ",
            b"--a--",
            b"--b",
            b"--b--",
            b"--ab",
            b" --a",
            b"words",
            b"\r",
        ]
    ),
    max_size=30,
).map(b"\n".join)


@given(_structure)
def test_parts_are_those_that_the_standard_library_finds(lines: bytes) -> None:
    parts = MailParts(lines)
    assert list(_leaves(parts, parts.top(), lines)) == list(_their_leaves(message_from_bytes(lines)))


def _leaves(parts: MailParts, part: Part, mail: bytes) -> Iterator[tuple[str, bytes]]:
    for child in (inner := parts.inside(part)):
        yield from _leaves(parts, child, mail)
    text = mail[part.start : part.end].strip()
    if not inner and text and _is_leaf(part.header):
        yield part.header.get_content_type(), text


def _their_leaves(message: Message) -> Iterator[tuple[str, bytes]]:
    if message.is_multipart():
        for child in message.get_payload():
            assert isinstance(child, Message)
            yield from _their_leaves(child)
    elif (text := str(message.get_payload()).encode().strip()) and _is_leaf(message):
        yield message.get_content_type(), text


def _is_leaf(header: Message) -> bool:
    """A multipart without parts is shown as it came, for what it is worth."""
    return header.get_content_maintype() not in ("multipart", "message")
