"""Blocks between two workers of one process, and the backend before a stand-in of a cache manager."""

import ctypes
import gc
import json
import time
import unittest

import kvhints
from kvhints import AttemptStatus, FetchBackend, OutcomeKind, PrefetchState

NAMESPACE = b"model@7"
TOKENS_PER_BLOCK = 4
BLOCK_BYTES = 512
BLOCK_COUNT = 32
# 2 layers of 8 heads of 64 numbers of 2 bytes would be larger: what matters here is that both agree.
LAYOUT = kvhints.CacheLayout(kv_heads_per_layer=[8, 8], head_size=64, data_type=2)


class Worker:
    """One worker of one rank, with memory of its own."""

    def __init__(self, hub, **parameters):
        self.context = kvhints.Context()
        self.memory = ctypes.create_string_buffer(BLOCK_BYTES * BLOCK_COUNT)
        self.tree = kvhints.ReuseTree(self.context, TOKENS_PER_BLOCK)
        pool = kvhints.Pool(ctypes.addressof(self.memory), BLOCK_BYTES, BLOCK_COUNT, keep=self.memory)
        self.transceiver = kvhints.Transceiver(
            self.context, self.tree, LAYOUT, pool, NAMESPACE, loopback=hub, **parameters
        )

    def block(self, block_id):
        at = block_id * BLOCK_BYTES
        return self.memory.raw[at : at + BLOCK_BYTES]

    def hold(self, tokens, block_ids):
        """Fills blocks with bytes of their places, and stores them."""
        for place, block_id in enumerate(block_ids):
            ctypes.memmove(ctypes.addressof(self.memory) + block_id * BLOCK_BYTES, pattern(place), BLOCK_BYTES)
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, tokens, NAMESPACE)
        assert self.tree.store(sequence, 0, block_ids) == block_ids


def pattern(place):
    """The bytes of the block at a place."""
    return bytes((place * 31 + index * 7 + 1) % 256 for index in range(BLOCK_BYTES))


