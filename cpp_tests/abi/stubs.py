#!/usr/bin/env python3
"""Writes a C file that defines each function of a kvhints header: stubs.py HEADER > stubs.c.

What a program sees of the library is its header; compiled with debug information, these stubs are
that in a form that abidiff reads."""

import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
print('#include "kvhints.h"')
count = 0
for declaration in re.findall(r"^[A-Za-z_][\w \n*]*\bkvh_\w+\s*\([^;{}]*\)\s*;", text, re.MULTILINE):
    if not declaration.startswith("typedef"):
        print(declaration.rstrip("; \n"), "{ __builtin_trap(); }")
        count += 1
if count == 0:
    sys.exit("no function found in " + sys.argv[1])
