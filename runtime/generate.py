"""From a prompt to tokens, one event each: pick, settle the text, feed the pick, repeat."""

from __future__ import annotations

import enum
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .conversation import Conversation
from .decode_session import DecodeSession
from .errors import RequestError
from .generation_options import GenerationOptions
from .sampling import Choice, Logits, Sampler
from .stop import StopMatcher
from .streaming import TextStream, TokenDecoder

__all__ = ["FinishReason", "Generation", "GenerationResult", "GenerationTimes", "Token", "generate"]


class FinishReason(enum.Enum):
    """Why a generation ended. ABANDONED: the caller stopped asking, or an error or Ctrl-C came between."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"  # max_new_tokens
    CAPACITY = "capacity"  # the cache is full
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Token:
    """One token picked. ``text``: what became safe to show with it, often more or less than its own.

    ``logprob``: natural, under the model's own distribution; None unless asked for.
    """

    id: int
    text: str
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Seconds. ``steps``: each decoded token from pick to logits, the caller's own time left out.

    ``host``: the part of all steps that went to picking tokens on the host and settling their text.
    """

    prefill: float = 0.0
    first_token: float = 0.0
    steps: array[float] = field(default_factory=lambda: array("d"))
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """``tokens``: all picked, a stop token that ended it included. ``text``: all that was shown."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    tokens_fed: int  # by this generation's prefill
    stop_string: str | None = None
    logprobs: tuple[float, ...] = ()
    times: GenerationTimes = GenerationTimes()


class Generation(Iterator[Token]):
    """An iterator of :class:`Token`; :attr:`result` tells what has come so far, and at the end, all.

    Nothing runs before the first ``next``. Leaving early is fine: the conversation holds exactly the tokens
    that were picked. Raises on the way what the session raises, and PlanError on NaN logits.
    """

    def __init__(
        self, conversation: Conversation, options: GenerationOptions, decoder: TokenDecoder | None = None
    ) -> None:
        if options.stop and decoder is None:
            raise RequestError(
                "stop strings need a tokenizer",
                found=f"stop = {list(options.stop)}",
                todo="use a plan with a tokenizer, or stop_token_ids",
            )
        self._conversation = conversation
        self._options = options
        self._in_program = conversation.session.has_greedy_head and not options.needs_logits
        self._stop_tokens = frozenset(options.stop_token_ids)
        self._stream = TextStream(decoder) if decoder is not None else None
        self._matcher = StopMatcher(options.stop)
        self._ids = array("q")
        self._text: list[str] = []
        self._logprobs: list[float] = []
        self._finish = FinishReason.ABANDONED
        self._fed = 0
        self._prefill = self._first = self._host = 0.0
        self._steps = array("d")
        self._events = self._run()

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Token:
        return next(self._events)

    def run(self) -> GenerationResult:
        """Generate to the end; the result."""
        for _ in self:
            pass
        return self.result

    @property
    def result(self) -> GenerationResult:
        return GenerationResult(
            tokens=tuple(self._ids),
            text="".join(self._text),
            finish_reason=self._finish,
            tokens_fed=self._fed,
            stop_string=self._matcher.matched,
            logprobs=tuple(self._logprobs),
            times=GenerationTimes(self._prefill, self._first, self._steps, self._host),
        )

    def _run(self) -> Iterator[Token]:
        clock = time.perf_counter
        conversation = self._conversation
        started = clock()
        before = conversation.tokens_fed
        sampler = Sampler(self._options, conversation.tokens)
        found: Logits | Choice = conversation.feed()
        self._fed = conversation.tokens_fed - before
        self._prefill = clock() - started
        spent = 0.0
        while True:
            resumed = clock()
            choice = found if isinstance(found, Choice) else sampler.choose(found)
            event, finish = self._settle(choice.token, choice.logprob)
            now = clock()
            spent += now - resumed
            if not self._first:
                self._first = now - started
            if finish is not None:
                self._finish = finish
                yield event
                return
            yield event
            resumed = clock()
            found = self._feed(choice.token)
            self._steps.append(spent + clock() - resumed)
            self._host += spent
            spent = 0.0

    def _feed(self, token: int) -> Logits | Choice:
        """Feed a pick: the next one where the program picks it, else the logits to pick it from."""
        if self._in_program:
            return Choice(self._conversation.step_greedy(token), None)
        return self._conversation.step(token)

    def _settle(self, token: int, logprob: float | None) -> tuple[Token, FinishReason | None]:
        """Record a pick: its text, and whether it is the last."""
        self._ids.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        text = ""
        finish: FinishReason | None = None
        if token in self._stop_tokens:
            finish = FinishReason.STOP_TOKEN
        else:
            self._conversation.accept(token)
            if self._stream is not None:
                text = self._matcher.feed(self._stream.push(token))
            if self._matcher.matched is not None:
                finish = FinishReason.STOP_STRING
            elif len(self._ids) >= self._options.max_new_tokens:
                finish = FinishReason.LENGTH
            elif self._conversation.full:
                finish = FinishReason.CAPACITY
        if finish is not None and self._stream is not None and self._matcher.matched is None:
            text += self._matcher.feed(self._stream.flush())
            if self._matcher.matched is None:
                text += self._matcher.flush()
        if text:
            self._text.append(text)
        return Token(token, text, logprob), finish


def generate(
    session: DecodeSession,
    prompt_tokens: Sequence[int],
    options: GenerationOptions | None = None,
    *,
    decoder: TokenDecoder | None = None,
) -> Generation:
    """Continue ``session`` with ``prompt_tokens`` and generate. To go on afterwards, use a Conversation.

    The session's own live positions stay in front. The last token picked is not fed.
    Raises CapacityExceeded when the prompt does not fit, RequestError on an empty prompt.
    """
    conversation = Conversation(session)
    conversation.append(prompt_tokens)
    return Generation(conversation, options or GenerationOptions(), decoder)
