"""Checks the Metal spelling of the kernels with the front end of clang; no Apple compiler needed.

usage: metal_check.py TEXT_FILE SHIM_FOLDER

Runs in an environment with the Python package libclang. Exit status 1 if there is any error.
"""

import sys

from clang import cindex

OPTIONS = [
    "-x", "c++", "-std=c++14", "--target=arm64-apple-macos14", "-nostdinc", "-fsyntax-only",
    "-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unused-function",
]
# What Apple's clang takes and plain clang does not.
REWRITES = [
    ("#define SHARED(T, n, N) threadgroup T n[N]",
     "#define SHARED(T, n, N) static threadgroup T n[N]"),
    ("#define SHARED_ATOMIC(n, N) threadgroup atomic_uint n[N]",
     "#define SHARED_ATOMIC(n, N) static threadgroup atomic_uint n[N]"),
    ("#define LOAD(T, from) (from)", "#define LOAD(T, from) load_struct<T>(from)"),
]


def errors(text, shim):
    for old, new in REWRITES:
        if old not in text:
            return [f"the prelude has no line `{old}` any more"]
        text = text.replace(old, new)
    unit = cindex.Index.create().parse(
        "kernels.cpp", [*OPTIONS, f"-I{shim}"], unsaved_files=[("kernels.cpp", text)])
    return [
        f"{d.location.file}:{d.location.line}: {d.spelling}"
        for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error
    ]


def main():
    text, shim = sys.argv[1:]
    with open(text, encoding="utf-8") as file:
        source = file.read()
    # The check itself is checked: a pointer without its address space must be found.
    planted = "\nFN float planted(const DEV float* p) { const float* q = p; return q[0]; }\n"
    if not errors(source + planted, shim):
        sys.exit("a planted fault was not found: the check is worth nothing")
    found = errors(source, shim)
    for line in found[:40]:
        print(line)
    sys.exit(1 if found else 0)


main()
