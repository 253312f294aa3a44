"""The example of python/README.md runs as it stands and prints what is said there."""

import contextlib
import io
import pathlib
import re
import unittest

README = pathlib.Path(__file__).parents[1] / "README.md"


class Readme(unittest.TestCase):
    """Each block of Python in it."""

    def test_the_example_prints_what_is_said(self):
        text = README.read_text()
        (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example, str(README), "exec"), {})
        first, endpoint = printed.getvalue().splitlines()
        self.assertIn(f"It prints `{first}`", text)
        self.assertIn(f'ENDPOINT = "{endpoint}"', example)


if __name__ == "__main__":
    unittest.main()
