"""Flags of Megatron-LM's command line that no formula walks, and which of them change little."""

from brimful.megatron.state_types import FRACTION, ON_HOST, is_on_host
from brimful.programs.base import Flags

_LOCAL_SPEC = ("--spec", "local")
"""How BERT's script is told Megatron's own blocks."""
NOT_YET = {
    "--use-megatron-fsdp": "its own FSDP",
    "--use-torch-fsdp2": "FSDP2",
    "--moe-pad-expert-input-to-capacity": "experts with a capacity",
    "--moe-expert-capacity-factor": "experts with a capacity",
    "--moe-shared-expert-overlap": "overlapped shared experts",
    "--moe-shared-expert-gate": "gated shared experts",
    "--fp8-dot-product-attention": "attention in fp8",
    "--fp8-multi-head-attention": "attention in fp8",
    "--fp8-wgrad": "gradients of weights in 16 bits beside fp8",
    "--fp4-param-gather": "parameters in fp4",
    "--experimental-attention-variant": "linear and sparse attention",
    ON_HOST: f"an optimizer on the host but for {FRACTION} 1.0",
    "--fine-grained-activation-offloading": "activations on the host",
    "--enable-cuda-graph": "CUDA graphs",
    "--external-cuda-graph": "CUDA graphs",
    "--heterogeneous-layers-config-path": "layers that differ",
    "--use-transformer-engine-op-fuser": "operations that Transformer Engine fuses itself",
    "--delay-wgrad-compute": "delayed gradients of weights",
    "--overlap-moe-expert-parallel-comm": "overlapped exchanges of experts",
    "--export-kd-cfg": "distillation",
    "--fp32-residual-connection": "a residual stream in fp32",
    "--attention-output-gate": "gates of attention",
    "--enable-mhc-connections": "several residual streams",
    "--moe-latent-size": "experts on a latent",
    "--moe-apply-probs-on-input": "probabilities before experts",
    "--moe-layer-recompute": "recomputed mixtures",
    "--distribute-saved-activations": "kept activations that are shared",
    "--mlp-chunks-for-training": "an MLP in pieces",
    "--freeze-all-layers": "frozen layers",
    "--heterogeneous-layers-config-encoded-json": "layers that differ",
    "--te-precision-config-file": "recipes by layer",
    "--img-h": "images",
    "--spec": "blocks of one's own",
    "--yaml-cfg": "a YAML of its configuration",
}
"""Flags of what has no formula yet: the program itself runs it."""
NEAR = {
    "--enable-cuda-graph": "without it what graphs keep comes on top, and launches take longer",
    "--external-cuda-graph": "without it what graphs keep comes on top, and launches take longer",
}
"""Of these, flags without which a process takes about as much, and what differs."""


def not_yet(flags: Flags) -> list[str]:
    """List the flags of a command line that have no formula."""
    given = {flag for flag, _ in flags.values} - ({ON_HOST} if is_on_host(flags) else set())
    return [flag for flag in NOT_YET if flag in given and (flag, flags.text(flag)) != _LOCAL_SPEC]
