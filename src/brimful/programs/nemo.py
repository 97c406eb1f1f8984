"""NeMo's YAML of a GPT (NeMo 1 and NVIDIA's launcher), read as flags of Megatron-LM's pretrain_gpt.

NeMo hands its keys to Megatron-Core, most of them under their own names; what it does otherwise
where a key is absent is given as a flag too. What weighs nothing is left out; of keys that nobody
knows here it is said that they are not read.

Source: ``megatron_base_model.py``, ``megatron_gpt_model.py`` of NVIDIA/NeMo
(``build_transformer_config``, ``build_model_parallel_config``, ``setup_optimization``,
``setup_mcore_distributed_parallel``), ``conf/megatron_gpt_config.yaml``; the launcher's
``conf/training/gpt3``.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.programs.base import Command

_SAME = (
    "micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "kv_channels", "hidden_dropout", "attention_dropout",
    "max_position_embeddings", "make_vocab_size_divisible_by", "position_embedding_type",
    "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_token_dispatcher_type", "moe_expert_capacity_factor", "q_lora_rank", "kv_lora_rank",
    "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
)  # fmt: skip
_NAMED = {
    "encoder_seq_length": "--seq-length",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "num_query_groups": "--num-query-groups",
    "num_moe_experts": "--num-experts",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
    "override_vocab_size": "--vocab-size",
    "wgrad_deferral_limit": "--wgrad-deferral-limit",
    "img_h": "--img-h",
}
_VALUED = {**{key: f"--{key.replace('_', '-')}" for key in _SAME}, **_NAMED}
"""Keys of numbers and names, and the flag that takes the same."""
_SWITCHES: Mapping[str, tuple[str, bool, bool]] = {
    "sequence_parallel": ("--sequence-parallel", True, False),
    "bias": ("--disable-bias-linear", False, True),
    "share_embeddings_and_output_weights": ("--untie-embeddings-and-output-weights", False, True),
    "gradient_accumulation_fusion": ("--no-gradient-accumulation-fusion", False, False),
    "masked_softmax_fusion": ("--no-masked-softmax-fusion", False, True),
    "get_attention_mask_from_fusion": ("--no-create-attention-mask-in-dataloader", True, True),
    "cross_entropy_loss_fusion": ("--cross-entropy-loss-fusion", True, False),
    "overlap_p2p_comm": ("--no-overlap-p2p-communication", False, False),
    "ub_tp_comm_overlap": ("--tp-comm-overlap", True, False),
    "qk_layernorm": ("--qk-layernorm", True, False),
    "qkv_bias": ("--add-qkv-bias", True, False),
    "defer_embedding_wgrad_compute": ("--defer-embedding-wgrad-compute", True, False),
    "moe_grouped_gemm": ("--moe-grouped-gemm", True, False),
    "multi_latent_attention": ("--multi-latent-attention", True, False),
    "fp8_params": ("--fp8-param-gather", True, False),
    "fp8_wgrad": ("--fp8-wgrad", False, True),
    "fp8_dot_product_attention": ("--fp8-dot-product-attention", True, False),
    "fp8_multi_head_attention": ("--fp8-multi-head-attention", True, False),
    "fp32_residual_connection": ("--fp32-residual-connection", True, False),
    "cpu_offloading": ("--fine-grained-activation-offloading", True, False),
    "enable_cuda_graph": ("--enable-cuda-graph", True, False),
    "fsdp": ("--use-torch-fsdp2", True, False),
}
"""Of a key its flag, at which value that is given, and what holds where the key is absent."""
_OWN = frozenset({
    "num_layers", "micro_batch_size", "encoder_seq_length", "tensor_model_parallel_size",
    "mcore_gpt",
})  # fmt: skip
"""Keys of which a model of NeMo's has some; others' files have a model and a trainer too."""
_TAKEN = frozenset({
    "activation", "normalization", "bias_activation_fusion", "transformer_engine",
    "megatron_amp_O2", "fp8", "fp8_e4m3", "fp8_hybrid", "fp8_recipe", "precision", "optim",
    "tokenizer", "mcore_gpt", "vocab_size", "peft", "seq_length",
})  # fmt: skip
"""Keys that are read one by one."""
_READ_OF_OPTIMIZER = frozenset({
    "name", "overlap_grad_sync", "overlap_param_sync", "grad_sync_dtype", "store_params",
})  # fmt: skip
_READ_BESIDE = frozenset({
    "trainer.num_nodes", "trainer.devices", "trainer.precision", "trainer.max_steps",
})  # fmt: skip
_LENGTH_BESIDE = "model.data.seq_length"
_ZERO_IS_ANY = "wgrad_deferral_limit"
"""Of which 0 is any number."""
_WEIGHTLESS = frozenset({
    "seed", "data", "name", "target", "hysteresis", "pre_process", "post_process", "onnx_safe",
    "rotary_percentage", "rotary_base", "layernorm_epsilon", "apply_query_key_layer_scaling",
    "normalize_attention_scores", "attention_type", "transformer_block_type", "openai_gelu",
    "headscale", "do_layer_norm_weight_decay", "resume_from_checkpoint", "restore_from_path",
    "use_cpu_initialization", "persist_layer_norm", "gradient_as_bucket_view", "sync_batch_comm",
    "grad_div_ar_fusion", "grad_allreduce_chunk_size_mb", "apex_transformer_log_level",
    "nsys_profile", "memory_profile", "batch_p2p_comm", "batch_p2p_sync", "use_flash_attention",
    "reduce_amax", "sharp", "bias_dropout_add_fusion", "apply_rope_fusion", "use_emha",
    "use_scaled_init_method", "fp16_lm_cross_entropy", "seq_len_interpolation_factor",
    "dist_ckpt_format", "dist_ckpt_load_on_device", "gc_interval", "async_grad_allreduce",
    "moe_aux_loss_coeff", "moe_router_load_balancing_type", "moe_z_loss_coeff",
    "rotary_interleaved", "nccl_communicator_config_path", "pipeline_model_parallel_split_rank",
    "encoder_tensor_model_parallel_size", "embedding_init_method_std", "init_method_std",
    "layernorm_zero_centered_gamma", "scale_positional_embedding", "deterministic_mode",
    "hidden_act", "ub_tp_comm_overlap_cfg", "megatron_timer_kwargs",
})  # fmt: skip
_WEIGHTLESS_BEGINNINGS = (
    "native_amp_", "fp8_amax_", "fp8_margin", "fp8_interval", "fsdp_", "dist_ckpt_", "gc_", "nsys_",
)  # fmt: skip
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm",
          "low_precision_layernorm": "LayerNorm"}  # fmt: skip
_ACTIVATIONS = {"gelu": (), "openai-gelu": (), "squared-relu": ("--squared-relu",)}
_GATED = "glu"
"""How activations of two halves end."""
_APEX, _SHARDED = "distributed_fused_adam", "mcore_distributed_optim"
_OPTIMIZERS = (_APEX, _SHARDED, "fused_adam", "megatron_fused_adam", "adam")
_APEX_NOTE = (
    "distributed_fused_adam is read as Megatron's distributed optimizer whose copies are the 16 "
    "bits that bf16 lacks: its own buckets are not counted"
)
_HALVES = {"bf16": "--bf16", "16": "--fp16", "fp16": "--fp16"}
_NARROW = frozenset({"bf16", "fp16", "16"})
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_PRODUCTS = {"multiply": lambda one, two: one * two, "divide": lambda one, two: one // two}
_OF_LAUNCHER = "training."
"""What launchers put a file under."""
_MOST_REFERENCES = 16
"""One within the other."""


def is_config(content: object) -> bool:
    """Whether what a YAML holds is NeMo's: a model that is described, beside its trainer."""
    if not isinstance(content, dict):
        return False
    model = content.get("model")
    is_described = isinstance(model, dict) and not _OWN.isdisjoint(model)
    return isinstance(content.get("trainer"), dict) and is_described


