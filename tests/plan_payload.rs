//! Payloads of `kv.fetch`: both versions, three dialects, and what breaks each rule.

use kvhints::plan::{FetchPayload, HashDialect, HashDialect::*, PayloadError, MAX_BLOCKS};

const ENDPOINT: &str = r#""source_control_endpoint":"tcp://h:1""#;

fn list(hashes: &str, dialect: HashDialect) -> Result<Vec<u64>, PayloadError> {
    let payload = format!(r#"{{{ENDPOINT},"block_hashes":{hashes}}}"#);
    FetchPayload::read("1.0", payload.as_bytes(), dialect).map(|payload| {
        assert_eq!(payload.block_count as usize, payload.hashes.len());
        assert_eq!(Some(&payload.last_block_hash), payload.hashes.last());
        assert_eq!(payload.every, 1);
        payload.hashes
    })
}

fn prefix(prefix: &str) -> Result<(u32, u64, u64, Vec<u64>), PayloadError> {
    let payload = format!(r#"{{{ENDPOINT},"prefix":{prefix}}}"#);
    FetchPayload::read("1.1", payload.as_bytes(), UnsignedNumber)
        .map(|p| (p.block_count, p.last_block_hash, p.every, p.hashes))
}

#[test]
fn each_dialect_reads_its_own_form_and_no_other() {
    let cases: &[(HashDialect, &str, &[u64])] = &[
        (UnsignedNumber, "[11,22]", &[11, 22]),
        (UnsignedNumber, "[0]", &[0]),
        (UnsignedNumber, "[18446744073709551615]", &[u64::MAX]),
        (UnsignedNumber, "[9007199254740993]", &[9_007_199_254_740_993]),
        (UnsignedNumber, "[-1]", &[u64::MAX]),
        (UnsignedNumber, "[-0]", &[0]),
        (UnsignedNumber, "[-9223372036854775808]", &[1 << 63]),
        (DecimalString, r#"["11","18446744073709551615"]"#, &[11, u64::MAX]),
        (DecimalString, r#"["0007"]"#, &[7]),
        (DecimalString, r#"["1234567890123456"]"#, &[1_234_567_890_123_456]),
        (HexDigits, r#"["1234567890123456"]"#, &[0x1234_5678_9012_3456]),
        (HexDigits, r#"["FFFFffffFFFFffff"]"#, &[u64::MAX]),
        (HexDigits, r#"["0123456789abcdefDEADBEEF"]"#, &[0x0123_4567_89ab_cdef]),
    ];
    for (dialect, hashes, expected) in cases {
        assert_eq!(list(hashes, *dialect).as_deref(), Ok(*expected), "{dialect:?} {hashes}");
    }
    let unreadable: &[(HashDialect, &str)] = &[
        (UnsignedNumber, r#""11""#),
        (UnsignedNumber, "1.0"),
        (UnsignedNumber, "-0.0"),
        (UnsignedNumber, "1e3"),
        (UnsignedNumber, "true"),
        (UnsignedNumber, "null"),
        (UnsignedNumber, "[1]"),
        (UnsignedNumber, r#"{"hash":1}"#),
        (UnsignedNumber, "18446744073709551616"),
        (UnsignedNumber, "-9223372036854775809"),
        (DecimalString, "11"),
        (DecimalString, r#""""#),
        (DecimalString, r#""+11""#),
        (DecimalString, r#""-11""#),
        (DecimalString, r#"" 11""#),
        (DecimalString, r#""1_1""#),
        (DecimalString, r#""0x11""#),
        (DecimalString, r#""18446744073709551616""#),
        (DecimalString, r#""١١""#),
        (HexDigits, "1234567890123456"),
        (HexDigits, r#""123456789012345""#),
        (HexDigits, r#""123456789012345g""#),
        (HexDigits, r#""1234567890123456g""#),
        (HexDigits, r#""0x12345678901234""#),
        (HexDigits, r#""+123456789012345""#),
        (HexDigits, r#""12345678901234é""#),
    ];
    for (dialect, hash) in unreadable {
        let good = match dialect {
            UnsignedNumber => "7",
            DecimalString => r#""7""#,
            HexDigits => r#""0000000000000007""#,
        };
        let alone = list(&format!("[{hash}]"), *dialect);
        assert_eq!(alone, Err(PayloadError::Hashes), "{dialect:?} {hash} alone");
        let after = list(&format!("[{good},{hash},{good}]"), *dialect);
        assert_eq!(after.as_deref(), Ok(&[7][..]), "{dialect:?} {hash} ends the list before it");
    }
}

#[test]
fn the_list_form_is_checked() {
    let read = |payload: &str| FetchPayload::read("1.0", payload.as_bytes(), UnsignedNumber).err();
    let cases: &[(&str, PayloadError)] = &[
        ("", PayloadError::Shape),
        ("{", PayloadError::Shape),
        ("[]", PayloadError::Shape),
        (r#"["tcp://h:1",[1]]"#, PayloadError::Shape),
        ("{}", PayloadError::EndpointMissing),
        (r#"{"block_hashes":[1]}"#, PayloadError::EndpointMissing),
        (r#"{"source_control_endpoint":null,"block_hashes":[1]}"#, PayloadError::EndpointMissing),
        (r#"{"source_control_endpoint":7,"block_hashes":[1]}"#, PayloadError::Shape),
        (r#"{"source_control_endpoint":["x"],"block_hashes":[1]}"#, PayloadError::Shape),
        (r#"{"source_control_endpoint":"x"}"#, PayloadError::Hashes),
        (r#"{"source_control_endpoint":"x","block_hashes":null}"#, PayloadError::Hashes),
        (r#"{"source_control_endpoint":"x","block_hashes":[]}"#, PayloadError::Hashes),
        (r#"{"source_control_endpoint":"x","block_hashes":{"0":1}}"#, PayloadError::Shape),
        (r#"{"source_control_endpoint":"x","block_hashes":1}"#, PayloadError::Shape),
        (r#"{"source_control_endpoint":"x","block_hashes":"1"}"#, PayloadError::Shape),
        (r#"{"Source_Control_Endpoint":"x","block_hashes":[1]}"#, PayloadError::EndpointMissing),
    ];
    for (payload, error) in cases {
        assert_eq!(read(payload).as_ref(), Some(error), "{payload}");
    }
}

#[test]
fn other_members_are_ignored_however_deep() {
    let deep = "[".repeat(190) + &"]".repeat(190);
    let payload = format!(
        r#"{{"mode":"move","x":{deep},{ENDPOINT},"prefix":7,"block_hashes":[1,{deep},2],"y":1e400}}"#
    );
    let read = FetchPayload::read("1.0", payload.as_bytes(), UnsignedNumber).expect("readable");
    assert_eq!((read.block_count, read.hashes), (1, vec![1]));
}

#[test]
fn the_endpoint_is_unescaped() {
    let payload = br#"{"source_control_endpoint":"http://h/\"a\\","block_hashes":[1]}"#;
    let read = FetchPayload::read("1.0", payload, UnsignedNumber).expect("readable");
    assert_eq!(read.source_control_endpoint, r#"http://h/"a\"#);
}

#[test]
fn the_prefix_form_is_checked() {
    let good = [
        (r#"{"blocks":1,"last":9,"every":1,"hashes":[9]}"#, (1, 9, 1, vec![9])),
        (r#"{"blocks":4,"last":9,"every":2,"hashes":[5,9]}"#, (4, 9, 2, vec![5, 9])),
        (r#"{"blocks":5,"last":9,"every":2,"hashes":[5,7]}"#, (5, 9, 2, vec![5, 7])),
        (r#"{"blocks":5,"last":-1,"every":6,"hashes":[]}"#, (5, u64::MAX, 6, vec![])),
        (
            r#"{"blocks":1048576,"last":9,"every":18446744073709551615,"hashes":[]}"#,
            (MAX_BLOCKS, 9, u64::MAX, vec![]),
        ),
        (r#"{"hashes":[9],"x":[{}],"every":1,"last":9,"blocks":1}"#, (1, 9, 1, vec![9])),
    ];
    for (text, expected) in good {
        assert_eq!(prefix(text), Ok(expected), "{text}");
    }
    let bad = [
        "null",
        "[1,9,1,[9]]",
        "7",
        "{}",
        r#"{"blocks":0,"last":9,"every":1,"hashes":[]}"#,
        r#"{"blocks":-1,"last":9,"every":1,"hashes":[]}"#,
        r#"{"blocks":1.0,"last":9,"every":1,"hashes":[9]}"#,
        r#"{"blocks":"1","last":9,"every":1,"hashes":[9]}"#,
        r#"{"blocks":1048577,"last":9,"every":1048578,"hashes":[]}"#,
        r#"{"blocks":4294967297,"last":9,"every":4294967298,"hashes":[]}"#,
        r#"{"blocks":1,"last":9,"every":0,"hashes":[9]}"#,
        r#"{"blocks":1,"last":9,"every":-1,"hashes":[9]}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":[]}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":[9,9]}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":["9"]}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":[9,"x"]}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":{}}"#,
        r#"{"blocks":1,"last":9,"every":1,"hashes":[8]}"#,
        r#"{"blocks":1,"last":"9","every":1,"hashes":[9]}"#,
        r#"{"blocks":1,"last":1.5,"every":1,"hashes":[9]}"#,
        r#"{"blocks":1,"every":1,"hashes":[9]}"#,
        r#"{"blocks":1,"last":9,"hashes":[9]}"#,
        r#"{"blocks":1,"last":9,"every":1}"#,
        r#"{"last":9,"every":1,"hashes":[9]}"#,
    ];
    for text in bad {
        let error = prefix(text).expect_err(text);
        assert!(matches!(error, PayloadError::Prefix | PayloadError::Shape), "{text}: {error}");
    }
    let list_form = format!(r#"{{{ENDPOINT},"block_hashes":[1]}}"#);
    let read = FetchPayload::read("1.1", list_form.as_bytes(), UnsignedNumber);
    assert_eq!(read.err(), Some(PayloadError::Prefix), "1.1 does not read the form of 1.0");
}

#[test]
fn only_known_versions_are_read() {
    let payload = format!(r#"{{{ENDPOINT},"block_hashes":[1]}}"#);
    for version in ["", "1", "1.00", "1.2", "2.0", "v1.0", " 1.0"] {
        let read = FetchPayload::read(version, payload.as_bytes(), UnsignedNumber);
        assert_eq!(read.err(), Some(PayloadError::Version), "{version:?}");
    }
}

#[test]
fn debug_text_and_errors_keep_quiet_about_the_payload() {
    let payload = br#"{"source_control_endpoint":"tcp://secret:1","block_hashes":[424242]}"#;
    let read = FetchPayload::read("1.0", payload, UnsignedNumber).expect("readable");
    let text = format!("{read:?}");
    assert!(!text.contains("secret") && !text.contains("424242"), "{text}");
    let payload = br#"{"source_control_endpoint":424242}"#;
    let error = FetchPayload::read("1.0", payload, UnsignedNumber).unwrap_err().to_string();
    assert!(!error.contains("424242"), "{error}");
}
