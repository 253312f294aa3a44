//! The program `kvhints plan`: its account is that of the library's decision, whatever it is given.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const TABLE: &str = r#"{
  "version": 1,
  "bindings": [
    {"id": "pool-a", "family": "native", "addressing": "content_named",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"],
     "namespaces_hex": ["00ff"]},
    {"id": "pool-b", "family": "native", "addressing": "content_named",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"],
     "one_action_envelope": true},
    {"id": "unable", "family": "native", "addressing": "content_named", "actions": [],
     "namespaces": ["n"]},
    {"id": "other", "family": "X", "addressing": "content_named", "actions": []},
    {"id": "pair", "family": "native", "addressing": "request_paired",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]}
  ],
  "endpoints": [
    {"endpoint": "tcp://good:1", "bindings": ["pool-a", "other"]},
    {"endpoint": "tcp://asks:1", "bindings": ["pool-b"]},
    {"endpoint": "tcp://two:1", "bindings": ["pool-a", "pool-b"]},
    {"endpoint": "tcp://other:1", "bindings": ["other"]},
    {"endpoint": "tcp://unable:1", "bindings": ["unable"]},
    {"endpoint": "tcp://pair:1", "bindings": ["pair"]}
  ]
}"#;

/// A file of this test's own, with these bytes.
fn file(name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("command_line-{name}"));
    fs::write(&path, bytes).expect("a file for the test");
    path
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvhints"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It may end without reading.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("the program ends")
}

fn action(action_type: &str, version: &str, payload: &str) -> String {
    format!(
        r#"{{"action_id":"a","action_type":"{action_type}","action_version":"{version}","payload":{payload}}}"#
    )
}