def command_of(content: Mapping[str, Any], script: str, name: str) -> Command:
    """Read a configuration as a command line.

    Raises FileFormatError: a value is none of its kind. Raises InputError: what it asks for goes
    with nothing. Raises UnsupportedError: it has no formula.
    """
    model = _Resolved(content, ("model",))
    _check(model, name)
    words = [
        *_valued(model, name),
        *(flag for key, (flag, at, usual) in _SWITCHES.items() if model.is_on(key, usual) == at),
        *_kernels(model),
        *_precision(model, _Resolved(content, ("trainer",)), name),
        *_optimizer(model, name),
        *_tokenizer(model),
    ]
    trainer = _Resolved(content, ("trainer",))
    if (steps := trainer.whole("max_steps")) is not None and steps > 0:
        words += ["--train-iters", str(steps)]
    num = [trainer.whole(key) for key in ("num_nodes", "devices")]
    size = math.prod(each or 1 for each in num)
    is_said = num[1] is not None and num[1] > 0 and size > 0
    processes, notes = size if is_said else None, tuple(_notes(model, name))
    return Command(script, tuple(words), {}, processes, notes, _keys(name), tuple(_unread(content)))


class _Resolved:
    """A mapping of a configuration, whose references are looked up."""

    def __init__(self, content: Mapping[str, Any], path: tuple[str, ...]) -> None:
        self._content, self._path = content, path
        found = _at(content, path)
        self.keys: tuple[str, ...] = tuple(map(str, found)) if isinstance(found, dict) else ()

    def get(self, key: str) -> Any:
        """Return a value, looked up where it refers to another; None: there is none."""
        value = _at(self._content, (*self._path, key))
        for _ in range(_MOST_REFERENCES):
            if not isinstance(value, str) or not (found := _REFERENCE.search(value)):
                break
            known = self._looked_up(found[1])
            if known is None:
                break
            is_all = found[0] == value
            value = known if is_all else value.replace(found[0], str(known))
        return value

    def inner(self, key: str) -> "_Resolved":
        """Return a mapping within this one, empty where there is none."""
        return _Resolved(self._content, (*self._path, key))

    def text(self, key: str) -> str:
        """Return a value as text; empty: there is none."""
        value = self.get(key)
        return "" if value is None else str(value)

    def is_on(self, key: str, usual: bool = False) -> bool:  # noqa: FBT001, FBT002 - as get has it
        """Whether a key is true, or its usual value where it is absent."""
        value = self.get(key)
        return usual if value is None else bool(value)

    def whole(self, key: str) -> int | None:
        """Return a whole number; None: there is none."""
        value = self.text(key)
        return int(value) if re.fullmatch(r"-?\d{1,10}", value) else None

    def _looked_up(self, words: str) -> Any:
        function, _, given = words.partition(":")
        if function in _PRODUCTS and given:
            numbers = [each.strip() for each in given.split(",")]
            is_plain = len(numbers) == 2 and all(map(str.isdecimal, numbers))  # noqa: PLR2004
            if not is_plain or (function == "divide" and not int(numbers[1])):
                return None
            return _PRODUCTS[function](*map(int, numbers))
        if words.startswith("."):
            dots = len(words) - len(words.lstrip("."))
            base = self._path[: len(self._path) - dots + 1]
            return _at(self._content, (*base, *words.lstrip(".").split(".")))
        return _at(self._content, tuple(words.removeprefix(_OF_LAUNCHER).split(".")))


