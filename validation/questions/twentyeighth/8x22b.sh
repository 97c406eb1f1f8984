#!/bin/bash
MBS=${MBS:-1}
MOE=(--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type aux_loss)
MODEL=(--num-layers 56 --hidden-size 6144 --ffn-hidden-size 16384 --num-attention-heads 48 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --hidden-dropout 0 --attention-dropout 0 --vocab-size 32768 --use-flash-attn)
torchrun --nproc_per_node 8 --nnodes 16 pretrain_gpt.py "${MODEL[@]}" "${MOE[@]}" --bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 7 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --micro-batch-size $MBS --global-batch-size 512 --train-iters 40000 --lr 3e-4
