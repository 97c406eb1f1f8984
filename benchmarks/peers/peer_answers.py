"""Runs in an environment of the peers' own: calls them, knows nothing of Brimful.

``python peer_answers.py ASKS ANSWERS``: asks as JSON of ``Ask`` with the peers that shall answer.
"""

import contextlib
import io
import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

GPUS = {
    "a100-80gb": "a100-sxm-80gb",
    "a100-40gb": "a100-sxm-40gb",
    "h100-80gb": "h100-sxm-80gb",
    "v100-16gb": "v100-sxm-16gb",
    "a10g": "a10g-pcie-24gb",
}
ANY_GPU = "a100-sxm-80gb"
"""For GPUs that llm-analysis does not know: its bytes hang on none, and its speed is not asked."""
RECOMPUTES = {"none": 0, "selective": 1, "full": 2}
TUNED_FLOPS = 0.5
"""llm-analysis 0.2.2, constant.py: "FLOPS efficiency achieved by Megatron-LM is ~0.5"."""
HALF_BYTES = 2


def main() -> None:
    asks, folder = json.loads(Path(sys.argv[1]).read_text()), tempfile.mkdtemp()
    told, imports = {}, {}
    for peer in dict.fromkeys(each["peer"] for each in asks):
        start_s = time.perf_counter()
        answer = MAKERS[peer](folder)
        imports[peer] = time.perf_counter() - start_s
        told[peer] = [_timed(answer, each["ask"]) for each in asks if each["peer"] == peer]
    names = ("llm-analysis", "accelerate", "deepspeed", "torch", "transformers")
    said = {"answers": told, "imports_s": imports, "versions": [f"{n} {version(n)}" for n in names]}
    Path(sys.argv[2]).write_text(json.dumps(said))


def _timed(answer, ask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - runs without our types
    """Return a peer's figures of a run with the seconds they took, or what it said against it."""
    start_s = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            said = answer(ask)
    except (AssertionError, ValueError, KeyError, TypeError) as error:
        return {"id": ask["id"], "reason": (str(error) or type(error).__name__)[:120]}
    return {"id": ask["id"], **said, "call_s": time.perf_counter() - start_s}


def _llm_analysis(folder: str, *, tuned: bool):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from llm_analysis.analysis import train

    def answer(ask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        name = GPUS.get(ask["gpu"], ANY_GPU)
        more = _tuned(ask) if tuned else {}
        said = train(
            model_name=_config(ask, folder, tuned=tuned),
            gpu_name=name,
            log_level="ERROR",
            batch_size_per_gpu=ask["micro_batch"],
            gradient_accumulation_steps=ask["accumulation"],
            global_batch_size=ask["micro_batch"] * ask["accumulation"] * ask["dp_shard"],
            seq_len=ask["seq_len"],
            activation_recomputation=RECOMPUTES[ask["checkpointing"]],
            ds_zero=ask["zero"],
            dp_size=ask["dp_shard"],
            tp_size=ask["tp"],
            pp_size=ask["pp"],
            **more,
        )
        tokens = ask["micro_batch"] * ask["accumulation"] * ask["seq_len"] / (ask["tp"] * ask["pp"])
        speed = tokens / said["latency_per_iter"] if ask["gpu"] in GPUS else None
        return {
            "peer_bytes": said["(weight+op_state+grad+act)_memory_per_gpu"],
            "peer_tokens_per_s": speed,
        }

    return answer


def _config(ask, folder: str, *, tuned: bool) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Write what its own reader takes from a Hugging Face configuration; tuned: the MLP's width.

    It counts two matrices in an MLP: a gated one of width f is told as 3/2 f.
    """
    config = {
        "name": "told",
        "num_layers": ask["layers"],
        "n_head": ask["heads"],
        "hidden_dim": ask["hidden"],
        "vocab_size": ask["vocab"],
        "max_seq_len": max(ask["max_seq"], ask["seq_len"]),
        "num_key_value_heads": ask["kv_heads"],
    }
    if tuned:
        width = ask["intermediate"] * (1.5 if ask["gated"] else 1)
        config |= {"ffn_embed_dim": width, "expansion_ratio": width / ask["hidden"]}
    # It keeps configurations by name, and takes a name with .json in it for a file.
    path = Path(folder) / f"{ask['id']}.{tuned}.json"
    config["name"] = str(path)
    path.write_text(json.dumps(config))
    return str(path)


def _tuned(ask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Say the recipe in its terms: weights take 2 bytes; what is more is told as optimizer state.

    optimizer = other_op_bytes + master_weights_dtype_bytes; gradient = master_weights_dtype_bytes.
    """
    beyond = ask["weight_bytes"] - HALF_BYTES
    half = ask["precision"] in {"bf16", "fp16", "bf16-master", "fp16-master"}
    return {
        "master_weights_dtype_bytes": ask["gradient_bytes"],
        "other_op_bytes": ask["state_bytes"] + beyond - ask["gradient_bytes"],
        "layernorm_dtype_bytes": 2 if half else 4,
        "flash_attn": ask["attention"] != "eager",
        "mlp_gated_linear_units": ask["gated"],
        "flops_efficiency": TUNED_FLOPS,
    }


def _accelerate(_folder: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from accelerate.commands.estimate import estimate_training_usage

    def answer(ask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        kind = "float32" if ask["precision"] in {"fp32", "tf32"} else "float16"
        usage = estimate_training_usage(4 * ask["num_parameters"], kind)
        return {"peer_bytes": max(usage.values())}  # as its command prints

    return answer


def _deepspeed(_folder: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    def answer(ask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        devices = {"num_gpus_per_node": ask["dp_shard"], "num_nodes": 1, "cpu_offload": False}
        if ask["zero"] == 3:
            told = estimate_zero3_model_states_mem_needs(
                ask["num_parameters"], ask["largest_layer"], cpu_offload_params=False, **devices
            )
        else:
            told = estimate_zero2_model_states_mem_needs(ask["num_parameters"], **devices)
        return {"peer_bytes": told[1]}

    return answer


MAKERS = {
    "llm-analysis": lambda folder: _llm_analysis(folder, tuned=False),
    "llm-analysis, tuned": lambda folder: _llm_analysis(folder, tuned=True),
    "accelerate estimate-memory": _accelerate,
    "DeepSpeed's estimators": _deepspeed,
}

if __name__ == "__main__":
    main()
