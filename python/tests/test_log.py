"""The library's log as Python sees it."""

import gc
import logging
import subprocess
import sys
import unittest
import weakref

import kvhints
from kvhints import Context, Ingress, LogLevel


class Logs(unittest.TestCase):
    """Records of a context."""

    def test_a_record_has_its_parts(self):
        records = []
        context = Context(log=records.append)
        context.admit(Ingress.TRUSTED, b"{")
        (record,) = records
        self.assertEqual((record.level, record.event, record.left_out), (LogLevel.INFO, "hint_ignored", 0))
        self.assertEqual(record.fields, {"reason": "malformed"})
        self.assertTrue(record.message)
        self.assertGreater(record.time_ns, 0)

    def test_the_level_bounds_what_is_told(self):
        records = []
        context = Context(log=records.append, log_level=LogLevel.WARNING)
        context.admit(Ingress.TRUSTED, b"{")
        self.assertEqual(records, [])

    def test_who_repeats_himself_is_cut_short(self):
        records = []
        context = Context(log=records.append)
        for _ in range(1000):
            context.admit(Ingress.TRUSTED, b"{")
        self.assertLess(len(records), 1000)

    def test_to_a_logger(self):
        with self.assertLogs("of the host", logging.INFO) as told:
            context = Context(log=kvhints.log_to(logging.getLogger("of the host")))
            context.admit(Ingress.TRUSTED, b"{")
        (line,) = told.records
        self.assertEqual((line.levelno, line.kvhints.event), (logging.INFO, "hint_ignored"))
        self.assertRegex(line.getMessage(), "^hint_ignored: .* {'reason': 'malformed'}$")

    def test_what_a_log_raises_goes_no_further(self):
        def log(record):
            raise RuntimeError("a log that fails")

        raised, hook = [], sys.unraisablehook
        # The argument itself is not to be kept.
        sys.unraisablehook = lambda unraisable: raised.append(str(unraisable.exc_value))
        try:
            admission = Context(log=log).admit(Ingress.TRUSTED, b"{")
        finally:
            sys.unraisablehook = hook
        self.assertEqual(admission.verdict, kvhints.Verdict.MALFORMED)
        self.assertEqual(raised, ["a log that fails"])

    def test_it_goes_with_its_context_and_not_before(self):
        def log(record):
            pass

        context, alive = Context(log=log), weakref.ref(log)
        del log
        gc.collect()
        context.admit(Ingress.TRUSTED, b"{")
        self.assertIsNotNone(alive())
        del context
        gc.collect()
        self.assertIsNone(alive())

    def test_the_library_threads_end_before_the_interpreter(self):
        program = """
import atexit, ctypes, glob, time

def threads():
    names = (open(place).read() for place in glob.glob("/proc/self/task/*/comm"))
    return sum(name.startswith("kvhints") for name in names)

# What is registered first is called last.
atexit.register(lambda: print(threads(), "at the end"))
import kvhints
from kvhints import LogLevel
records = []
context = kvhints.Context(log=records.append, log_level=LogLevel.DEBUG)
memory = ctypes.create_string_buffer(512 * 8)
layout = kvhints.CacheLayout(kv_heads_per_layer=[8, 8], head_size=64, data_type=2)
pool = kvhints.Pool(ctypes.addressof(memory), 512, 8, keep=memory)
tree, hub = kvhints.ReuseTree(context, 4), kvhints.Loopback(context)
transceiver = kvhints.Transceiver(context, tree, layout, pool, b"model", loopback=hub)
source = kvhints.Transceiver(context, tree, layout, pool, b"model", loopback=hub)
sequence = kvhints.Sequence(4, range(9), b"model")
prefetch = transceiver.begin(sequence, [0, 1], source_state=source.state())
assert any(record.event == "transceiver_created" for record in records), records
# A thread names itself once it runs.
while threads() < 2:
    time.sleep(0)
"""
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual((ended.returncode, ended.stderr, ended.stdout), (0, "", "0 at the end\n"))


if __name__ == "__main__":
    unittest.main()
