//! Signed hints: which are trusted, and that nothing that was changed on the way is. Signatures are
//! made here by the reference's reader and writer, not by the library.

mod reference;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use hmac::{Hmac, Mac};
use kvhints::hint::signature::{KeyRing, KeyRingError, Rules, SignError, Signing};
use kvhints::hint::{
    admit, admit_body, admit_msgpack, Ingress, Scratch, SignatureFault, Snapshot, Verdict, Verifier,
};
use reference::Tree;
use sha2::Sha256;

const SECRET: &[u8] = b"a secret of thirty-two bytes, ok";
const NOW: u64 = 1_800_000_000;

fn ring() -> KeyRing {
    ring_with(Rules::default())
}

fn ring_with(rules: Rules) -> KeyRing {
    let ring = KeyRing::new(rules).expect("a ring");
    ring.add("k1", SECRET).expect("a key");
    ring
}

fn over_http<'r>(ring: &'r KeyRing, now_unix_seconds: u64) -> Ingress<'r> {
    Ingress::HttpSigned(Verifier { ring, now_unix_seconds })
}

fn judged_at(raw: impl AsRef<[u8]>, ring: &KeyRing, now: u64) -> Verdict {
    admit(raw.as_ref(), over_http(ring, now), &mut Scratch::new(1)).expect("memory")
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Admitted(_) => "admitted".to_owned(),
        Verdict::BadlySigned(fault) => format!("{fault:?}"),
        other => format!("{other:?}"),
    }
}

fn judged(raw: impl AsRef<[u8]>, ring: &KeyRing) -> String {
    word(&judged_at(raw, ring, NOW))
}

/// The code of a text that has an `auth`, with or without a `mac`, by hand.
fn code(json: &str, secret: &[u8]) -> String {
    let Some(Tree::Object(mut members)) = reference::read(json.as_bytes()) else {
        panic!("an object: {json:.100}")
    };
    for (name, value) in &mut members {
        if let ("auth", Tree::Object(parts)) = (name.as_str(), value) {
            parts.retain(|(name, _)| name != "mac");
        }
    }
    let signed = reference::write(&Tree::Object(members));
    let mut hmac = Hmac::<Sha256>::new_from_slice(secret).expect("any length");
    hmac.update(signed.as_bytes());
    URL_SAFE_NO_PAD.encode(hmac.finalize().into_bytes())
}

/// Puts the right code where the text has an `@`.
fn signed(json: &str) -> String {
    json.replace('@', &code(json, SECRET))
}

const PLAIN: &str = r#"{"protocol_version":"0.1","message_id":"m","actions":[],"auth":{"key_id":"k1","alg":"HS256","exp":1900000000,"mac":"@"}}"#;

#[test]
fn a_signature_made_elsewhere_counts() {
    // Made with Python's hmac module over the same text without its mac.
    let raw = r#"{"protocol_version":"0.1","message_id":"msg-1","auth":{"key_id":"k1","alg":"HS256","exp":2000000000,"mac":"09WuNqQ7IQ0ga-i9czQOf2WmtmAxKPfN7lRhyXWu7LE"},"actions":[]}"#;
    let ring = KeyRing::new(Rules::default()).expect("a ring");
    let secret: Vec<u8> = (0..32).collect();
    ring.add("k1", &secret).expect("a key");
    assert_eq!(judged(raw, &ring), "admitted");
    assert_eq!(judged(raw.replace("msg-1", "msg-2"), &ring), "WrongMac");
}

