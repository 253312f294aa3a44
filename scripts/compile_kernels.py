#!/usr/bin/env python3
"""Compiles src/transfer/device/kernels.cu into kernels.ptx, which the library carries.

With --check nothing is written: exit code 1 where the committed file is another one. NVRTC comes from
the wheel in build/python (scripts/prerequisites.sh); where it is not there, this says so and ends well.
"""

import ctypes
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/transfer/device/kernels.cu"
TARGET = ROOT / "src/transfer/device/kernels.ptx"
# The oldest device that is served; drivers compile it on for newer ones.
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14"]
# Another release writes other text, and for younger drivers only.
RELEASE = (11, 8)


def nvrtc():
    """The wheel's NVRTC, or why there is none."""
    found = sorted((ROOT / "build/python").glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))
    if not found:
        return None, "there is no NVRTC in build/python"
    library = ctypes.CDLL(str(found[0]))
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    release = (major.value, minor.value)
    if release != RELEASE:
        return None, f"NVRTC is {release}, and the committed file was made with {RELEASE}"
    return library, None


def compiled(library):
    """PTX of the source; ends the program with the compiler's words where there is none."""
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(
        ctypes.byref(program), SOURCE.read_bytes(), b"kernels.cu", 0, None, None
    )
    if status != 0:
        sys.exit(f"NVRTC takes no program: status {status}")
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    status = library.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if status != 0:
        sys.exit(f"status {status}\n{log.value.decode()}")
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, text)
    return text.value.decode().strip() + "\n"


def main():
    """See the module."""
    library, reason = nvrtc()
    if library is None:
        print(f"SKIPPED kernels: {reason}")
        return 0
    text = compiled(library)
    if sys.argv[1:] != ["--check"]:
        TARGET.write_text(text)
        return 0
    if TARGET.read_text() != text:
        print("kernels.ptx is not what kernels.cu compiles to: run scripts/compile_kernels.py")
        return 1
    print("kernels.ptx is what kernels.cu compiles to")
    return 0


if __name__ == "__main__":
    sys.exit(main())
