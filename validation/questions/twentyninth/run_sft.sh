#!/bin/bash
# full SFT on the lab machine, 4 x A100 80GB
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export WANDB_PROJECT=sft-llama

accelerate launch \
    --num_processes 4 \
    --mixed_precision bf16 \
    --use_fsdp \
    --fsdp_sharding_strategy FULL_SHARD \
    --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP \
    --fsdp_state_dict_type SHARDED_STATE_DICT \
    trl/scripts/sft.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --dataset_name trl-lib/Capybara \
    --torch_dtype bfloat16 \
    --attn_implementation flash_attention_2 \
    --max_length 4096 \
    --packing \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 4 \
    --gradient_checkpointing \
    --learning_rate 2e-5 \
    --num_train_epochs 1 \
    --bf16 \
    --output_dir out/llama31-capybara
