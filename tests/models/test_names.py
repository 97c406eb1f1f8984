"""Known models under the names that people, hubs, clouds and hostile users give them."""

import http.server
import threading
import time

import pytest

from brimful.cli.main import main
from brimful.errors import UnknownNameError
from brimful.models.config import load_model
from brimful.models.hub import fetch_file
from brimful.models.name_parts import format_named
from brimful.models.names import (
    find,
    misspelt,
    nearest_by_name,
    suggestions,
    taken_words,
    unlike,
    without_qualifiers,
)
from brimful.models.registry import registry
from brimful.models.slips import respelt
from each_case import each

SAME = {
    "llama-3.1-8b": (
        "meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", "llama3.1-8b", "Llama 3.1 8B",
        "LLAMA_3.1_8B", "Llama-3_1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1:8b",
        "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama3.1:8b-instruct-q4_K_M",
        "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3-1-8b", "llama-3.1-8b-instant",
        "Meta-Llama-3.1-8B-Instruct-Turbo", "llama\u20113.1\u20118b", "  llama-3.1-8b  ",
        "accounts/fireworks/models/llama-v3p1-8b-instruct", "somebody/Llama-3.1-8B-hf",
    ),
    "llama-3-8b": ("llama3-8b", "mlx-community/Meta-Llama-3-8B-Instruct-4bit"),
    "llama-3.3-70b": (
        "llama-3.3", "Llama-3.3-70B-Instruct", "llama-3.3-70b-versatile",
        "unsloth/Llama-3.3-70B-Instruct-unsloth-bnb-4bit",
        "RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8",
    ),
    "llama-2-7b": ("TheBloke/Llama-2-7B-Chat-GPTQ", "meta-llama/Llama-2-7b-chat-hf"),
    "llama-3.1-405b": ("hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4",),
    "qwen3-8b": ("https://huggingface.co/Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B", "qwen-3-8b"),
    "qwen3-30b-a3b": (
        "Qwen3-30B-A3B", "qwen3:30b-a3b", "qwen3-30b", "mlx-community/Qwen3-30B-A3B-4bit",
    ),
    "qwen3-30b-a3b-2507": ("Qwen/Qwen3-30B-A3B-Instruct-2507",),
    "qwen3-235b-a22b-2507": ("Qwen/Qwen3-235B-A22B-Thinking-2507",),
    "qwen2.5-72b": ("bartowski/Qwen2.5-72B-Instruct-GGUF", "qwen-2-5-72b"),
    "gemma-3-27b": ("gemma-3-27b-it", "google/gemma-3-27b-it-qat-q4_0-gguf", "gemma3:27b"),
    "gemma-2-9b": ("gemma 2 9b", "google/gemma-2-9b-pt"),
    "mistral-7b-v0.3": ("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3"),
    "mistral-7b-v0.2": ("Mistral-7B-v0.2",),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-Instruct-v0.1",),
    "mistral-nemo-12b": ("mistral-nemo", "mistralai/Mistral-Nemo-Instruct-2407"),
    "mistral-small-24b": ("mistralai/Mistral-Small-24B-Instruct-2501",),
    "phi-4": ("microsoft/phi-4", "phi4", "phi-4-14b"),
    "phi-3-mini": ("microsoft/Phi-3-mini-4k-instruct",),
    "phi-1.5": ("phi-1_5",),
    "gpt2": ("gpt-2", "gpt2-124m", "openai-community/gpt2"),
    "gpt-oss-20b": ("openai/gpt-oss-20b", "gpt_oss_20b"),
    "deepseek-r1": ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528", "deepseek-r1:671b"),
    "deepseek-v3.2": ("deepseek-ai/DeepSeek-V3.2-Exp",),
    "kimi-k2": ("moonshotai/Kimi-K2-Instruct", "kimi-k2-1t"),
    "bert-base-uncased": ("bert-base", "google-bert/bert-base-uncased"),
    "bert-base-cased": ("google-bert/bert-base-cased",),
    "roberta-large": ("FacebookAI/roberta-large", "roberta_large"),
    "xlm-roberta-base": ("FacebookAI/xlm-roberta-base", "xlm-roberta"),
    "distilbert-base-uncased": ("distilbert/distilbert-base-uncased", "distilbert"),
    "electra-base": ("google/electra-base-discriminator",),
    "deberta-v3-large": ("microsoft/deberta-v3-large",),
    "mdeberta-v3-base": ("microsoft/mdeberta-v3-base",),
    "t5-base": ("google-t5/t5-base", "t5", "T5 base"),
    "t5-11b": ("google-t5/t5-11b", "T5_11B"),
    "t5-v1.1-xxl": ("google/t5-v1_1-xxl",),
    "flan-t5-large": ("google/flan-t5-large", "FLAN_T5_large"),
    "flan-t5-base": ("google/flan-t5-base", "flan-t5"),
    "deepseek-coder-6.7b": (
        "deepseek-ai/deepseek-coder-6.7b-instruct", "TheBloke/deepseek-coder-6.7B-base-AWQ",
    ),
    "deepseek-llm-7b": ("deepseek-ai/deepseek-llm-7b-chat",),
    "deepseek-r1-distill-qwen-7b": (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "unsloth/DeepSeek-R1-Distill-Qwen-7B-unsloth-bnb-4bit",
    ),
    "gpt-neox-20b": ("EleutherAI/gpt-neox-20b",),
    "gpt-j-6b": ("EleutherAI/gpt-j-6B", "gptj-6b"),
    "yi-1.5-9b": ("01-ai/Yi-1.5-9B-Chat",),
    "solar-10.7b": ("upstage/SOLAR-10.7B-Instruct-v1.0", "solar"),
    "vicuna-7b": ("lmsys/vicuna-7b-v1.5",),
    "zephyr-7b": ("HuggingFaceH4/zephyr-7b-beta",),
    "codestral-22b": ("mistralai/Codestral-22B-v0.1",),
    "mistral-small-3.1-24b": ("mistralai/Mistral-Small-3.1-24B-Instruct-2503",),
    "mistral-small-3.2-24b": ("unsloth/Mistral-Small-3.2-24B-Instruct-2506-bnb-4bit",),
    "ministral-8b": ("mistralai/Ministral-8B-Instruct-2410",),
    "qwen1.5-7b": ("Qwen/Qwen1.5-7B-Chat", "qwen1.5:7b"),
    "qwen1.5-moe-a2.7b": ("Qwen/Qwen1.5-MoE-A2.7B-Chat",),
    "qwen2-57b-a14b": ("Qwen/Qwen2-57B-A14B-Instruct",),
    "qwen3-coder-30b-a3b": ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder:30b"),
    "gemma-3-270m": ("google/gemma-3-270m-it", "gemma3:270m"),
    "starcoder-15.5b": ("bigcode/starcoder", "starcoder-15b"),
    "starcoder2-15b": ("bigcode/starcoder2-15b-instruct-v0.1",),
    "granite-3.3-8b": ("ibm-granite/granite-3.3-8b-instruct",),
    "command-r-35b": ("CohereForAI/c4ai-command-r-v01", "command-r"),
    "command-r7b": ("CohereLabs/c4ai-command-r7b-12-2024",),
    "aya-expanse-8b": ("CohereLabs/aya-expanse-8b",),
    "llama-guard-3-8b": ("meta-llama/Llama-Guard-3-8B",),
    "opt-1.3b": ("facebook/opt-1.3b",),
    "phi-3-medium": ("microsoft/Phi-3-medium-4k-instruct",),
    "exaone-4.0-32b": ("LGAI-EXAONE/EXAONE-4.0-32B",),
    "tinyllama-1.1b": ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tiny-llama-1.1b"),
    "codellama-34b": ("codellama/CodeLlama-34b-Instruct-hf",),
    "olmo-2-7b": ("allenai/OLMo-2-1124-7B-Instruct", "olmo2-7b"),
    "granite-4.0-h-small": ("ibm-granite/granite-4.0-h-small", "granite-4-h-small"),
    "llama-3.2-11b-vision": (
        "Llama-3.2-11B-Vision", "meta-llama/Llama-3.2-11B-Vision-Instruct", "llama3.2-vision:11b",
    ),
    "llama-3.2-90b-vision": ("unsloth/Llama-3.2-90B-Vision-Instruct-bnb-4bit",),
    "gemma-3n-e4b": ("google/gemma-3n-E4B-it", "gemma3n:e4b", "unsloth/gemma-3n-E4B-it"),
    "gemma-3n-e2b": ("google/gemma-3n-E2B",),
    "voxtral-mini-3b": ("mistralai/Voxtral-Mini-3B-2507",),
    "internlm2.5-7b": ("internlm/internlm2_5-7b-chat", "internlm2.5:7b"),
    "internlm2-20b": ("internlm/internlm2-chat-20b",),
    "llama-4-scout": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"),
    "nemotron-3-nano-30b-a3b": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
}  # fmt: skip
UNKNOWN = (
    "deepseek-r1:7b", "mistral-small-2409", "Phi-3-mini-128k-instruct", "llama-9b",
    "Qwen/Qwen2.5-7B-Instruct-1M", "nvidia/Llama-3.1-Nemotron-Ultra-253B-v1", "claude",
    "qwen3-reranker-8b", "bert-base-german", "NousResearch/Hermes-5-14B", "kimi-k4",
    "glm-4.8", "OpenGVLab/InternVL3-8B", "black-forest-labs/FLUX.1-dev", "qwen2-vl-7b",
    "8b", "", "-", "   ", "xyzzy", "llama-3.1-8b" * 1000, "9" * 5000, "a" * 5000,
)  # fmt: skip


