"""Compiles one CUDA text for several architectures with NVRTC; no GPU and no toolkit needed.

usage: kernel_check.py LIBRARY_FOLDER TEXT_FILE OPTIONS_FILE RECORD_FILE ARCHITECTURE...

Two architectures at a time: NVRTC releases Python's lock and keeps programs apart. What ptxas says
of each kernel (registers, stack, spills) is read from the compiler's log and goes into RECORD_FILE,
and with it how many products of matrix units the kernel has. Exit status 1 if any architecture does
not compile, or a kernel that is there for the matrix units does not use them.
"""

import ctypes
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

THREADS = 2
# The first messages of a compiler say what is wrong.
LINES_MAX = 30
# Kernels that multiply on matrix units; those of floats have an order of sums that units lack.
MATRIX_UNITS = re.compile(r"tile_|big_(?!f16|bf16)|attend_tiles")


def compiler(folder):
    """The library; the built-in functions must be there before it looks for them."""
    ctypes.CDLL(f"{folder}/libnvrtc-builtins.so.13.0", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(f"{folder}/libnvrtc.so.13")


def compile_text(nvrtc, text, options, architecture):
    """Status, log and seconds of one compilation, the size of its machine code, and its PTX."""
    begun = time.monotonic()
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text, b"kernels", 0, None, None)
    if status != 0:
        return status, "nvrtcCreateProgram failed", 0.0, 0, ""
    words = [*options, f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    array = (ctypes.c_char_p * len(words))(*[word.encode() for word in words])
    status = nvrtc.nvrtcCompileProgram(program, len(words), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    size, ptx = ctypes.c_size_t(), ctypes.create_string_buffer(1)
    if status == 0:
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, ptx)
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    seconds = time.monotonic() - begun
    return status, log.value.decode(errors="replace"), seconds, size.value, ptx.value.decode()


def matrix_products(ptx):
    """How many products on matrix units each kernel's text has."""
    kernels = re.split(r"\.entry (\w+)", ptx)
    return {name: body.count("mma.sync") for name, body in zip(kernels[1::2], kernels[2::2])}


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


def without_resources(log):
    """What is left of the log for a person: errors and warnings."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("ptxas")]
    return "\n".join(lines[:LINES_MAX])


def main():
    folder, text_file, options_file, record_file, *architectures = sys.argv[1:]
    with open(text_file, "rb") as file:
        text = file.read()
    with open(options_file, encoding="utf-8") as file:
        options = [line.strip() for line in file if line.strip()]
    nvrtc = compiler(folder)
    failed = False
    with ThreadPoolExecutor(THREADS) as pool, open(record_file, "w", encoding="utf-8") as record:
        print("architecture\tkernel\tregisters\tstack\tspilled\tshared\tmatrix", file=record)
        results = pool.map(lambda a: compile_text(nvrtc, text, options, a), architectures)
        for architecture, (status, log, seconds, size, ptx) in zip(architectures, results):
            kernels, products = resources(log), matrix_products(ptx)
            for kernel in kernels:
                print(architecture, *kernel, products.get(kernel[0], 0), sep="\t", file=record)
            if status != 0 or not kernels:
                print(f"{architecture}: does not compile (status {status})")
                print(without_resources(log))
                failed = True
                continue
            if notes := without_resources(log):
                print(notes)
            units = [name for name, *_ in kernels if MATRIX_UNITS.match(name)]
            without = [name for name in units if not products.get(name)]
            if without or not units:
                names = ", ".join(without) or "any"
                print(f"{architecture}: no product of matrix units in {names}")
                failed = True
            most = max(kernels, key=lambda kernel: kernel[1])
            spilling = [f"{name} {bytes_} bytes" for name, _, _, bytes_, _ in kernels if bytes_]
            print(f"{architecture:8} {len(kernels)} kernels, {size} bytes, {seconds:.1f} s, most "
                  f"registers {most[1]} ({most[0]}), {len(units)} on matrix units, spills: "
                  f"{', '.join(spilling) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
