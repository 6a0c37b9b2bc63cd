"""What of a rollout in the material counts as a quotation."""

from learnloop_service.app.improvements.material import rollout_texts


def test_an_agents_own_system_message_is_no_quotation() -> None:
    messages = [
        {"role": "system", "content": "You answer at the desk."},
        {"role": "user", "content": "Where is it?"},
        {"left_out": "3 messages"},
    ]
    solved = {"id": "a", "task": {"question": "Where?"}, "messages": messages}
    failed = {"id": "b", "messages": [], "why": "It gave up."}
    assert rollout_texts({"solved": [solved], "patterns": [{"rollouts": [failed]}]}) == {
        "a": ["a", "Where?", "user", "Where is it?", "3 messages"],
        "b": ["b", "It gave up."],
    }
