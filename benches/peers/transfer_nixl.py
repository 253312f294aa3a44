"""Blocks between two processes with NIXL (UCX backend, host memory): reads that were prepared before.

    transfer_nixl.py WIRES REPEATS

The target runs on the first of KVHINTS_CORES, the initiator on the second. Prints the lines of
benches/transfer.rs; every byte read is compared. UCX_TLS chooses the wires; WIRES only names them.
"""

import mmap
import multiprocessing
import os
import random
import statistics
import sys
import time

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

SCATTERED, ROW = 256 << 20, 128 << 20
POOL = SCATTERED + ROW


def cases():
    for block_bytes in (32 << 10, 64 << 10, 1 << 20):
        most = 256 if block_bytes == 1 << 20 else 1024
        for blocks in (1, 16, most):
            yield block_bytes, blocks, "scattered"
        yield block_bytes, min(most, ROW // block_bytes), "row"


def places(block_bytes, blocks, order, seed):
    if order == "row":
        return [SCATTERED + index * block_bytes for index in range(blocks)]
    slots = list(range(SCATTERED // block_bytes))
    random.Random(seed).shuffle(slots)
    return [slot * block_bytes for slot in slots[:blocks]]


def pin(place):
    if "KVHINTS_CORES" in os.environ:
        os.sched_setaffinity(0, {int(os.environ["KVHINTS_CORES"].split(",")[place])})


def memory(numpy, seed):
    """Private memory in small pages, all there; where it begins."""
    array = numpy.frombuffer(mmap.mmap(-1, POOL, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=numpy.uint8)
    array[:] = numpy.random.default_rng(seed).integers(0, 256, POOL, dtype=numpy.uint8) if seed else 0
    return array, array.ctypes.data


def agent(name, has_thread):
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(enable_prog_thread=has_thread, backends=["UCX"]))


def target(pipe):
    import numpy

    pin(0)
    own = agent("target", True)
    array, base = memory(numpy, 1)
    own.register_memory([(base, POOL, 0, "pool")], "DRAM")
    pipe.send((own.get_agent_metadata(), base))
    while not pipe.poll(0.02):
        own.get_new_notifs()
    pipe.recv()
    del array


def main():
    import numpy

    wires, repeats = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    process = context.Process(target=target, args=(other_end,))
    process.start()
    pin(1)
    own = agent("initiator", False)
    array, base = memory(numpy, 0)
    expected = numpy.random.default_rng(1).integers(0, 256, POOL, dtype=numpy.uint8)
    own.register_memory([(base, POOL, 0, "pool")], "DRAM")
    metadata, their_base = pipe.recv()
    name = own.add_remote_agent(metadata)
    name = name if isinstance(name, str) else name.decode()
    for block_bytes, blocks, order in cases():
        ours, theirs = (places(block_bytes, blocks, order, seed) for seed in (2, 3))

        def described(start, offsets):
            list_ = numpy.array([[start + offset, block_bytes, 0] for offset in offsets], dtype=numpy.uint64)
            return own.get_xfer_descs(list_, "DRAM")

        read = own.initialize_xfer("READ", described(base, ours), described(their_base, theirs), name, b"")
        times = []
        for _ in range((repeats * 20 if block_bytes * blocks <= 1 << 20 else repeats) + 2):
            start = time.perf_counter()
            state = own.transfer(read)
            while state not in ("DONE", "ERR"):
                state = own.check_xfer_state(read)
            times.append((time.perf_counter() - start) * 1e6)
            if state == "ERR":
                raise SystemExit("a transfer failed")
        own.release_xfer_handle(read)
        for our, their in zip(ours, theirs):
            if not (array[our : our + block_bytes] == expected[their : their + block_bytes]).all():
                raise SystemExit("other bytes than the target's")
        times = times[2:]
        print("nixl", wires, block_bytes, blocks, order, f"{min(times):.2f}", f"{statistics.median(times):.2f}", sep="\t", flush=True)
    pipe.send("end")
    process.join(5)
    # The agent's threads do not survive Python's own end.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
