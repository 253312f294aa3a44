"""Admission: the same vectors as every other face, objects judged like bytes, batches."""

import json
import pathlib
import unittest

import kvhints
from kvhints import Context, Ingress, Verdict

VECTORS = pathlib.Path(__file__).parents[2] / "tests" / "vectors" / "admission.jsonl"
HINT = {
    "protocol_version": "0.1",
    "message_id": "m",
    "actions": [
        {
            "action_id": "a",
            "action_type": "kv.fetch",
            "action_version": "1.0",
            "payload": {"source_control_endpoint": "tcp://h:1", "block_hashes": [1, 2**64 - 1]},
        }
    ],
}


def raw_of(vector):
    """The bytes of one vector."""
    if "raw" in vector:
        return vector["raw"].encode()
    if "raw_hex" in vector:
        return bytes.fromhex(vector["raw_hex"])
    before, unit, count, after = vector["raw_repeat"]
    return (before + unit * count + after).encode()


class AdmissionVectors(unittest.TestCase):
    """tests/vectors/admission.jsonl."""

    def test_every_vector(self):
        contexts = {trusted: Context(trust_http_hints=trusted) for trusted in (True, False)}
        vectors = [json.loads(line) for line in VECTORS.read_text().splitlines()]
        self.assertEqual(len(vectors), 254)
        seen = set()
        for vector in vectors:
            with self.subTest(vector["name"]):
                admission = contexts[vector["trusted"]].admit(Ingress.HTTP, raw_of(vector))
                self.assertEqual(admission.verdict.name.lower(), vector["verdict"])
                seen.add(admission.verdict)
                self.assertEqual(admission.snapshot is not None, vector["verdict"] == "admitted")
                if admission.snapshot is not None:
                    self.assertEqual(len(admission.snapshot.json), vector["canonical_len"])
                    if "canonical" in vector:
                        self.assertEqual(admission.snapshot.json, vector["canonical"].encode())
        self.assertEqual(seen, set(Verdict))

    def test_admitted_vectors_as_objects(self):
        context, count = Context(), 0
        for line in VECTORS.read_text().splitlines():
            vector = json.loads(line)
            if vector["verdict"] != "admitted":
                continue
            value = json.loads(raw_of(vector))
            admission = context.admit_object(Ingress.TRUSTED, value)
            with self.subTest(vector["name"]):
                if admission.verdict is Verdict.MALFORMED:
                    # Only numbers that no 64 bits hold are less in Python than in a text.
                    self.assertFalse(kvhints.hints._is_json(value, 0))
                    continue
                self.assertEqual(admission.verdict, Verdict.ADMITTED)
                self.assertEqual(json.loads(admission.snapshot.json), value)
                count += 1
        self.assertGreater(count, 50)


class Objects(unittest.TestCase):
    """Python objects are judged like bytes."""

    def setUp(self):
        self.context = Context()

    def verdict_of(self, value):
        return self.context.admit_object(Ingress.TRUSTED, value).verdict

    def test_what_is_json_passes(self):
        self.assertEqual(self.verdict_of(HINT), Verdict.ADMITTED)
        as_tuples = {**HINT, "actions": tuple(HINT["actions"])}
        self.assertEqual(self.verdict_of(as_tuples), Verdict.ADMITTED)
        extra = {**HINT, "trace": [None, True, 1.5, -(2**63), 2**64 - 1, "é\u0000", {"": ()}]}
        self.assertEqual(self.verdict_of(extra), Verdict.ADMITTED)

    def test_nothing_is_absent(self):
        self.assertEqual(self.verdict_of(None), Verdict.ABSENT)
        self.assertEqual(self.context.admit(Ingress.TRUSTED, None).verdict, Verdict.ABSENT)

    def test_what_is_no_json_is_malformed_and_does_not_raise(self):
        circular = {}
        circular["self"] = circular
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for wrong in (
            {1},
            b"bytes",
            {1: "key"},
            {None: "key"},
            float("nan"),
            float("inf"),
            2**64,
            -(2**63) - 1,
            10**5000,
            object(),
            circular,
            deep,
            "\ud800",
            1 + 2j,
        ):
            with self.subTest(type(wrong).__name__):
                self.assertEqual(self.verdict_of({**HINT, "extra": wrong}), Verdict.MALFORMED)
        for wrong in ([], "text", 7, True, {}, {"protocol_version": "0.1"}):
            with self.subTest(wrong):
                self.assertEqual(self.verdict_of(wrong), Verdict.MALFORMED)
        metrics = self.context.metrics()
        self.assertIn('trtllm_kv_hints_ignored_total{reason="malformed"} 20\n', metrics)

    def test_other_verdicts(self):
        self.assertEqual(self.verdict_of({**HINT, "protocol_version": "9"}), Verdict.UNKNOWN_VERSION)
        self.assertEqual(self.verdict_of({**HINT, "x": "y" * 70_000}), Verdict.OVERSIZED)
        untrusting = Context(trust_http_hints=False)
        self.assertEqual(untrusting.admit_object(Ingress.HTTP, HINT).verdict, Verdict.UNTRUSTED)


