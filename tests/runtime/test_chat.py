"""Chat templates come from strangers; a chat feeds only what is new."""

from __future__ import annotations

import time

import numpy as np
import pytest
from handmade_plan import reference_logits
from text_files import CHATML, text_tiny

from planonce.runtime import Plan
from planonce.runtime.chat import Chat, ChatTemplate
from planonce.runtime.conversation import Conversation
from planonce.runtime.errors import CapacityExceeded, RequestError
from planonce.runtime.generation_options import GenerationOptions
from planonce.runtime.tokenizer import PlanTokenizer

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, object]] | None = None, **more: object) -> str:
    special = {"bos_token": "<s>", "eos_token": None}
    return ChatTemplate(source, special_tokens=special).render(messages or USER, **more)


# --- what published templates use ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ bos_token }}{{ eos_token }}", "<s>"),
        ("{%- if messages[0]['role'] == 'user' -%}yes{%- endif -%}", "yes"),
        ("{% for m in messages %}{% if loop.first %}{{ m['content'] | trim }}{% endif %}{% endfor %}", "hi"),
        (
            "{% set a = namespace(n=0) %}{% for m in messages %}{% set a.n = a.n + 1 %}{% endfor %}{{ a.n }}",
            "1",
        ),
        ("{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}x{% endfor %}-", "-"),
        ("{% for m in messages %}{% break %}x{% endfor %}-", "-"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ '<&\"' | tojson }}", '"<&\\""'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ messages[0].content.split('i')[0] ~ '!' }}", "h!"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        ("{{ 'a-b'.replace('-', '+') ~ 'x' * 3 }}", "a+bxxx"),
        ("{% macro m(t) %}[{{ t }}]{% endmacro %}{{ m('x') }}", "[x]"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='content') | join(',') }}", "hi"),
        ("{{ '%s:%d' | format('a', 3) }} {{ '{}'.format(1) }}", "a:3 1"),
        ("{% if tools is defined and tools is not none %}t{% endif %}{{ date_string }}", "today"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ range(3) | list }}", "[0, 1, 2]"),
        ("{{ messages[0].content[::-1] }}{{ messages[-1].role.upper() }}", "ihUSER"),
    ],
)
def test_what_published_templates_use_works(source: str, expected: str) -> None:
    assert render(source, date_string="today") == expected


def test_template_that_refuses_says_so_in_its_own_words() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}ok"
    assert render(source) == "ok"
    with pytest.raises(RequestError, match="no system role"):
        render(source, [{"role": "system", "content": "x"}])


# --- hostile ones --------------------------------------------------------------------------------------


def doubling(expression: str, start: str = "'xx'") -> str:
    """A value of two parts, sixty times over: 2**60 of them."""
    return (
        f"{{% set ns = namespace(s={start}) %}}"
        f"{{% for i in range(60) %}}{{% set ns.s = {expression} %}}{{% endfor %}}"
    )


