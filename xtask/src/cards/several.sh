
# Several cards of one host, one card beside them in the same run.
writes "$model" --shape flash --mix q2 --alias 1
seen='loaded|hash of|tokens/s|gates in|to the first|differ|note'
short="--prompt 2048 --answer 128 --chunk 2048"

part one 70 6 "$seen" check "$model" $short --sessions 16 --depths 65536
part two 70 8 "$seen" check "$model" $short --sessions 16 --depths 65536 --ranks 2
part nano 90 6 "one answer|$seen" gpu_check models/nano.gguf --prompt 200 --answer 60 --ranks 2
part one-8k 40 2 'hash of|reading' check "$model" --prompt 8192 --answer 64 --chunk 4096
part two-8k 40 3 'hash of|reading|gates in' \
    check "$model" --prompt 8192 --answer 64 --chunk 4096 --ranks 2
part gates 70 2 'processes with cards' card_gates
part pair 90 2 'sums of cards|one text|other' pair
export NCCL_NVLS_ENABLE=0
part lost 60 4 'rank [01]' card_lost

# What `sim` makes of one card's costs, beside what two cards took: threads, then processes.
costs() {
    ironstar doctor --cluster --backend cuda --ranks 2 --model "$model" --json >"$out/costs.json"
    for name in threads processes; do
        ironstar sim --costs "$out/costs.json" --bench "$work/one.json" --ranks 1,2,4,8 \
            --against "$work/$name.json"
    done
}
export -f costs
part bench-one 40 1 tps bench one
part bench-threads 40 1 tps bench threads --ranks 2
part bench-processes 60 1 tps bench processes --ranks 2 --transport shm
part bench-peer 60 1 tps bench peer --ranks 2 --transport shm --gates peer
part costs 110 10 '^ +[1-8] +1  (single|tensor [248] +[0-9])|predicted' costs
part nccl 50 4 "$seen" check "$model" $short --ranks 2 --nccl
part host 50 3 "$seen" check "$model" --prompt 2048 --answer 32 --chunk 2048 --ranks 2 --host-gates
part stages 50 1 tps bench stages --stages 2

# More than one card holds: one refuses it before loading, two run it.
big() {
    [ -e "$large" ] || ironstar synth "$large" --shape flash --mix q4 --alias 2
}
export -f big
export large=$shm/flash-q4.gguf
part big 60 1 rror big
part big-one 30 2 'needs|rror' check "$large" --prompt 2048 --answer 32 --chunk 2048
part big-two 60 3 "$seen" check "$large" --prompt 2048 --answer 32 --chunk 2048 --ranks 2

for n in 4 8; do
    [ "$n" -le "$cards" ] || break
    part "$n" 70 8 "$seen" check "$model" $short --sessions 16 --depths 65536 --ranks "$n"
    part "$n-8k" 40 3 'hash of|reading|gates in' \
        check "$model" --prompt 8192 --answer 64 --chunk 4096 --ranks "$n"
    part "$n-nano" 60 4 "one answer|$seen" \
        gpu_check models/nano.gguf --prompt 200 --answer 60 --ranks "$n"
    part "$n-stages" 60 1 tps bench stages --stages "$n"
done