@each("typed, name", [(typed, name) for name, spelled in SAME.items() for typed in spelled])
def test_a_model_under_another_name(typed, name):
    assert find(typed).name == name


@each("name", registry())
def test_every_model_is_found_by_its_own_name_and_the_hubs(name):
    assert find(name.upper().replace("-", "_")).name == name
    source = registry()[name]["source"]
    if "huggingface" in source:
        assert find(source).name == name


@each("typed", UNKNOWN)
def test_a_model_that_is_another_is_not_taken(typed):
    assert find(typed) is None


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("llama-3.1", ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")),
        ("mixtral", ("mixtral-8x7b", "mixtral-8x22b")),
        ("qwen3", ("qwen3-0.6b", "qwen3-30b-a3b")),
        ("deepseek", ("deepseek-v3", "deepseek-r1")),
    ],
)
def test_a_name_of_several_models_lists_them(typed, names):
    with pytest.raises(UnknownNameError) as refused:
        load_model(typed)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize("typed", ["llama-5-8b", "lama-3.1-8b", "qwne3-8b", "sorcerer-7b", "gpt-4"])
def test_what_is_suggested_is_of_the_same_family(typed):
    assert all(name[:2] == typed[:2] or name[0] == typed[0] for name in suggestions(typed))
    assert suggestions("xyzzy") == suggestions("sorcerer-7b") == []


