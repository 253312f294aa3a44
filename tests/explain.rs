//! Explanations: that they agree with admission everywhere, name the rule that decided by the slow
//! reference, and find the place. Nothing of a hint is in their words.

#[path = "../fuzz/checks/bytes.rs"]
mod bytes;
mod random;
mod reference;

use std::collections::BTreeMap;
use std::path::Path;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use hmac::{Hmac, Mac};
use kvhints::hint::explain::{
    explain, explain_body, explain_body_msgpack, explain_msgpack, Explanation, Finding, Rule,
    Subject,
};
use kvhints::hint::limits::{CANONICAL_MAX_BYTES, DEPTH_MAX, RAW_MAX_BYTES};
use kvhints::hint::signature::{KeyRing, Rules};
use kvhints::hint::{
    admit, admit_body, admit_body_msgpack, admit_msgpack, BodyError, Ingress, Scratch,
    SignatureFault, Verdict, Verifier,
};
use kvhints::telemetry::Metrics;
use random::SplitMix;
use reference::Tree;
use sha2::Sha256;

const TRUSTED: Ingress = Ingress::InProcess;

fn scratch() -> Scratch {
    Scratch::new(3)
}

fn explained(raw: impl AsRef<[u8]>) -> Explanation {
    explain(raw.as_ref(), TRUSTED, &mut scratch()).expect("memory")
}

fn finding(explanation: &Explanation) -> Finding {
    explanation.finding.unwrap_or_else(|| panic!("a finding: {:?}", explanation.verdict))
}

/// The verdict that a broken rule leads to.
fn verdict_of(rule: Rule) -> &'static str {
    match rule {
        Rule::Present => "absent",
        Rule::Trust => "untrusted",
        Rule::RawLength | Rule::CanonicalLength => "oversized",
        Rule::Version => "unknown_version",
        _ => "malformed",
    }
}

/// What holds of every explanation of these bytes, whatever they are.
fn check_agreement(
    raw: &[u8],
    ingress: Ingress,
    is_json: bool,
    shared: &mut Scratch,
) -> Explanation {
    let (verdict, explanation) = match is_json {
        true => (admit(raw, ingress, shared), explain(raw, ingress, shared)),
        false => (admit_msgpack(raw, ingress, shared), explain_msgpack(raw, ingress, shared)),
    };
    let (verdict, explanation) = (verdict.expect("memory"), explanation.expect("memory"));
    assert_eq!(explanation.verdict.name(), verdict.name());
    let Some(finding) = explanation.finding else {
        assert_eq!(verdict.name(), "admitted");
        let bytes = verdict.into_snapshot().map(|snapshot| snapshot.json().len());
        assert_eq!(explanation.canonical_bytes, bytes);
        return explanation;
    };
    assert_eq!(verdict_of(finding.rule), verdict.name(), "{finding}");
    let place = finding.place.expect("every rule has a place");
    assert!(place.offset <= raw.len(), "{finding}");
    let lines = raw[..place.offset].split(|byte| *byte == b'\n').count();
    assert_eq!(place.line, if is_json { lines } else { 0 }, "{finding}");
    let is_over = finding.measure.is_none_or(|measure| measure.found > measure.limit);
    assert!(is_over, "{finding}");
    explanation
}

/// Whether members that are there are of the right kinds, and all are there; how often is row 12's.
fn has_structure(members: &[(String, Tree)]) -> bool {
    let all = |members: &[(String, Tree)], name: &str, is: &dyn Fn(&Tree) -> bool| {
        let mut values = members.iter().filter(|(known, _)| known == name).peekable();
        values.peek().is_some() && values.all(|(_, value)| is(value))
    };
    let is_string = |tree: &Tree| matches!(tree, Tree::String(_));
    let is_action = |tree: &Tree| match tree {
        Tree::Object(members) => {
            ["action_id", "action_type", "action_version"]
                .iter()
                .all(|name| all(members, name, &is_string))
                && all(members, "payload", &|tree| matches!(tree, Tree::Object(_)))
        }
        _ => false,
    };
    all(members, "message_id", &is_string)
        && all(members, "actions", &|tree| match tree {
            Tree::Array(actions) => actions.iter().all(is_action),
            _ => false,
        })
}

