//! `kvhints explain` as its user runs it: words, JSON, exit codes, and that nothing in a file can
//! reach the terminal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn file(name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("command_line_explain-{name}"));
    fs::write(&path, bytes).expect("a file for the test");
    path
}

/// What it writes, its complaint, its exit code.
fn run(options: &[&str], input: impl AsRef<[u8]>) -> (Vec<u8>, String, i32) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvhints"))
        .arg("explain")
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It may end without reading.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_ref());
    let output = child.wait_with_output().expect("the program ends");
    let code = output.status.code().expect("no signal");
    (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned(), code)
}

fn words(options: &[&str], input: impl AsRef<[u8]>) -> (String, i32) {
    let options = [options, &["-"]].concat();
    let (text, complaint, code) = run(&options, input);
    assert_eq!(complaint, "");
    (String::from_utf8(text).expect("UTF-8"), code)
}

fn json(options: &[&str], input: impl AsRef<[u8]>) -> Value {
    let (text, _) = words(&[options, &["--json"]].concat(), input);
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
    serde_json::from_str(&text).expect("one object")
}

const GOOD: &str = r#"{ "protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":{"source_control_endpoint":"http://h:1","block_hashes":[1,2,"x",4]}}]}"#;

#[test]
fn an_admitted_hint_is_told_in_words() {
    let (text, code) = words(&[], GOOD);
    let expected = "\
verdict      admitted
             over HTTP it counts only where hints are trusted, or it is signed
raw          201 of 1048576 bytes (0.0 %)
canonical    200 of 65536 bytes (0.3 %)
             it is not in canonical form, which --canonical prints
version      \"0.1\"
message id   \"m\" of 1 bytes
actions      1
             0, \"a1\": \"kv.fetch\" \"1.0\", payload of 67 bytes
                2 blocks from the root: of 4 hashes the first 2 are read as unsigned_number, up to one that is none
";
    assert_eq!((GOOD.len(), text.as_str(), code), (201, expected, 0));
    let canonical = GOOD.replacen("{ ", "{", 1);
    let (text, _, code) = run(&["--canonical", "-"], GOOD);
    assert_eq!((String::from_utf8(text).as_deref(), code), (Ok(&*canonical), 0));
    assert_eq!(json(&[], &canonical)["is_canonical"], true);
    let (text, _) = words(&["--hashes", "hex_digits"], GOOD);
    assert!(text.contains("4 hashes, of no use to a worker that reads hex_digits"), "{text}");
}