fn fetch(endpoint: &str) -> String {
    let payload =
        format!(r#"{{"source_control_endpoint":"{endpoint}","block_hashes":[11,22,-1]}}"#);
    action("kv.fetch", "1.0", &payload)
}

fn envelope(actions: &[String]) -> String {
    let actions = actions.join(",");
    format!(r#"{{"protocol_version":"0.1","message_id":"m","actions":[{actions}]}}"#)
}

/// Runs `kvhints plan` with the table above; its account and its exit code.
fn explained(name: &str, options: &[&str], envelope: &str) -> (String, i32) {
    let table = file(name, TABLE);
    let mut arguments = vec!["plan", "--table", table.to_str().expect("UTF-8"), "-"];
    arguments.extend(options);
    let output = run(&arguments, envelope.as_bytes());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (text, output.status.code().expect("no signal"))
}

#[test]
fn a_fetch_is_explained_step_by_step() {
    let actions = [
        action("kv.evict", "1.0", "{}"),
        action("kv.fetch", "7", "{}"),
        fetch("TCP://GOOD.:01"),
        fetch("tcp://nobody:1"),
    ];
    let options = ["--namespace", "n", "--kind", "generation-only"];
    let (text, code) = explained("fetch", &options, &envelope(&actions));
    let expected = "\
hint         admitted: 505 bytes in canonical form, 4 actions
             over HTTP it counts only where hints are trusted, or it is signed
request      generation-only, no LoRA adapter, namespace \"n\"
1 eligible   yes
2 candidates 2; of unknown type 1, of unmatched version 1
             action 2, \"kv.fetch\" \"1.0\", is looked at; supported by \"native\"
             action 3, \"kv.fetch\" \"1.0\", is never tried; supported by \"native\"
             action 0, \"kv.evict\" \"1.0\", is no candidate
             action 1, \"kv.fetch\" \"7\", is no candidate
3 payload    3 blocks from the root, hashes as unsigned_number
4 endpoint   tcp://good:1
             is in the registry
5 binding    \"other\" of family \"X\", which does not support the action
             \"pool-a\" of family \"native\", which supports the action
6 allowed    for the namespace: yes
             the binding itself can do the action: yes
7 addressing content_named
plan         named fetch through \"pool-a\"
             from tcp://good:1
             action 2, 3 blocks at most
             then, however it ends, the paired source
             the provider's own list is asked before anything is contacted
             58 bytes for the other ranks
";
    assert_eq!(text, expected);
    assert_eq!(code, 0);
}

#[test]
fn every_refusal_is_named_where_it_happens() {
    let good = envelope(&[fetch("tcp://good:1")]);
    let at = |endpoint: &str| envelope(&[fetch(endpoint), fetch("tcp://good:1")]);
    let bad = envelope(&[action("kv.fetch", "1.0", "{}"), fetch("tcp://good:1")]);
    let namespace = ["--namespace", "n"];
    let lora = ["--namespace", "n", "--lora"];
    let other = ["--namespace", "n", "--kind", "other"];
    let family = ["--namespace", "n", "--family", "native:kv.fetch:2.0"];
    // What is asked, the refusal, and the last step before the plan.
    let rows: &[(&[&str], &str, &str, &str)] = &[
        (&lora, &good, "lora", "request      context, with a LoRA adapter, namespace \"n\""),
        (&other, &good, "not_eligible", "request      other, no LoRA adapter, namespace \"n\""),
        (&namespace, "", "no_candidate", "1 eligible   yes"),
        (&namespace, "{", "no_candidate", "1 eligible   yes"),
        (
            &family,
            &good,
            "no_candidate",
            "             action 0, \"kv.fetch\" \"1.0\", is no candidate",
        ),
        (
            &namespace,
            &bad,
            "bad_payload",
            "3 payload    refused: expected a member source_control_endpoint, found none",
        ),
        (
            &namespace,
            &at("tcp://nobody:1"),
            "endpoint_unlisted",
            "             is not in the registry",
        ),
        (
            &namespace,
            &at("tcp://good:1/x"),
            "endpoint_unlisted",
            "4 endpoint   refused: expected no path: tcp endpoints are tcp://host:port",
        ),
        (
            &namespace,
            &at("tcp://other:1"),
            "binding_missing",
            "5 binding    \"other\" of family \"X\", which does not support the action",
        ),
        (
            &namespace,
            &at("tcp://two:1"),
            "binding_ambiguous",
            "             \"pool-b\" of family \"native\", which supports the action",
        ),
        (&[], &good, "binding_unauthorised", "6 allowed    for the namespace: no"),
        (
            &namespace,
            &at("tcp://unable:1"),
            "binding_incapable",
            "             the binding itself can do the action: no",
        ),
        (
            &namespace,
            &at("tcp://pair:1"),
            "request_paired",
            "7 addressing request_paired: blocks are not found by name",
        ),
    ];
    for refusal in kvhints::plan::Refusal::ALL {
        assert!(rows.iter().any(|row| row.2 == refusal.name()), "no row for {}", refusal.name());
    }
    for (options, envelope, refusal, last_step) in rows {
        let (text, code) = explained("refusal", options, envelope);
        let before_plan = text.split("\nplan  ").next().expect("a plan");
        assert_eq!(before_plan.lines().last(), Some(*last_step), "{refusal}: {text}");
        assert!(text.contains(&format!("\nplan         local, {refusal}\n")), "{text}");
        assert_eq!(code, 1, "{refusal}");
    }
}

#[test]
fn verdicts_and_options_are_told() {
    let oversized = " ".repeat((1 << 20) + 1) + "7";
    let cases: &[(&str, &str)] = &[
        ("  ", "hint         absent: it becomes no hint\n"),
        ("7", "hint         malformed: it becomes no hint\n"),
        (&oversized, "hint         oversized: it becomes no hint\n"),
        (r#"{"protocol_version":"9"}"#, "hint         unknown_version: it becomes no hint\n"),
    ];
    for (envelope, line) in cases {
        let (text, code) = explained("verdict", &[], envelope);
        assert!(text.starts_with(line) && code == 1, "{text}");
    }
    let good = envelope(&[fetch("tcp://good:1")]);
    let (text, code) = explained("hex", &["--namespace-hex", "00FF"], &good);
    assert!(text.contains("namespace 0x00ff\n") && code == 0, "{text}");
    let asks = envelope(&[fetch("tcp://asks:1")]);
    let (text, code) = explained("asks", &["--namespace=n"], &asks);
    let line = format!("with the one-action envelope of {} bytes\n", asks.len());
    assert!(text.contains(&line) && code == 0, "{text}");
    let families = ["--namespace=n", "--family=X:kv.fetch:1.0", "--family=a:b:kv.fetch:1.0"];
    let (text, code) = explained("families", &families, &good);
    assert!(text.contains("supported by \"X\", \"a:b\"\n") && code == 1, "{text}");
}

#[test]
fn what_is_wrong_is_said_and_nothing_decided() {
    let table = file("wrong-table", TABLE);
    let table = table.to_str().expect("UTF-8");
    let bad_table = file("bad-table", r#"{"version":2,"bindings":[],"endpoints":[]}"#);
    let bad_table = bad_table.to_str().expect("UTF-8");
    let long = file("long-table", vec![b' '; (16 << 20) + 1]);
    let long = long.to_str().expect("UTF-8");
    let nowhere = format!("{table}-nowhere");
    let folder = env!("CARGO_TARGET_TMPDIR");
    let cases: &[(&[&str], &str)] = &[
        (&[], "expected a command"),
        (&["fetch"], "unexpected argument"),
        (&["--table"], "invalid option"),
        (&["plan"], "expected --table"),
        (&["plan", "--table", table], "expected ENVELOPE"),
        (&["plan", "--table"], "missing argument"),
        (&["plan", "--table", table, "-", "-"], "ENVELOPE once"),
        (&["plan", "--table", "-", "-"], "only one"),
        (&["plan", "--table", table, "--table", table, "-"], "--table once"),
        (&["plan", "--table", table, "--namespace=a", "--namespace-hex=00", "-"], "once"),
        (&["plan", "--table", table, "--namespace-hex", "0", "-"], "hexadecimal"),
        (&["plan", "--table", table, "--namespace-hex", "+1", "-"], "hexadecimal"),
        (&["plan", "--table", table, "--kind", "x", "-"], "generation-only"),
        (&["plan", "--table", table, "--family", "x:y", "-"], "NAME:TYPE:VERSION"),
        (&["plan", "--table", table, "--lora=yes", "-"], "unexpected"),
        (&["plan", "--table", table, "--guess", "-"], "invalid option"),
        (&["plan", "--table", bad_table, "-"], "version: expected 1, found 2"),
        (&["plan", "--table", long, "-"], "16777216"),
        (&["plan", "--table", &nowhere, "-"], "nowhere"),
        (&["plan", "--table", table, &nowhere], "nowhere"),
        (&["plan", "--table", folder, "-"], "directory"),
    ];
    for (arguments, problem) in cases {
        let output = run(arguments, b"");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(text.starts_with("kvhints: ") && text.contains(problem), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for (option, words) in [("--help", "Exit codes"), ("-h", "Usage"), ("-V", "kvhints 0.")] {
        let output = run(&[option], b"");
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains(words), "{option}");
    }
}

#[test]
fn hostile_files_end_it_cleanly_and_write_nothing_but_text() {
    let escapes = r#"\u001b[31m\u0007\u202e\r\n\u0000"#;
    let long_name = "x".repeat(60_000);
    let many = vec![action("kv.evict", "1.0", "{}"); 800];
    let envelopes = [
        envelope(&[fetch(escapes)]),
        envelope(&[action(escapes, escapes, "{}"), fetch("tcp://good:1")]),
        envelope(&[action(&long_name, "1.0", "{}")]),
        envelope(&[fetch(&format!("http://{long_name}"))]),
        envelope(&many),
        envelope(&vec![fetch("tcp://good:1"); 300]),
        "[".repeat(1 << 20),
        "\u{1b}[31m".to_owned(),
    ];
    let is_text = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
    for hostile in &envelopes {
        let (text, code) = explained("hostile", &["--namespace", "\u{1b}[31m\u{202e}"], hostile);
        assert!(code == 0 || code == 1, "{code}");
        assert!(text.len() < 16_384, "{} bytes", text.len());
        assert!(text.contains("\nplan  "), "{text}");
        assert!(text.chars().all(is_text), "{text:?}");
    }
    let misspelt = format!(r#"{{"\u001b[31m\u202e{}":1}}"#, "x".repeat(100_000));
    let files =
        [&b"\xff\xfe"[..], b"{\"version\":1", b"", b"\0\0", &[b'['; 100_000], misspelt.as_bytes()];
    for hostile in files {
        let table = file("hostile-table", hostile);
        let output = run(&["plan", "--table", table.to_str().expect("UTF-8"), "-"], b"{}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(text.len() < 4096 && text.lines().count() == 1 && text.chars().all(is_text));
    }
}

/// Files that are almost right, each wrong in another place; the same ones in every run.
#[test]
fn damaged_files_never_crash_it() {
    let good = envelope(&[fetch("tcp://good:1"), action("kv.evict", "1.0", "{}")]);
    let mut random = 0x2026_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (random >> 33) as usize % bound
    };
    let mut codes = [0u32; 3];
    for case in 0..200 {
        let mut files = [TABLE.as_bytes().to_vec(), good.clone().into_bytes()];
        let damaged = &mut files[case % 2];
        for _ in 0..=below(3) {
            let at = below(damaged.len());
            match below(3) {
                0 => damaged[at] ^= 1 << below(8),
                1 => damaged.truncate(at + 1),
                _ => drop(damaged.splice(at..at, *b"\"[{")),
            }
        }
        let table = file("damaged-table", &files[0]);
        let table = table.to_str().expect("UTF-8");
        let output = run(&["plan", "--table", table, "--namespace=n", "-"], &files[1]);
        let code = output.status.code().expect("no signal");
        assert!((0..=2).contains(&code), "{code}: {output:?}");
        codes[code as usize] += 1;
    }
    assert!(codes.iter().all(|count| *count > 0), "some of each: {codes:?}");
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let table = file("pipe", TABLE);
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvhints"))
        .args(["plan", "--table", table.to_str().expect("UTF-8"), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    // Waits for the end of this, so the reader is gone before anything is written.
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(1), "a local plan");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