#[test]
fn the_mac_may_stand_anywhere_in_auth_and_blanks_and_escapes_may_change() {
    let ring = ring();
    for json in [
        PLAIN,
        r#"{"auth":{"mac":"@","key_id":"k1","alg":"HS256","exp":1900000000},"protocol_version":"0.1","message_id":"m","actions":[]}"#,
        r#"{"protocol_version":"0.1","auth":{"key_id":"k1","mac":"@","alg":"HS256","exp":1900000000},"message_id":"m","actions":[]}"#,
        r#"{"protocol_version":"0.1","auth":{"key_id":"k1","alg":"HS256","exp":1900000000,"aud":"w","nonce":"n\n","mac":"@"},"message_id":"m","actions":[]}"#,
        r#"{"protocol_version":"0.1","message_id":"\u00e9\/","actions":[],"a":{"auth":{"mac":"x"}},"auth":{"key_id":"\u006b1","alg":"HS\u003256","exp":1900000000,"mac":"@"}}"#,
    ] {
        let sent = signed(json);
        let verdict = judged_at(&sent, &ring, NOW);
        let snapshot = verdict.clone().into_snapshot();
        let snapshot = snapshot.unwrap_or_else(|| panic!("{}: {sent}", word(&verdict)));
        let canonical = std::str::from_utf8(snapshot.json()).expect("UTF-8").to_owned();
        assert!(canonical.contains("\"mac\":"), "the snapshot keeps auth, to be checked again");
        assert_eq!(judged(&canonical, &ring), "admitted", "a worker behind a proxy");
        let spaced = sent.replace(',', " ,\n ").replace(':', " : ").replace("{\"", "{ \"");
        assert_eq!(judged(&spaced, &ring), "admitted", "{spaced}");
        for (name, escaped) in [("auth", "\\u0061uth"), ("mac", "m\\u0061c"), ("exp", "ex\\u0070")]
        {
            let escaped = sent.replacen(&format!("\"{name}\":"), &format!("\"{escaped}\":"), 9);
            assert_eq!(judged(&escaped, &ring), "admitted", "{escaped}");
        }
        let code = code(&sent, SECRET);
        let spelled: String = code.bytes().map(|byte| format!("\\u{byte:04X}")).collect();
        assert_eq!(judged(sent.replace(&code, &spelled), &ring), "admitted");
    }
}