HOSTILE = {
    "class of a string": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class through attr filter": "{{ '' | attr('__class__') }}",
    "class through item": "{{ ''['__class__'].__mro__ }}",
    "class through format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "class through format_map": "{{ '{a.__class__.__init__.__globals__}'.format_map({'a': ''}) }}",
    "class through map": "{{ [''] | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "globals of a function": "{{ raise_exception.__globals__['__builtins__'] }}",
    "globals of strftime": "{{ strftime_now.__globals__ }}",
    "globals of namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "globals of joiner": "{{ joiner.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__.os }}",
    "self": "{{ self.__init__.__globals__ }}",
    "environment of self": "{{ self._TemplateReference__context.environment.filters }}",
    "generator frame": "{% set g = (messages | map('upper')) %}{{ g.gi_frame.f_globals }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends 'x' %}",
    "change a message": "{{ messages.append({'role': 'user'}) }}",
    "change a dictionary": "{{ messages[0].update({'role': 'x'}) }}",
    "endless loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "large range": "{% for i in range(10**9) %}x{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "repeated power": doubling("ns.s * ns.s", "99"),
    "string times": "{{ 'x' * 10**10 }}",
    "list times": "{{ ([0] * 10**10) | length }}",
    "doubling by +": doubling("ns.s + ns.s"),
    "doubling by ~": doubling("ns.s ~ ns.s"),
    "doubling by join": doubling("[ns.s, ns.s] | join"),
    "doubling by str.join": doubling("ns.s.join([ns.s, ns.s])"),
    "doubling by replace": doubling("ns.s.replace('x', 'xx')"),
    "doubling by the replace filter": doubling("ns.s | replace('x','xx')"),
    "doubling by format": doubling("'%s%s' % (ns.s, ns.s)"),
    "doubling by the format filter": doubling("'%s%s' | format(ns.s, ns.s)"),
    "doubling by str.format": doubling("'{0}{0}'.format(ns.s)"),
    "doubling by set block": (
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
        "{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}{% endfor %}"
    ),
    "doubling by macro": "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}" + doubling("d(ns.s)"),
    "doubling lists": doubling("ns.s + ns.s", "[1]"),
    "nesting lists": doubling("[ns.s, ns.s]", "[1]") + "{{ ns.s }}",
    "nesting as json": doubling("[ns.s, ns.s]", "[1]") + "{{ ns.s | tojson }}",
    "sum of lists": "{{ ([[0] * 9999] * 9999) | sum(start=[]) }}",
    "width by %": "{{ '%999999999d' % 1 }}",
    "width by *": "{{ '%*d' % (999999999, 1) }}",
    "width by format": "{{ '{:999999999}'.format(1) }}",
    "width by nested format": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "center": "{{ 'x'.center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "the center filter": "{{ 'x' | center(999999999) }}",
    "the indent filter": "{{ ('a\n' * 9999) | indent(99999999) }}",
    "the batch filter": "{{ [1] | batch(999999999, 'x') | list }}",
    "the slice filter": "{{ [1] | slice(999999999) | list }}",
    "the random filter": "{{ [1, 2] | random }}",
    "strftime": "{{ strftime_now('%999999999d') }}",
    "recursion of a macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "output without end": "{% for i in range(90000) %}{{ 'x' * 9999 }}{% endfor %}",
    "deep nesting": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "syntax": "{% if %}",
    "unknown filter": "{{ 1 | nothing }}",
    "too long": "x" * 600_000,
    "division by zero": "{{ 1 // 0 }}",
    "missing value": "{{ messages[9].content }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_is_refused_in_bounded_time(name: str) -> None:
    messages: list[dict[str, object]] = [dict(USER[0])]
    started = time.monotonic()
    with pytest.raises(RequestError) as caught:
        text = render(HOSTILE[name], messages)
        # What does not raise must at least have said nothing.
        assert text.strip() == "", text[:200]
        raise RequestError("harmless: rendered to nothing")
    assert time.monotonic() - started < 15
    assert "Traceback" not in str(caught.value)
    assert messages == USER


def test_limits_are_of_one_rendering_and_not_of_the_templates_life() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok")
    assert [template.render(USER) for _ in range(4)] == ["ok"] * 4


def test_long_honest_dialogue_is_within_the_limits() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 1000
    assert len(render(CHATML, messages)) > 1_000_000


# --- dialogues -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(text_plan: Plan) -> PlanTokenizer:
    return PlanTokenizer.load(text_plan.directory, text_plan.manifest)


def check(chat: Chat) -> None:
    """The cache is what the history says: the next logits equal those recomputed from nothing."""
    conversation = chat.conversation
    logits = conversation.feed()
    expected = reference_logits(text_tiny(), list(conversation.tokens))[-1]
    np.testing.assert_allclose(logits, expected, rtol=5e-3, atol=5e-3)


def test_ten_turns_feed_only_new_tokens(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    conversation = Conversation(text_plan.open())
    chat = Chat(conversation, tokenizer, ChatTemplate(CHATML), system="be kind")
    said = ""
    for turn in range(10):
        options = GenerationOptions(max_new_tokens=6, stop_token_ids=(2,), temperature=1.0, seed=turn)
        before = len(conversation.tokens)
        pending = conversation.pending
        result = chat.send(f"turn {turn} é", options).run()
        new = len(conversation.tokens) - before - len([t for t in result.tokens if t != 2])
        assert result.tokens_fed == pending + new  # this turn's text alone, however long the history
        assert result.tokens_fed < 70
        chat.close_turn()
        said = tokenizer.decode_all(conversation.tokens)
    assert conversation.session.counters.tokens == conversation.fed  # nothing was ever fed twice
    assert said.count("<|im_start|>user") == 10
    assert said.startswith("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nturn 0 é<|im_end|>\n")
    check(chat)


def test_template_that_rewrites_earlier_turns_is_followed(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    """Some drop a model's reasoning from earlier answers: the cache is rewound to where it agrees."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ '' if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant{{ '\n' }}"
    )
    chat = Chat(Conversation(text_plan.open()), tokenizer, ChatTemplate(source))
    options = GenerationOptions(max_new_tokens=5)
    chat.send("one", options).run()
    chat.send("two", options)
    earlier = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    expected = earlier + "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode_all(chat.conversation.tokens) == expected
    check(chat)


def test_answer_cut_short_is_part_of_the_dialogue(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    chat = Chat(Conversation(text_plan.open()), tokenizer, ChatTemplate(CHATML))
    generation = chat.send("one", GenerationOptions(max_new_tokens=50))
    for _ in range(4):
        next(generation)
    chat.send("two", GenerationOptions(max_new_tokens=2)).run()
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "user"]
    assert chat.messages[1]["content"] == generation.result.text
    check(chat)


def test_message_that_does_not_fit_changes_nothing(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    chat = Chat(Conversation(text_plan.open(capacity=80)), tokenizer, ChatTemplate(CHATML))
    chat.send("one", GenerationOptions(max_new_tokens=3)).run()
    chat.close_turn()
    before = chat.messages, chat.conversation.tokens
    with pytest.raises(CapacityExceeded):
        chat.send("x" * 100, GenerationOptions())
    assert (chat.messages, chat.conversation.tokens) == before
    chat.send("y", GenerationOptions(max_new_tokens=2)).run()
    check(chat)


def test_refused_message_changes_nothing(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    template = ChatTemplate("{% if messages|length > 1 %}{{ raise_exception('enough') }}{% endif %}" + CHATML)
    chat = Chat(Conversation(text_plan.open()), tokenizer, template)
    chat.send("one", GenerationOptions(max_new_tokens=3)).run()
    chat.close_turn()
    before = chat.messages, chat.conversation.tokens
    with pytest.raises(RequestError, match="enough"):
        chat.send("two", GenerationOptions())
    assert (chat.messages, chat.conversation.tokens) == before


def test_reset_forgets_all_but_the_system_message(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    chat = Chat(Conversation(text_plan.open()), tokenizer, ChatTemplate(CHATML), system="short")
    options = GenerationOptions(max_new_tokens=5)
    first = chat.send("one", options).run().tokens
    chat.send("two", options).run()
    chat.reset()
    assert chat.conversation.session.position == 0
    assert [m["content"] for m in chat.messages] == ["short"]
    assert chat.send("one", options).run().tokens == first


def test_conversation_truncated_by_another_is_told_again(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    chat = Chat(Conversation(text_plan.open()), tokenizer, ChatTemplate(CHATML))
    options = GenerationOptions(max_new_tokens=3)
    chat.send("one", options).run()
    chat.conversation.truncate_to(2)
    chat.send("two", options)
    assert tokenizer.decode_all(chat.conversation.tokens).startswith("<|im_start|>user\none<|im_end|>\n")
    check(chat)
