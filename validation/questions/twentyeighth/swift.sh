NPROC_PER_NODE=4 swift sft \
  --model Qwen/Qwen3-30B-A3B-Instruct-2507 --train_type lora --lora_rank 8 --lora_alpha 32 --target_modules all-linear \
  --dataset chats.jsonl --torch_dtype bfloat16 --max_length 4096 --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 4 --num_train_epochs 1 --learning_rate 1e-4 --gradient_checkpointing true \
  --attn_impl flash_attn --deepspeed zero3 --output_dir out
