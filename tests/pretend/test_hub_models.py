"""A program that loads a model by its name in the hub needs no weights, nor the hub."""

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GPT2Tokenizer,
    LlamaConfig,
)

from brimful import pretend
from brimful.models.encoders import encoders
from brimful.models.hub_configs import hub_configs
from brimful.models.names import find
from brimful.models.registry import registry
from brimful.pretend.hub_models import _trying_once

pytestmark = pytest.mark.torch

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
TINY = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8,
    num_attention_heads=4, num_key_value_heads=2,
)  # fmt: skip


def one_step(model):
    tokens = torch.zeros(1, 8, dtype=torch.long, device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()


def loaded(name, **how):
    with pretend.gpu("h100-80gb") as run:
        model = AutoModelForCausalLM.from_pretrained(name, **how).to("cuda")
        one_step(model)
    return model, run.report()


def test_a_model_that_is_known_by_name_is_made_of_its_shapes():
    model, report = loaded(NAME)
    own = {x.untyped_storage()._cdata: x for x in model.parameters()}
    assert sum(x.numel() for x in own.values()) == 134_515_008  # as its card says
    assert {x.dtype for x in own.values()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    said = " ".join(report.assumptions)
    assert f"{NAME} is not on this machine" in said
    assert "weights of" in said


def test_a_type_that_is_asked_for_is_taken():
    with pretend.gpu("h100-80gb"):
        model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.float32).to("cuda")
    assert {x.dtype for x in model.parameters()} == {torch.float32}


def test_its_tokenizer_takes_words_for_tokens_and_marks_answers():
    with pretend.gpu("h100-80gb"):
        tokenizer = AutoTokenizer.from_pretrained(NAME)
        torch.ones(1, device="cuda")
    assert len(tokenizer) == 49_152
    assert len(tokenizer("three more words")["input_ids"]) == 3
    row = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d e"}],
        tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
    )  # fmt: skip
    assert sum(row["assistant_masks"]) == len("cde") + 1  # and the end


