#!/bin/bash
# long context stage: 131,072 tokens a text, 4 nodes of 8
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
SEQ_LEN=131072
TP=${TP:-4}
CP=${CP:-8}
MBS=1
GBS=64

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port 6000
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LEN
    --max-position-embeddings $SEQ_LEN
    --position-embedding-type rope
    --rotary-base 8000000
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --attention-backend fused
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --context-parallel-size $CP
    --pipeline-model-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAIN_ARGS=(
    --micro-batch-size $MBS
    --global-batch-size $GBS
    --train-iters 1500
    --lr 2e-5 --min-lr 2e-6 --lr-decay-style cosine --lr-warmup-iters 50
    --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95
    --bf16
    --cross-entropy-loss-fusion
    --recompute-granularity selective
    --manual-gc
)
DATA_ARGS=(
    --data-path /data/books_text_document
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model meta-llama/Llama-3.1-8B
    --vocab-size 128256
    --split 99,1,0
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} ${TRAIN_ARGS[@]} ${DATA_ARGS[@]}
