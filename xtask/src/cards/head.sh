# The folder of this script has release builds of `ironstar`, `gpu_check`, `kernel_bench`,
# `card_gates` and `card_lost`, packed by xz or not (docs/gpu.md); it is run in the project's root,
# for its models and oracles. Parts come in the order of their worth, each with a limit, all of them
# within SECONDS_MAX; named parts are all that run: `cards.sh FOLDER [PART...]`. FOLDER gets two
# files, and the end of the output is a summary.
set -u
out=${1:?a folder for the logs}
shift
wanted=" $* "
seconds_max=${SECONDS_MAX:-490}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
# Models lie in memory: in SHM, where there is room, or in a file system made for them.
shm=${SHM:-/dev/shm}
if [ -z "${SHM:-}" ] && [ "$(df --output=avail -k "$shm" | tail -n 1)" -lt 25000000 ]; then
    shm=$work/models
    mkdir "$shm"
    mount -t tmpfs -o size=60g tmpfs "$shm" 2>/dev/null || echo "models lie on the disk: $shm"
fi
model=$shm/flash.gguf
skipped=
mkdir -p "$out"
: >"$out/summary.txt"
: >"$out/cards.log"

for name in ironstar gpu_check kernel_bench card_gates card_lost; do
    if [ -e "$here/$name.xz" ]; then
        xz -dc "$here/$name.xz" >"$work/$name" 2>/dev/null ||
            python3 -c 'import lzma,sys;sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' \
                "$here/$name.xz" >"$work/$name"
    elif [ -e "$here/$name" ]; then
        cp "$here/$name" "$work/$name"
    fi
    [ -e "$work/$name" ] && chmod +x "$work/$name"
done
PATH=$work:$PATH
# Kernels that were compiled elsewhere for such a card.
if [ -e "$here/kernels.tar.xz" ]; then
    mkdir -p ~/.cache/ironstar
    python3 -c 'import sys,tarfile;tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
        "$here/kernels.tar.xz" ~/.cache/ironstar
fi

# Whether a part is asked for and there is time for it.
due() {
    if [ "$wanted" != "  " ] && [[ "$wanted" != *" $1 "* ]]; then
        return 1
    fi
    if [ $((seconds_max - SECONDS)) -lt 8 ]; then
        skipped="$skipped $1"
        return 1
    fi
}

# part NAME LIMIT LINES PATTERN COMMAND...: what it says goes to the log, and of the lines that the
# pattern finds so many to the summary. True if it did run and went well.
part() {
    local name=$1 limit=$2 lines=$3 pattern=$4 begun=$SECONDS left code
    shift 4
    due "$name" || return 1
    left=$((seconds_max - SECONDS))
    [ "$limit" -le "$left" ] || limit=$left
    # A shell of its own, since some commands are functions.
    timeout -k 5 "$limit" bash -c '"$@"' - "$@" >"$work/part.log" 2>&1 </dev/null
    code=$?
    echo "$name: rc $code, $((SECONDS - begun)) s, at $SECONDS"
    { echo; echo "== $name, rc $code, $((SECONDS - begun)) s: $*"
      tail -c 500000 "$work/part.log"; } >>"$out/cards.log"
    { grep -E "$pattern" "$work/part.log" | head -n "$lines"
      [ $code -eq 0 ] || echo "ended with $code: $(tail -n 1 "$work/part.log")"; } |
        cut -c 1-330 | sed "s/^ */$name: /" >>"$out/summary.txt"
    return $code
}

# A random model, once.
writes() {
    local file=$1
    shift
    [ -e "$file" ] || ironstar synth "$file" "$@" >>"$work/synth.log" 2>&1
}

# What most parts do: `check MODEL WORD...`, `bench NAME WORD...`.
check() {
    gpu_check "$@" --quick
}
bench() {
    local name=$1
    shift
    ironstar bench --model "$model" --backend cuda --ctx-start 2048 --ctx-max 2048 \
        --gen-tokens 64 --json "$@" >"$work/$name.json" || return
    echo "bench of $name: $(grep -oE '"(prefill|gen)_tps":[0-9.]+' "$work/$name.json" | xargs)"
}
answer() {
    ironstar run --model models/nano.gguf --backend cuda --temp 0 -n 24 --raw \
        --prompt "Once upon a time there was a little fox" "$@"
}
# Processes in place of one: they say how their sums go, and the text is the same.
pair() {
    local alone both
    alone=$(answer) || return
    both=$(answer --ranks 2 --transport shm 2>"$work/notes") || { cat "$work/notes"; return 1; }
    grep -o 'sums of cards.*' "$work/notes"
    [ "$alone" = "$both" ] || { echo "other texts: $alone | $both"; return 1; }
    echo "one text: $both"
}
export -f check bench answer pair
export model out work

info() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    nvidia-smi topo -m
    nproc
    free -g
    df -h "$shm"
    uname -r
    command -v compute-sanitizer
}
info >>"$out/cards.log" 2>&1