#[test]
fn whatever_else_is_changed_is_not_trusted() {
    let ring = ring();
    let sent = signed(PLAIN);
    assert_eq!(judged(&sent, &ring), "admitted");
    let mac = code(PLAIN, SECRET);
    let other_key = PLAIN.replace('@', &code(PLAIN, &[7; 32]));
    // The last of 43 letters carries two bits that must be zero.
    let (head, last) = mac.split_at(42);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let place = alphabet.find(last).expect("a letter");
    let other_spelling = format!("{head}{}", &alphabet[place + 1..place + 2]);
    let auth = &sent[sent.find("\"auth\"").expect("auth")..sent.len() - 1];
    let parts = &auth[8..auth.len() - 1];
    for (what, changed, expected) in [
        ("stripped", sent.replace(&format!(",{auth}"), ""), "NoAuth"),
        ("mac stripped", sent.replace(&format!(",\"mac\":\"{mac}\""), ""), "NoAuth"),
        ("null", sent.replace(auth, "\"auth\":null"), "NoAuth"),
        ("an array", sent.replace(auth, "\"auth\":[{}]"), "NoAuth"),
        (
            "auth elsewhere",
            format!(r#"{{"protocol_version":"0.1","message_id":"m","actions":[],"x":{{{auth}}}}}"#),
            "NoAuth",
        ),
        ("auth twice", sent.replace(auth, &format!("{auth},{auth}")), "NoAuth"),
        (
            "auth twice, spelled",
            sent.replace(auth, &format!("{auth},{}", auth.replace("auth", "\\u0061uth"))),
            "NoAuth",
        ),
        ("null auth behind", sent.replace(auth, &format!("{auth},\"auth\":null")), "NoAuth"),
        ("mac twice", sent.replace(parts, &format!("{parts},\"mac\":\"{mac}\"")), "NoAuth"),
        (
            "mac twice, spelled",
            sent.replace(parts, &format!("\"\\u006dac\":\"{mac}\",{parts}")),
            "NoAuth",
        ),
        ("exp twice", sent.replace("\"exp\":", "\"exp\":1900000001,\"exp\":"), "NoAuth"),
        ("key twice", sent.replace("\"key_id\":", "\"key_id\":\"k2\",\"key_id\":"), "NoAuth"),
        ("an unknown part", sent.replace(parts, &format!("{parts},\"x\":1")), "NoAuth"),
        ("a container", sent.replace("\"k1\"", "[\"k1\"]"), "NoAuth"),
        ("padding", sent.replace(&mac, &format!("{mac}=")), "NoAuth"),
        ("other alphabet", sent.replace(&mac, &format!("+{}", &mac[1..])), "NoAuth"),
        ("other spelling", sent.replace(&mac, &other_spelling), "NoAuth"),
        ("short mac", sent.replace(&mac, &mac[..42]), "NoAuth"),
        ("empty mac", sent.replace(&mac, ""), "NoAuth"),
        ("mac a number", sent.replace(&format!("\"{mac}\""), "1"), "NoAuth"),
        ("exp a string", sent.replace("1900000000", "\"1900000000\""), "NoAuth"),
        ("exp a float", sent.replace("1900000000", "1900000000.0"), "NoAuth"),
        ("exp an exponent", sent.replace("1900000000", "19e8"), "NoAuth"),
        ("exp too big", sent.replace("1900000000", "99999999999999999999"), "NoAuth"),
        ("exp below zero", sent.replace("1900000000", "-1900000000"), "NoAuth"),
        ("exp later", sent.replace("1900000000", "1900000001"), "WrongMac"),
        ("no exp", sent.replace(",\"exp\":1900000000", ""), "Expired"),
        ("other key", other_key, "WrongMac"),
        ("unknown key", sent.replace("\"k1\"", "\"k2\""), "UnknownKey"),
        ("empty key", sent.replace("\"k1\"", "\"\""), "UnknownKey"),
        ("none", sent.replace("HS256", "none"), "Algorithm"),
        ("lower case", sent.replace("HS256", "hs256"), "Algorithm"),
        ("HS512", sent.replace("HS256", "HS512"), "Algorithm"),
        ("message", sent.replace("\"m\"", "\"n\""), "WrongMac"),
        ("added", sent.replace("\"actions\"", "\"x\":1,\"actions\""), "WrongMac"),
        ("added behind", sent.replace(auth, &format!("{auth},\"x\":1")), "WrongMac"),
        ("repeated", sent.replace("\"actions\"", "\"message_id\":\"m\",\"actions\""), "WrongMac"),
        (
            "moved",
            signed(PLAIN)
                .replace(r#""message_id":"m","actions":[]"#, r#""actions":[],"message_id":"m""#),
            "WrongMac",
        ),
        (
            "parts moved",
            sent.replace(r#""key_id":"k1","alg":"HS256""#, r#""alg":"HS256","key_id":"k1""#),
            "WrongMac",
        ),
        ("audience added", sent.replace("\"alg\"", "\"aud\":\"a\",\"alg\""), "WrongMac"),
        (
            "number spelled otherwise",
            signed(&PLAIN.replace("[]", "[],\"x\":1.0")).replace("1.0", "1.00"),
            "WrongMac",
        ),
        ("cut short", sent[..sent.len() - 1].to_owned(), "NotJson"),
        ("garbage", "{{{".to_owned(), "NotJson"),
        ("an array with it", format!("[{sent}]"), "NoAuth"),
        ("not an object", "7".to_owned(), "NoAuth"),
        ("too long", format!("{sent}{}", " ".repeat(1 << 20)), "TooLong"),
        ("absent", " null ".to_owned(), "Absent"),
        ("nothing", String::new(), "Absent"),
    ] {
        assert_ne!(changed, sent, "{what}");
        assert_eq!(judged(&changed, &ring), expected, "{what}");
    }
    // Each single byte, changed.
    let mut scratch = Scratch::new(1);
    for place in 0..sent.len() {
        for flip in [1, 0x20, 0x80] {
            let mut changed = sent.clone().into_bytes();
            changed[place] ^= flip;
            let verdict = admit(&changed, over_http(&ring, NOW), &mut scratch).expect("memory");
            assert!(
                matches!(verdict, Verdict::BadlySigned(_)),
                "byte {place} changed by {flip}: {}",
                word(&verdict)
            );
        }
    }
}

#[test]
fn with_a_good_code_the_table_goes_on() {
    let ring = ring();
    let extra = |text: &str| PLAIN.replace("\"auth\"", &format!("{text},\"auth\""));
    let long = "x".repeat(70_000);
    for (json, expected) in [
        (PLAIN.replace("0.1", "0.2"), "UnknownVersion"),
        (PLAIN.replace("\"0.1\"", "1"), "Malformed"),
        (PLAIN.replace("\"m\"", "1"), "Malformed"),
        (extra("\"x\":1e999"), "Malformed"),
        (extra("\"x\":1,\"x\":2"), "Malformed"),
        (extra(&format!("\"x\":{}{}", "[".repeat(300), "]".repeat(300))), "Malformed"),
        (extra(&format!("\"x\":\"{long}\"")), "Oversized"),
        (extra(&format!("\"x\":\"{}\"", "\\u00e9".repeat(33_000))), "Oversized"),
        (PLAIN.replace("0.1", &format!("0.2\",\"x\":\"{long}")), "UnknownVersion"),
    ] {
        let sent = signed(&json);
        assert_eq!(judged(&sent, &ring), expected, "{json:.200}");
        let forged = json.replace('@', &code(&json, &[7; 32]));
        assert_eq!(judged(&forged, &ring), "WrongMac", "{json:.200}");
    }
}

#[test]
fn time_audience_and_rotation() {
    let sent = signed(PLAIN);
    let ring = ring();
    for (now, expected) in [
        (0, "admitted"),
        (1_899_999_999, "admitted"),
        (1_900_000_000, "Expired"),
        (u64::MAX, "Expired"),
    ] {
        assert_eq!(word(&judged_at(&sent, &ring, now)), expected, "{now}");
    }
    let timeless = signed(&PLAIN.replace(",\"exp\":1900000000", ""));
    assert_eq!(judged(&timeless, &ring), "Expired");
    let lenient = ring_with(Rules { expiry_is_optional: true, ..Rules::default() });
    assert_eq!(judged(&timeless, &lenient), "admitted");
    assert_eq!(word(&judged_at(&sent, &lenient, 1_900_000_000)), "Expired");

    let ours = ring_with(Rules { audience: Some("w\u{e9}".to_owned()), ..Rules::default() });
    for (audience, expected) in
        [("", "Audience"), ("\"aud\":\"we\",", "Audience"), ("\"aud\":\"w\\u00e9\",", "admitted")]
    {
        let json = PLAIN.replace("\"alg\"", &format!("{audience}\"alg\""));
        assert_eq!(judged(signed(&json), &ours), expected, "{audience}");
        assert_eq!(judged(signed(&json), &ring), "admitted", "no audience is asked for");
    }

    ring.add("k2", &[9; 32]).expect("a second key");
    let second = PLAIN.replace("k1", "k2");
    let second = second.replace('@', &code(&second, &[9; 32]));
    assert_eq!(
        (judged(&sent, &ring), judged(&second, &ring)),
        ("admitted".into(), "admitted".into())
    );
    assert!(ring.remove("k1"));
    assert!(!ring.remove("k1"));
    assert_eq!(
        (judged(&sent, &ring), judged(&second, &ring)),
        ("UnknownKey".into(), "admitted".into())
    );
    ring.add("k1", &[9; 32]).expect("room for it");
    assert_eq!(judged(&sent, &ring), "WrongMac", "another secret under the old name");
}

#[test]
fn admissions_are_counted_until_expiry_and_room_is_bounded() {
    let ring = ring_with(Rules { admissions_max: 2, replay_entries_max: 2, ..Rules::default() });
    let hint = |id: &str| signed(&PLAIN.replace("\"m\"", &format!("\"{id}\"")));
    for (id, expected) in [
        ("a", "admitted"),
        ("b", "admitted"),
        ("a", "admitted"),
        ("a", "Replayed"),
        ("c", "ReplayTableFull"),
        ("b", "admitted"),
        ("b", "Replayed"),
    ] {
        assert_eq!(judged(hint(id), &ring), expected, "{id}");
    }
    let moved = hint("a").replace("\"exp\":1900000000,", "");
    assert_eq!(judged(&moved, &ring), "Expired");
    // The same hint with its mac at another place is the same hint.
    let mac = format!("\"mac\":\"{}\"", code(&hint("a"), SECRET));
    let moved = hint("a")
        .replace(&format!(",{mac}"), "")
        .replace("\"key_id\"", &format!("{mac},\"key_id\""));
    assert_eq!(judged(&moved, &ring), "Replayed");
    // What is not admitted takes no room: after the others expired there is room for two.
    let late = |id: &str| hint(id).replace("1900000000", "2000000000");
    let late = |id: &str| {
        let json = late(id);
        let old = json[json.find("\"mac\":\"").expect("mac") + 7..][..43].to_owned();
        json.replace(&old, &code(&json, SECRET))
    };
    let now = 1_900_000_000;
    let bad = signed(&PLAIN.replace("\"m\"", "1").replace("1900000000", "2000000000"));
    assert_eq!(word(&judged_at(bad, &ring, now)), "Malformed");
    for (id, expected) in [("c", "admitted"), ("d", "admitted"), ("e", "ReplayTableFull")] {
        assert_eq!(word(&judged_at(late(id), &ring, now)), expected, "{id}");
    }
}

#[test]
fn rings_and_keys_have_bounds() {
    let counted = Rules { admissions_max: 1, expiry_is_optional: true, ..Rules::default() };
    assert_eq!(KeyRing::new(counted).err(), Some(KeyRingError::CountsForEver));
    let many = Rules { replay_entries_max: (1 << 24) + 1, ..Rules::default() };
    assert!(matches!(KeyRing::new(many), Err(KeyRingError::TooManyEntries { .. })));
    let long = Rules { audience: Some("a".repeat(257)), ..Rules::default() };
    assert!(matches!(KeyRing::new(long), Err(KeyRingError::LongAudience { found: 257 })));
    let ring = ring();
    assert_eq!(ring.add("", SECRET), Err(KeyRingError::KeyId { found: 0 }));
    assert_eq!(ring.add(&"k".repeat(129), SECRET), Err(KeyRingError::KeyId { found: 129 }));
    assert_eq!(ring.add("k", &SECRET[1..]), Err(KeyRingError::Secret { found: 31 }));
    assert_eq!(ring.add("k", &[1; 1025]), Err(KeyRingError::Secret { found: 1025 }));
    assert_eq!(ring.add("k1", SECRET), Err(KeyRingError::Known));
    for index in 1..64 {
        assert_eq!(ring.add(&format!("key {index}"), SECRET), Ok(()));
    }
    assert_eq!(ring.add("one more", SECRET), Err(KeyRingError::TooManyKeys));
    let text = format!("{ring:?} {:?}", Verifier { ring: &ring, now_unix_seconds: 1 });
    assert!(text.contains("64") && !text.contains("secret"), "{text}");
}

fn envelope(json: &str) -> Snapshot {
    let verdict = admit(json.as_bytes(), Ingress::InProcess, &mut Scratch::new(1)).expect("memory");
    verdict.into_snapshot().expect("an envelope")
}

#[test]
fn what_a_ring_signs_it_trusts() {
    let ring = ring_with(Rules { audience: Some("w".to_owned()), ..Rules::default() });
    let json = r#"{"protocol_version":"0.1","message_id":"secret","actions":[],"x":[1.50]}"#;
    let signing = Signing {
        key_id: "k1",
        expiry_unix_seconds: Some(NOW + 60),
        audience: Some("w"),
        nonce: Some("\"\n"),
    };
    let sent = ring.sign(&envelope(json), signing).expect("signed");
    let text = std::str::from_utf8(&sent).expect("UTF-8");
    assert_eq!(text.matches(&code(text, SECRET)).count(), 1, "{text}");
    let snapshot = judged_at(&sent, &ring, NOW).into_snapshot().expect("trusted");
    assert_eq!(snapshot.json(), sent);
    let debug = format!("{snapshot:?} {:?}", snapshot.action(0));
    assert!(!debug.contains(&code(text, SECRET)) && !debug.contains("secret"), "{debug}");

    let refused = |envelope: &Snapshot, signing| ring.sign(envelope, signing).expect_err("refused");
    let one = envelope(json);
    assert_eq!(refused(&one, Signing { key_id: "k2", ..signing }), SignError::UnknownKey);
    assert_eq!(refused(&snapshot, signing), SignError::HasAuth);
    let timeless = Signing { expiry_unix_seconds: None, ..signing };
    assert_eq!(refused(&one, timeless), SignError::NoExpiry);
    let nonce = "n".repeat(257);
    assert_eq!(refused(&one, Signing { nonce: Some(&nonce), ..signing }), SignError::LongText);
    let full = json.replace("secret", &"m".repeat(65_536 - json.len() + 6));
    assert!(matches!(refused(&envelope(&full), signing), SignError::TooLong { .. }));
}

#[test]
fn bodies_and_messagepack_are_judged_by_the_ring_too() {
    let ring = ring();
    let http = over_http(&ring, NOW);
    let mut scratch = Scratch::new(1);
    let sent = signed(PLAIN);
    for (hints, expected) in [
        (format!(r#""kv_hints":{sent}"#), "admitted"),
        (format!(r#""kv_hints":{}"#, PLAIN.replace('@', "")), "NoAuth"),
        (format!(r#""kv_hints":{sent},"kv_hints":{sent}"#), "Untrusted"),
        (r#""kv_hints":null"#.to_owned(), "Absent"),
    ] {
        let body = format!(r#"{{"a":1,{hints}}}"#);
        let split = admit_body(body.as_bytes(), 1 << 20, http, &mut scratch).expect("an object");
        assert_eq!((word(&split.verdict).as_str(), &split.body[..]), (expected, &b"{\"a\":1}"[..]));
    }
    let value = envelope(&sent).to_msgpack().expect("memory");
    let verdict = admit_msgpack(&value, http, &mut scratch).expect("memory");
    assert_eq!(word(&verdict), "admitted");
    for (raw, fault) in [
        (&value[1..], SignatureFault::NotJson),
        (&[0x01], SignatureFault::NoAuth),
        (&[0xc4; 20], SignatureFault::NotJson),
        (&vec![0; (1 << 20) + 1], SignatureFault::TooLong),
    ] {
        let verdict = admit_msgpack(raw, http, &mut scratch).expect("memory");
        assert_eq!(word(&verdict), format!("{fault:?}"));
    }
    assert_eq!(word(&admit_msgpack(&[0xc0], http, &mut scratch).expect("memory")), "Absent");
}
