"""Owner mode: the library manages the blocks."""

import ctypes
import time
import unittest

import kvhints
from kvhints import CopyReason, OutcomeKind, OwnerTree, Tier

TOKENS_PER_BLOCK = 4
NAMESPACE = b"model@7"


def sequence(tokens):
    return kvhints.Sequence(TOKENS_PER_BLOCK, tokens, NAMESPACE)


class Requests(unittest.TestCase):
    """A request from its prompt to its end."""

    def setUp(self):
        self.context = kvhints.Context()

    def test_one_finds_what_another_left(self):
        tree = OwnerTree(self.context, TOKENS_PER_BLOCK, 8)
        request = tree.add(sequence(range(8)))
        self.assertEqual((request.matched_tokens, request.block_ids(), tree.free_count()), (0, [0, 1], 6))
        self.assertTrue(request.grow(1))
        self.assertEqual(request.block_ids(), [0, 1, 2])
        request.store_context(sequence(range(8)), 4)
        self.assertEqual(tree.match(sequence(range(9)), 9), 4)
        request.finish(sequence(range(9)), 8)
        self.assertEqual((tree.match(sequence(range(9)), 9), tree.free_count()), (8, 8))
        with self.assertRaises(kvhints.Error):
            request.finish(sequence(range(9)), 8)
        again = tree.add(sequence(range(9)))
        self.assertEqual((again.matched_tokens, again.block_ids()[:2]), (8, [0, 1]))
        self.assertFalse(tree.evict(1), "in use")
        tree.refresh()

    def test_what_cannot_be_had_changes_nothing_and_what_is_dropped_goes_back(self):
        tree = OwnerTree(self.context, TOKENS_PER_BLOCK, 2)
        request = tree.add(sequence(range(4)))
        self.assertIsNone(tree.add(sequence(range(50, 58))))
        self.assertFalse(request.grow(8))
        self.assertEqual((tree.free_count(), request.block_ids()), (1, [0]))
        del request
        self.assertEqual(tree.free_count(), 2)

    def test_copies_are_listed_until_they_are_made(self):
        tree = OwnerTree(self.context, TOKENS_PER_BLOCK, 2, 2)
        tree.add(sequence(range(8))).finish(sequence(range(8)), 8)
        self.assertEqual((tree.copies(), tree.place(1)), ([], (Tier.PRIMARY, 1)))
        request = tree.add(sequence(range(100, 108)))
        first, second = tree.copies()
        self.assertEqual((first.block_id, first.reason), (1, CopyReason.OFFLOAD), "the last block first")
        self.assertEqual((first.from_place, first.to_place[0]), ((Tier.PRIMARY, 1), Tier.SECONDARY))
        self.assertEqual((first.token_count, tree.place(1)), (4, first.to_place))
        tree.copied(1)
        self.assertEqual(tree.copies(), [second])
        tree.copied(1)
        with self.assertRaises(kvhints.Error):
            tree.copied(1)
        self.assertEqual(len(request.block_ids()), 2)


class Fetches(unittest.TestCase):
    """Blocks of one worker's owner tree come into those of a request of another."""

    BLOCK_BYTES = 512

    def worker(self, hub):
        context, memory = kvhints.Context(), ctypes.create_string_buffer(self.BLOCK_BYTES * 8)
        tree = OwnerTree(context, TOKENS_PER_BLOCK, 8)
        layout = kvhints.CacheLayout(kv_heads_per_layer=[8, 8], head_size=64, data_type=2)
        pool = kvhints.Pool(ctypes.addressof(memory), self.BLOCK_BYTES, 8, keep=memory)
        return tree, memory, kvhints.Transceiver(context, tree, layout, pool, NAMESPACE, loopback=hub)

    def test_between_two_workers(self):
        hub = kvhints.Loopback(kvhints.Context())
        tree, memory, source = self.worker(hub)
        request = tree.add(sequence(range(8)))
        for block_id in request.block_ids():
            tier, slot = tree.place(block_id)
            ctypes.memset(ctypes.addressof(memory) + slot * self.BLOCK_BYTES, slot + 1, self.BLOCK_BYTES)
        request.finish(sequence(range(8)), 8)

        tree, memory, destination = self.worker(hub)
        prompt = sequence(range(9))
        request = tree.add(prompt)
        prefetch = destination.begin(prompt, request.block_ids()[:2], source_state=source.state())
        end = time.monotonic() + 60
        while prefetch.outcome() is None and time.monotonic() < end:
            time.sleep(0)
        outcome = prefetch.outcome()
        self.assertEqual((outcome.kind, outcome.token_end), (OutcomeKind.DELIVERED, 8), outcome.reason)
        self.assertEqual(prefetch.claim(), [0, 1])
        self.assertEqual(memory.raw[: 2 * self.BLOCK_BYTES], b"\x01" * self.BLOCK_BYTES + b"\x02" * self.BLOCK_BYTES)
        request.store_context(prompt, 8)
        self.assertEqual(tree.match(prompt, 9), 8)


if __name__ == "__main__":
    unittest.main()
