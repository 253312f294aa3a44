//! Server configuration: binding tables and allow-lists, in code and from files, and how the two
//! checks of a destination stand apart.

mod plan_support;

use kvhints::plan::{
    decide, AddressBounds, Addressing, AllowList, AllowListError, BindingTable, BindingTableError,
    Capabilities, DestinationError, Endpoint, HashDialect, Plan, Refusal, RequestKind,
    RequestProfile,
};
use plan_support::hint;

const TABLE: &str = r#"{
  "version": 1,
  "hash_dialect": "decimal_string",
  "bindings": [
    {"id": "pool-a", "family": "native", "addressing": "content_named",
     "actions": [{"type": "kv.fetch", "version": "1.0"}],
     "namespaces": ["llama"], "namespaces_hex": ["00fF"], "one_action_envelope": true},
    {"id": "pair", "family": "native", "addressing": "request_paired", "actions": []}
  ],
  "endpoints": [{"endpoint": "TCP://H.:1", "bindings": ["pool-a", "pair"]}]
}"#;

fn endpoint(text: &str) -> Endpoint {
    Endpoint::parse(text).expect("a test's endpoint")
}

#[test]
fn a_file_makes_the_table_that_code_makes() {
    let mut table = BindingTable::new();
    table.set_hash_dialect(HashDialect::DecimalString);
    table.add_binding("pool-a", "native", Addressing::ContentNamed, true).unwrap();
    table.add_action("pool-a", "kv.fetch", "1.0").unwrap();
    table.authorise_namespace("pool-a", b"llama").unwrap();
    table.authorise_namespace("pool-a", &[0, 255]).unwrap();
    table.add_binding("pair", "native", Addressing::RequestPaired, false).unwrap();
    table.allow_endpoint("tcp://h:1", "pair").unwrap();
    table.allow_endpoint("tcp://h:1", "pool-a").unwrap();
    assert_eq!(BindingTable::from_json(TABLE.as_bytes()), Ok(table));
    let smallest = br#"{"version":1,"bindings":[],"endpoints":[]}"#;
    assert_eq!(BindingTable::from_json(smallest), Ok(BindingTable::new()));
}

