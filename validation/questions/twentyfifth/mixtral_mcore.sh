#!/bin/bash
# 16 nodes of 8 H100, Mixtral 8x22B
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-16}

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank ${NODE_RANK:-0} --master_addr ${MASTER_ADDR:-localhost} --master_port 6000"

MODEL_ARGS="
    --use-mcore-models
    --disable-bias-linear
    --seq-length 16384
    --max-position-embeddings 65536
    --num-layers 56
    --hidden-size 6144
    --ffn-hidden-size 16384
    --num-attention-heads 48
    --group-query-attention
    --num-query-groups 8
    --init-method-std 0.01
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --rotary-base 1000000
    --swiglu
    --untie-embeddings-and-output-weights
    --no-masked-softmax-fusion
    --no-position-embedding
    --vocab-size 32768
"

MOE_ARGS="
    --num-experts 8
    --expert-model-parallel-size 8
    --moe-router-load-balancing-type aux_loss
    --moe-router-topk 2
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
"

TRAINING_ARGS="
    --micro-batch-size 1
    --global-batch-size 256
    --lr 1e-4
    --train-iters 50000
    --lr-decay-style cosine
    --min-lr 1.0e-5
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
    --overlap-grad-reduce
    --overlap-param-gather
"

PARALLEL_ARGS="
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 7
    --context-parallel-size 2
    --sequence-parallel
    --use-distributed-optimizer
    --recompute-granularity selective
"

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $MODEL_ARGS $MOE_ARGS $TRAINING_ARGS $PARALLEL_ARGS \
    --mock-data --tokenizer-type NullTokenizer \
    --log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 10
