"""Messages to prompt text through the model's own chat template, and a chat over one conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .conversation import Conversation
from .errors import RequestError
from .generate import Generation
from .generation_options import GenerationOptions
from .tokenizer import PlanTokenizer

__all__ = ["Chat", "ChatTemplate", "Message"]

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}; templates may know further keys

_MAX_TEMPLATE = 512 * 1024


class ChatTemplate:
    """A compiled chat template. Rendering never runs foreign code; a hostile template is a RequestError."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str | None] | None = None) -> None:
        """special_tokens: ``bos_token``, ``eos_token``... as the template names them.

        Raises RequestError on a template that does not parse.
        """
        from .chat_sandbox import ChatEnvironment

        if len(source) > _MAX_TEMPLATE:
            raise RequestError(
                "the chat template is too long",
                found=f"{len(source)} characters",
                expected=f"at most {_MAX_TEMPLATE}",
            )
        self._special = {name: text for name, text in (special_tokens or {}).items() if text is not None}
        self._environment = ChatEnvironment()
        self._environment.start()
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # SyntaxError and RecursionError of the generated Python, too
            raise _refused(error, "cannot be compiled") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **more: Any) -> str:
        """The prompt's text. Raises RequestError with the template's own words when it refuses."""
        from .chat_sandbox import MAX_CHARACTERS

        self._environment.start()
        values = {
            **self._special,
            **more,
            "messages": [dict(m) for m in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                size += len(piece)
                self._environment.spend()
                if size > MAX_CHARACTERS:
                    raise RequestError(
                        "the chat template's output is too long", found=f"over {size} characters"
                    )
        except RequestError:
            raise
        except Exception as error:  # templates can provoke any error of Python's
            raise _refused(error, "refused these messages") from error
        return "".join(pieces)


def _refused(error: Exception, what: str) -> RequestError:
    line = getattr(error, "lineno", None)
    return RequestError(
        f"the model's chat template {what}",
        found=f"{type(error).__name__}: {str(error)[:300]}",
        where=f"line {line}" if line else "",
        todo="use --raw to go without the template, or other roles or an order of messages that it accepts",
    )


class Chat:
    """A dialogue: messages as text, their tokens in a conversation, each turn feeding only what is new.

    The template is rendered over all messages. Where its text continues what was said (prompt and answer),
    the tokens said stay as they are and only the rest is encoded; where a template rewrites earlier turns
    (some drop a model's reasoning), the cache is rewound to the last token that still agrees.
    """

    def __init__(
        self,
        conversation: Conversation,
        tokenizer: PlanTokenizer,
        template: ChatTemplate,
        *,
        system: str | None = None,
    ) -> None:
        self._conversation = conversation
        self._tokenizer = tokenizer
        self._template = template
        self._said: str | None = None  # the text of the conversation's tokens, where it is known
        self._asked: tuple[str, int, Generation] | None = None
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[Message] = list(self._opening)

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    def send(self, text: str, options: GenerationOptions) -> Generation:
        """Ask; iterate over the answer. Raises CapacityExceeded and RequestError with nothing changed."""
        self.close_turn()
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self._template.render(messages)
        generation = Generation(self._conversation, options, self._tokenizer)
        if self._said is not None and prompt.startswith(self._said):
            self._conversation.append(self._tokenizer.encode(prompt[len(self._said) :], special_tokens=False))
        else:
            self._conversation.replace(self._tokenizer.encode(prompt, special_tokens=False))
        self.messages = messages
        self._asked = (prompt, len(self._conversation.tokens), generation)
        return generation

    def close_turn(self) -> None:
        """Take the answer so far, whole or cut short, into the messages. Called by the next ``send``."""
        if self._asked is None:
            return
        prompt, length, generation = self._asked
        self._asked = None
        self.messages = [*self.messages, {"role": "assistant", "content": generation.result.text}]
        # The answer as it lies in the history, special tokens spelled out: an interrupt can come between
        # a pick and its place there. Somebody else's truncation below it leaves nothing to continue.
        tokens = self._conversation.tokens
        known = len(tokens) >= length
        self._said = prompt + self._tokenizer.decode_all(tokens[length:]) if known else None

    def reset(self) -> None:
        """Forget what was said, the system message excepted. The cache stays allocated."""
        self._asked, self._said = None, None
        self._conversation.truncate_to(0)
        self.messages = list(self._opening)
