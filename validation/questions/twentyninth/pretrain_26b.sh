#!/bin/bash
# 26B dense, 8 nodes of 8
export CUDA_DEVICE_MAX_CONNECTIONS=1

torchrun --nproc_per_node 8 --nnodes 8 \
    --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 \
    pretrain_gpt.py \
    --num-layers 52 --hidden-size 6144 --ffn-hidden-size 16384 \
    --num-attention-heads 48 --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 4 \
    --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 2 --global-batch-size 512 \
    --train-iters 50000 --lr 1.5e-4 --min-lr 1.5e-5 \
    --lr-decay-style cosine --lr-warmup-iters 1000 \
    --weight-decay 0.1 --clip-grad 1.0 --bf16 \
    --use-flash-attn --recompute-activations \
    --tokenizer-type GPT2BPETokenizer \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --data-path /data/my_corpus_text_document --split 990,8,2 \
    --log-interval 10 --save-interval 1000 --save /ckpt/26b
