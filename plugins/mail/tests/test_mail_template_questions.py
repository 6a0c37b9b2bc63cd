"""Questions made by templates: each has one email that answers it, and the answer is in it."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from learnloop_mail.preparation.template_questions import GAP, TemplateCounts, template_questions, topic_of
from learnloop_service.environment.email_search.inbox import Email, Inbox, write_inbox
from learnloop_service.judges.reference import same_answer

START = datetime(2021, 3, 1, 9, tzinfo=UTC)


def mail(number: int, subject: str, body: str, sender: str = "Mara Velin <mara@x.example>") -> Email:
    sent_at = START + timedelta(days=number)
    return Email(f"id{number}", f"<{number}@x.example>", sender, ("list@x.example",), sent_at, subject, body)


RELEASE = (
    "Hi all,\n\n> we said 5 of them\nThe next release of the parser has the version 2.14.1 now.\n\n-- \nMara, tel. 555"
)
MAILS = [
    mail(1, "[list] Release of the parser", RELEASE),
    mail(2, "Re: [list] Release of the parser", "> The next release\nThat is good news.", "Jo <jo@x.example>"),
    mail(3, "Venue", "The meeting of the steering group is on 14 May this year."),
    mail(4, "Weekly report", "Nothing to report in this week at all, sorry."),
    mail(5, "Weekly report", "Nothing to report in this week at all, sorry."),
    mail(6, "", "We need 12 chairs for the large room by then."),
    mail(7, "Chairs", "We have 12 of the 14 chairs that the room needs by then."),
]


def answers_by_question(tmp_path: Path, count: int = 99, seed: int = 0) -> dict[str, str]:
    path = tmp_path / "inbox.sqlite"
    if not path.exists():
        write_inbox(path, MAILS)
    inbox = Inbox(path)
    questions = list(template_questions(inbox, count, seed, TemplateCounts()))
    inbox.close()
    assert all(len(question.sources) == 1 for question in questions)
    return {question.question: f"{question.answer} {question.sources[0]}" for question in questions}


def test_questions_are_about_what_one_email_alone_says(tmp_path: Path) -> None:
    answers = answers_by_question(tmp_path)
    sentence = f"The next release of the parser has the version {GAP} now."
    value_question = (
        f'In the email "[list] Release of the parser" from Mara Velin, what stands in place of {GAP} in "{sentence}"?'
    )
    assert answers[value_question] == "2.14.1 <1@x.example>"
    assert "14 May <3@x.example>" in answers.values()
    assert answers['On which day did Mara Velin send the email "Venue"?'] == "4 March 2021 <3@x.example>"
    assert answers['Who sent the email "Re: [list] Release of the parser" on 3 March 2021?'] == "Jo <2@x.example>"
    # By subject and sender there are two weekly reports, by subject and day one.
    assert answers['Who sent the email "Weekly report" on 5 March 2021?'] == "Mara Velin <4@x.example>"
    assert 'On which day did Mara Velin send the email "Weekly report"?' not in answers
    assert not any("chairs" in question for question in answers), "no subject, or two values in the sentence"


def test_the_same_seed_gives_the_same_questions_and_fewer_are_their_beginning(tmp_path: Path) -> None:
    everything = list(answers_by_question(tmp_path))
    assert list(answers_by_question(tmp_path, seed=1)) != everything
    for fewer, more in pairwise(range(1, len(everything) + 1)):
        assert list(answers_by_question(tmp_path, fewer)) == list(answers_by_question(tmp_path, more))[:fewer]


def test_a_reply_has_the_topic_of_what_it_answers() -> None:
    first, reply = MAILS[:2]
    assert topic_of(first) == topic_of(reply) == "release of the parser"
    assert topic_of(MAILS[5]) == "<6@x.example>"


def test_the_reference_judge_understands_the_answers(tmp_path: Path) -> None:
    for answer in answers_by_question(tmp_path).values():
        value = answer.rpartition(" <")[0]
        assert same_answer(value, value)
        assert same_answer(f"It is {value}.", value)
