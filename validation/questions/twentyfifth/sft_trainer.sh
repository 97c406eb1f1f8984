#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
module load cuda/12.4
source ~/venvs/hf/bin/activate
export OMP_NUM_THREADS=8
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL=microsoft/phi-4
accelerate launch --num_processes 4 --mixed_precision bf16 --use_deepspeed --zero_stage 3 \
  -m trl.scripts.sft \
  --model_name_or_path $MODEL \
  --dataset_name data/medical_qa \
  --max_length 4096 \
  --packing \
  --per_device_train_batch_size 2 \
  --gradient_accumulation_steps 4 \
  --gradient_checkpointing \
  --learning_rate 1e-5 \
  --num_train_epochs 2 \
  --bf16 \
  --optim adamw_torch_fused \
  --output_dir out/phi4-med
