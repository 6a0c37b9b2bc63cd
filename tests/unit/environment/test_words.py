"""The words of a text."""

from learnloop_service.environment.words import words_of


def test_words_leave_case_accents_and_punctuation_out() -> None:
    assert words_of("  When is “Été”?") == words_of("when is ete") == "when is ete"
    assert words_of("When is it?") != words_of("When was it?")