class Batches(unittest.TestCase):
    """One envelope for all prompts, or one for each."""

    def setUp(self):
        self.context = Context()

    def test_one_envelope_is_every_prompts(self):
        admissions = self.context.admit_batch(Ingress.TRUSTED, HINT, 3)
        self.assertEqual([a.verdict for a in admissions], [Verdict.ADMITTED] * 3)
        self.assertIs(admissions[0].snapshot, admissions[2].snapshot)
        self.assertIn("kvhints_hints_admitted_total 1\n", self.context.metrics(), "judged once")

    def test_a_list_is_aligned(self):
        admissions = self.context.admit_batch(Ingress.TRUSTED, [HINT, None, "x"], 3)
        expected = [Verdict.ADMITTED, Verdict.ABSENT, Verdict.MALFORMED]
        self.assertEqual([a.verdict for a in admissions], expected)

    def test_another_length_is_a_mistake(self):
        with self.assertRaisesRegex(ValueError, "expected one envelope for each of 3 prompts, found 1"):
            self.context.admit_batch(Ingress.TRUSTED, [HINT], 3)

    def test_no_hints_at_all(self):
        admissions = self.context.admit_batch(Ingress.TRUSTED, None, 2)
        self.assertEqual([a.verdict for a in admissions], [Verdict.ABSENT] * 2)


class Bodies(unittest.TestCase):
    """Whole bodies of requests."""

    def setUp(self):
        self.context = Context()

    def test_the_hint_is_taken_out_and_judged(self):
        for body, verdict, rest in (
            ({"model": "m", "kv_hints": HINT, "n": 1}, Verdict.ADMITTED, {"model": "m", "n": 1}),
            ({"model": "m"}, Verdict.ABSENT, {"model": "m"}),
            ({"kv_hints": 7}, Verdict.MALFORMED, {}),
        ):
            with self.subTest(verdict):
                admission = self.context.admit_body(Ingress.TRUSTED, json.dumps(body).encode())
                self.assertEqual(admission.verdict, verdict)
                self.assertEqual(json.loads(admission.body), rest)
                self.assertEqual(admission.snapshot is not None, verdict is Verdict.ADMITTED)

    def test_messagepack(self):
        hint = self.context.admit_object(Ingress.TRUSTED, HINT).snapshot.msgpack()
        body = b"\x82\xa1n\x01\xa8kv_hints" + hint
        admission = self.context.admit_body_msgpack(Ingress.TRUSTED, body)
        self.assertEqual((admission.verdict, admission.body), (Verdict.ADMITTED, b"\x81\xa1n\x01"))
        self.assertEqual(admission.snapshot.message_id, "m")

    def test_what_is_no_body_raises(self):
        for call in (self.context.admit_body, self.context.admit_body_msgpack):
            for wrong in (b"", b"[]", b'{"a":1', b"\x81"):
                with self.subTest(wrong), self.assertRaises(kvhints.Error) as raised:
                    call(Ingress.TRUSTED, wrong)
                self.assertEqual(raised.exception.status, kvhints.Error.BODY)


class Snapshots(unittest.TestCase):
    """What was admitted."""

    def test_its_parts(self):
        snapshot = Context().admit_object(Ingress.TRUSTED, HINT).snapshot
        self.assertEqual(snapshot.message_id, "m")
        (action,) = snapshot
        self.assertEqual((action.id, action.type, action.version), ("a", "kv.fetch", "1.0"))
        self.assertEqual(json.loads(action.payload), HINT["actions"][0]["payload"])
        self.assertEqual(snapshot.one_action(0).json, snapshot.json)
        with self.assertRaises(IndexError):
            snapshot[1]
        again = Context().admit_msgpack(Ingress.TRUSTED, snapshot.msgpack()).snapshot
        self.assertEqual(again.json, snapshot.json)

    def test_it_outlives_its_context(self):
        context = Context()
        snapshot = context.admit_object(Ingress.TRUSTED, HINT).snapshot
        del context
        self.assertEqual(json.loads(snapshot.json), HINT)


class Status(unittest.TestCase):
    """What a context does."""

    def test_it_is_parsed(self):
        status = Context().status()
        self.assertEqual((status["version"], status["poisoned"]), (1, False))
        self.assertEqual(status["attempts"]["init"], 0)
        self.assertEqual(Context().poison_location(), "")


if __name__ == "__main__":
    unittest.main()
