"""The tokenizer that writes a run's samples: the model's own, a given one, or one made for it."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import InputError
from brimful.train.data.tokenizer import (
    END_OF_TEXT,
    HIDDEN,
    hiding_words,
    read_tokenizer,
    split_text,
)

BUILT_IN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + (eos_token or '<|im_end|>') }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML (OpenAI 2023), but answers end with the token at which every generator stops."""
TOKENIZER_FILE = "tokenizer.json"
NO_LIMIT = 1 << 60
"""We cut samples ourselves, and say so; the tokenizer's own limit would only warn."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.txt",
                    "vocab.json", "spiece.model")  # fmt: skip


class Coder(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer, and how it is used.

    Attributes:
        tokenizer: A fast tokenizer of ``transformers``.
        is_own: Whether it was trained here: it then knows the end of a text as a special token, and
            at most one that hides others.
        template: The chat template.
        template_words: Which template that is, for people.
    """

    tokenizer: Any
    is_own: bool
    template: str
    template_words: str

    @property
    def end_id(self) -> int | None:
        """The token that ends a text."""
        for token in (self.tokenizer.eos_token_id, self.tokenizer.sep_token_id):
            if token is not None:
                return int(token)
        return None

    @property
    def pad_id(self) -> int:
        """The token that fills rows up; nothing sees it."""
        found = self.tokenizer.pad_token_id
        return next((token for token in (found, self.end_id) if token is not None), 0)

    def text_ids(self, text: str) -> list[int]:
        """Write a text as it is; in our own tokenizer's, a marker that is spelt out is text."""
        ids: list[int] = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=self.is_own
        )["input_ids"]
        return ids

    def document_ids(self, text: str) -> list[int]:
        """Write a text with what the tokenizer puts before it, and the token that ends it."""
        begin, end = self.marks()
        return [*begin, *self.text_ids(text), *end]

    def marks(self) -> tuple[list[int], list[int]]:
        """Return what stands before a document, as the tokenizer has it, and what ends it."""
        begin = self.tokenizer.bos_token_id
        empty = self.tokenizer("")["input_ids"]
        if begin is None and empty[:1] == [self.tokenizer.cls_token_id]:  # as BERT's
            begin = self.tokenizer.cls_token_id
        starts = begin is not None and begin in empty
        return [begin] if starts else [], [] if self.end_id is None else [self.end_id]

    def framed_ids(self, text: str, *, max_tokens: int) -> tuple[list[int], bool]:
        """Write a text as an encoder reads it, between the tokenizer's own marks.

        ``max_tokens``: most tokens; the text is cut, never the marks. Returns the ids, and whether
        the text was cut.
        """
        if self.is_own:
            ids, end = self.text_ids(text), [] if self.end_id is None else [self.end_id]
            room = max(0, max_tokens - 2 * len(end))
            return [*end, *ids[:room], *end][:max_tokens], len(ids) > room
        ids = self.tokenizer(text)["input_ids"]
        if len(ids) <= max_tokens:
            return ids, False
        return self.tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"], True

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, with the template that was used."""
        before = self.tokenizer.chat_template
        self.tokenizer.chat_template = self.template
        try:
            self.tokenizer.save_pretrained(folder)
        finally:
            self.tokenizer.chat_template = before

    def identity(self) -> str:
        """Return what stands for the tokenizer and its template."""
        words = f"{self.tokenizer.backend_tokenizer.to_str()}\0{self.tokenizer.special_tokens_map}"
        return hashlib.blake2b(f"{words}\0{self.template}".encode(), digest_size=8).hexdigest()


def code_documents(coder: Coder, texts: Iterable[str]) -> Iterator[list[int]]:
    """Turn texts into token ids one after the other, each between the tokenizer's own marks.

    Yields ids in order; where one list ends says nothing.
    """
    begin, end = coder.marks()
    for text in texts:
        yield begin
        for piece in split_text(text):
            yield coder.text_ids(piece)
        yield end


def own_coder(path: Path, template: str | None) -> Coder:
    """Wrap a tokenizer that was trained here.

    ``path``: its ``tokenizer.json``. ``template``: a chat template that is used in place of the
    built-in one.
    """
    from transformers import PreTrainedTokenizerFast

    read = read_tokenizer(path)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=read,
        eos_token=END_OF_TEXT,
        **hiding_words(read),
        model_max_length=NO_LIMIT,
        clean_up_tokenization_spaces=False,
    )
    return _coder(tokenizer, template, is_own=True)


def open_coder(where: str, template: str | None) -> Coder:
    """Open the tokenizer of a model.

    ``where``: ``tokenizer.json``, a folder, or a name on the hub. ``template``: a chat template
    that is used in place of the tokenizer's.
    """
    tokenizer = _load(where)
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"the tokenizer of {where} has no tokenizer.json, without which the place of a token "
            f"in its text is unknown; convert it with AutoTokenizer and save_pretrained"
        )
    tokenizer.model_max_length = NO_LIMIT
    return _coder(tokenizer, template, is_own=_is_ours(tokenizer))


def tokenizer_of_weights(weights: str | None) -> str | None:
    """Return where the tokenizer of a model's weights is; None where there are no weights."""
    if weights is None or not Path(weights).is_dir():
        return weights
    if not any((Path(weights) / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError(
            f"the folder of weights {weights} holds no tokenizer ({', '.join(_TOKENIZER_FILES)}), "
            f"and trained weights mean nothing with another one; put its own there, or name it "
            f"with --tokenizer"
        )
    return weights


def _coder(tokenizer: Any, template: str | None, *, is_own: bool) -> Coder:
    words = "the given template"
    chosen = template
    if chosen is None:
        chosen = _own_template(tokenizer)
        words = "the tokenizer's template"
    if chosen is None:
        chosen, words = BUILT_IN_TEMPLATE, "the built-in ChatML template"
    return Coder(tokenizer=tokenizer, is_own=is_own, template=chosen, template_words=words)


def _own_template(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return template.get("default")
    return template if isinstance(template, str) else None


def _is_ours(tokenizer: Any) -> bool:
    # No other tokenizer is known to have these special tokens and nothing else.
    known = list(tokenizer.all_special_tokens)
    return known in ([END_OF_TEXT], [END_OF_TEXT, HIDDEN]) and not tokenizer.chat_template


def _load(where: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(where)
    if path.is_dir() and not (path / "tokenizer_config.json").is_file():
        path = path / "tokenizer.json" if (path / "tokenizer.json").is_file() else path
    try:
        if path.is_file():
            return PreTrainedTokenizerFast(tokenizer_file=str(path))
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many kinds
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"the tokenizer {where} cannot be loaded ({reason}); give a folder with a "
            f"tokenizer.json, or go online once so that a hub name is cached"
        ) from error
