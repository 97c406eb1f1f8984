import pytest

from brimful.train.data.answers import has_markers, mark_answers, render
from brimful.train.data.conversation import Conversation, parse_conversation
from brimful.train.data.records import BadRecordError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and not loop.last %}{{ '[A]...' }}"
    "{% else %}{{ '[' + m['role'] + ']' + m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
MARKS = ("<|im_start|>", "<|im_end|>")


def say(*turns):
    roles = {"u": "user", "a": "assistant", "s": "system"}
    messages = [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]
    return Conversation(messages, None, 0)


def learnt(coder, conversation):
    """Decode what carries loss, run by run."""
    ids, is_answer = mark_answers(conversation, coder)
    runs, run = [], []
    for token, flag in [*zip(ids, is_answer, strict=True), (0, False)]:
        if flag:
            run.append(token)
        elif run:
            runs.append(coder.tokenizer.decode(run))
            run = []
    return runs


TALK = say("s:one two", "u:alpha beta", "a:gamma delta", "u:three", "a:one two")


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_answers_and_the_token_that_ends_them_are_learnt(coder_with, template):
    coder = coder_with(template, MARKS)
    assert learnt(coder, TALK) == ["gamma delta<|im_end|>", "one two<|im_end|>"]


def test_a_template_without_markers_gives_the_mask_of_one_with_them(coder_with):
    talks = [TALK, say("u:alpha", "a:[four] héllo  "), say("u:x", "a:  y\n\n", "u:z", "a:w")]
    for talk in talks:
        marked = mark_answers(talk, coder_with(MARKED, MARKS))
        assert mark_answers(talk, coder_with(CHATML, MARKS)) == marked


def test_the_mask_is_that_of_transformers(coder_with):
    coder = coder_with(MARKED, MARKS)
    theirs = coder.tokenizer.apply_chat_template(
        TALK.messages,
        chat_template=MARKED,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids, is_answer = mark_answers(TALK, coder)
    assert ids == theirs["input_ids"]
    assert [int(flag) for flag in is_answer] == theirs["assistant_masks"]


def test_the_mask_by_hand_token_by_token(coder_with):
    coder = coder_with(MARKED, MARKS)
    talk = say("u:alpha", "a:beta")
    ids, is_answer = mark_answers(talk, coder)
    pieces = [coder.tokenizer.decode([token]) for token in ids]
    after = len(pieces) - 1 - pieces[::-1].index("\n")
    assert pieces[after - 1] == "<|im_end|>"
    first = max(place for place, piece in enumerate(pieces[:after]) if piece == "\n") + 1
    assert [place for place, flag in enumerate(is_answer) if flag] == list(range(first, after))
    assert "".join(pieces[first:after]) == "beta<|im_end|>"


def test_the_built_in_template_ends_answers_with_the_end_of_text(coder_with):
    coder = coder_with()
    assert has_markers(coder.template)
    assert coder.template_words == "the built-in ChatML template"
    assert learnt(coder, TALK) == ["gamma delta<|endoftext|>", "one two<|endoftext|>"]
    assert coder.end_id in mark_answers(TALK, coder).ids


def test_without_an_end_mark_the_answer_ends_where_the_next_turn_begins(coder_with):
    plain = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    prompt = "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    coder = coder_with(plain + prompt)
    assert render(TALK, coder).answers[0][0] == len(
        "system: one two\nuser: alpha beta\nassistant: "
    )
    # The blank before the first word is one token with it.
    assert learnt(coder, TALK) == [" gamma delta\n", " one two\n"]


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_reason(coder_with):
    coder = coder_with(FORGETFUL)
    assert learnt(coder, say("u:alpha", "a:beta")) == ["beta"]
    with pytest.raises(BadRecordError, match=r"up to message 2 differently once others follow"):
        mark_answers(say("u:alpha", "a:beta", "u:one", "a:two"), coder)


def test_a_template_that_refuses_a_conversation_is_quoted(coder_with):
    coder = coder_with("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRecordError, match=r"refuses it \(roles must alternate\)"):
        mark_answers(TALK, coder)


def test_a_template_that_marks_nothing_is_refused(coder_with):
    coder = coder_with("{% for m in messages %}{% generation %}{% endgeneration %}{% endfor %}x")
    with pytest.raises(BadRecordError, match="marks no answer"):
        mark_answers(TALK, coder)


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_answers_within_a_prompt_are_read_and_not_learnt(coder_with, template):
    fields = {"prompt": TALK.messages[:4], "completion": TALK.messages[4:]}
    talk = parse_conversation(fields, "messages")
    assert learnt(coder_with(template, MARKS), talk) == ["one two<|im_end|>"]


def test_a_text_of_many_bytes_per_character_is_marked_whole(coder_with):
    coder = coder_with(MARKED, MARKS)
    assert learnt(coder, say("u:é", "a:日本語 🙂 é")) == ["日本語 🙂 é<|im_end|>"]
