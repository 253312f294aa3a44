//! Every admission vector, through the Rust interface and through the slow reference.

mod reference;

use kvhints::hint::{admit, Ingress, Scratch, Snapshot, Verdict};
use reference::Outcome;
use serde_json::Value;

struct Vector {
    name: String,
    raw: Vec<u8>,
    trusted: bool,
    verdict: String,
    canonical: Option<String>,
    canonical_len: Option<u64>,
}

fn vectors() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/admission.jsonl");
    let lines = std::fs::read_to_string(path).expect("the vectors lie in the project");
    let vectors: Vec<Vector> = lines.lines().map(vector).collect();
    assert_eq!(vectors.len(), 254, "all vectors were read");
    vectors
}

fn vector(line: &str) -> Vector {
    let value: Value = serde_json::from_str(line).expect("one vector a line");
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let raw = if let Some(raw) = text("raw") {
        raw.into_bytes()
    } else if let Some(hex) = text("raw_hex") {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    } else {
        let parts = value["raw_repeat"].as_array().expect("raw, raw_hex or raw_repeat");
        let part = |index: usize| parts[index].as_str().expect("text").to_owned();
        let count = parts[2].as_u64().expect("a count") as usize;
        (part(0) + &part(1).repeat(count) + &part(3)).into_bytes()
    };
    Vector {
        name: text("name").expect("a name"),
        raw,
        trusted: value["trusted"].as_bool().expect("trusted"),
        verdict: text("verdict").expect("a verdict"),
        canonical: text("canonical"),
        canonical_len: value["canonical_len"].as_u64(),
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Admitted(_) => "admitted",
        Verdict::Absent => "absent",
        Verdict::Untrusted | Verdict::BadlySigned(_) => "untrusted",
        Verdict::UnknownVersion => "unknown_version",
        Verdict::Oversized => "oversized",
        Verdict::Malformed => "malformed",
    }
}

#[test]
fn every_vector_gets_its_verdict_and_its_canonical_form() {
    let mut scratch = Scratch::new(0x5eed);
    let mut admitted = 0;
    for vector in vectors() {
        let Vector { name, raw, .. } = &vector;
        let ingress = Ingress::Http { trusted: vector.trusted };
        let verdict = admit(raw, ingress, &mut scratch).expect("memory");
        assert_eq!(word(&verdict), vector.verdict, "{name}");
        let Some(snapshot) = verdict.into_snapshot() else { continue };
        admitted += 1;
        let json = snapshot.json();
        assert_eq!(Some(json.len() as u64), vector.canonical_len, "{name}");
        if let Some(canonical) = &vector.canonical {
            assert_eq!(json, canonical.as_bytes(), "{name}");
        }
        let again = Snapshot::from_canonical(json).expect("its own bytes");
        assert_eq!(again, snapshot, "{name}");
        let twice = admit(json, Ingress::InProcess, &mut scratch).expect("memory");
        assert_eq!(twice.into_snapshot().as_ref(), Some(&snapshot), "{name}");
    }
    assert!(admitted > 50, "{admitted} admitted");
}

#[test]
fn the_reference_agrees_with_every_vector() {
    // It recurses: deep vectors need a large stack.
    let thread = std::thread::Builder::new().stack_size(1 << 30).spawn(|| {
        for vector in vectors() {
            let outcome = reference::admit(&vector.raw, vector.trusted);
            let word = match &outcome {
                Outcome::Admitted(_) => "admitted",
                Outcome::Absent => "absent",
                Outcome::Untrusted => "untrusted",
                Outcome::UnknownVersion => "unknown_version",
                Outcome::Oversized => "oversized",
                Outcome::Malformed => "malformed",
            };
            assert_eq!(word, vector.verdict, "{}", vector.name);
            if let (Outcome::Admitted(json), Some(canonical)) = (outcome, &vector.canonical) {
                assert_eq!(json, *canonical, "{}", vector.name);
            }
        }
    });
    thread.expect("a thread").join().expect("the reference agrees");
}
