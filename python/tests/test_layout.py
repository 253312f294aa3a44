"""The structs that the package repeats are those of the header, by a C compiler's word."""

import ctypes
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from kvhints import _native

INCLUDE = pathlib.Path(__file__).parents[2] / "include"


class Layout(unittest.TestCase):
    """Sizes, and the offset and size of every field."""

    def test_structs_are_those_of_the_header(self):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            print("\nSKIPPED layout: there is no C compiler")
            self.skipTest("there is no C compiler")
        lines, expected = [], []
        for name, struct in _native.STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, kind, *_ in struct._fields_:
                lines.append(
                    f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
                )
                expected.append(f"{name}.{field} {getattr(struct, field).offset} {ctypes.sizeof(kind)}")
        source = '#include "kvhints.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
        with tempfile.TemporaryDirectory() as work:
            program = pathlib.Path(work) / "layout"
            (pathlib.Path(work) / "layout.c").write_text(source)
            command = [compiler, f"-I{INCLUDE}", str(program) + ".c", "-o", str(program)]
            subprocess.run(command, check=True, capture_output=True)
            told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
        self.assertEqual(told.splitlines(), expected)


if __name__ == "__main__":
    unittest.main()
