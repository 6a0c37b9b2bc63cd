"""PROJECT/NAME and PROJECT/NAME@STEP: read and written in one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.protocol.model_name import ModelName

_PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(_PARTS, _PARTS, st.none() | st.integers(0, 999_999_999))
def test_what_is_written_is_read_again(project: str, name: str, step: int | None) -> None:
    model = ModelName(project, name, step)
    assert ModelName.parse(str(model)) == model


def test_a_checkpoint_of_a_model() -> None:
    model = ModelName.parse("mail/agent")
    assert str(model) == "mail/agent"
    assert model.step is None
    assert str(model.at(0)) == "mail/agent@0"
    assert model.at(3).at(None) == model


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "/agent",
        "mail/",
        "mail/agent@",
        "mail/agent@x",
        "mail/agent@-1",
        "mail/agent@1@2",
        "mail/agent@1234567890",
        "mail/agent@\u0663",
        "mail/agent\n",
        "a/b/c",
        "../agent",
        "mail/.hidden",
        "mail/" + "a" * 129,
        "wandb-artifact:///local/mail/agent",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a model's name"):
        ModelName.parse(text)
