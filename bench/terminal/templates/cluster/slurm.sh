#!/usr/bin/env bash
#SBATCH --job-name=$name
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
# A Ray cluster for one command, for example
#   sbatch slurm.sh sweep --grid heterogeneity --preset cross-device --gpus-per-trial 0.25
# Five minutes before its time is over, or when it is pre-empted, the job stops in good order, puts
# itself back into the queue, and goes on from there. Where pre-emption signals only the job's steps,
# Ray ends first: the command then stops with exit code 3 within 20 s, and Slurm queues the job itself
# (PreemptMode=REQUEUE). ENVIRONMENT and STORE must be on a disk that
# all nodes see.
set -euo pipefail

ENVIRONMENT=${ENVIRONMENT:-$SLURM_SUBMIT_DIR/.venv}
STORE=${STORE:-$SLURM_SUBMIT_DIR/leaderboards}
export PATH="$ENVIRONMENT/bin:$PATH"

# Own port and own folder: other jobs may share the node. Sockets below the folder need short names.
port=$((20000 + SLURM_JOB_ID % 20000))
# Other nodes must reach it: no loopback (127.0.1.1 in /etc/hosts), no IPv6.
host=$(hostname --all-ip-addresses | tr ' ' '\n' | awk '/^[0-9]+\./ && !/^127\./ && !/^169\.254\./ {print; exit}')
host=${HEAD_ADDRESS:-$host}  # set it where the first network is not the one between the nodes
[[ -n $host ]] || { echo "this node has no IPv4 address that others reach; set HEAD_ADDRESS" >&2; exit 3; }
address=$host:$port
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID
srun --ntasks-per-node=1 mkdir -p "$RAY_TMPDIR"

# Whoever reaches the port could run code in this account, but for the token.
mkdir -p "$STORE"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$STORE/.ray-token-$SLURM_JOB_ID
daemons=()
trap 'kill "${daemons[@]}" 2>/dev/null || true; rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
(umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun would give its tasks one CPU
resources=(--num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}")
srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" \
  ray start --head --node-ip-address="${address%:*}" --port="$port" "${resources[@]}" \
  --include-dashboard=false --disable-usage-stats --block &
daemons+=($!)
deadline=$((SECONDS + 180))
until timeout 20 ray health-check --address "$address" >/dev/null 2>&1; do
  if ! kill -0 "${daemons[0]}" 2>/dev/null || ((SECONDS > deadline)); then
    echo "Ray's head does not answer at $address" >&2
    exit 3
  fi
  sleep 2
done
others=$((SLURM_JOB_NUM_NODES - 1))
if ((others > 0)); then
  srun --overlap --nodes="$others" --ntasks="$others" --exclude="$SLURMD_NODENAME" \
    ray start --address="$address" "${resources[@]}" --disable-usage-stats --block &
  daemons+=($!)
fi

# Set before the command, so that no signal comes in between; until then `$!` is the last daemon.
trap 'if [[ $! == "${daemons[-1]}" ]]; then exit 143; fi; kill -TERM "$!" 2>/dev/null || true' TERM
fedbench "$@" --address "$address" --store "$STORE" &
driver=$!
code=0
wait "$driver" || code=$?
while kill -0 "$driver" 2>/dev/null; do  # `wait` returns early when the trap has run
  code=0
  wait "$driver" || code=$?
done
trap - TERM

if ((code == 143)); then
  scontrol requeue "$SLURM_JOB_ID" || true  # pre-emption may have done so already
fi
exit "$code"