def test_the_answer_says_which_model_and_gpu_were_taken(capsys):
    assert main(["estimate", "meta-llama/Llama-3.1-8B-Instruct", "--gpus", "h100"]) == 1
    said = capsys.readouterr()
    assert "full training of llama-3.1-8b at 4,096 tokens on 1 x H100 SXM 80GB" in said.out
    assert said.err.count("\n") == 2
    assert "llama-3.1-8b is taken for" in said.err
    assert "h100-80gb is taken for 'h100'" in said.err


@pytest.fixture
def hub(monkeypatch):
    """Serve a hub that answers with a status, after a while; count what it was asked."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked = []

    class Answer(http.server.BaseHTTPRequestHandler):
        wait_s = 0.0

        def do_HEAD(self):
            asked.append(self.path)
            time.sleep(self.wait_s)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", here)
    address = here + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    yield Answer, asked
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_once_and_quietly(hub, capfd):
    with pytest.raises(Exception, match=r"no_such_org/m\b"):
        fetch_file("no_such_org/m", "config.json")
    assert len(hub[1]) == 1
    assert capfd.readouterr().err == ""


def test_a_hub_that_does_not_answer_is_given_up(hub):
    hub[0].wait_s = 0.5
    with pytest.raises(UnknownNameError, match="cannot be reached"):
        fetch_file("no_such_org/m", "config.json", limit_s=0.1)


def test_known_models_ask_nobody(hub):
    assert load_model("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert load_model("unsloth/Qwen3-8B-unsloth-bnb-4bit").name == "qwen3-8b"
    assert hub[1] == []


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("zai-org/GLM-4.8", "glm-4."),
        ("MiniMaxAI/MiniMax-M2.9", "minimax-m2"),
        ("Qwen/Qwen3.7-Max", ""),  # a word that may say a size
        ("gpt-5", ""),
    ],
)
def test_a_name_without_a_size_is_answered_by_a_version_of_it(typed, near):
    found, words = nearest_by_name(typed, frozenset())
    assert found.startswith(near) if near else not found
    assert ("says no size" in words) == bool(near)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("HuggingFaceTB/SmolLM-3B", "smollm3-3b"),
        ("HuggingFaceTB/SmolLM-1.7B", "smollm2-1.7b"),
        ("google/gemma-12b", "gemma-3-12b"),
    ],
)
def test_a_name_without_its_version_is_answered_by_the_model_of_its_family_and_size(typed, near):
    """SmolLM-3B was answered by SmolLM2 1.7B, whose blocks are of a type that more have."""
    assert nearest_by_name(typed, frozenset(("llama",)))[0] == near


def test_a_name_that_says_moe_is_answered_by_a_mixture():
    """DeepSeek-MoE 16B was answered by a dense model of 14B."""
    found, words = nearest_by_name("deepseek-ai/deepseek-moe-16b-base", frozenset(("llama",)))
    assert found == "deepseek-v2-lite"
    assert "is a mixture of experts" in words


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("meta-llama/Lama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwenn3-8B", "qwen3-8b"),
        ("Qwen/Qwne3-8B", "qwen3-8b"),
        ("mistralai/Mistrall-7B", "mistral-7b-v0.3"),
        ("mistralai/Mixstrall-8x7B-Instruct", "mixtral-8x7b"),
        ("minstral-8b", "ministral-8b"),  # Mistral has a letter less, and no model of 8B
        ("meta-llama/Llama-3.2-11B-Vison-Instruct", "llama-3.2-11b-vision"),
        ("google/gema-3-12b-it", "gemma-3-12b"),
        ("deepseek-ai/deepseek-r1-distil-qwen-7b", "deepseek-r1-distill-qwen-7b"),
        ("Qwen/Qwen2.5-Codder-7B", "qwen2.5-coder-7b"),
        ("google-bert/bert-base-uncasd", "bert-base-uncased"),
        ("OpenGVLab/InterVL3-8B", "qwen2.5-7b"),  # InternLM3 8B is as near, and there is one
        ("SmolVML-Instruct", "smollm2-1.7b"),
        ("microsoft/Phi-3.5-visoin-instruct", "phi-3.5-mini"),
        ("meta-llama/Lama-3.7-8B", ""),  # a number is no slip
        ("llama-3.7-8b", ""),
        ("mistral-9b", ""),
        ("nobody/never-8b", ""),
        ("HKUSTAudio/Llasa-3B", ""),  # a word that is almost Llama, of another size
        ("state-spaces/mamba2-2.7b", ""),  # Zamba2 is another
        ("claude", ""),
        ("gpt-4", ""),
    ],
)
def test_a_letter_or_two_that_are_wrong_are_seen(typed, near):
    found, words, on_top = misspelt(typed)
    assert found == near
    assert (f"{typed!r} is spelt almost as" in words) == bool(near)
    assert (on_top == "images") == ("its language part is" in words)


@each("name", registry())
def test_no_word_of_a_known_name_is_a_slip(name):
    assert list(respelt(name)) == []


@pytest.mark.parametrize(
    ("typed", "near"),
    [("meta-llama/Lama-3.7-8B", "llama-3.1-8b"), ("google/Gema-5-12B", "gemma-3-12b")],
)
def test_a_model_as_large_is_of_the_family_that_was_misspelt(typed, near):
    assert nearest_by_name(typed, frozenset(("qwen3",)))[0] == near


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("Viet-Mistral/Vistral-7B-Chat", "llama-2-7b"),
        ("epfl-llm/meditron-7b", "llama-2-7b"),
        ("mistralai/Voxtrall-7B", "llama-2-7b"),  # Voxtral has 4.7B
        ("mistralai/Voxtrall-4.6B", "voxtral-mini-3b"),
    ],
)
def test_a_family_that_is_almost_spelt_so_and_has_no_such_size_is_not_meant(typed, near):
    """Vistral 7B was answered by Voxtral 3B, and Meditron by Minitron."""
    assert nearest_by_name(typed, frozenset(("llama",)))[0] == near


@pytest.mark.parametrize(
    "typed", ["microsoft/beit-large", "best-large", "microsoft/beit-base", "google/electro-small"]
)
def test_a_word_of_a_size_is_no_sign_of_a_slip(typed):
    assert list(respelt(typed)) == []
    assert misspelt(typed) == ("", "", "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("mistarl-7b", "mistral-7b-v0.3"), ("facebook/bart-larg", "bart-large"),
     ("google-bret/bret-base-uncased", "bert-base-uncased")],
)  # fmt: skip
def test_a_number_or_another_word_is_one(typed, meant):
    assert misspelt(typed)[0] == meant


def test_a_mixture_is_answered_by_one_of_which_as_much_computes_a_token():
    found, words = nearest_by_name("nobody/Never-48B-A3B-Instruct", frozenset())
    assert found.endswith("-a3b")
    assert "may be others" in words


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-7b"),
        ("qwen3-vl-8b", "qwen3-8b"),
        ("Qwen/Qwen2.5-14B-Instruct-1M", "qwen2.5-14b"),
        ("nobody/never-vl-7b", ""),
        ("qwen2.5-7b", ""),
    ],
)
def test_an_unknown_model_may_be_a_known_one_but_for_a_word(typed, near):
    found, words, on_top = without_qualifiers(typed)
    assert (on_top == "images") == (bool(near) and "-vl-" in typed.lower())
    assert found == near
    assert (near in words) if near else not words


@each("name", registry())
def test_every_model_is_like_itself(name):
    assert not unlike(name, name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("state-spaces/mamba-2.8b-hf", "gpt3-2.7b"),
        ("tiiuae/Falcon-H1-7B", "llama-2-7b"),
        ("nobody/Plain-52B", "jamba-1.5-mini"),
        ("nobody/mamba-52B", "jamba-1.5-mini"),
    ],
)
def test_attention_and_state_spaces_are_unlike(name, near):
    assert "of another kind" in unlike(name, near)
    assert not unlike("nobody/Plain-7B", "llama-2-7b")
    assert not unlike("ai21labs/Jamba-9", "jamba-1.5-mini")


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("Qwen/Qwen3-14B-AWQ", "int4"),
        ("TheBloke/Llama-2-13B-chat-GPTQ", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "int8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "int8"),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "int4"),
        ("RedHatAI/Qwen3-8B-quantized.w8a8", "int8"),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "nf4"),
        ("someone/mistral-7b-bnb-8bit", "llm-int8"),
        ("someone/mistral-7b-int8", "int8"),
        ("Qwen/Qwen3-14B", ""),
        ("google/gemma-2-9b-it", ""),
        ("someone/Llama-3-8B-4bit-GGUF", ""),
    ],
)
def test_the_format_of_weights_that_a_name_says(name, held):
    assert format_named(name)[0] == held


def test_what_a_file_to_run_is_trained_from_is_said():
    """A GGUF's weights are rounded; who has one trains what it was made of."""
    told = taken_words("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b")
    assert "a GGUF is for running: what trains are the weights that it was made of" in told
    assert "GGUF" not in taken_words("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b")
