#!/bin/bash
# 22k scanned delivery notes -> JSON, one machine with 4 cards
NPROC_PER_NODE=4 \
MAX_PIXELS=1003520 \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
swift sft \
    --model Qwen/Qwen2.5-VL-7B-Instruct \
    --dataset ./delivery_notes.jsonl \
    --train_type lora \
    --torch_dtype bfloat16 \
    --num_train_epochs 2 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --learning_rate 1e-4 \
    --lora_rank 16 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --freeze_vit true \
    --gradient_checkpointing true \
    --attn_impl flash_attn \
    --max_length 6144 \
    --warmup_ratio 0.05 \
    --dataloader_num_workers 8 \
    --deepspeed zero2 \
    --save_steps 200 \
    --output_dir output/notes
