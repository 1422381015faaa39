
# One card: everything that docs/performance.md says of one, and what nobody has run.
models() {
    writes "$model" --shape flash --mix q2 --alias 1 --mtp "$shm/flash-mtp.gguf"
    writes "$shm/tiny.gguf" --shape tiny
    writes "$shm/four.gguf" --shape reduced --layers 4 --experts 8
    writes "$shm/eight.gguf" --shape flash --mix q2 --alias 1 --layers 8
}
models &

part nano 120 8 'ready in|one answer|against|reading|oracle|differ' \
    gpu_check models/nano.gguf --against-cpu --prompt 200 --answer 60 --sessions 16 \
    --oracle tests/golden/oracle
wait
cat "$work/synth.log" >>"$out/cards.log"

# The table's figures, and what each shortcut is worth on a model in place.
# Those that have nothing to do with what is measured are left out; new ones are in.
token=all,-few,-wide,-halves,-heads,-four,-onward,-mapped,-pairs,-scores,-pooled
reading=all,-lanes,-staged,-spread,-index,-few,-halves,-mapped,-pooled
steps=all,-lanes,-spread,-wide,-heads,-four,-onward,-mapped,-pairs,-scores
part flash 190 12 'loaded|hash of|tokens/s|to the first|differ|compare' \
    check "$model" --prompt 2048 --chunk 2048 --answer 128 --sessions 16 --depths 65536 \
    --rounds 3 --compare $token --compare-depths $token --compare-prompt $reading \
    --compare-sessions $steps
part cuts 40 3 'one answer|hash of' \
    gpu_check "$model" --prompt 200 --chunk 200 --answer 8
part kl 90 1 against \
    check "$shm/eight.gguf" --against-cpu --prompt 64 --chunk 64 --answer 16
part read-8k 40 2 'reading|hash of' check "$model" --prompt 8192 --chunk 4096 --answer 64
part read-32k 60 2 'reading|hash of' check "$model" --prompt 32768 --chunk 4096 --answer 32

# Gates of several processes, whose cards are this one: two of them take turns on it.
part gates 70 7 'shared|carried|host|processes with cards' card_gates
part pair 90 2 'sums of cards|one text|other' pair
part deep 70 2 behind check "$model" --prompt 512 --chunk 512 --answer 32 --depths 262144,1000000

# What a token waits for, at 2 K and at 64 K: other texts of the kernels, compiled first.
part timeline 110 2 'launches, first' \
    check "$model" --prompt 2048 --chunk 2048 --answer 64 --timeline --depths 65536

# Checkers, on as little as has the kernels: tiles need 128 rows, chosen experts Flash's widths.
sanitize() {
    local tool=$1 kernels=$2
    shift 2
    compute-sanitizer --tool "$tool" ${kernels:+--kernel-regex kns=$kernels} "$@" --quick
}
export -f sanitize
tiny="gpu_check $shm/tiny.gguf --answer 4"
# racecheck does not bear clusters among the kernels that it leaves alone.
alone="--disable cluster"
four="gpu_check $shm/four.gguf --prompt 3 --chunk 3 --answer 2 $alone"
found='SUMMARY|not supported'
part memcheck 60 1 "$found" sanitize memcheck '' $tiny --prompt 129 --chunk 129 --sessions 3
for kernels in few_tiles halves attend_four attend_some wide_ flow_ slim_ attend_tiles big_ \
    post_shards; do
    part "race-$kernels" 30 1 "$found" sanitize racecheck "$kernels" $tiny \
        --prompt 128 --chunk 128 --sessions 3 $alone
done
part race-hc_post 60 1 "$found" sanitize racecheck hc_post_ \
    gpu_check "$shm/tiny.gguf" --prompt 2 --chunk 2 --answer 1
part race-direct 40 1 "$found" sanitize racecheck direct_ \
    gpu_check "$shm/four.gguf" --prompt 128 --chunk 128 --answer 2 $alone
part race-lean 40 1 "$found" sanitize racecheck lean_ \
    gpu_check "$shm/four.gguf" --prompt 56 --chunk 56 --answer 2 $alone
part race-chosen 45 1 "$found" sanitize racecheck chosen $four --sessions 3

# What a rank's part costs, and what follows from it.
costs() {
    ironstar doctor --cluster --backend cuda --ranks 2 --model "$model" --json >"$out/costs.json"
    ironstar sim --costs "$out/costs.json" --ranks 1,2,4,8
}
kernels() {
    kernel_bench --rows 1,16,512 --rounds 5 | tee "$work/kernels"
    # Those that are furthest from what bounds them.
    awk '/ rows$/ { rows = $1 } /bound/ { print $(NF - 1), "% at", rows, "rows:", $0 }' \
        "$work/kernels" | sort -g | head -n 5 | sed 's/^/furthest: /'
}
export -f costs kernels
part costs 110 5 '^ +[1-8] +1  (single|tensor [248] +[0-9])' costs
part kernels 120 6 'reads|furthest' kernels
part guesses 20 3 guesses check models/nano.gguf --prompt 64 --answer 256 \
    --drafter models/nano-mtp.gguf
part guesses-flash 40 3 guesses check "$model" --prompt 2048 --chunk 2048 --answer 64 \
    --drafter "$shm/flash-mtp.gguf"
part bench 40 1 tps bench one
part serial 60 1 'tokens/s' check "$model" --prompt 2048 --chunk 2048 --answer 64 --serial
