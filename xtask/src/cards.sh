#!/bin/bash
# Everything that is asked of several cards of one host, in one go: `cards.sh CARDS FOLDER` beside
# release builds of `ironstar` and `gpu_check` and nano.gguf. A log a run goes to the folder; what
# counts is printed. One card is measured in the same run.
set -u
cards=${1:?how many cards}
out=${2:?a folder for logs}
model=${MODEL:-/dev/shm/flash.gguf}
big=${BIG:-/dev/shm/flash-q4.gguf}

run() {
    local name=$1
    shift
    echo "== $name: $*"
    timeout 400 "$@" >"$out/$name.log" 2>&1
    echo "rc $?"
    grep -E "tokens/s|gates in|hash|hold|differ|sessions|one answer|free|cannot" \
        "$out/$name.log" | tail -n 24
}

mkdir -p "$out"
nvidia-smi topo -m >"$out/topology.log" 2>&1
[ -e "$model" ] || ./ironstar synth "$model" --shape flash --mix q2 --alias 1
short="--prompt 2048 --answer 128 --chunk 2048 --quick --sessions 16"
long="--prompt 8192 --answer 64 --chunk 4096 --quick --depths 65536,262144"

run one-2k ./gpu_check "$model" $short
run one-8k ./gpu_check "$model" $long
for n in 2 4 8; do
    [ "$n" -le "$cards" ] || break
    run "$n-2k" ./gpu_check "$model" $short --ranks "$n"
    run "$n-8k" ./gpu_check "$model" $long --ranks "$n"
    run "$n-nccl" ./gpu_check "$model" --prompt 2048 --answer 128 --chunk 2048 --quick \
        --ranks "$n" --nccl
    run "$n-host" ./gpu_check "$model" --prompt 2048 --answer 32 --chunk 2048 --quick \
        --ranks "$n" --host-gates
    run "$n-nano" ./gpu_check nano.gguf --prompt 200 --answer 60 --ranks "$n"
    bench="--backend cuda --ctx-start 2048 --ctx-max 2048 --gen-tokens 64 --json"
    run "$n-bench" ./ironstar bench --model "$model" --ranks "$n" $bench
    run "$n-stages" ./ironstar bench --model "$model" --stages "$n" $bench
done

# More than one card holds: one refuses it before loading, two run it.
[ -e "$big" ] || ./ironstar synth "$big" --shape flash --mix q4 --alias 2
run big-one ./gpu_check "$big" --prompt 2048 --answer 32 --chunk 2048 --quick
run big-two ./gpu_check "$big" --prompt 2048 --answer 32 --chunk 2048 --quick --ranks 2