def wait_until(condition):
    """Waits for what a thread of the library does; only a fault makes it give up."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0)


class Transfers(unittest.TestCase):
    """A source and a destination."""

    def setUp(self):
        hub = kvhints.Loopback(kvhints.Context())
        self.source, self.destination = Worker(hub), Worker(hub)
        self.tokens = list(range(12))


class Prefetches(Transfers):
    """The life of one attempt."""

    def test_blocks_are_fetched_claimed_and_stored(self):
        self.source.hold(self.tokens, [3, 9, 1])
        port = self.source.transceiver.serve_http()
        endpoint = f"http://127.0.0.1:{port}/v1/data_transceiver_state"
        self.destination.transceiver.allow(endpoint, ["127.0.0.0/8"])
        plan = self.plan(endpoint)
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE)
        prefetch = self.destination.transceiver.begin(sequence, [20, 21, 5], plan, max_tokens=12)
        wait_until(lambda: prefetch.outcome() is not None and prefetch.is_quiesced)
        outcome = prefetch.outcome()
        self.assertEqual(outcome.kind, OutcomeKind.DELIVERED, outcome.reason)
        self.assertEqual((outcome.token_end, outcome.block_count), (12, 3))
        self.assertEqual(prefetch.state, PrefetchState.COMPLETE)
        self.assertEqual(prefetch.number, 1)
        for place, block_id in enumerate([20, 21, 5]):
            self.assertEqual(self.destination.block(block_id), pattern(place))
        self.assertEqual(self.destination.context.status()["attempts"]["complete"], 1)
        self.assertEqual(prefetch.claim(), [20, 21, 5])
        self.assertEqual(prefetch.claim(), [])
        self.assertEqual(self.destination.tree.store(sequence, 0, [20, 21, 5]), [20, 21, 5])
        self.assertEqual(self.destination.tree.match(sequence, 12), 12)
        self.assertTrue(self.destination.tree.evict(5))

    def plan(self, endpoint):
        """A plan for the source's endpoint, from a hint."""
        hashes = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE).block_hashes()
        action = {
            "action_id": "a",
            "action_type": "kv.fetch",
            "action_version": "1.0",
            "payload": {"source_control_endpoint": endpoint, "block_hashes": hashes},
        }
        envelope = {"protocol_version": "0.1", "message_id": "m", "actions": [action]}
        context = self.destination.context
        snapshot = context.admit_object(kvhints.Ingress.TRUSTED, envelope).snapshot
        binding = {
            "id": "b",
            "family": "F",
            "addressing": "content_named",
            "actions": [{"type": "kv.fetch", "version": "1.0"}],
            "namespaces": [NAMESPACE.decode()],
        }
        endpoints = [{"endpoint": endpoint, "bindings": ["b"]}]
        table = kvhints.BindingTable(json.dumps({"version": 1, "bindings": [binding], "endpoints": endpoints}))
        capabilities = kvhints.Capabilities()
        capabilities.add("F", "kv.fetch", "1.0")
        profile = kvhints.RequestProfile(kvhints.RequestKind.CONTEXT, False, False, NAMESPACE)
        return kvhints.Plan.decide(context, snapshot, capabilities, table, profile)

    def test_nothing_to_fetch(self):
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE)
        state = self.source.transceiver.state()
        self.assertIsNone(self.destination.transceiver.begin(sequence, [1], source_state=state, first_block=3))

    def test_a_prefetch_may_be_dropped_at_any_moment_and_keeps_what_it_needs(self):
        self.source.hold(self.tokens, [3, 9, 1])
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE)
        state = self.source.transceiver.state()
        prefetch = self.destination.transceiver.begin(sequence, [20, 21, 5], source_state=state)
        self.destination = None
        gc.collect()
        self.assertIn(prefetch.state, set(PrefetchState))
        del prefetch
        gc.collect()

    def test_wrong_arguments_raise(self):
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE)
        for wrong in ({"source_state": b"no state"}, {}):
            with self.assertRaises(kvhints.Error):
                self.destination.transceiver.begin(sequence, [1, 2, 3], **wrong)
        nowhere = kvhints.Pool(0, BLOCK_BYTES, BLOCK_COUNT)
        context, tree, hub = self.source.context, self.source.tree, kvhints.Loopback(self.source.context)
        with self.assertRaisesRegex(kvhints.Error, "a block pool needs an address"):
            kvhints.Transceiver(context, tree, LAYOUT, nowhere, NAMESPACE, loopback=hub)


class Peers(unittest.TestCase):
    """Workers that know each other by keys."""

    def fetch(self, source_secret, destination_secret):
        """How a fetch ends between a source and a destination with these keys."""
        hub = kvhints.Loopback(kvhints.Context())

        def worker(secret):
            ring = kvhints.KeyRing()
            ring.add("fleet", secret)
            return Worker(hub, peer_keys=ring, peer_key_id="fleet")

        source, destination = worker(source_secret), worker(destination_secret)
        source.hold(list(range(12)), [3, 9, 1])
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, list(range(13)), NAMESPACE)
        prefetch = destination.transceiver.begin(sequence, [20, 21, 5], source_state=source.transceiver.state())
        wait_until(lambda: prefetch.outcome() is not None)
        return prefetch.outcome()

    def test_who_holds_the_same_key_is_served(self):
        outcome = self.fetch(b"a" * 32, b"a" * 32)
        self.assertEqual((outcome.kind, outcome.block_count), (OutcomeKind.DELIVERED, 3), outcome.reason)

    def test_who_does_not_is_not(self):
        outcome = self.fetch(b"a" * 32, b"b" * 32)
        self.assertEqual((outcome.kind, outcome.reason), (OutcomeKind.FAILED, "unauthenticated"))

    def test_a_key_has_to_be_there(self):
        with self.assertRaises(kvhints.Error):
            Worker(kvhints.Loopback(kvhints.Context()), peer_keys=kvhints.KeyRing(), peer_key_id="fleet")


