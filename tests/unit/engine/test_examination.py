"""What the examination of a base model finds, and what is mended in its copy."""

import json
import stat
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from learnloop_service.training.bases import child_processes, full_examination
from learnloop_service.training.bases.child_processes import Silent, check
from learnloop_service.training.bases.files import place_of_added
from learnloop_service.training.bases.full_examination import ask_for_calls, with_probe
from learnloop_service.training.bases.report import (
    BaseReport,
    Defects,
    Finding,
    FindingSeverity,
    FormatCount,
    read,
    written,
)
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from learnloop_service.training.engine.examination.examine import examine
from learnloop_service.training.engine.examination.marks import untrained
from learnloop_service.training.engine.examination.rows import HEADS, MatrixRows, open_rows
from learnloop_service.training.engine.registry.base_model_import import add
from learnloop_service.training.engine.registry.base_model_mends import mend, single_braces, tie_head
from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests.fakes import defective_bases as bases
from tests.fakes.tiny_model import make_tiny_model


def _examined(directory: Path) -> BaseReport:
    return examine(directory, ChatTokenizer(directory))


def _by_name(report: BaseReport) -> dict[str, Finding]:
    return {finding.name: finding for finding in report.findings}


def test_a_base_without_defects_has_no_warning(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    report = _examined(base)
    assert report.warnings == ()
    assert report.defects == Defects()
    assert report.severity == FindingSeverity.OK
    assert report.parameters == parameter_count(base)
    assert _by_name(report).keys() == {"marks", "size", "stop tokens", "template", "conversation"}


@pytest.mark.parametrize("spare_ids", [0, 16])
def test_marks_that_were_never_trained_are_found(tmp_path: Path, spare_ids: int) -> None:
    report = _examined(bases.with_untrained(tmp_path, spare_ids=spare_ids))
    assert report.defects.untrained_marks == bases.MARKS
    assert _by_name(report)["marks"].severity is FindingSeverity.WARNING


def test_other_tokens_of_the_template_are_only_named(tmp_path: Path) -> None:
    findings = _by_name(report := _examined(bases.with_untrained(tmp_path, ["<|im_start|>"])))
    assert report.defects.untrained_marks == ()
    assert findings["template tokens"].severity is FindingSeverity.NOTE
    assert "<|im_start|>" in findings["template tokens"].found


def test_a_stop_token_that_was_never_trained_is_a_warning(tmp_path: Path) -> None:
    finding = _by_name(_examined(bases.with_untrained(tmp_path, ["<|im_end|>"])))["template tokens"]
    assert finding.severity == FindingSeverity.WARNING
    assert "should end replies" in finding.found


def _rows(directory: Path, rows: torch.Tensor) -> Path:
    save_file({HEADS[0]: rows}, directory / "model.safetensors")
    return directory


def test_without_unused_ids_equal_rows_are_untrained(tmp_path: Path) -> None:
    rows = torch.eye(6)
    rows[4] = 3 * rows[3]  # the same direction is the same vector after quantization by rows
    added = {"<a>": 2, "<b>": 3, "<c>": 4, "<d>": 5}
    with open_rows(_rows(tmp_path, rows), HEADS) as head:
        assert isinstance(head, MatrixRows)
        assert untrained(head, added, 6, "<a> <b> <c>") == ("<b>", "<c>")
        assert untrained(head, added, 6, "<a> <d>") == ()
        assert untrained(head, added, 6, "nothing") == ()


def test_padding_of_zeros_says_nothing_of_trained_rows(tmp_path: Path) -> None:
    rows = torch.eye(6)
    rows[4:] = 0
    with open_rows(_rows(tmp_path, rows), HEADS) as head:
        assert isinstance(head, MatrixRows)
        assert untrained(head, {"<a>": 2, "<b>": 3}, 4, "<a> <b>") == ()
        assert untrained(head, {"<a>": 2, "<b>": 4}, 5, "<a> <b>") == ("<b>",)


def test_a_mark_becomes_ordinary_text_and_all_other_ids_stay(tmp_path: Path) -> None:
    base = bases.with_untrained(tmp_path)
    before = ChatTokenizer(base).fast
    mended = mend(base, Defects(untrained_marks=bases.MARKS))
    after = ChatTokenizer(base).fast
    assert [change.name for change in mended] == ["marks"]
    assert len(after) == len(before)
    others = {token: id for token, id in before.get_vocab().items() if token not in bases.MARKS}
    assert others.items() <= after.get_vocab().items()
    for mark in bases.MARKS:
        ids = after.encode(f"a{mark}b", add_special_tokens=False)
        assert len(ids) > 4
        assert after.decode(ids) == f"a{mark}b"
    assert _examined(base).defects.untrained_marks == ()


def test_a_mark_in_the_vocabulary_is_left_there_without_its_entry(tmp_path: Path) -> None:
    base = bases.with_untrained(tmp_path)
    path = base / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"] |= bases.ids_of(base)  # as files have it that were made from GGUF
    path.write_text(json.dumps(document))
    before = ChatTokenizer(base).fast.get_vocab()
    mend(base, Defects(untrained_marks=bases.MARKS))
    tokenizer = ChatTokenizer(base).fast
    assert tokenizer.get_vocab() == before
    assert not set(bases.MARKS) & {token.content for token in tokenizer.added_tokens_decoder.values()}
    assert len(tokenizer.encode("<tool_call>", add_special_tokens=False)) > 2


def test_marks_in_all_files_of_a_tokenizer_are_taken_out(tmp_path: Path) -> None:
    base = bases.with_untrained(tmp_path)
    ids = bases.ids_of(base)
    entry = {"content": "<tool_call>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    bases.change(
        base / "tokenizer_config.json",
        added_tokens_decoder={str(ids["<tool_call>"]): {**entry, "special": True}},
        additional_special_tokens=["<|im_start|>", "<tool_call>"],
    )
    bases.change(base / "special_tokens_map.json", additional_special_tokens=[entry])
    bases.change(base / "added_tokens.json", **{"<tool_call>": ids["<tool_call>"], "<|im_start|>": 1})
    mend(base, Defects(untrained_marks=bases.MARKS))
    settings = json.loads((base / "tokenizer_config.json").read_text())
    assert settings["additional_special_tokens"] == ["<|im_start|>"]
    texts = [path.read_text() for path in base.glob("*.json") if path.name != "config.json"]
    assert [text for text in texts if '"<tool_call>"' in text] == []
    assert len(ChatTokenizer(base).fast.encode("<tool_call>", add_special_tokens=False)) > 2


@pytest.mark.usefixtures("forked_checks")
def test_a_head_that_is_the_embedding_is_stored_once(tmp_path: Path) -> None:
    base = bases.with_repeated_head(tmp_path)
    stored, tensors = parameter_count(base), bases.tensors_of(base)
    report = _examined(base)
    assert report.defects.repeated_head
    assert report.parameters == stored - tensors[bases.HEAD].numel()
    mended = mend(base, report.defects)
    assert "head" in [change.name for change in mended]
    after = bases.tensors_of(base)
    assert after.keys() == tensors.keys() - {bases.HEAD}
    assert [name for name in after if not torch.equal(after[name], tensors[name])] == []
    assert parameter_count(base) == report.parameters
    assert json.loads((base / "config.json").read_text())["tie_word_embeddings"] is True
    assert check(base).fault is None


def test_a_head_in_another_quantization_is_found_and_kept(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path, "llama")
    assert not _examined(base).defects.repeated_head  # trained apart
    tensors = bases.tensors_of(base)
    noise = torch.randn(tensors[bases.EMBEDDING].shape, generator=torch.Generator().manual_seed(0))
    head = tensors[bases.EMBEDDING] + 0.05 * tensors[bases.EMBEDDING].std() * noise
    bases.save_tensors(base, {**tensors, bases.HEAD: head})
    report = _examined(base)
    assert report.defects.repeated_head
    mend(base, report.defects)
    assert torch.equal(bases.tensors_of(base)[bases.EMBEDDING], head)


def test_a_head_in_another_file_than_the_embedding_is_tied(tmp_path: Path) -> None:
    base = bases.with_repeated_head(tmp_path)
    tensors = bases.tensors_of(base)
    (base / "model.safetensors").unlink()
    files = {"one.safetensors": {bases.EMBEDDING}, "two.safetensors": tensors.keys() - {bases.EMBEDDING}}
    for name, keys in files.items():
        save_file({key: tensors[key] for key in keys} | ({"x": torch.ones(1)} if len(keys) == 1 else {}), base / name)
    weight_map = {key: name for name, keys in files.items() for key in keys}
    bases.change(base / "model.safetensors.index.json", metadata={}, weight_map={**weight_map, "x": "one.safetensors"})
    assert tie_head(base)
    index = json.loads((base / "model.safetensors.index.json").read_text())["weight_map"]
    assert index[bases.EMBEDDING] == "two.safetensors"
    assert bases.HEAD not in index
    assert not tie_head(base)


@pytest.mark.usefixtures("forked_checks")
def test_all_known_ends_end_a_reply_in_the_copy(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    assert ChatTokenizer(source).stop_ids == {2}
    report = _examined(source)
    assert report.defects.stop_ids == (0, 2)
    assert '"<|endoftext|>"' in _by_name(report)["stop tokens"].found
    copy = place_of_added(tmp_path / "data", "mine")
    verdict = add(source, copy)
    assert verdict.report is not None
    assert verdict.report.defects == Defects()
    assert _by_name(verdict.report)["stop tokens"].severity is FindingSeverity.OK
    assert ChatTokenizer(copy).stop_ids == {0, 2}
    assert json.loads((copy / "generation_config.json").read_text())["eos_token_id"][0] == 2
    assert ChatTokenizer(source).stop_ids == {2}
    assert BaseVerdicts(tmp_path / "data").find(copy) == verdict


@pytest.mark.usefixtures("forked_checks")
def test_copied_files_can_be_read_by_others(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    (source / "model.safetensors").chmod(0o600)
    add(source, copy := place_of_added(tmp_path / "data", "mine"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in copy.iterdir()} == {0o644}


def test_doubled_braces_are_mended_in_the_copy(tmp_path: Path) -> None:
    base = bases.with_doubled_braces(tmp_path)
    report = _examined(base)
    assert report.defects.doubled_braces
    assert [change.name for change in mend(base, Defects(doubled_braces=True))] == ["braces"]
    assert not _examined(base).defects.doubled_braces
    assert 'Write {"name": <function>, "arguments": <object>}.' in ChatTokenizer(base).decode(
        ChatTokenizer(base).prompt([{"role": "user", "content": "a"}], None)
    )


@pytest.mark.parametrize(
    ("template", "mended"),
    [
        ('{{ "{{\\"name\\": x}}" }}', '{{ "{\\"name\\": x}" }}'),
        ('{{ \'{{"name": x, "arguments": {{"a": 1}}}}\' }}', '{{ \'{"name": x, "arguments": {"a": 1}}\' }}'),
        ("{{ name }}{{'name'}}{% if x %}{{ x['name'] }}{% endif %}", None),
        ('{{ "{\\"name\\": x}" }}', None),
    ],
)
def test_only_calls_in_doubled_braces_are_changed(template: str, mended: str | None) -> None:
    assert single_braces(template) == (mended or template)


def test_without_a_chat_template_ours_stands_in(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path)
    (base / "chat_template.jinja").unlink()
    findings = _by_name(_examined(base))
    assert findings["template"].severity == FindingSeverity.NOTE
    assert "stands in" in findings["template"].found
    assert findings["conversation"].severity is FindingSeverity.OK


def test_a_template_that_drops_results_is_named(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path)
    template = (
        "{{ tools }}{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (base / "chat_template.jinja").write_text(template)
    finding = _by_name(_examined(base))["conversation"]
    assert finding.severity == FindingSeverity.WARNING
    assert "results" in finding.found


def test_what_a_template_refuses_first_is_named(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path)
    template = (base / "chat_template.jinja").read_text()
    check = "{% if messages | selectattr('role', 'equalto', 'user') | list | length > 1 %}"
    (base / "chat_template.jinja").write_text(
        f"{check}{{{{ raise_exception('one question only') }}}}{{% endif %}}{template}"
    )
    finding = _by_name(_examined(base))["conversation"]
    assert finding.severity is FindingSeverity.WARNING
    assert "refuses a question after a call" in finding.found
    assert "one question only" in finding.found


def _count(tool_format: str, calls: int) -> FormatCount:
    return FormatCount(tool_format, calls, 32 - calls, 0, {"no JSON": 32 - calls})


@pytest.mark.parametrize(
    ("calls", "chosen", "severity"),
    [
        ({"hermes": 30, "json": 31}, "json", FindingSeverity.OK),
        ({"hermes": 30, "json": 30}, "hermes", FindingSeverity.OK),
        ({"hermes": 0, "json": 3}, "json", FindingSeverity.NOTE),
        ({"hermes": 0, "json": 0}, None, FindingSeverity.WARNING),
    ],
)
def test_the_format_with_the_most_readable_calls_is_chosen(
    calls: dict[str, int], chosen: str | None, severity: FindingSeverity
) -> None:
    report = with_probe(BaseReport(()), tuple(_count(name, readable) for name, readable in calls.items()))
    assert report.tool_format == chosen
    assert _by_name(report)["calls"].severity == severity


def test_a_report_is_kept_with_the_verdict(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    report = with_probe(_examined(base), (_count("hermes", 7),))
    assert read(json.loads(json.dumps(written(report)))) == report
    BaseVerdicts(tmp_path).keep(base, BaseVerdict(None, report))
    assert BaseVerdicts(tmp_path).find(base) == BaseVerdict(None, report)


def _answers(monkeypatch: pytest.MonkeyPatch, *counts: FormatCount) -> None:
    monkeypatch.setattr(full_examination, "probe", lambda *_, **__: counts)


def test_the_chosen_format_is_named_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_tiny_model(place_of_added(tmp_path, "mine"))
    _answers(monkeypatch, _count("hermes", 0), _count("json", 9))
    verdict = ask_for_calls(
        base, tmp_path, BaseVerdict(None, BaseReport(())), prompts=32, device="cpu", progress=Silent()
    )
    assert json.loads((base / "learnloop.json").read_text()) == {"tool_format": "json"}
    assert ChatTokenizer(base).tool_format.name == "json"
    assert BaseVerdicts(tmp_path).find(base) == verdict  # of the files with the new one


def test_of_a_base_elsewhere_it_is_said_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_tiny_model(tmp_path / "base")
    _answers(monkeypatch, _count("hermes", 0), _count("json", 9))
    report = BaseReport(())
    probed = ask_for_calls(
        base, tmp_path, BaseVerdict(None, report), prompts=32, device="cpu", progress=Silent()
    ).report
    assert probed is not None
    assert f'{{"tool_format": "json"}} into {base}/learnloop.json' in str(_by_name(probed)["tool format"].remedy)
    assert not (base / "learnloop.json").exists()
    (base / "learnloop.json").write_text('{"tool_format": "json"}')
    again = ask_for_calls(base, tmp_path, BaseVerdict(None, report), prompts=32, device="cpu", progress=Silent()).report
    assert again is not None
    assert "tool format" not in _by_name(again)


def test_a_probe_that_needs_too_much_memory_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_tiny_model(tmp_path / "base")
    monkeypatch.setattr(child_processes, "CHECK_BYTES", 1 << 16)
    monkeypatch.setattr(child_processes, "_CPU_COPIES", 0)
    verdict = ask_for_calls(
        base, tmp_path, BaseVerdict(None, BaseReport(())), prompts=1, device="cpu", progress=Silent()
    )
    assert verdict.fault is None
    assert verdict.report is not None
    assert _by_name(verdict.report)["calls"].severity == FindingSeverity.WARNING


@pytest.mark.usefixtures("forked_checks")
def test_weights_of_several_gigabytes_are_examined(tmp_path: Path) -> None:
    """Their file is mapped more than once, which takes more addresses than reading a small model may."""
    model = make_tiny_model(tmp_path)
    _add_hole(model / "model.safetensors", 5 << 30)
    verdict = check(model)
    assert verdict.fault is None
    assert verdict.report is not None
    assert "examination" not in [finding.name for finding in verdict.report.findings]


def _add_hole(path: Path, size: int) -> None:
    """Append a tensor of `size` bytes to a safetensors file, which takes no room on the disk."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    header["unused.weight"] = {"dtype": "U8", "shape": [size], "data_offsets": [len(tensors), len(tensors) + size]}
    written = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written + tensors)
        file.truncate(file.tell() + size)