def _at(content: Any, path: Sequence[str]) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _check(model: _Resolved, name: str) -> None:
    """Refuse what is no GPT that is trained whole."""
    scheme = model.inner("peft").text("peft_scheme")
    if scheme and scheme.lower() != "none":
        raise UnsupportedError(
            f"{name} trains by model.peft ({scheme}), which has no formula; give a file of "
            f"pretraining, or describe the job to brimful plan --method lora"
        )
    known = {*_VALUED, *_SWITCHES, *_TAKEN, *_WEIGHTLESS}
    parts = [key for key in model.keys if key not in known and model.inner(key).keys]
    if parts and "encoder" not in parts:
        raise UnsupportedError(
            f"model.{parts[0]} of {name}, a part with settings of its own, has no formula; leave "
            f"it out, or give a file of a GPT"
        )
    if parts or "bert_binary_head" in model.keys:
        raise UnsupportedError(
            f"{name} is of BERT or of an encoder with a decoder, of which NeMo's files are not "
            f"read; give Megatron-LM's pretrain_bert.py or pretrain_t5.py with its flags"
        )


def _valued(model: _Resolved, name: str) -> Iterator[str]:
    """Yield flags that have a value; of lengths and batches those that NeMo takes itself."""
    is_whole = model.text("activations_checkpoint_granularity") == "full"
    length = model.get("seq_length") or model.inner("data").get("seq_length")
    for key, flag in _VALUED.items():
        value = model.get(key)
        if key == "override_vocab_size":
            value = value or model.get("vocab_size")
        if key == "encoder_seq_length":
            value = value or length
        if key == "max_position_embeddings":
            value = value or model.get("encoder_seq_length") or length
        if value is None or (key == _ZERO_IS_ANY and not value):
            continue
        if not is_whole and flag in {"--recompute-method", "--recompute-num-layers"}:
            continue
        text = str(value)
        if "${" in text or isinstance(value, dict | list):
            raise FileFormatError(
                f"{name} has model.{key}: {text[:40]}, which cannot be looked up; write its value"
            )
        if key == "num_query_groups":
            yield "--group-query-attention"
        yield from (flag, text)


