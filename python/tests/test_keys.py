"""Signed hints. Peers that know each other by keys are in test_transfer.py."""

import json
import unittest

import kvhints
from kvhints import Context, Ingress, KeyRing, Verdict

HINT = {"protocol_version": "0.1", "message_id": "m", "actions": []}
LATER = 4_000_000_000


class SignedHints(unittest.TestCase):
    """A router signs, a worker admits over HTTP."""

    def setUp(self):
        self.ring = KeyRing(audience="worker-7")
        self.ring.add("k1", bytes(range(32)))
        self.envelope = Context().admit_object(Ingress.TRUSTED, HINT).snapshot
        self.context = Context(trust_http_hints=False, key_ring=self.ring)

    def verdict_of(self, raw):
        return self.context.admit(Ingress.HTTP, raw).verdict

    def signed(self, **changed):
        return self.ring.sign(
            self.envelope, **{"key_id": "k1", "expiry_unix_seconds": LATER, "audience": "worker-7", **changed}
        )

    def test_what_is_signed_is_trusted(self):
        self.assertEqual(self.verdict_of(json.dumps(HINT)), Verdict.UNTRUSTED)
        self.assertEqual(self.verdict_of(self.signed()), Verdict.ADMITTED)
        self.assertEqual(json.loads(self.signed(nonce="n"))["auth"]["nonce"], "n")

    def test_what_is_signed_badly_is_not(self):
        self.assertEqual(self.verdict_of(self.signed().replace(b'"m"', b'"n"')), Verdict.UNTRUSTED, "altered")
        self.assertEqual(self.verdict_of(self.signed(audience="worker-8")), Verdict.UNTRUSTED, "for another")
        self.assertEqual(self.verdict_of(self.signed(expiry_unix_seconds=1)), Verdict.UNTRUSTED, "expired")
        never = KeyRing(expires=False)
        never.add("k1", bytes(range(32)))
        forever = never.sign(self.envelope, "k1", audience="worker-7")
        self.assertEqual(self.verdict_of(forever), Verdict.UNTRUSTED, "must expire")

    def test_keys_come_and_go(self):
        signed = self.signed()
        self.assertTrue(self.ring.remove("k1"))
        self.assertFalse(self.ring.remove("k1"))
        self.assertIsNone(self.signed())
        self.assertEqual(self.verdict_of(signed), Verdict.UNTRUSTED)
        self.ring.add("k1", bytes(range(32)))
        self.assertEqual(self.verdict_of(signed), Verdict.ADMITTED)

    def test_once(self):
        self.ring = KeyRing(admissions_max=1)
        self.ring.add("k1", bytes(range(32)))
        self.context = Context(trust_http_hints=False, key_ring=self.ring)
        signed = self.signed()
        self.assertEqual([self.verdict_of(signed) for _ in range(2)], [Verdict.ADMITTED, Verdict.UNTRUSTED])

    def test_a_context_keeps_its_ring(self):
        signed = self.signed()
        self.ring = None
        self.assertEqual(self.verdict_of(signed), Verdict.ADMITTED)

    def test_a_bad_key_raises_without_showing_it(self):
        with self.assertRaisesRegex(kvhints.Error, "32") as raised:
            self.ring.add("k2", b"too short")
        self.assertNotIn("too short", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
