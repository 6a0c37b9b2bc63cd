"""Converts between conversations and token ids, with the same code for sampling and training.

A reply's sampled ids are never recreated from its text, because tokenising is not the inverse of sampling. A
conversation is therefore assembled from stretches of rendered and tokenised text, with the original sampled ids between
them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from learnloop_service.training.engine.text.control_text import SPLIT, ControlText, with_splits
from learnloop_service.training.engine.text.plain_tokenizer import PlainTokenizer, is_ours, stand_in
from learnloop_service.training.engine.text.template_habits import Habits, habits, with_short_ids, without_system_role
from learnloop_service.training.engine.text.template_process import (
    TemplateFailed,
    TemplateProcess,
    render_allowance,
    template_process,
)
from learnloop_service.training.engine.text.tool_text import with_tools_as_text
from learnloop_service.training.protocol.tool_formats.chosen import chosen_format, template_options
from learnloop_service.training.protocol.tool_formats.formats import TEXT, Reply, format_of_template
from learnloop_service.training.protocol.tool_formats.thoughts import THOUGHT_MARKS, opens_thought

CACHED_TEXTS = 4096
_PROBE = "probe_of_the_template"
_CALL_ENDS = frozenset("}]>")
"""The last characters of a call in every format."""
_INSIDE_TURNS = re.compile("tool|think|function|arg_|parameter", re.IGNORECASE)
_TAIL = 32
"""Number of tokens at the end of a prompt among which the mark of a thought can be."""
_REFUSALS = (TemplateError, TemplateFailed, TypeError, KeyError, AttributeError, ValueError)

Message = Mapping[str, Any]


class BadConversation(ValueError):
    """The messages or tools cannot be rendered by the model's chat template."""


