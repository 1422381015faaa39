"""Compiles one CUDA text for several architectures with NVRTC; no GPU and no toolkit needed.

usage: kernel_check.py TEXT_FILE PARTS_FOLDER OPTIONS_FILE RECORD_FILE VIRTUAL:REAL[,REAL...]...

The text is compiled to PTX for every virtual architecture and assembled for the real ones behind
it, two at a time: NVRTC releases Python's lock and keeps programs apart. What the assembler says of
each kernel (registers, stack, spills) goes into RECORD_FILE, and with it how many products of
matrix units the kernel has. Exit status 1 if any architecture does not compile, or a kernel that is
there for the matrix units does not use them, or the text tells architectures of a family apart, or
one of the parts in which devices compile the text is not understood.
"""

import ctypes
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = 2
PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
# The first messages of a compiler say what is wrong.
LINES_MAX = 30
# Kernels that multiply on matrix units; those of floats have an order of sums that units lack.
MATRIX_UNITS = re.compile(
    r"tile_|few_tiles_|big_(?!f16|bf16)|flow_|slim_|wide_|attend_tiles|attend_heads|attend_four|"
    r"index_scores_tiles|index_scores_four|halves_(?!split)")


def compiler():
    """The library; the built-in functions must be there before it looks for them."""
    folder = PACKAGES / "lib"
    ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libnvrtc.so.13"))