/// The rule that decides, by the reference.
fn expected_rule(raw: &[u8], trusted: bool) -> Option<Rule> {
    let (outcome, mut rules) = reference::judge(raw, trusted);
    match outcome {
        reference::Outcome::Admitted(_) => return None,
        reference::Outcome::Absent => return Some(Rule::Present),
        reference::Outcome::Untrusted => return Some(Rule::Trust),
        _ => {}
    }
    if let Some(Tree::Object(members)) = reference::read(raw) {
        rules.retain(|rule| *rule != "structure" || !has_structure(&members));
    }
    Some(match rules.first().copied().expect("a rule is broken") {
        "raw length" => Rule::RawLength,
        "JSON" => Rule::Json,
        "object" => Rule::Object,
        "protocol_version" => Rule::ProtocolVersion,
        "version" => Rule::Version,
        "canonical length" => Rule::CanonicalLength,
        "structure" => Rule::Structure,
        "numbers" => Rule::Number,
        "depth" => Rule::Depth,
        "repeated names" => Rule::RepeatedName,
        other => panic!("{other} has no rule here"),
    })
}

fn check_against_reference(raw: &[u8], trusted: bool, shared: &mut Scratch) -> Option<Rule> {
    let ingress = Ingress::Http { trusted };
    let explanation = check_agreement(raw, ingress, true, shared);
    let rule = explanation.finding.map(|finding| finding.rule);
    let shown = String::from_utf8_lossy(&raw[..raw.len().min(200)]);
    assert_eq!(rule, expected_rule(raw, trusted), "{shown}");
    if let (Some(bytes), Some(tree)) = (explanation.canonical_bytes, reference::read(raw)) {
        assert_eq!(bytes, reference::write(&tree).len(), "{shown}");
    }
    rule
}

/// On a thread with room for the reference's recursion.
fn with_deep_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 30).spawn(test);
    thread.expect("a thread").join().expect("the test passes");
}

fn vectors() -> Vec<(String, Vec<u8>, bool)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/admission.jsonl");
    let lines = std::fs::read_to_string(path).expect("the vectors lie in the project");
    let vector = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).expect("one a line");
        let raw = if let Some(raw) = value["raw"].as_str() {
            raw.as_bytes().to_vec()
        } else if let Some(hex) = value["raw_hex"].as_str() {
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
            (0..hex.len()).step_by(2).map(byte).collect()
        } else {
            let part = |index: usize| value["raw_repeat"][index].as_str().expect("text").to_owned();
            let count = value["raw_repeat"][2].as_u64().expect("a count") as usize;
            (part(0) + &part(1).repeat(count) + &part(3)).into_bytes()
        };
        let name = value["name"].as_str().expect("a name").to_owned();
        (name, raw, value["trusted"].as_bool().expect("trusted"))
    };
    let vectors: Vec<_> = lines.lines().map(vector).collect();
    assert_eq!(vectors.len(), 254);
    vectors
}