#[test]
fn each_verdict_has_its_exit_code_and_its_rule() {
    let long = GOOD.replace("\"m\"", &format!("\"{}\"", "m".repeat(70_000)));
    let body = format!("{{\"kv_hints\":{GOOD}}}");
    let http: &[&str] = &["--ingress", "http"];
    let trust: &[&str] = &["--ingress", "http", "--trust"];
    let msgpack = "\u{7f}";
    /// Options, input, verdict, rule, exit code.
    type Row<'a> = (&'a [&'a str], &'a str, &'a str, Option<u64>, i32);
    let rows: &[Row<'_>] = &[
        (&[], GOOD, "admitted", None, 0),
        (trust, GOOD, "admitted", None, 0),
        (&["--body"], &body, "admitted", None, 0),
        (&[], " null", "absent", Some(1), 1),
        (&["--body"], "{}", "absent", Some(1), 1),
        (http, GOOD, "untrusted", Some(2), 6),
        (&[], "{", "malformed", Some(4), 5),
        (&["--msgpack"], msgpack, "malformed", Some(5), 5),
        (&[], "{\"protocol_version\":\"9\"}", "unknown_version", Some(7), 3),
        (&[], &long, "oversized", Some(8), 4),
        (&["--body"], "{\"kv_hints\":{},}", "body_refused", Some(0), 7),
    ];
    for (options, input, verdict, rule, code) in rows {
        let told = json(options, input);
        assert_eq!(told["verdict"], *verdict);
        assert_eq!(told["rule"].as_u64(), *rule, "{verdict}");
        let (text, found) = words(options, input);
        assert_eq!(found, *code, "{text}");
        let (canonical, _, found) = run(&[*options, &["--canonical", "-"]].concat(), input);
        assert_eq!((found, canonical.is_empty()), (*code, *code != 0), "{verdict}");
    }
    let told = json(&[], GOOD.replace("\"payload\":", "\n\"payload\":7,\"p\":"));
    assert_eq!((told["line"].as_u64(), told["column"].as_u64()), (Some(2), Some(11)));
    assert_eq!(told["subject"], "actions[0].payload");
    let (text, _) = words(&[], GOOD.replace("\"payload\":", "\n\"payload\":7,\"p\":"));
    assert!(
        text.contains("             \"payload\":7,\"p\":{\"source_control_endpoint\":"),
        "{text}"
    );
    assert!(text.contains(&format!("\n{}^\n", " ".repeat(13 + 10))), "{text}");
}

#[test]
fn signatures_are_checked_with_the_keys_of_a_file() {
    // The example of docs/signed-hints.md.
    let signed = r#"{"protocol_version":"0.1","message_id":"msg-1","auth":{"key_id":"k1","alg":"HS256","exp":2000000000,"mac":"09WuNqQ7IQ0ga-i9czQOf2WmtmAxKPfN7lRhyXWu7LE"},"actions":[]}"#;
    let secret: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
    let keys = file("keys", format!(r#"{{"keys":[{{"key_id":"k1","secret_hex":"{secret}"}}]}}"#));
    let keys = keys.to_str().expect("UTF-8");
    let options = ["--ingress", "http", "--keys", keys, "--now", "1900000000"];
    assert_eq!(json(&options, signed)["verdict"], "admitted");
    for (changed, fault) in [
        (signed.replace("msg-1", "msg-2"), "wrong_mac"),
        (signed.replace("k1", "k2"), "unknown_key"),
        (signed.replace(":2000000000", ":1800000000"), "expired"),
        (GOOD.to_owned(), "no_auth"),
    ] {
        let told = json(&options, &changed);
        assert_eq!(
            (&told["verdict"], &told["signature_fault"]),
            (&"untrusted".into(), &fault.into())
        );
        let (text, code) = words(&options, &changed);
        assert!(
            text.starts_with(&format!("verdict      untrusted, {fault}: ")) && code == 6,
            "{text}"
        );
    }
    for bad in [
        "",
        "[]",
        r#"{"keys":[{"key_id":"k1","secret_hex":"hush"}]}"#,
        r#"{"keys":[{"key_id":"k1","secret_hex":"00"}]}"#,
        r#"{"keys":"hush"}"#,
    ] {
        let bad = file("bad-keys", bad);
        let bad = bad.to_str().expect("UTF-8");
        let (text, complaint, code) = run(&["--ingress", "http", "--keys", bad, "-"], signed);
        assert_eq!((text.len(), code), (0, 2), "{complaint}");
        assert!(complaint.contains("expected") && !complaint.contains("hush"), "{complaint}");
    }
}

#[test]
fn wrong_arguments_are_said_and_nothing_judged() {
    for options in [
        &[][..],
        &["-", "-"],
        &["--ingress", "x", "-"],
        &["--trust", "-"],
        &["--keys", "k", "-"],
        &["--ingress", "http", "--trust", "--keys", "k", "-"],
        &["--ingress", "http", "--keys", "-", "-"],
        &["--now", "7", "-"],
        &["--now", "x", "-"],
        &["--json", "--canonical", "-"],
        &["--hashes", "x", "-"],
        &["--guess", "-"],
        &["nowhere/at/all"],
    ] {
        let (text, complaint, code) = run(options, GOOD);
        assert_eq!((text.len(), code), (0, 2), "{options:?}: {complaint}");
        assert!(
            complaint.starts_with("kvhints: ") && complaint.lines().count() == 1,
            "{complaint}"
        );
    }
}

#[test]
fn hostile_hints_write_nothing_but_text_and_little_of_it() {
    let escapes = "\\u001b[31m\\u0007\\u202e\\u009b\\r\\n\\u0000\\u007f";
    let raw = "\u{1b}[31m\u{7}\u{202e}\u{9b}\u{7f}";
    let long = "x".repeat(60_000);
    let action = |text: &str| {
        format!(
            r#"{{"action_id":"{text}","action_type":"{text}","action_version":"{text}","payload":{{}}}}"#
        )
    };
    let envelope = |id: &str, actions: &str| {
        format!(r#"{{"protocol_version":"0.1","message_id":"{id}","actions":[{actions}]}}"#)
    };
    let hostile = [
        envelope(escapes, &action(escapes)),
        envelope("\u{202e}\u{9b}\u{7f}", &action("\u{202e}\u{9b}\u{7f}")),
        envelope(&long, ""),
        envelope("m", &vec![action("a"); 800].join(",")),
        envelope("m", raw),
        format!("{raw}{raw}"),
        format!("{{\"{raw}"),
        "{\"\u{202e}\u{9b}\":1,\"\u{202e}\u{9b}\":2,}".to_owned(),
        "[".repeat(1 << 20),
        format!("{}\u{e9}\u{1f600}{raw}", "\u{e9}".repeat(50)),
    ];
    let is_text = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
    for input in &hostile {
        for options in
            [&[][..], &["--body"], &["--msgpack"], &["--msgpack", "--body"], &["--ingress", "http"]]
        {
            let (text, _) = words(options, input);
            assert!(text.chars().all(is_text), "{text:?}");
            assert!(text.len() < 16_384, "{} bytes", text.len());
            json(options, input);
        }
    }
    let (text, complaint, code) = run(&["-"], vec![b' '; (64 << 20) + 1]);
    assert_eq!((text.len(), code), (0, 2), "{complaint}");
}
