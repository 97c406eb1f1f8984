#!/bin/bash
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
accelerate launch --num_processes 4 --mixed_precision bf16 trl/scripts/dpo.py \
  --model_name_or_path Qwen/Qwen2.5-14B-Instruct --dataset_name our/pairs --dtype bfloat16 \
  --use_peft --lora_r 64 --lora_alpha 128 --lora_target_modules all-linear \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --max_length 2048 \
  --beta 0.1 --learning_rate 5e-6 --num_train_epochs 1 --bf16 --gradient_checkpointing --output_dir out