#[test]
fn every_vector_is_explained_by_the_rule_of_the_reference() {
    with_deep_stack(|| {
        let mut shared = scratch();
        let mut seen: BTreeMap<Option<Rule>, usize> = BTreeMap::new();
        for (name, raw, trusted) in vectors() {
            println!("{name}");
            *seen.entry(check_against_reference(&raw, trusted, &mut shared)).or_default() += 1;
        }
        assert_eq!(seen.len(), 13, "all twelve rules and none: {seen:?}");
    });
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/admission");
    let entries = std::fs::read_dir(folder).expect("the corpus lies in the project");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

#[test]
fn the_fuzz_corpus_and_what_is_made_of_it_is_explained_by_the_rule_of_the_reference() {
    let inputs = corpus();
    assert!(inputs.len() > 100);
    let mut shared = scratch();
    let mut random = SplitMix(5);
    let mut seen: BTreeMap<Option<Rule>, usize> = BTreeMap::new();
    for turn in 0..inputs.len() + 4_000 {
        let data = inputs.get(turn).cloned().unwrap_or_else(|| random.made(&inputs));
        let (raw, trusted) = bytes::prepared(&data);
        *seen.entry(check_against_reference(&raw, trusted, &mut shared)).or_default() += 1;
        // The same bytes taken for MessagePack, which they mostly are not.
        check_agreement(&raw, TRUSTED, false, &mut shared);
    }
    assert_eq!(seen.len(), 13, "all twelve rules and none: {seen:?}");
}

/// The tree as MessagePack; `None` where it has a number that MessagePack cannot say.
fn msgpack(tree: &Tree, out: &mut Vec<u8>) -> Option<()> {
    let header = |out: &mut Vec<u8>, first: u8, len: usize| {
        out.push(first);
        out.extend((len as u32).to_be_bytes());
    };
    let string = |out: &mut Vec<u8>, text: &str| {
        header(out, 0xdb, text.len());
        out.extend(text.bytes());
    };
    match tree {
        Tree::Word("null") => out.push(0xc0),
        Tree::Word(word) => out.push(if *word == "true" { 0xc3 } else { 0xc2 }),
        Tree::Number(text) => {
            if let Ok(value) = text.parse::<u64>() {
                out.push(0xcf);
                out.extend(value.to_be_bytes());
            } else if let Ok(value) = text.parse::<i64>() {
                out.push(0xd3);
                out.extend(value.to_be_bytes());
            } else {
                let is_float = text.contains(['.', 'e', 'E']);
                let value =
                    text.parse::<f64>().ok().filter(|value| value.is_finite() && is_float)?;
                out.push(0xcb);
                out.extend(value.to_be_bytes());
            }
        }
        Tree::String(text) => string(out, text),
        Tree::Array(elements) => {
            header(out, 0xdd, elements.len());
            elements.iter().try_for_each(|element| msgpack(element, out))?;
        }
        Tree::Object(members) => {
            header(out, 0xdf, members.len());
            for (name, value) in members {
                string(out, name);
                msgpack(value, out)?;
            }
        }
    }
    Some(())
}

#[test]
fn messagepack_is_explained_by_the_same_rules() {
    with_deep_stack(|| {
        let mut shared = scratch();
        let mut random = SplitMix(6);
        let mut inputs = Vec::new();
        let mut seen: BTreeMap<Option<Rule>, usize> = BTreeMap::new();
        for (name, raw, _) in vectors() {
            let Some(tree) = reference::read(&raw) else { continue };
            let mut packed = Vec::new();
            if msgpack(&tree, &mut packed).is_none() || packed.len() > RAW_MAX_BYTES {
                continue;
            }
            println!("{name}");
            let explanation = check_agreement(&packed, TRUSTED, false, &mut shared);
            let rule = explanation.finding.map(|finding| finding.rule);
            // Floats may have a longer text as MessagePack has them: then only the verdict counts.
            if !raw.iter().any(|byte| b".eE".contains(byte)) {
                assert_eq!(rule, expected_rule(&raw, true), "{name}");
            }
            *seen.entry(rule).or_default() += 1;
            if packed.len() < 2000 {
                inputs.push(packed);
            }
        }
        for _ in 0..10_000 {
            let made = random.made(&inputs);
            let explanation = check_agreement(&made, TRUSTED, false, &mut shared);
            *seen.entry(explanation.finding.map(|finding| finding.rule)).or_default() += 1;
        }
        for rule in [Rule::Json, Rule::Object, Rule::ProtocolVersion, Rule::Version] {
            assert!(seen.contains_key(&Some(rule)), "{rule:?}: {seen:?}");
        }
        for rule in [Rule::CanonicalLength, Rule::Structure, Rule::Depth, Rule::RepeatedName] {
            assert!(seen.contains_key(&Some(rule)), "{rule:?}: {seen:?}");
        }
        assert!(seen.contains_key(&None));
    });
}

/// An envelope with these texts in place of its version, an action's payload, and extra metadata.
fn envelope(version: &str, payload: &str, extra: &str) -> String {
    format!(
        "{{\"protocol_version\":{version},\"message_id\":\"m\",\"actions\":[{{\"action_id\":\"a\",\
         \"action_type\":\"t\",\"action_version\":\"1\",\"payload\":{payload}}}],\"x\":{extra}}}"
    )
}

/// Explains a text in which `@` marks the place and is not sent.
fn check_marked(marked: &str, rule: Rule, subject: Subject) {
    let offset = marked.find('@').expect("a mark");
    let raw = marked.replacen('@', "", 1);
    let finding = finding(&explained(&raw));
    let shown: String = marked.chars().take(200).collect();
    assert_eq!((finding.rule, finding.subject), (rule, subject), "{shown}");
    let place = finding.place.expect("a place");
    let before = &marked[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    assert_eq!((place.offset, place.line, place.column), (offset, line, column), "{shown}");
}

#[test]
fn each_rule_has_its_place() {
    use Subject::{Action, ActionExtra, ActionMember, Envelope, Extra, Input, Member};
    let deep =
        |open: usize| format!("{}@{}", "[".repeat(open), "[".repeat(3) + &"]".repeat(open + 3));
    let long = "x".repeat(CANONICAL_MAX_BYTES);
    // The canonical form of what stands before the letters is 27 bytes long.
    let (fit, rest) = long.split_at(CANONICAL_MAX_BYTES - 27);
    let rows: Vec<(String, Rule, Subject)> = vec![
        ("@".into(), Rule::Present, Input),
        ("@ null ".into(), Rule::Present, Input),
        (format!("{}@{}", " ".repeat(RAW_MAX_BYTES), "7"), Rule::RawLength, Input),
        (" @[]".into(), Rule::Object, Input),
        ("\n\n  @7".into(), Rule::Object, Input),
        (" @{\"message_id\":\"m\"}".into(), Rule::ProtocolVersion, Envelope),
        (envelope("@1", "{}", "1"), Rule::ProtocolVersion, Member("protocol_version")),
        (envelope("@{\"a\":1}", "{}", "1"), Rule::ProtocolVersion, Member("protocol_version")),
        (
            envelope("\"0.2\"", "{}", "1,\n @\"protocol_\\u0076ersion\":\"0.2\""),
            Rule::ProtocolVersion,
            Member("protocol_version"),
        ),
        (envelope("@\"0.2\"", "{}", "1"), Rule::Version, Member("protocol_version")),
        (
            format!("{{ \"protocol_version\":\n\"0.1\",\"{fit}@{rest}\":1}}"),
            Rule::CanonicalLength,
            Input,
        ),
        ("@{\"protocol_version\":\"0.1\",\"actions\":[]}".into(), Rule::Structure, Envelope),
        ("@{\"protocol_version\":\"0.1\",\"message_id\":\"\"}".into(), Rule::Structure, Envelope),
        (
            "{\"protocol_version\":\"0.1\",\"message_id\":@null,\"actions\":[]}".into(),
            Rule::Structure,
            Member("message_id"),
        ),
        (
            "{\"protocol_version\":\"0.1\",\"message_id\":@[[1]],\"actions\":[]}".into(),
            Rule::Structure,
            Member("message_id"),
        ),
        (
            "{\"protocol_version\":\"0.1\",\"message_id\":\"\",\"actions\":@{}}".into(),
            Rule::Structure,
            Member("actions"),
        ),
        (
            "{\"protocol_version\":\"0.1\",\"message_id\":\"\",\"actions\":[@[{}]]}".into(),
            Rule::Structure,
            Action(0),
        ),
        (envelope("\"0.1\"", "@[{}]", "1"), Rule::Structure, ActionMember(0, "payload")),
        (
            envelope("\"0.1\"", "{}},\n@\"two", "1").replace("\"two", "2,{\"a\":3"),
            Rule::Structure,
            Action(1),
        ),
        (envelope("\"0.1\"", "{}},@{\"payload\":{}", "1"), Rule::Structure, Action(1)),
        (
            envelope("\"0.1\"", "{}},{\"action_id\":@false,\"payload\":{}", "1"),
            Rule::Structure,
            ActionMember(1, "action_id"),
        ),
        (
            envelope("\"0.1\"", "{\"n\":[1,@18446744073709551616]}", "1"),
            Rule::Number,
            ActionMember(0, "payload"),
        ),
        (envelope("\"0.1\"", "{}", "[1, 2, 3, @99999999999999999999, 4]"), Rule::Number, Extra),
        (envelope("\"0.1\"", "{}", "{\"e\":@-1e999}"), Rule::Number, Extra),
        (envelope("\"0.1\"", "{},\"y\":@1e999", "1"), Rule::Number, ActionExtra(0)),
        (envelope("\"0.1\"", "{}", &deep(DEPTH_MAX - 1)), Rule::Depth, Extra),
        (
            envelope("\"0.1\"", &format!("{{\"a\":{}}}", deep(DEPTH_MAX - 4)), "1"),
            Rule::Depth,
            ActionMember(0, "payload"),
        ),
        (envelope("\"0.1\"", "{}", "1,@\"x\":2"), Rule::RepeatedName, Envelope),
        (envelope("\"0.1\"", "{}", "1,@\"message_id\":\"n\""), Rule::RepeatedName, Envelope),
        (envelope("\"0.1\"", "{},@\"payload\":{}", "1"), Rule::RepeatedName, Action(0)),
        (
            envelope(
                "\"0.1\"",
                "{\"\u{e9}\":{\"a\":1,\"b\":2},\"a\":1,@\"\\u00e9\":1,\"a\":1}",
                "1",
            ),
            Rule::RepeatedName,
            ActionMember(0, "payload"),
        ),
    ];
    for (marked, rule, subject) in rows {
        check_marked(&marked, rule, subject);
    }
    let depth = finding(&explained(envelope("\"0.1\"", "{}", &deep(250).replace('@', ""))));
    let measure = depth.measure.expect("a limit");
    assert_eq!((measure.limit, measure.found), (200, 254));
}

#[test]
fn a_text_stops_being_json_where_it_does() {
    for marked in [
        "@\u{feff}{}",
        "{@",
        "{\"a\"@",
        "{\"a\":@",
        "{\"a\":1@",
        "{\"a\":1,@",
        "{\"a\":1,@}",
        "[1,@]",
        "[1 @2]",
        "[1,\n 2@}",
        "{\"a\"@,1}",
        "{@a:1}",
        "{\"a\":@'b'}",
        "{\"a\":@NaN}",
        "[-@Infinity]",
        "[0@1]",
        "[1.@]",
        "[1e+@]",
        "[tru@]",
        "[tr@x]",
        "[\"a@",
        "[\"a@\u{1}\"]",
        "[\"a@\n\"]",
        "[\"a@\\x\"]",
        "[\"a@\\u12g4\"]",
        "[\"a@\\ud800\"]",
        "[\"a@\\",
        "{} @{}",
        "{}@,",
        "@/* */{}",
        "@\u{c}{}",
    ] {
        check_marked(marked, Rule::Json, Subject::Input);
    }
    for (raw, offset) in
        [(&b"[\"ab\xff\"]"[..], 4), (b"[\"\xc3\xa9\xed\xa0\x80\"]", 4), (b"\xff", 0)]
    {
        let place = finding(&explained(raw)).place.expect("a place");
        assert_eq!(place.offset, offset, "{raw:x?}");
    }
    // A control character stops any text where it stands; an end stops it at the end.
    let text = envelope("\"0.1\"", "{\"a\":[1, -2.5e+3,\ttrue, null],\n\"\u{e9}\":\"b\\n\"}", "{}");
    for at in 0..text.len() {
        let mut broken = text.as_bytes().to_vec();
        broken.insert(at, 0x01);
        let is_in_escape = at > 0 && text.as_bytes()[at - 1] == b'\\';
        let is_in_character = !text.is_char_boundary(at);
        let expected = at - usize::from(is_in_escape || is_in_character);
        let place = finding(&explained(&broken)).place.expect("a place");
        assert_eq!(place.offset, expected, "{at}");
        if at > 0 {
            let cut = finding(&explained(&text.as_bytes()[..at]));
            let expected = at - usize::from(is_in_escape || is_in_character);
            assert_eq!(
                (cut.rule, cut.place.expect("a place").offset),
                (Rule::Json, expected),
                "{at}"
            );
        }
    }
}

#[test]
fn of_several_things_the_first_rule_of_the_table_is_said() {
    // Each of these breaks its rule and all later ones.
    let twice = "{\"a\":1,\"a\":2}";
    let deep = format!("[{twice},{}]", "[".repeat(300) + &"]".repeat(300));
    let number = format!("[{deep},1e999]");
    let structure = envelope("\"0.1\"", "[]", &number);
    let long = envelope("\"0.1\"", "[]", &format!("[{number},\"{}\"]", "x".repeat(70_000)));
    let version = long.replace("\"0.1\"", "\"0.2\"");
    let no_string = long.replace("\"0.1\"", "2");
    let array = format!("[{no_string}]");
    let broken = format!("{no_string}]");
    let raw = broken.clone() + &" ".repeat(RAW_MAX_BYTES);
    for (rule, text) in [
        (Rule::RawLength, &raw),
        (Rule::Json, &broken),
        (Rule::Object, &array),
        (Rule::ProtocolVersion, &no_string),
        (Rule::Version, &version),
        (Rule::CanonicalLength, &long),
        (Rule::Structure, &structure),
        (Rule::Number, &envelope("\"0.1\"", "{}", &number)),
        (Rule::Depth, &envelope("\"0.1\"", "{}", &deep)),
        (Rule::RepeatedName, &envelope("\"0.1\"", "{}", twice)),
    ] {
        assert_eq!(finding(&explained(text)).rule, rule);
        let ingress = Ingress::Http { trusted: false };
        let over_http = explain(text.as_bytes(), ingress, &mut scratch()).expect("memory");
        assert_eq!(finding(&over_http).rule, Rule::Trust);
    }
}

#[test]
fn words_have_no_contents() {
    let secret = "hush";
    let texts = [
        format!("\"{secret}\""),
        format!("{{\"{secret}\":{secret}}}"),
        envelope(&format!("\"{secret}\""), "{}", "1"),
        envelope("\"0.1\"", &format!("\"{secret}\""), "1"),
        envelope("\"0.1\"", "{}", &format!("{{\"{secret}\":1,\"{secret}\":2}}")),
        envelope("\"0.1\"", "{}", &format!("{{\"{secret}\":1e999}}")),
        envelope("\"0.1\"", "{}", &format!("\"{}\"", secret.repeat(20_000))),
    ];
    for text in &texts {
        let explanation = explained(text);
        for words in [finding(&explanation).to_string(), format!("{explanation:?}")] {
            assert!(!words.contains(secret), "{words}");
        }
        let body = explain_body(text.as_bytes(), 1 << 20, TRUSTED, &mut scratch());
        assert!(!format!("{body:?}").contains(secret));
        if let Err(fault) = body {
            assert!(!fault.to_string().contains(secret), "{fault}");
        }
    }
}

const SECRET: &[u8] = b"a secret of thirty-two bytes, ok";
const NOW: u64 = 1_800_000_000;

fn ring_with(rules: Rules) -> KeyRing {
    let ring = KeyRing::new(rules).expect("a ring");
    ring.add("k1", SECRET).expect("a key");
    ring
}

/// Signs a text that is canonical and has `,"mac":"@"` at the end of its `auth`.
fn signed(json: &str) -> String {
    let mut hmac = Hmac::<Sha256>::new_from_slice(SECRET).expect("any length");
    hmac.update(json.replace(",\"mac\":\"@\"", "").as_bytes());
    json.replace('@', &URL_SAFE_NO_PAD.encode(hmac.finalize().into_bytes()))
}

fn over_http(ring: &KeyRing, raw: &str) -> Explanation {
    let ingress = Ingress::HttpSigned(Verifier { ring, now_unix_seconds: NOW });
    explain(raw.as_bytes(), ingress, &mut scratch()).expect("memory")
}

#[test]
fn a_signature_that_does_not_hold_is_explained() {
    let plain = r#"{"protocol_version":"0.1","message_id":"m","actions":[],"auth":{"key_id":"k1","alg":"HS256","exp":1900000000,"aud":"w","mac":"@"}}"#;
    let good = signed(plain);
    let ring = ring_with(Rules { audience: Some("w".to_owned()), ..Rules::default() });
    assert!(over_http(&ring, &good).finding.is_none());
    let at = |text: &str, part: &str| text.find(part).expect("a part") + part.len() - 1;
    for (changed, fault, part) in [
        (good.replace("\"k1\"", "\"k2\""), SignatureFault::UnknownKey, Some("\"key_id\":\"")),
        (good.replace("HS256", "none"), SignatureFault::Algorithm, Some("\"alg\":\"")),
        (good.replace(":1900", ":1700"), SignatureFault::Expired, Some("\"exp\":1")),
        (good.replace("\"w\"", "\"v\""), SignatureFault::Audience, Some("\"aud\":\"")),
        (good.replace("\"m\"", "\"n\""), SignatureFault::WrongMac, Some("\"mac\":\"")),
        (good.replace("\"auth\"", "\"other\""), SignatureFault::NoAuth, None),
        (good.replace("\"m\"", "m"), SignatureFault::NotJson, Some("\"message_id\":m")),
        (good.clone() + &" ".repeat(RAW_MAX_BYTES), SignatureFault::TooLong, None),
    ] {
        let explanation = over_http(&ring, &changed);
        let found = match explanation.verdict {
            Verdict::BadlySigned(found) => found,
            ref other => panic!("{other:?}"),
        };
        assert_eq!(found, fault);
        let finding = finding(&explanation);
        assert_eq!(finding.rule, Rule::Trust);
        let offset = finding.place.expect("a place").offset;
        assert_eq!(offset, part.map_or(0, |part| at(&changed, part)), "{fault:?}");
        assert!(!finding.to_string().contains("k2"));
    }
}

#[test]
fn explaining_a_signed_hint_uses_up_none_of_its_admissions() {
    let plain = r#"{"protocol_version":"0.1","message_id":"m","actions":[],"auth":{"key_id":"k1","alg":"HS256","exp":1900000000,"mac":"@"}}"#;
    let good = signed(plain);
    let rules = Rules { admissions_max: 1, replay_entries_max: 1, ..Rules::default() };
    let ring = ring_with(rules);
    let ingress = Ingress::HttpSigned(Verifier { ring: &ring, now_unix_seconds: NOW });
    for _ in 0..3 {
        assert!(over_http(&ring, &good).finding.is_none());
    }
    let verdict = admit(good.as_bytes(), ingress, &mut scratch()).expect("memory");
    assert_eq!(verdict.name(), "admitted");
    for _ in 0..2 {
        let again = over_http(&ring, &good);
        assert!(matches!(again.verdict, Verdict::BadlySigned(SignatureFault::Replayed)));
        let other = over_http(&ring, &signed(&plain.replace("\"m\"", "\"n\"")));
        assert!(matches!(other.verdict, Verdict::BadlySigned(SignatureFault::ReplayTableFull)));
    }
}

#[test]
fn faults_have_the_names_of_the_metrics() {
    use SignatureFault::{
        Algorithm, Audience, Expired, NoAuth, NotJson, ReplayTableFull, Replayed, TooLong,
        UnknownKey, WrongMac,
    };
    let all = [
        TooLong,
        NotJson,
        NoAuth,
        UnknownKey,
        Algorithm,
        WrongMac,
        Expired,
        Audience,
        Replayed,
        ReplayTableFull,
    ];
    assert_eq!(all.map(SignatureFault::name), Metrics::SIGNATURE_FAULTS);
}

#[test]
fn bodies_are_explained_at_their_own_places() {
    let good = envelope("\"0.1\"", "{}", "1");
    let bad = good.replace("\"payload\":{}", "\"payload\":7");
    let body = format!("{{\"prompt\":\"\u{e9}\",\n \"kv_hints\": {bad},\"n\":1}}");
    let explanation =
        explain_body(body.as_bytes(), 1 << 20, TRUSTED, &mut scratch()).expect("a body");
    let found = finding(&explanation);
    let offset = body.find("7}").expect("the fault");
    let place = found.place.expect("a place");
    assert_eq!((place.offset, place.line), (offset, 2));
    assert_eq!(place.column, offset - body.find('\n').expect("a line"));
    assert_eq!(explanation.hint.map(|hint| &body[hint]), Some(&*bad));

    let twice = format!("{{\"kv_hints\":{good}, \"kv_\\u0068ints\":{good}}}");
    for trusted in [true, false] {
        let ingress = Ingress::Http { trusted };
        let explanation = explain_body(twice.as_bytes(), 1 << 20, ingress, &mut scratch());
        let explanation = explanation.expect("a body");
        let split = admit_body(twice.as_bytes(), 1 << 20, ingress, &mut scratch()).expect("a body");
        assert_eq!(explanation.verdict.name(), split.verdict.name());
        let found = finding(&explanation);
        assert_eq!(found.rule, if trusted { Rule::Body } else { Rule::Trust });
        assert_eq!(found.place.map(|place| place.offset), twice.find("\"kv_\\u"));
    }
    for (body, offset) in
        [("{\"a\":1,}", Some(7)), ("  [1]", Some(2)), ("", Some(0)), (&*" ".repeat(99), None)]
    {
        let fault =
            explain_body(body.as_bytes(), 50, TRUSTED, &mut scratch()).expect_err("refused");
        let offset_found =
            fault.finding.and_then(|finding| finding.place).map(|place| place.offset);
        assert_eq!(offset_found, offset, "{body}");
        assert!(fault.finding.is_none_or(|finding| finding.rule == Rule::Body));
        let error = admit_body(body.as_bytes(), 50, TRUSTED, &mut scratch()).expect_err("refused");
        assert_eq!(fault.error, error);
    }
    let none = explain_body(b"{}", 50, TRUSTED, &mut scratch()).expect("a body");
    assert_eq!((finding(&none).rule, none.hint), (Rule::Present, None));
}

#[test]
fn messagepack_bodies_are_explained_at_their_own_places() {
    let hint = b"\x83\xb0protocol_version\xa30.1\xaamessage_id\x07\xa7actions\x90";
    let body = [&b"\x82\xa1a\x01\xa8kv_hints"[..], hint].concat();
    let explanation =
        explain_body_msgpack(&body, 1 << 20, TRUSTED, &mut scratch()).expect("a body");
    let found = finding(&explanation);
    assert_eq!((found.rule, found.subject), (Rule::Structure, Subject::Member("message_id")));
    let place = found.place.expect("a place");
    assert_eq!((body[place.offset], place.line, place.column), (7, 0, 0));
    let twice = b"\x82\xa8kv_hints\xc0\xa8kv_hints\xc0";
    let explanation = explain_body_msgpack(twice, 99, TRUSTED, &mut scratch()).expect("a body");
    assert_eq!(finding(&explanation).place.map(|place| place.offset), Some(11));
    let split = admit_body_msgpack(twice, 99, TRUSTED, &mut scratch()).expect("a body");
    assert_eq!(explanation.verdict.name(), split.verdict.name());
    let refused = explain_body_msgpack(b"\x90", 99, TRUSTED, &mut scratch()).expect_err("refused");
    assert_eq!(refused.error, BodyError::NotAMap);
}