def _kernels(model: _Resolved) -> Iterator[str]:
    """Yield what layers are made of."""
    if not model.is_on("transformer_engine"):
        yield from ("--transformer-impl", "local")
    activation = model.text("activation") or "gelu"
    if activation.endswith(_GATED):
        yield "--swiglu"
        if not model.is_on("bias_activation_fusion", usual=True):
            yield "--no-bias-swiglu-fusion"
    elif activation in _ACTIVATIONS:
        yield from _ACTIVATIONS[activation]
    else:
        known = ", ".join((*_ACTIVATIONS, "swiglu", "geglu", "reglu"))
        raise UnsupportedError(
            f"model.activation {activation} has no formula (those that have: {known})"
        )
    norm = model.text("normalization").lower() or "layernorm"
    if norm not in _NORMS:
        raise UnsupportedError(
            f"model.normalization {norm} has no formula (those that have: {', '.join(_NORMS)})"
        )
    yield from ("--normalization", _NORMS[norm])


def _precision(model: _Resolved, trainer: _Resolved, name: str) -> Iterator[str]:
    """Yield in how many bits it trains."""
    kind = (trainer.text("precision") or model.text("precision")).partition("-")[0]
    if kind not in _HALVES:
        raise UnsupportedError(f"trainer.precision {kind or 32} of {name} has no formula; set bf16")
    if not model.is_on("megatron_amp_O2"):
        raise UnsupportedError(
            f"model.megatron_amp_O2 of {name} is false: parameters in fp32 beside autocast have no "
            f"formula; set it true"
        )
    yield _HALVES[kind]
    if not model.is_on("fp8"):
        return
    if not model.is_on("transformer_engine"):
        raise InputError(
            f"model.fp8 of {name} needs Transformer Engine's layers; set "
            f"model.transformer_engine: true, or model.fp8: false"
        )
    yield from ("--fp8-format", "e4m3" if model.is_on("fp8_e4m3") else "hybrid")
    if recipe := model.text("fp8_recipe"):
        yield from ("--fp8-recipe", recipe)