class Endpoints(Transfers):
    """The worker's state over TCP, and what people may read."""

    def test_over_tcp(self):
        port = self.source.transceiver.serve_tcp()
        self.source.hold(self.tokens, [3, 9, 1])
        endpoint = f"tcp://127.0.0.1:{port}"
        self.destination.transceiver.allow(endpoint, ["127.0.0.0/8"])
        plan = Prefetches.plan(self, endpoint)
        sequence = kvhints.Sequence(TOKENS_PER_BLOCK, self.tokens, NAMESPACE)
        prefetch = self.destination.transceiver.begin(sequence, [20, 21, 5], plan, max_tokens=12)
        wait_until(lambda: prefetch.outcome() is not None)
        self.assertEqual(prefetch.outcome().kind, OutcomeKind.DELIVERED, prefetch.outcome().reason)
        self.assertIsInstance(self.destination.transceiver.wires(), str)


class CacheManager:
    """A stand-in of a paged cache manager: it lends free blocks to fetches, and takes back only what is
    not lent any more."""

    def __init__(self, block_ids):
        self.free = list(block_ids)
        self.waiting = []

    def allocate(self, count):
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give_back(self, backend, attempt):
        self.waiting.append((backend, attempt))

    def collect(self):
        """Takes back the blocks that nobody touches any more."""
        lent = [(b, a) for b, a in self.waiting if b.is_memory_lent(a)]
        for backend, attempt in self.waiting:
            if (backend, attempt) not in lent:
                self.free += attempt.prefetch.block_ids
        self.waiting = lent


class Backend(Transfers):
    """fetch, poll, is_memory_lent, claim."""

    def setUp(self):
        super().setUp()
        self.manager = CacheManager([20, 21, 5])
        self.backend = FetchBackend(self.destination.transceiver, TOKENS_PER_BLOCK, NAMESPACE)
        self.state = self.source.transceiver.state()

    def fetch(self, tokens):
        # A context request computes its last token itself, so one more than three blocks of them.
        return self.backend.fetch(7, None, tokens + [99], self.manager.allocate(3), source_state=self.state)

    def test_delivered(self):
        self.source.hold(self.tokens, [3, 9, 1])
        attempt = self.fetch(self.tokens)
        wait_until(lambda: self.backend.poll(attempt) is not AttemptStatus.IN_PROGRESS)
        self.assertEqual(self.backend.poll(attempt), AttemptStatus.DELIVERED)
        self.assertEqual((attempt.request_id, attempt.token_end, attempt.reason), (7, 12, ""))
        self.assertEqual(self.backend.claim(attempt), [20, 21, 5])
        self.assertTrue(attempt.is_claimed)
        wait_until(lambda: not self.backend.is_memory_lent(attempt))
        self.assertEqual(self.backend.poll(attempt), AttemptStatus.DELIVERED, "for good")
        self.assertEqual(self.manager.free, [])

    def test_a_miss_gives_the_blocks_back(self):
        attempt = self.fetch(self.tokens)
        wait_until(lambda: self.backend.poll(attempt) is not AttemptStatus.IN_PROGRESS)
        self.assertEqual(self.backend.poll(attempt), AttemptStatus.FAILED)
        self.assertEqual(attempt.reason, "content_miss")
        self.assertEqual(self.backend.claim(attempt), [])
        self.manager.give_back(self.backend, attempt)
        wait_until(lambda: self.manager.collect() or self.manager.free)
        self.assertEqual(self.manager.free, [20, 21, 5])

    def test_cancelled(self):
        self.source.hold(self.tokens, [3, 9, 1])
        attempt = self.fetch(self.tokens)
        self.backend.cancel(attempt)
        wait_until(lambda: self.backend.poll(attempt) is not AttemptStatus.IN_PROGRESS)
        # It may have been delivered before.
        self.assertIn(self.backend.poll(attempt), (AttemptStatus.CANCELLED, AttemptStatus.DELIVERED))
        self.assertEqual(self.backend.claim(attempt), [], "given up")
        wait_until(lambda: not self.backend.is_memory_lent(attempt))


if __name__ == "__main__":
    unittest.main()