#[test]
fn an_error_in_a_file_names_its_place() {
    let cases: &[(&str, &str, &str)] = &[
        ("\"version\": 1", "\"version\": 2", "version: expected 1, found 2"),
        ("\"version\": 1,", "", "line 11"),
        ("decimal_string", "octal", "line 3"),
        ("content_named", "by_luck", "line 5"),
        ("\"family\": \"native\", ", "", "line 7"),
        ("\"namespaces\"", "\"namespace\"", "line 7"),
        ("\"id\": \"pair\"", "\"id\": \"pool-a\"", "bindings[1]: "),
        ("\"id\": \"pair\"", "\"id\": \"\"", "bindings[1]: "),
        ("\"1.0\"", "\"\"", "bindings[0].actions[0]: "),
        ("00fF", "00f", "bindings[0].namespaces_hex[0]: "),
        ("00fF", "0x00", "bindings[0].namespaces_hex[0]: "),
        ("00fF", "é", "bindings[0].namespaces_hex[0]: "),
        ("TCP://H.:1", "tcp://h", "endpoints[0].endpoint: "),
        ("[\"pool-a\", \"pair\"]", "[]", "endpoints[0].bindings: "),
        ("\"pair\"]", "\"pear\"]", "endpoints[0].bindings[1]: "),
        (
            "\"endpoints\": [",
            "\"endpoints\": [{\"endpoint\": \"tcp://h:1\", \"bindings\": [\"pair\"]}, ",
            "endpoints[1]: ",
        ),
        ("true", "1", "line 7"),
        ("\"version\": 1", "\"version\": -1", "line 2"),
        ("\"version\": 1", "\"version\": \"1\"", "line 2"),
        ("\"version\": 1", "\"version\": 1, \"version\": 1", "line 2"),
        ("\"id\": \"pair\"", "\"id\": \"pair\", \"id\": \"pool-b\"", "line 8"),
        ("\"id\": \"pair\"", "\"id\": 7", "line 8"),
        ("\"id\": \"pair\"", "\"id\": \"\\ud800\"", "line 8"),
        ("\"id\": \"pair\", \"family\": \"native\"", "\"id\": \"pair\"", "line 8"),
        (
            "\"id\": \"pair\", \"family\": \"native\", ",
            "\"id\": \"p\", \"family\": \"LONG\", ",
            "bindings[1]: ",
        ),
        ("\"id\": \"pair\"", "\"id\": \"LONG\"", "bindings[1]: "),
        ("\"kv.fetch\"", "\"LONG\"", "bindings[0].actions[0]: "),
        ("\"kv.fetch\"", "\"\"", "bindings[0].actions[0]: "),
        ("\"1.0\"", "\"LONG\"", "bindings[0].actions[0]: "),
        ("\"type\"", "\"kind\"", "line 6"),
        ("\"llama\"", "\"LONGER\"", "bindings[0].namespaces[0]: "),
        ("\"00fF\"", "\"\", \"LONGER\"", "bindings[0].namespaces_hex[1]: "),
        ("\"actions\": []", "\"actions\": {}", "line 8"),
        ("\"endpoint\"", "\"Endpoint\"", "line 10"),
        ("TCP://H.:1", "LONG://", "endpoints[0].endpoint: "),
        ("TCP://H.:1", "tcp://user@h:1", "endpoints[0].endpoint: "),
        ("[\"pool-a\", \"pair\"]", "\"pool-a\"", "line 10"),
        ("\"endpoints\"", "\"endpoint\"", "line 10"),
        ("]\n}", "]\n} x", "line 11"),
        ("]\n}", "]", "line 10"),
    ];
    for (from, to, place) in cases {
        assert!(TABLE.contains(from), "{from}");
        let to = &to.replace("LONGER", &"a".repeat(2 * 1025)).replace("LONG", &"a".repeat(129));
        let file = TABLE.replacen(from, to, 1);
        let error = BindingTable::from_json(file.as_bytes()).expect_err(to).to_string();
        assert!(error.starts_with(place), "{from} -> {to}: {error}");
    }
    // What is one too many is named as well.
    let many = |count: usize, item: &dyn Fn(usize) -> String| {
        (0..count).map(item).collect::<Vec<_>>().join(",")
    };
    let binding = |i: usize| {
        format!(r#"{{"id":"b{i}","family":"f","addressing":"content_named","actions":[]}}"#)
    };
    let bindings = many(1025, &binding);
    let file = format!(r#"{{"version":1,"bindings":[{bindings}],"endpoints":[]}}"#);
    let error = BindingTable::from_json(file.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("bindings[1024]: expected at most 1024 bindings"), "{error}");
    let ids = many(65, &|i| format!(r#""b{i}""#));
    let bindings = many(65, &binding);
    let file = format!(
        r#"{{"version":1,"bindings":[{bindings}],"endpoints":[{{"endpoint":"tcp://h:1","bindings":[{ids}]}}]}}"#
    );
    let error = BindingTable::from_json(file.as_bytes()).unwrap_err().to_string();
    assert!(
        error.starts_with("endpoints[0].bindings[64]: expected at most 64 bindings of"),
        "{error}"
    );
    let error = BindingTable::from_json(b"{\"version\":x}").unwrap_err().to_string();
    assert_eq!(error, "line 1, column 12: expected value");
    for file in ["", "null", "[]", "[1,[],[]]", "{", "\u{feff}{}"] {
        assert!(BindingTable::from_json(file.as_bytes()).is_err(), "{file:?}");
    }
    let too_long = vec![b' '; (16 << 20) + 1];
    let error = BindingTable::from_json(&too_long).unwrap_err().to_string();
    assert!(error.contains("16777216"), "{error}");
    for (len, is_refused) in [(8192, false), (8193, true)] {
        // In escapes too, and where no text is expected.
        for text in ["x".repeat(len), "\\n".repeat(len / 2) + &"x".repeat(len % 2)] {
            let file = format!("{{\"version\": \"{text}\", \"bindings\": [], \"endpoints\": []}}");
            let error = BindingTable::from_json(file.as_bytes()).unwrap_err().to_string();
            assert_eq!(error.contains("no string longer than 8192"), is_refused, "{error:.60}");
        }
    }
    let deep = "{\"version\":".to_owned() + &"[".repeat(100_000);
    assert!(BindingTable::from_json(deep.as_bytes()).is_err());
}

#[test]
fn a_refused_change_leaves_the_table_as_it_was() {
    let mut table = BindingTable::from_json(TABLE.as_bytes()).unwrap();
    let before = table.clone();
    let long = "x".repeat(129);
    let named = Addressing::ContentNamed;
    let refused = [
        table.add_binding("pool-a", "f", named, false),
        table.add_binding("", "f", named, false),
        table.add_binding(&long, "f", named, false),
        table.add_binding("new", &long, named, false),
        table.add_action("nobody", "kv.fetch", "1.0"),
        table.add_action("pair", "", "1.0"),
        table.add_action("pair", "kv.fetch", &long),
        table.authorise_namespace("nobody", b"x"),
        table.authorise_namespace("pair", &[0; 1025]),
        table.allow_endpoint("tcp://new:1", "nobody"),
        table.allow_endpoint("tcp://new", "pair"),
    ];
    for result in refused {
        assert!(!result.unwrap_err().to_string().is_empty());
    }
    assert_eq!(table, before);
}

#[test]
fn tables_are_bounded() {
    let mut table = BindingTable::new();
    for i in 0..BindingTable::MAX_BINDINGS {
        table.add_binding(&format!("b{i}"), "f", Addressing::ContentNamed, false).unwrap();
    }
    let full =
        |result| assert!(matches!(result, Err(BindingTableError::Full { .. })), "{result:?}");
    full(table.add_binding("more", "f", Addressing::ContentNamed, false));
    for i in 0..BindingTable::MAX_PER_BINDING {
        table.add_action("b0", "kv.fetch", &i.to_string()).unwrap();
        table.authorise_namespace("b0", &i.to_le_bytes()).unwrap();
    }
    full(table.add_action("b0", "kv.fetch", "more"));
    full(table.authorise_namespace("b0", b"more"));
    for i in 0..BindingTable::MAX_BINDINGS_PER_ENDPOINT {
        table.allow_endpoint("tcp://h:1", &format!("b{i}")).unwrap();
    }
    full(table.allow_endpoint("tcp://h:1", "b999"));
}

#[test]
fn an_allow_list_file_is_read_and_checked() {
    let file = br#"{"version": 1, "endpoints": [
        {"endpoint": "tcp://10.0.0.7:1"},
        {"endpoint": "http://kv.internal", "addresses": ["10.0.0.0/8", "::1"]},
        {"endpoint": "tcp://nowhere:1", "addresses": []},
        {"endpoint": "tcp://127.0.0.1:1", "addresses": ["10.0.0.0/8"]}]}"#;
    let list = AllowList::from_json(file).unwrap();
    let ip = |text: &str| text.parse().expect("a test's address");
    let named = endpoint("http://kv.internal/v1/data_transceiver_state");
    assert!(list.check(&named).is_ok());
    assert_eq!(list.check_address(&named, ip("10.9.8.7")), Ok(()));
    assert_eq!(list.check_address(&named, ip("::ffff:10.9.8.7")), Ok(()));
    assert_eq!(list.check_address(&named, ip("::1")), Ok(()));
    let out_of_bounds = Err(DestinationError::AddressOutOfBounds);
    assert_eq!(list.check_address(&named, ip("127.0.0.1")), out_of_bounds);
    assert_eq!(list.check_address(&endpoint("tcp://nowhere:1"), ip("10.0.0.1")), out_of_bounds);
    let literal = endpoint("tcp://10.0.0.7:1");
    assert_eq!(list.check_address(&literal, ip("10.0.0.7")), Ok(()));
    assert_eq!(list.check_address(&literal, ip("10.0.0.8")), out_of_bounds, "not that address");
    let loopback = endpoint("tcp://127.0.0.1:1");
    assert_eq!(list.check(&loopback).err(), Some(DestinationError::AddressOutOfBounds));
    let unlisted = endpoint("tcp://10.0.0.7:2");
    assert_eq!(list.check(&unlisted).err(), Some(DestinationError::Unlisted));
    assert_eq!(list.check_address(&unlisted, ip("10.0.0.7")), Err(DestinationError::Unlisted));
}

#[test]
fn an_error_in_an_allow_list_names_its_place() {
    let cases = [
        ("", "the file: "),
        ("[]", "the file: "),
        (r#"{"version":1}"#, "line 1"),
        (r#"{"version":2,"endpoints":[]}"#, "version: "),
        (r#"{"version":1,"endpoints":[{"endpoint":"x"}]}"#, "endpoints[0].endpoint: "),
        (
            r#"{"version":1,"endpoints":[{"endpoint":"tcp://h:1","addresses":["10/8"]}]}"#,
            "endpoints[0].addresses: ",
        ),
        (
            r#"{"version":1,"endpoints":[{"endpoint":"tcp://h:1"},{"endpoint":"tcp://H:1"}]}"#,
            "endpoints[1]: ",
        ),
        (r#"{"version":1,"endpoints":[{"endpoint":"tcp://h:1","adresses":[]}]}"#, "line 1"),
    ];
    for (file, place) in cases {
        let error = AllowList::from_json(file.as_bytes()).expect_err(file).to_string();
        assert!(error.starts_with(place), "{file}: {error}");
    }
    let mut list = AllowList::new();
    list.allow(endpoint("tcp://h:1"), AddressBounds::unbounded()).unwrap();
    let again = list.allow(endpoint("tcp://H:1"), AddressBounds::unbounded());
    assert_eq!(again, Err(AllowListError::Repeated("tcp://h:1".to_owned())));
}

/// With either check made to agree to everything, the other still stops an unlisted destination.
#[test]
fn either_check_alone_stops_an_unlisted_destination() {
    let mut capabilities = Capabilities::new();
    capabilities.add("f", "kv.fetch", "1.0").unwrap();
    let snapshot = hint(&[(
        "kv.fetch",
        "1.0",
        r#"{"source_control_endpoint":"tcp://rogue:1","block_hashes":[1]}"#,
    )]);
    let profile = RequestProfile {
        has_lora: false,
        kind: RequestKind::Context,
        required_handoff: false,
        namespace: b"n",
    };
    let mut table = BindingTable::new();
    table.add_binding("b", "f", Addressing::ContentNamed, false).unwrap();
    table.add_action("b", "kv.fetch", "1.0").unwrap();
    table.authorise_namespace("b", b"n").unwrap();
    table.allow_endpoint("tcp://h:1", "b").unwrap();
    let mut list = AllowList::new();
    list.allow(endpoint("tcp://h:1"), AddressBounds::unbounded()).unwrap();

    let mut open_list = list.clone();
    open_list.allow(endpoint("tcp://rogue:1"), AddressBounds::unbounded()).unwrap();
    let plan = decide(Some(&snapshot), &capabilities, &table, &profile).unwrap().plan;
    assert_eq!(plan, Plan::Local(Refusal::EndpointUnlisted), "the plan stops it");
    assert!(open_list.check(&endpoint("tcp://rogue:1")).is_ok(), "though the provider would not");

    table.allow_endpoint("tcp://rogue:1", "b").unwrap();
    let plan = decide(Some(&snapshot), &capabilities, &table, &profile).unwrap().plan;
    let Plan::NamedFetch(fetch) = plan else { panic!("the plan lets it through") };
    let stopped = list.check(&fetch.endpoint).err();
    assert_eq!(stopped, Some(DestinationError::Unlisted), "the provider stops it");
}
