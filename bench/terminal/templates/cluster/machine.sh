#!/usr/bin/env bash
# One machine with several GPUs: tune, sweep, rank. Run it again after any interruption: it goes on.
set -euo pipefail

DATA=${DATA:-cifar10}
STORE=${STORE:-leaderboards}
METHODS=(simclr orchestra)
# A ResNet-18 at batch 16 fills a small part of a modern GPU; `nvidia-smi` shows how small.
SHARE=${SHARE:-0.25}
common=(--preset cross-device --set "data.name=$DATA" --gpus-per-trial "$SHARE" --store "$STORE")

fedbench doctor --store "$STORE"
fedbench data prepare "$DATA"
for method in "${METHODS[@]}"; do
  fedbench tune "$method" --trials 24 --batch 6 "${common[@]}" || (($? == 4))  # 4: some runs failed
done
chosen=$(IFS=,; echo "${METHODS[*]}")
fedbench sweep --grid heterogeneity --methods "$chosen" --tuned auto "${common[@]}" --dry-run
fedbench sweep --grid heterogeneity --methods "$chosen" --tuned auto "${common[@]}" || (($? == 4))
fedbench leaderboard --grid heterogeneity --store "$STORE"