class ChatTokenizer:
    """A model's tokenizer and chat template. It is thread-safe."""

    def __init__(self, directory: Path, base: Path | None = None) -> None:
        """Load from a local Hugging Face directory. The stop tokens of the `base` that an adapter is put on end replies
        as well. Raises OSError or ValueError if the directory has no tokenizer."""
        self._tokenizer: Any = PlainTokenizer.read(directory) or _of_transformers(directory)
        if not self._tokenizer.chat_template:
            if self._tokenizer.eos_token is None:
                raise ValueError(f"the tokenizer in {directory} has neither a chat template nor an end token")
            bos = getattr(self._tokenizer, "bos_token_id", None)
            self._tokenizer.chat_template = stand_in(self._tokenizer.encode("a"), bos)
        self.vocab_size: int = len(self._tokenizer)
        self.longest_token = max(map(len, self._tokenizer.get_vocab()), default=1)
        """Length of the longest token in characters."""
        self.stop_ids: frozenset[int] = frozenset(self._find_stop_ids(directory, base or directory))
        self._added: Mapping[int, Any] = self._tokenizer.added_tokens_decoder
        stops = [re.escape(self._added[stop].content) for stop in sorted(self.stop_ids) if stop in self._added]
        self._stop = re.compile("|".join(stops) or r"(?!)")
        self._processes: dict[str, TemplateProcess] = {}
        self._options = asdict(template_options(directory))
        self.habits = Habits() if self.trusts_template else habits(self._shows)
        """What the chat template takes and shows."""
        template_format = format_of_template(str(self._tokenizer.chat_template), shows_tools=self.habits.tools)
        chosen = chosen_format(directory)
        self.tool_format = chosen or template_format
        """How the model writes tool calls."""
        self.thinks = any(mark in str(self._tokenizer.chat_template) for mark in THOUGHT_MARKS)
        """Whether the chat template knows thoughts."""
        self._encode_cached = lru_cache(CACHED_TEXTS)(self._encode)
        self._show_tools()
        if chosen is None and not self._tools_as_text and not self.trusts_template and not self._reads_back():
            self.tool_format = TEXT
            self._show_tools()

    def _show_tools(self) -> None:
        """Show tools and calls in the tool format from now on."""
        self._control = self._control_text()
        self._tools_as_text = self.tool_format.shown_as_text or not self.habits.tools
        self._render_cached = lru_cache(CACHED_TEXTS)(self._render)

    def _reads_back(self) -> bool:
        """Whether a call as the template shows it is read as that call. A model learns to write it so."""
        fields = {"query": {"type": "string"}, "limit": {"type": "integer"}}
        tool = {"name": _PROBE, "description": "b", "parameters": {"type": "object", "properties": fields}}
        arguments = {"query": "a b", "limit": 5}
        call = {"id": "a1B2c3D4e", "type": "function", "function": {"name": _PROBE, "arguments": arguments}}
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            reply = self._reply_text(talk, _text_of([{"type": "function", "function": tool}]), 1)
        except BadConversation:
            return True  # it shows no reply that could be read
        calls = self.parse(self._stop.sub("", reply)).tool_calls
        return [(read.name, json.loads(read.arguments)) for read in calls] == [(_PROBE, arguments)]

    @property
    def fast(self) -> Any:
        """The underlying tokenizer: a `TokenizersBackend` of transformers or a substitute."""
        return self._tokenizer

    @property
    def trusts_template(self) -> bool:
        """Whether the chat template is one of ours, so that rendering needs no limits."""
        return is_ours(self._tokenizer.chat_template)

    def _find_stop_ids(self, *directories: Path) -> set[int]:
        stops = {self._tokenizer.eos_token_id, self._tokenizer.get_vocab().get("<|im_end|>")}
        for generation in (directory / "generation_config.json" for directory in directories):
            if generation.exists():
                named = json.loads(generation.read_text()).get("eos_token_id")
                stops.update(named if isinstance(named, list) else [named])
        return {stop for stop in stops if stop is not None}

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        exact: Mapping[int, Sequence[int]] | None = None,
    ) -> list[int]:
        """Return the token ids of the conversation, ending where the assistant's next message begins.

        `exact[i]` are the sampled ids of assistant message i. They are used in place of its text, which is ignored; a
        template that would drop part of an old reply (thinking) cannot do so. Raises BadConversation.
        """
        prepared = [self._prepared(message) for message in messages]
        tool_text, exact = _text_of(tools), exact or {}
        with render_allowance(len(prepared)):
            ids, _, last = self._spliced(prepared, tool_text, exact)
            rest = self._stretch(prepared, tool_text, last, exact)
            if rest is None:
                ids, rest = [], self._stretch(prepared, tool_text, None, exact)
        return [*ids, *(rest or ())]

    def training_sequence(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        exact: Mapping[int, Sequence[int]],
    ) -> tuple[list[int], list[int | None]]:
        """Return the same ids up to the last sampled one, and for each position the index of the message that was
        sampled there.

        None marks context. The tokens of a message are contiguous, and all of them: its n-th position is its n-th id.
        Raises BadConversation, also if a message of `exact` cannot be placed.
        """
        with render_allowance(len(messages)):
            return self._sampled([self._prepared(message) for message in messages], _text_of(tools), exact)

    def supervised_sequence(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[list[int], list[int | None]]:
        """Return the result of `training_sequence` as if every assistant message's text, up to its stop token, had been
        sampled.

        Raises BadConversation.
        """
        prepared = [self._prepared(message) for message in messages]
        tool_text = _text_of(tools)
        with render_allowance(len(prepared)):
            exact = {
                index: self._encode_cached(self._reply_text(prepared, tool_text, index))
                for index, message in enumerate(prepared)
                if message.get("role") == "assistant"
            }
            return self._sampled(prepared, tool_text, exact)

    def _sampled(
        self, messages: list[dict[str, Any]], tools: str, exact: Mapping[int, Sequence[int]]
    ) -> tuple[list[int], list[int | None]]:
        ids, owner, last = self._spliced(messages, tools, exact)
        if last != max((index for index, sampled in exact.items() if sampled), default=None):
            raise BadConversation(
                f"the chat template shows no end of assistant message {last}: what follows it has no place"
            )
        return ids, owner

    def _reply_text(self, messages: list[dict[str, Any]], tools: str, index: int) -> str:
        """Return the text that the model would have to sample to produce message `index`."""
        before = self._rendered(messages[:index], tools, reply=True)
        through = self._rendered(messages[: index + 1], tools, reply=False)
        mark = next((mark for mark in THOUGHT_MARKS if before.rstrip().endswith(mark)), "")
        thoughtless = before.rstrip().removesuffix(mark)
        if mark and not through.startswith(before) and through.startswith(thoughtless):
            # The prompt opens a thought, which a reply of an earlier turn is shown without.
            ends = [match.end() for match in self._stop.finditer(through, len(thoughtless))]
            return f"\n{THOUGHT_MARKS[mark]}\n\n{through[len(thoughtless) : ends[0] if ends else None]}"
        start = _end_of(before, through, messages[index - 1]["content"] if index else "")
        if start is None:
            raise BadConversation(f"the chat template does not show assistant message {index} as a reply")
        ends = [match.end() for match in self._stop.finditer(through, start)]
        own_stops = self._stops(messages[: index + 1], tools) - len(self._stop.findall(before))
        if ends or own_stops > 0:
            return through[start : ends[min(own_stops, len(ends)) - 1] if ends and own_stops > 0 else None]
        return through[start:] + self._next_mark(messages[: index + 1], tools)

    def _next_mark(self, messages: list[dict[str, Any]], tools: str) -> str:
        """Return the stop token that opens the turn after a reply if it is what ends the reply, as in GLM's template,
        or an empty text."""
        calls = messages[-1].get("tool_calls")
        opened = {"role": "tool", "tool_call_id": calls[0].get("id")} if calls else {"role": "user"}
        talk: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {**messages[-1], "content": _PROBE}]
        try:
            text = self._rendered([*talk, {**opened, "content": _PROBE}], tools, reply=False)
        except BadConversation:
            return ""
        marks = self._stop.findall(text[text.find(_PROBE) : text.rfind(_PROBE)])
        return marks[0] if marks else ""

    def _stops(self, messages: list[dict[str, Any]], tools: str) -> int:
        """Count the stop tokens of a conversation up to the end of its last message.

        It is rendered with the beginning of a reply after it, because some templates end a conversation without one
        with a stop token of its own.
        """
        return len(self._stop.findall(self._rendered(messages, tools, reply=True)))

    def _spliced(
        self,
        messages: list[dict[str, Any]],
        tools: str,
        exact: Mapping[int, Sequence[int]],
    ) -> tuple[list[int], list[int | None], int | None]:
        """Return the ids up to the last sampled one, the message that each was sampled for, and the last of these.

        What follows a message without a visible end is left out.
        """
        for index in exact:
            if not 0 <= index < len(messages) or messages[index].get("role") != "assistant":
                raise BadConversation(f"message {index} is not an assistant message of this conversation")
        ids: list[int] = []
        owner: list[int | None] = []
        last: int | None = None
        for index in sorted(index for index, sampled in exact.items() if sampled):
            stretch = self._stretch(messages[:index], tools, last, exact)
            if stretch is None:
                break
            ids += [*stretch, *exact[index]]
            owner += [None] * len(stretch) + [index] * len(exact[index])
            last = index
        return ids, owner, last

    def _stretch(
        self, messages: list[dict[str, Any]], tools: str, last: int | None, exact: Mapping[int, Sequence[int]]
    ) -> tuple[int, ...] | None:
        """Return the ids between the sampled message `last` and the reply to `messages`, or None if the message's end
        cannot be determined.

        The end of message `last` is its stop token. It is found by counting: rendered up to and including that message,
        the conversation has n stop tokens, so in every longer rendering the message ends with the n-th. Unlike a
        comparison of prefixes, this also works for templates that render a message differently once others follow. If
        the template closes a turn with the stop token that opens the next one, it is the one after these. A template
        that ends messages in any other way must render prefixes identically, up to a last stop token.
        """
        text = self._rendered(messages, tools, reply=True)
        if last is None:
            return self._encode_cached(text)
        before = self._rendered(messages[:last], tools, reply=True)
        count = self._stops(messages[: last + 1], tools)
        ends = [match.start() for match in self._stop.finditer(text)]
        if count <= len(self._stop.findall(before)):
            through = self._rendered(messages[: last + 1], tools, reply=False)
            if (rest := self._rest(text, through)) is not None:
                return self._after(rest, exact[last], same=True)
            if count >= len(ends) or not self._next_mark(messages[: last + 1], tools):
                return None
            return self._after(text[ends[count] :], exact[last], same=True)
        if len(ends) < count:
            return None
        # The text starts at the stop token, because some tokenizers treat the very beginning of a text differently.
        return self._after(text[ends[count - 1] :], exact[last])

    def _rest(self, text: str, through: str) -> str | None:
        """Return what follows a conversation in a longer one, or None if that does not begin with it. A template can
        end the last message with another special token than the earlier ones, as gpt-oss does."""
        if text.startswith(through):
            return text[len(through) :]
        ends = list(self._stop.finditer(through))
        if ends and ends[-1].end() == len(through) and text.startswith(before := through[: ends[-1].start()]):
            added = sorted((token.content for token in self._added.values() if token.special), key=len, reverse=True)
            rest = text[len(before) :]
            return next((rest.removeprefix(token) for token in added if rest.startswith(token)), None)
        return None

    def _after(self, text: str, sampled: Sequence[int], *, same: bool = False) -> tuple[int, ...]:
        """Return the ids of a text after a sampled message, without the stop token at its beginning if one was sampled;
        with `same`, if it was this one."""
        ids = self._encode_cached(text)
        ended = ids[:1] == tuple(sampled[-1:]) if same else True
        return ids[1:] if ended and sampled[-1] in self.stop_ids else ids

    def _rendered(self, messages: list[dict[str, Any]], tools: str, *, reply: bool) -> str:
        return self._render_cached(json.dumps(messages), tools, reply)

    def _render(self, messages: str, tools: str, reply: bool) -> str:
        if messages == "[]" and not tools:
            return ""
        conversation, offered = json.loads(messages), None
        if tools:
            offered = [self._control.split(_prepared_tool(tool)) for tool in json.loads(tools)]
        if self._tools_as_text:
            conversation = with_tools_as_text(
                conversation, offered or (), self.tool_format, system_role=self.habits.system_role
            )
            offered = None
        elif self.habits.short_ids:
            conversation = with_short_ids(conversation)
        if not self.habits.system_role:
            conversation = without_system_role(conversation)
        try:
            return with_splits(self._apply(conversation, offered, reply=reply))
        except _REFUSALS as error:
            raise BadConversation(f"the chat template refuses the conversation: {error}") from error

    def _apply(self, messages: Any, tools: Any, *, reply: bool = False) -> str:
        """Render a conversation: with our own templates here, with others in a process with limits."""
        if self.trusts_template:
            return str(
                self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=reply)
            )
        template = str(self._tokenizer.get_chat_template(None, tools))
        process = self._processes.setdefault(template, template_process(template))
        return process.render(messages, tools, dict(self._tokenizer.special_tokens_map), self._options, reply=reply)

    def _shows(self, messages: Any, tools: Any, text: str) -> bool:
        """Whether the chat template accepts the conversation and renders the text, which is somewhere in it."""
        try:
            return text in self._apply(messages, tools)
        except _REFUSALS:
            return False

    def _encode(self, text: str) -> tuple[int, ...]:
        first, *others = text.split(SPLIT)
        ids = self._tokenizer.encode(first, add_special_tokens=False)
        # Some tokenizers begin a text with a space, so the other pieces are tokenized after a line's end.
        before = self._tokenizer.encode("\n", add_special_tokens=False) if others else []
        for piece in others:
            after = self._tokenizer.encode(f"\n{piece}", add_special_tokens=False)
            joined = after[: len(before)] == before
            ids = [*ids, *(after[len(before) :] if joined else self._tokenizer.encode(piece, add_special_tokens=False))]
        return tuple(ids)

    def _prepared(self, message: Message) -> dict[str, Any]:
        """Convert a message to the form that chat templates expect, without control tokens in its content."""
        prepared: dict[str, Any] = self._control.split(_prepared(message), reply=message.get("role") == "assistant")
        return prepared

    def _control_text(self) -> ControlText:
        """Control tokens are the special ones, those that end replies, and others that the template writes except marks
        of calls, results and thoughts."""
        template = str(self._tokenizer.chat_template)
        tokens = {
            token.content
            for id, token in self._added.items()
            if token.special
            or id in self.stop_ids
            or (token.content in template and not _INSIDE_TURNS.search(token.content))
        }
        shape = self.tool_format
        written = {*shape.marks, shape.opening.strip(), shape.closing.strip()}
        for opening, closing in THOUGHT_MARKS.items():
            written |= {opening, closing} if opening in tokens else set()
        return ControlText(tokens, written - {self.piece(id) for id in self.stop_ids})

    def piece(self, token: int) -> str:
        """Return a token as written in the vocabulary."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids without the stop token at its end."""
        text_ids = ids[:-1] if len(ids) and ids[-1] in self.stop_ids else ids
        return str(
            self._tokenizer.decode(list(text_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether a reply to the prompt begins inside a thought."""
        return self.thinks and opens_thought(str(self._tokenizer.decode(list(prompt[-_TAIL:]))))

    def parse(
        self, text: str, *, call_seed: str = "", in_thought: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """Return the content and the calls of a sampled text; see ToolFormat.read. If the template takes one call in a
        message, the first call ends the reply."""
        reply = self.tool_format.read(text, call_seed=call_seed, in_thought=in_thought, tools=tools)
        return replace(reply, tool_calls=reply.tool_calls[:1]) if self.habits.single_call else reply

    def through_first_call(self, ids: Sequence[int], *, in_thought: bool) -> int:
        """Return how many of the sampled ids there are through the first call, and a stop token after it."""
        for end in range(1, len(ids)):
            if self.ends_call(ids[:end], in_thought=in_thought):
                return end + (ids[end] in self.stop_ids)
        return len(ids)

    def ends_call(self, ids: Sequence[int], *, in_thought: bool) -> bool:
        """Whether a call ends with the last of the sampled ids."""
        if _CALL_ENDS.isdisjoint(self.piece(ids[-1])):
            return False
        return bool(self.parse(self.decode(ids), in_thought=in_thought).tool_calls)


def _end_of(before: str, through: str, last: str) -> int | None:
    """Return where a conversation ends in its continuation, or None if that does not show it.

    Some templates show the beginning differently once a reply follows, such as a system text in the last user message
    only. What they show from the `last` content on counts then.
    """
    if through.startswith(before):
        return len(before)
    tail = before[before.rfind(last) :] if last and last in before else ""
    position = through.rfind(tail) if tail else -1
    return position + len(tail) if position >= 0 else None


def _of_transformers(directory: Path) -> Any:
    """Load the tokenizer with transformers. Raises OSError or ValueError."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(directory), local_files_only=True)


def _text_of(tools: Sequence[Mapping[str, Any]] | None) -> str:
    return json.dumps(list(tools)) if tools else ""


def _prepared_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a function without parameters an empty schema. Many chat templates look into it without asking."""
    function = tool.get("function")
    if not isinstance(function, dict) or function.get("parameters") is not None:
        return tool
    return {**tool, "function": {**function, "parameters": {"type": "object", "properties": {}}}}


def _prepared(message: Message) -> dict[str, Any]:
    """Convert a message to the form that chat templates expect: text content, and the arguments of calls as objects if
    they are valid."""
    prepared = {**message, "content": _text(message.get("content"))}
    calls = message.get("tool_calls")
    if not calls:
        return prepared
    try:
        prepared["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"].get("arguments"))}}
            for call in calls
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise BadConversation("a tool call must have a function with a name and arguments") from error
    return prepared


def _text(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    raise BadConversation("the content of a message must be text")


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments.strip() or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