def compile_text(nvrtc, text, options, architecture):
    """Status, log, seconds and PTX of one compilation."""
    begun = time.monotonic()
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text, b"kernels", 0, None, None)
    if status != 0:
        return status, "nvrtcCreateProgram failed", 0.0, b""
    words = [*options, f"--gpu-architecture={architecture}"]
    array = (ctypes.c_char_p * len(words))(*[word.encode() for word in words])
    status = nvrtc.nvrtcCompileProgram(program, len(words), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    ptx = ctypes.create_string_buffer(1)
    if status == 0:
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode(errors="replace"), time.monotonic() - begun, ptx.value


def assemble(ptx, architecture):
    """Status, log and seconds of one run of the assembler, and the size of its machine code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_bytes(ptx)
        words = [PACKAGES / "bin" / "ptxas", f"-arch={architecture}", "-v", "-o", made, source]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        size = made.stat().st_size if made.exists() else 0
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begun, size


def number(architecture):
    """What `__CUDA_ARCH__` is."""
    return 10 * int(re.search(r"_(\d+)", architecture)[1])


def told_apart(text, virtual, reals):
    """What the text's conditionals tell a real architecture from the virtual one by."""
    if len(reals) == 1:
        return []
    borders = [int(found) for found in re.findall(rb"__CUDA_ARCH__\s*[<>=!]+\s*(\d+)", text)]
    numbers = [border for border in borders
               if any(number(virtual) < border <= number(real) for real in reals)]
    # What only sm_90a has, no other knows.
    own = set() if "sm_90a" in reals else {b"__CUDA_ARCH_FEAT_SM90_ALL"}
    features = set(re.findall(rb"__CUDA_ARCH_[A-Z]\w*", text)) - own
    return numbers + [found.decode() for found in features]


def matrix_products(ptx):
    """How many products on matrix units each kernel's text has."""
    kernels = re.split(r"\.entry (\w+)", ptx)
    found = [len(re.findall(r"mma\.(?:sync|mma_async)", body)) for body in kernels[2::2]]
    return dict(zip(kernels[1::2], found))


def resources(log):
    """(kernel, registers, stack, spilled bytes, shared bytes) of every kernel in the log."""
    found, name, stack, spilled = [], None, 0, 0
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack, spilled = match[1], 0, 0
        elif match := re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                line):
            stack, spilled = int(match[1]), int(match[2]) + int(match[3])
        elif (match := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            found.append((name, int(match[1]), stack, spilled, int(shared[1]) if shared else 0))
            name = None
    return sorted(found)


def for_a_person(log):
    """What is left of a log: errors and warnings, of the assembler too."""
    lines = [line for line in log.splitlines()
             if line.strip() and not line.startswith(("ptxas info", "    "))]
    return "\n".join(lines[:LINES_MAX])


def judge(architecture, log, size, seconds, ptx, record):
    """Writes what is known of the kernels of an architecture; whether all is well."""
    kernels, products = resources(log), matrix_products(ptx)
    for kernel in kernels:
        print(architecture, *kernel, products.get(kernel[0], 0), sep="\t", file=record)
    if notes := for_a_person(log):
        print(notes)
    units = [name for name, *_ in kernels if MATRIX_UNITS.match(name)]
    without = [name for name in units if not products.get(name)]
    if without or not units:
        print(f"{architecture}: no product of matrix units in {', '.join(without) or 'any'}")
        return False
    most = max(kernels, key=lambda kernel: kernel[1])
    spilling = [f"{name} {bytes_} bytes" for name, _, _, bytes_, _ in kernels if bytes_]
    print(f"{architecture:8} {len(kernels)} kernels, {size} bytes, {seconds:.1f} s, most "
          f"registers {most[1]} ({most[0]}), {len(units)} on matrix units, spills: "
          f"{', '.join(spilling) or 'none'}")
    return True


def compile_families(pool, text, options, families):
    """Compiles for every virtual architecture; gives each real one with its PTX and what will be
    the result of assembling it, and whether all is well so far."""
    nvrtc, well, assembled = compiler(), True, []
    compiled = [pool.submit(compile_text, nvrtc, text, options, virtual) for virtual, _ in families]
    for (virtual, reals), future in zip(families, compiled):
        status, log, seconds, ptx = future.result()
        if borders := told_apart(text, virtual, reals):
            print(f"{virtual}: kernels ask for {borders}, so {reals} are not one family")
            well = False
        if status != 0 or not ptx:
            print(f"{virtual}: does not compile (status {status})\n{for_a_person(log)}")
            well = False
            continue
        print(f"{virtual}: {len(ptx)} bytes of PTX, {seconds:.1f} s")
        if notes := for_a_person(log):
            print(notes)
        assembled += [(real, ptx.decode(), pool.submit(assemble, ptx, real)) for real in reals]
    return well, assembled


def read_parts(pool, folder, options, families):
    """Whether the compiler understands every part by itself; their code is that of the whole."""
    nvrtc, words = compiler(), [*options, "--fdevice-syntax-only"]
    read = [(part, virtual, pool.submit(compile_text, nvrtc, part.read_bytes(), words, virtual))
            for part in sorted(folder.iterdir()) for virtual, _ in families]
    well, seconds = bool(read), 0.0
    for part, virtual, future in read:
        status, log, own, _ = future.result()
        seconds += own
        if status != 0:
            print(f"{part} for {virtual}: is not understood\n{for_a_person(log)}")
            well = False
    print(f"{len(read)} parts are understood, {seconds:.1f} s" if well else "parts: failed")
    return well


def main():
    text_file, parts, options_file, record_file, *families = sys.argv[1:]
    text = Path(text_file).read_bytes()
    options = [line.strip() for line in Path(options_file).read_text("utf-8").splitlines() if line]
    families = [(virtual, reals.split(",")) for virtual, reals in (f.split(":") for f in families)]
    with ThreadPoolExecutor(THREADS) as pool, open(record_file, "w", encoding="utf-8") as record:
        print("architecture\tkernel\tregisters\tstack\tspilled\tshared\tmatrix", file=record)
        parts_well = read_parts(pool, Path(parts), options, families)
        well, assembled = compile_families(pool, text, options, families)
        well &= parts_well
        for real, ptx, future in assembled:
            status, log, seconds, size = future.result()
            if status != 0 or not resources(log):
                print(f"{real}: is not assembled (status {status})\n{for_a_person(log)}")
                well = False
            else:
                well &= judge(real, log, size, seconds, ptx, record)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
