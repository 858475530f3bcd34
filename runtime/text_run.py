"""A plan ready to talk: loaded, with a conversation, a tokenizer and the options that were asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat import Chat, ChatTemplate
from .conversation import Conversation
from .errors import RequestError
from .generate import Generation, GenerationResult
from .generation_options import GenerationOptions
from .manifest import TOKENIZER_FILE, Manifest
from .plan import Plan
from .plan_files import Verify
from .plan_text import default_options, read_chat_template, template_tokens
from .run_stats import RunMeter
from .tokenizer import PlanTokenizer
from .topology import check_asked_for

__all__ = ["TextRun", "no_template", "result_document", "show"]


@dataclass(frozen=True, slots=True)
class TextRun:
    """A loaded plan with a conversation over it, its tokenizer if it has one, and what was asked for."""

    plan: Plan
    conversation: Conversation
    options: GenerationOptions
    tokenizer: PlanTokenizer | None
    meter: RunMeter

    @staticmethod
    def load(
        path: Path,
        given: dict[str, Any],
        *,
        capacity: int | None,
        threads: int | None,
        verify: Verify,
        device: str | None = None,
    ) -> TextRun:
        """``given``: generation options, None where the model's own count. ``device``: the one that the plan
        must be placed on. Raises PlanonceError."""
        GenerationOptions().updated(**given)  # a wrong option should not cost a load
        if device is not None:
            check_asked_for(Manifest.load(path), device)
        started = time.perf_counter()
        plan, session = Plan.load_and_open(path, capacity=capacity, threads=threads, verify=verify)
        has_tokenizer = any(record.path == TOKENIZER_FILE for record in plan.manifest.files)
        tokenizer = PlanTokenizer.load(plan.directory, plan.manifest) if has_tokenizer else None
        options = default_options(plan.directory, plan.manifest).updated(**given)
        meter = RunMeter(plan, session, time.perf_counter() - started)
        return TextRun(plan, Conversation(session), options, tokenizer, meter)

    def need_tokenizer(self) -> PlanTokenizer:
        """Raises RequestError when the plan has none."""
        if self.tokenizer is None:
            return PlanTokenizer.load(self.plan.directory, self.plan.manifest)
        return self.tokenizer

    def chat(self, system: str | None) -> Chat | None:
        """A chat over the conversation; None when the plan has no chat template."""
        directory, manifest = self.plan.directory, self.plan.manifest
        source = read_chat_template(directory, manifest)
        if source is None:
            return None
        template = ChatTemplate(source, special_tokens=template_tokens(directory, manifest))
        return Chat(self.conversation, self.need_tokenizer(), template, system=system)

    def feed(self, tokens: list[int]) -> Generation:
        """Continue these tokens."""
        self.conversation.append(tokens)
        return Generation(self.conversation, self.options, self.tokenizer)

    def ask(self, text: str, system: str | None) -> Generation:
        """Answer one message, or continue the text where the plan has no chat template."""
        chat = self.chat(system)
        if chat is not None:
            return chat.send(text, self.options)
        if system is not None:
            raise no_template()
        return self.feed(self.need_tokenizer().encode(text))


def show(run: TextRun, generation: Generation, write: Callable[[str], None]) -> GenerationResult:
    """Generate to the end, handing text to ``write`` as it settles, and a newline after it, Ctrl-C or not.

    Without a tokenizer the text is the token ids.
    """
    shown = False
    try:
        with contextlib.closing(run.meter.watch(generation)) as events:
            for event in events:
                text = event.text if run.tokenizer is not None else f"{' ' if shown else ''}{event.id}"
                if text:
                    write(text)
                    shown = True
    finally:
        if shown:
            write("\n")
    return generation.result


def result_document(result: GenerationResult) -> dict[str, object]:
    """A generation for JSON."""
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason.value,
        "stop_string": result.stop_string,
        "prompt_tokens": result.tokens_fed,
    }


def no_template() -> RequestError:
    return RequestError(
        "this plan has no chat template",
        todo="use --prompt without --system, or compile a checkpoint that has a chat template",
    )