def test_four_bits_of_bitsandbytes_are_packed_as_it_packs_them():
    pytest.importorskip("bitsandbytes")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with pretend.gpu("h100-80gb"):
        model = AutoModelForCausalLM.from_pretrained(NAME, quantization_config=how)
    weight = model.model.layers[0].mlp.up_proj.weight
    assert type(weight).__name__ == "Params4bit"
    assert weight.shape == (1536 * 576 // 2, 1)
    assert weight.quant_state.absmax.shape == (1536 * 576 // 64,)


def test_a_folder_without_weights_is_a_model_too(tmp_path):
    TINY.save_pretrained(tmp_path)
    model, report = loaded(tmp_path)
    assert model.config.hidden_size == 32
    assert f"weights of {tmp_path} are not on this machine" in " ".join(report.assumptions)


def test_what_is_on_this_machine_is_read(tmp_path):
    AutoModelForCausalLM.from_config(TINY).save_pretrained(tmp_path)
    _, report = loaded(tmp_path)
    assert "not on this machine" not in " ".join(report.assumptions)


def test_whoever_looks_for_a_file_of_a_known_model_finds_it():
    other = pytest.importorskip("peft.utils.other")
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        assert other.file_exists(NAME, "config.json")
        assert not other.file_exists(NAME, "adapter_config.json")


def test_nothing_of_it_is_left():
    before = AutoModelForCausalLM.from_config(TINY)._load_pretrained_model, torch.Tensor.detach
    with pretend.gpu("h100-80gb"):
        AutoModelForCausalLM.from_pretrained(NAME).to("cuda")
    after = AutoModelForCausalLM.from_config(TINY)._load_pretrained_model, torch.Tensor.detach
    assert before == after
    assert "_make_subclass" not in vars(torch.Tensor)


def test_a_class_of_tokenizers_takes_words_for_tokens_too():
    with pretend.gpu("h100-80gb"):
        tokenizer = GPT2Tokenizer.from_pretrained("gpt2")
        torch.ones(1, device="cuda")
    assert len(tokenizer) == 50_257
    assert len(tokenizer("three more words")["input_ids"]) == 3


def test_words_are_hidden_from_a_model_that_guesses_them():
    with pretend.gpu("h100-80gb"):
        masked = AutoTokenizer.from_pretrained("bert-base-uncased")
        causal = AutoTokenizer.from_pretrained(NAME)
        torch.ones(1, device="cuda")
    assert masked.mask_token_id is not None
    assert causal.mask_token_id is None
    assert len(masked) == 30_522


def test_a_decoder_that_reads_an_encoder_starts_somewhere():
    with pretend.gpu("h100-80gb"):
        t5, bart = map(AutoConfig.from_pretrained, ("google-t5/t5-small", "facebook/bart-base"))
        torch.ones(1, device="cuda")
    assert t5.decoder_start_token_id == 0
    assert bart.decoder_start_token_id == 2


def test_of_what_nobody_knows_it_is_said_how_it_can_be_named(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        with pytest.raises(OSError, match="couldn't connect") as found:
            AutoConfig.from_pretrained("nobody/has-heard-of-this")
    assert "put its config.json in a folder" in " ".join(_notes(found.value))


def _notes(error):
    """Return the notes of an error and of those that it came from."""
    while error is not None:
        yield from getattr(error, "__notes__", ())
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("key", sorted(encoders()))
def test_configurations_have_the_parameters_that_are_said_of_them(key):
    """Built on meta; of what learnt to listen the encoder alone is counted."""
    known = hub_configs()[key]
    assert known.names == encoders()[key].names
    counted = "Wav2Vec2Model" if known.model_type == "wav2vec2" else known.architecture
    with torch.device("meta"):
        model = getattr(transformers, counted)(
            AutoConfig.for_model(known.model_type, **known.config)
        )
    assert sum(x.numel() for x in model.parameters()) == encoders()[key].parameters


@pytest.mark.parametrize("key", sorted({*hub_configs()} & {*registry()}))
def test_what_sees_or_hears_has_the_published_parameters_though_its_texts_are_planned_alone(key):
    """A script's class is built whole: a Llama's configuration ended in an AttributeError."""
    known = hub_configs()[key]
    with torch.device("meta"):
        model = getattr(transformers, known.architecture)(
            AutoConfig.for_model(known.model_type, **known.config)
        )
    official = registry()[key]["num_parameters_official"]
    assert sum(x.numel() for x in model.parameters()) == official
    assert all(find(name).name == key for name in known.names)


def test_a_model_of_speech_runs_with_its_processor():
    name = "openai/whisper-tiny"
    with pretend.gpu("h100-80gb") as run:
        processor = transformers.AutoProcessor.from_pretrained(name, language="German")
        assert processor.feature_extractor.feature_size == 80
        labels = processor.tokenizer("three more words", return_tensors="pt").input_ids
        model = transformers.WhisperForConditionalGeneration.from_pretrained(name).cuda()
        heard = torch.zeros(1, 80, 3000, device="cuda")
        model(input_features=heard, labels=labels.cuda()).loss.backward()
    assert "its configuration is the published one" in " ".join(run.report().assumptions)
    assert {x.dtype for x in model.parameters()} == {torch.float32}


def test_repositories_of_one_model_differ_in_what_is_said_of_them():
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        english = AutoConfig.from_pretrained("openai/whisper-tiny.en")
        others = AutoConfig.from_pretrained("openai/whisper-tiny")
        spoken = AutoConfig.from_pretrained("facebook/wav2vec2-base-960h")
    assert (english.vocab_size, others.vocab_size) == (51864, 51865)
    assert spoken.architectures == ["Wav2Vec2ForCTC"]


def test_images_and_texts_are_made_ready_for_a_model_of_both():
    image = pytest.importorskip("PIL.Image").new("RGB", (300, 200))
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        processor = transformers.AutoProcessor.from_pretrained("google/siglip-base-patch16-224")
        both = processor(
            text=["a", "two words"], images=[image], padding="max_length", return_tensors="pt"
        )
    assert both["pixel_values"].shape == (1, 3, 224, 224)
    assert both["input_ids"].shape == (2, 64)


@pytest.mark.parametrize(
    ("key", "official"),
    [("paligemma-3b-pt-224", 2_923_466_480), ("paligemma2-3b-pt-448", 3_033_127_152)],
)
def test_what_answers_about_images_has_the_published_parameters(key, official):
    known = hub_configs()[key]
    with torch.device("meta"):
        model = getattr(transformers, known.architecture)(
            AutoConfig.for_model(known.model_type, **known.config)
        )
    assert sum(x.numel() for x in model.parameters()) == official


def test_images_stand_in_texts_where_the_model_looks_for_them():
    image = pytest.importorskip("PIL.Image").new("RGB", (300, 200))
    name = "google/paligemma-3b-pt-224"
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        sizes = AutoConfig.from_pretrained(name)
        processor = transformers.AutoProcessor.from_pretrained(name)
        both = processor(text=["<image>answer en what"], images=[image], suffix=["that"])
    (tokens,), (labels,) = both["input_ids"], both["labels"].tolist()
    assert tokens.count(sizes.image_token_id) == (224 // 14) ** 2
    assert len(labels) - labels.count(-100) == len(("that", "</s>"))


def test_words_on_a_page_are_read_with_where_they_stand():
    image = pytest.importorskip("PIL.Image").new("RGB", (300, 200))
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        processor = transformers.AutoProcessor.from_pretrained(
            "microsoft/layoutlmv3-base", apply_ocr=False
        )
        page = processor(
            [image], [["two", "words"]], boxes=[[[1, 2, 3, 4], [5, 6, 7, 8]]],
            word_labels=[[1, 2]], padding="max_length",
        )  # fmt: skip
    (boxes,), (labels,) = page["bbox"], page["labels"]
    assert (len(boxes), boxes[1:3]) == (512, [[1, 2, 3, 4], [5, 6, 7, 8]])
    assert labels[1:3] == [1, 2]


def test_weights_are_of_the_type_that_is_assumed_where_nobody_says_one():
    with pretend.gpu("h100-80gb", weights_dtype="float32"):
        assumed = AutoModelForCausalLM.from_pretrained(NAME).to("cuda")
        said = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.float16)
    assert {x.dtype for x in assumed.parameters()} == {torch.float32}
    assert {x.dtype for x in said.parameters()} == {torch.float16}


def test_a_hub_that_is_not_there_is_asked_once():
    asked = []

    def unreachable(method, url, *, max_retries=5, **_):
        asked.append((method, url, max_retries))
        raise ConnectionError("no such host")
        yield

    tried = _trying_once(unreachable)
    for _ in range(3):
        with pytest.raises(ConnectionError):
            next(tried("HEAD", "https://hub/config.json"))
    assert asked == [("HEAD", "https://hub/config.json", 0)]


def test_a_hub_that_answers_is_asked_as_ever():
    asked = []

    def reachable(_method, url, *, max_retries=5, **_):
        asked.append(max_retries)
        yield url

    tried = _trying_once(reachable)
    assert [next(tried("GET", f"https://hub/{i}")) for i in range(2)] == [
        "https://hub/0",
        "https://hub/1",
    ]
    assert asked == [0, 5]


def test_a_vocabulary_of_bytes_takes_characters_for_tokens():
    with pretend.gpu("l4") as run:
        tokenizer = AutoTokenizer.from_pretrained("google/byt5-small")
        torch.ones(1, device="cuda")
    assert len(tokenizer("three\nwords")["input_ids"]) == len("three\nwords")
    assert any("characters are taken for tokens" in line for line in run.report().assumptions)