def _optimizer(model: _Resolved, name: str) -> Iterator[str]:
    """Yield where states lie and how gradients are sent."""
    optim = model.inner("optim")
    kind = optim.text("name")
    if str(kind).removesuffix("w") not in _OPTIMIZERS:  # decoupled or not, as large
        raise UnsupportedError(
            f"model.optim.name {kind or '(none)'} of {name} has no formula (those that have: "
            f"{', '.join(_OPTIMIZERS)})"
        )
    is_apex = kind == _APEX
    if is_apex or kind == _SHARDED:
        yield "--use-distributed-optimizer"
        if optim.is_on("overlap_grad_sync", usual=is_apex):
            yield "--overlap-grad-reduce"
        if optim.is_on("overlap_param_sync"):
            yield "--overlap-param-gather"
        if optim.text("grad_sync_dtype") in _NARROW:
            yield "--grad-reduce-in-bf16"
    if is_apex and not optim.is_on("store_params", usual=model.is_on("fp8_params")):
        yield "--use-precision-aware-optimizer"


def _tokenizer(model: _Resolved) -> Iterator[str]:
    """Yield what the number of words is told by."""
    tokenizer = model.inner("tokenizer")
    library, kind, file = (tokenizer.text(key) for key in ("library", "type", "model"))
    if library == "huggingface":
        yield from ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", kind)
        return
    if library == "sentencepiece":
        kind = "SentencePieceTokenizer"
    if kind:
        yield from ("--tokenizer-type", kind)
    if file:
        yield from ("--tokenizer-model", file)
    words = tokenizer.text("vocab_file")
    if words and "${" not in words:
        yield from ("--vocab-file", words)


def _notes(model: _Resolved, name: str) -> Iterator[str]:
    """Yield what was taken for granted, and what of the file is not read."""
    yield f"{name} of NeMo is read as flags of pretrain_gpt.py"
    if not model.is_on("mcore_gpt"):
        yield "layers of NeMo's own (mcore_gpt false) are read as Megatron-Core's"
    activation = model.text("activation")
    if activation.endswith(_GATED) and "swiglu" not in activation:
        yield f"{activation} is counted as SwiGLU, which has as many halves"
    if model.inner("optim").text("name") == _APEX:
        yield _APEX_NOTE
    known = {*_VALUED, *_SWITCHES, *_TAKEN}
    rest = [key for key in model.keys if key not in known and model.get(key) not in (None, False)]
    if unread := [key for key in rest if not _is_weightless(key)]:
        yield f"not read, though they may change what it takes: model.{', model.'.join(unread)}"


def _is_weightless(key: str) -> bool:
    return key in _WEIGHTLESS or key.startswith(_WEIGHTLESS_BEGINNINGS)


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands in a file by dotted key."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _unread(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what nobody reads and no byte hangs on: of the model, its optimizer, and beside it."""
    for key, value in _leaves(content):
        section, _, rest = key.partition(".")
        of_model, _, inner = rest.partition(".")
        if section == "model" and of_model == "optim":
            is_read = inner in _READ_OF_OPTIMIZER
        elif section == "model":
            is_read = not _is_weightless(of_model) or key == _LENGTH_BESIDE
        else:
            is_read = key in _READ_BESIDE
        if not is_read and value is not None:
            yield f"{key}={json.dumps(value, default=str)}"


def _keys(name: str) -> dict[str, str]:
    """Return what the file calls each flag."""
    switches = {flag: key for key, (flag, _, _) in _SWITCHES.items()}
    of_model = {**{flag: key for key, flag in _VALUED.items()}, **switches}
    return {
        **{flag: f"model.{key}" for flag, key in of_model.items()},
        "--use-distributed-optimizer": f"model.optim.name={_SHARDED}",
        "--transformer-impl local": "model.transformer_engine: false",
        "--fp8-format": "model.fp8",
        "--fp8-recipe": "model.fp8_recipe",
        "--swiglu": "model.activation",
        "--bf16": "trainer.precision",
        "--train-iters": "trainer.max_steps",
        "to the command line": f"to {name}",
        "the command line": name,
    }
