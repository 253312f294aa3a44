"""Candidates, plans, and their way to other ranks."""

import json
import unittest

from kvhints import (
    Batch,
    BindingTable,
    Candidates,
    Capabilities,
    Communicator,
    Context,
    Error,
    Ingress,
    Plan,
    RequestKind,
    RequestProfile,
)

ENDPOINT = "http://127.0.0.1:8000/v1/data_transceiver_state"
TABLE = {
    "version": 1,
    "bindings": [
        {
            "id": "peers",
            "family": "native",
            "addressing": "content_named",
            "actions": [{"type": "kv.fetch", "version": "1.0"}],
            "namespaces": ["model@7"],
        }
    ],
    "endpoints": [{"endpoint": ENDPOINT, "bindings": ["peers"]}],
}
PROFILE = RequestProfile(RequestKind.CONTEXT, has_lora=False, required_handoff=False, namespace=b"model@7")


def action(identity, kind="kv.fetch", version="1.0", endpoint=ENDPOINT):
    """One action of an envelope."""
    payload = {"source_control_endpoint": endpoint, "block_hashes": [1, 2, 3]}
    return {"action_id": identity, "action_type": kind, "action_version": version, "payload": payload}


class Planning(unittest.TestCase):
    """The decision, as C callers get it."""

    def setUp(self):
        self.context = Context()
        self.capabilities = Capabilities()
        self.capabilities.add("native", "kv.fetch", "1.0")
        self.table = BindingTable(json.dumps(TABLE))

    def hint(self, *actions):
        envelope = {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}
        return self.context.admit_object(Ingress.TRUSTED, envelope).snapshot

    def decide(self, snapshot, profile=PROFILE):
        return Plan.decide(self.context, snapshot, self.capabilities, self.table, profile)

    def test_candidates(self):
        self.capabilities.add("other", "kv.fetch", "1.0")
        hint = self.hint(action("a", "kv.drop"), action("b", version="2.0"), action("c"))
        candidates = Candidates(hint, self.capabilities)
        self.assertEqual((candidates.unknown_type, candidates.version_unmatched), (1, 1))
        (candidate,) = candidates
        self.assertEqual(candidate.action_index, 2)
        self.assertEqual(sorted(candidate.families), ["native", "other"])

    def test_a_fetch(self):
        plan = self.decide(self.hint(action("a")))
        fetch = plan.fetch()
        self.assertTrue(plan.is_fetch)
        self.assertEqual((fetch.binding_id, fetch.endpoint), ("peers", ENDPOINT))
        self.assertEqual((fetch.block_count, fetch.last_block_hash, fetch.action_index), (3, 3, 0))
        self.assertFalse(fetch.then_paired_source)
        self.assertEqual(Plan.from_bytes(plan.to_bytes()).fetch(), fetch)

    def test_refusals(self):
        self.assertEqual(self.decide(None).refusal, "no_candidate")
        elsewhere = self.hint(action("a", endpoint="http://10.0.0.1:1/x"))
        self.assertEqual(self.decide(elsewhere).refusal, "endpoint_unlisted")
        lora = RequestProfile(RequestKind.CONTEXT, True, False, b"model@7")
        plan = self.decide(self.hint(action("a")), lora)
        self.assertEqual((plan.is_fetch, plan.refusal, plan.fetch()), (False, "lora", None))

    def test_what_is_wrong_raises_with_words(self):
        with self.assertRaisesRegex(Error, "version"):
            BindingTable("{}")
        with self.assertRaises(Error):
            Plan.from_bytes(b"no plan")

    def test_one_rank_broadcasts_to_itself(self):
        communicator = Communicator.of_one(self.context)
        self.assertEqual((communicator.rank, len(communicator)), (0, 1))
        batch = Batch()
        batch.add(7, b"a body", plan=self.decide(self.hint(action("a"))))
        batch.add(8, b"its child", self.hint(), parent=0)
        given = communicator.broadcast(batch)
        self.assertEqual([request.id for request in given], [7, 8])
        self.assertEqual(given[0].body, b"a body")
        self.assertEqual(given[0].plan.fetch().block_count, 3)
        self.assertEqual((given[1].parent, given[1].plan), (0, None))
        self.assertEqual(given[1].snapshot.message_id, "m", "a hint without actions is one")
        self.assertIsNone(given[0].snapshot)
        communicator.close()


class OverMpi(unittest.TestCase):
    """The same over an mpi4py communicator."""

    def test_ranks_get_what_rank_0_gave(self):
        try:
            from mpi4py import MPI
        except ImportError:
            print("\nSKIPPED mpi4py: mpi4py is not installed")
            self.skipTest("mpi4py is not installed")
        context = Context()
        try:
            communicator = Communicator.from_mpi4py(context, MPI.COMM_WORLD, decided=False)
        except Error as error:
            if error.status == -22:
                print("\nSKIPPED mpi4py: the library was built without MPI")
                self.skipTest("the library was built without MPI")
            raise
        batch = None
        if communicator.rank == 0:
            envelope = {"protocol_version": "0.1", "message_id": "m", "actions": []}
            batch = Batch()
            batch.add(7, b"a body", context.admit_object(Ingress.TRUSTED, envelope).snapshot)
        (request,) = communicator.broadcast(batch)
        self.assertEqual((request.id, request.body, request.snapshot.message_id), (7, b"a body", "m"))
        communicator.close()


if __name__ == "__main__":
    unittest.main()
