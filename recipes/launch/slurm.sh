#!/bin/bash
# A script on several machines of a SLURM cluster: one launcher on each, which starts a process per GPU.
#
#     sbatch slurm.sh two_nodes_zero3.yaml train.py --data "my notes.jsonl"
#     sbatch --nodes 4 --gpus-per-node 4 slurm.sh two_nodes.yaml train.py
#
# Change the lines below, or give the same words to sbatch, which win; they win over the YAML's machines and processes
# too. Before sbatch: activate the environment in which `accelerate` is, on a disk that all machines see.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --output=%x-%j.out

set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: sbatch slurm.sh FILE.yaml SCRIPT.py [ARGUMENTS]" >&2
    exit 2
fi
config=$1
shift

machines=$SLURM_JOB_NUM_NODES
gpus=${SLURM_GPUS_ON_NODE:?the job has no GPUs: add --gpus-per-node N to sbatch}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 10000)) # another one for each job, since jobs may share a machine

# srun leaves each launcher on one core otherwise (SLURM 22.05 and newer).
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# Single quotes: SLURM_NODEID is another one on each machine.
srun --nodes "$machines" --ntasks "$machines" --ntasks-per-node 1 --kill-on-bad-exit=1 \
    bash -c 'exec accelerate launch --config_file "$1" --main_process_ip "$2" --main_process_port "$3" \
        --num_machines "$4" --num_processes "$5" --machine_rank "$SLURM_NODEID" "${@:6}"' \
    launcher "$config" "$first" "$port" "$machines" "$((machines * gpus))" "$@"
