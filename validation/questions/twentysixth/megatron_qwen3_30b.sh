#!/bin/bash
# Qwen3-30B-A3B continued pre-training on 4 nodes, from the Megatron-LM examples
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

NNODES=${NNODES:-4}
TP=${TP:-2}
PP=${PP:-2}
EP=${EP:-8}

MODEL_ARGS=(
    --use-mcore-models
    --transformer-impl transformer_engine
    --num-layers 48
    --hidden-size 2048
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 4
    --kv-channels 128
    --qk-layernorm
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --rotary-base 1000000
    --rotary-percent 1.0
    --seq-length 8192
    --max-position-embeddings 40960
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --make-vocab-size-divisible-by 1187
)
MOE_ARGS=(
    --num-experts 128
    --moe-ffn-hidden-size 768
    --moe-router-topk 8
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-3
    --moe-grouped-gemm
    --moe-token-dispatcher-type flex
    --moe-enable-deepep
    --moe-permute-fusion
    --moe-router-dtype fp32
)
TRAIN_ARGS=(
    --micro-batch-size 1
    --global-batch-size 512
    --train-iters 12000
    --lr 2e-5
    --min-lr 2e-6
    --lr-decay-style cosine
    --lr-warmup-iters 200
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --recompute-granularity selective
    --recompute-modules moe_act layernorm
    --cross-entropy-loss-fusion
    --cross-entropy-fusion-impl te
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
DATA_ARGS=(
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model Qwen/Qwen3-30B-A3B-Base
    --vocab-size 151936
    --data-path /data/law_text_document
    --split 99,1,0
)

torchrun --nproc_per_node 8 --nnodes $NNODES --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR --master_port 6000 \
    pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAIN_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]} \
    --save /ckpt/q3 --load /ckpt/q3 --save-interval 500 --eval-interval 1000 --eval-iters 10 --log-interval 1
