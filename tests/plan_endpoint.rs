//! Spellings of endpoints: what each becomes, or why it is refused.

use kvhints::plan::{Endpoint, EndpointError, EndpointError::*};
use proptest::prelude::*;

const ACCEPTED: &[(&str, &str)] = &[
    // Default ports and the default path.
    ("http://kv.example", "http://kv.example:80/v1/data_transceiver_state"),
    ("https://kv.example", "https://kv.example:443/v1/data_transceiver_state"),
    ("http://kv.example:80", "http://kv.example:80/v1/data_transceiver_state"),
    ("https://kv.example:443", "https://kv.example:443/v1/data_transceiver_state"),
    ("https://kv.example:80", "https://kv.example:80/v1/data_transceiver_state"),
    ("http://kv.example:443", "http://kv.example:443/v1/data_transceiver_state"),
    ("http://kv.example:", "http://kv.example:80/v1/data_transceiver_state"),
    ("http://kv.example:00080", "http://kv.example:80/v1/data_transceiver_state"),
    ("tcp://kv.example:80", "tcp://kv.example:80"),
    ("tcp://kv.example:443", "tcp://kv.example:443"),
    ("tcp://127.0.0.1:23280", "tcp://127.0.0.1:23280"),
    ("tcp://kv.example:65535", "tcp://kv.example:65535"),
    ("tcp://kv.example:1", "tcp://kv.example:1"),
    // Any other path is exact.
    ("http://kv.example/", "http://kv.example:80/"),
    (
        "http://kv.example/v1/data_transceiver_state",
        "http://kv.example:80/v1/data_transceiver_state",
    ),
    ("http://kv.example/a/../b", "http://kv.example:80/a/../b"),
    ("http://kv.example/A%2fb", "http://kv.example:80/A%2fb"),
    ("http://kv.example//", "http://kv.example:80//"),
    ("http://kv.example/a@b:c", "http://kv.example:80/a@b:c"),
    ("http://kv.example/%2e%2e/x", "http://kv.example:80/%2e%2e/x"),
    ("http://kv.example/..%2f%5c", "http://kv.example:80/..%2f%5c"),
    ("http://kv.example/x;y=%00", "http://kv.example:80/x;y=%00"),
    ("http://kv.example/http://x.example/", "http://kv.example:80/http://x.example/"),
    // Case.
    ("HTTP://KV.Example/State", "http://kv.example:80/State"),
    ("TCP://KV.EXAMPLE:9", "tcp://kv.example:9"),
    ("hTTps://kv.example/x", "https://kv.example:443/x"),
    // IPv4 in hex, octal and short forms, for all schemes.
    ("http://0x7f.1/x", "http://127.0.0.1:80/x"),
    ("http://0x7F000001/x", "http://127.0.0.1:80/x"),
    ("http://2130706433/x", "http://127.0.0.1:80/x"),
    ("http://017700000001/x", "http://127.0.0.1:80/x"),
    ("http://127.1/x", "http://127.0.0.1:80/x"),
    ("http://127.0.1/x", "http://127.0.0.1:80/x"),
    ("http://0300.0250.7.7/x", "http://192.168.7.7:80/x"),
    ("tcp://0x7f.1:5", "tcp://127.0.0.1:5"),
    ("tcp://2130706433:5", "tcp://127.0.0.1:5"),
    ("tcp://010.0.0.1:5", "tcp://8.0.0.1:5"),
    ("http://127.0.0.1./x", "http://127.0.0.1:80/x"),
    ("tcp://%31%32%37.0.0.1:5", "tcp://127.0.0.1:5"),
    ("tcp://127。0。0。1:5", "tcp://127.0.0.1:5"),
    ("tcp://127.0.0.1:5", "tcp://127.0.0.1:5"),
    ("http://0177.0.0.01/x", "http://127.0.0.1:80/x"),
    ("http://127.0.0.0x1/x", "http://127.0.0.1:80/x"),
    ("http://①27.0.0.1/x", "http://127.0.0.1:80/x"),
    ("tcp://127.0.0.1。:5", "tcp://127.0.0.1:5"),
    // What only begins like an address is a name.
    ("http://127.0.0.1.example/x", "http://127.0.0.1.example:80/x"),
    ("http://127.0.0.1%2eexample/x", "http://127.0.0.1.example:80/x"),
    // A trailing dot.
    ("http://kv.example./x", "http://kv.example:80/x"),
    ("tcp://KV.example.:5", "tcp://kv.example:5"),
    // IPv6, and IPv4 inside it.
    ("http://[::1]/x", "http://[::1]:80/x"),
    ("tcp://[::1]:5", "tcp://[::1]:5"),
    ("tcp://[2001:DB8:0:0:0:0:0:1]:5", "tcp://[2001:db8::1]:5"),
    ("tcp://[2001:db8::0.0.0.1]:5", "tcp://[2001:db8::1]:5"),
    ("tcp://[::ffff:127.0.0.1]:5", "tcp://127.0.0.1:5"),
    ("tcp://[::FFFF:7f00:1]:5", "tcp://127.0.0.1:5"),
    ("http://[0:0:0:0:0:ffff:10.1.2.3]/x", "http://10.1.2.3:80/x"),
    ("tcp://[::127.0.0.1]:5", "tcp://[::7f00:1]:5"),
    // IDNA.
    ("http://bücher.example/x", "http://xn--bcher-kva.example:80/x"),
    ("http://BÜCHER.example/x", "http://xn--bcher-kva.example:80/x"),
    ("http://xn--bcher-kva.example/x", "http://xn--bcher-kva.example:80/x"),
    ("tcp://bücher.example:5", "tcp://xn--bcher-kva.example:5"),
    ("tcp://kv.example:5", "tcp://kv.example:5"),
    ("http://kv\u{ad}.example/x", "http://kv.example:80/x"),
    ("http://\u{212a}v.example/x", "http://kv.example:80/x"),
    ("http://k\u{200b}v.example/x", "http://kv.example:80/x"),
    ("http://faß.example/x", "http://xn--fa-hia.example:80/x"),
    ("tcp://worker_3.pool-a:5", "tcp://worker_3.pool-a:5"),
    ("tcp://localhost:5", "tcp://localhost:5"),
];

const REFUSED: &[(&str, EndpointError)] = &[
    // Characters that libraries drop, or read as another.
    ("http://kv.exa\tmple/x", ForbiddenCharacter),
    ("http://kv.example/x\n", ForbiddenCharacter),
    ("\rhttp://kv.example/x", ForbiddenCharacter),
    (" http://kv.example/x", ForbiddenCharacter),
    ("http://kv.example/x ", ForbiddenCharacter),
    ("http://kv.example/a b", ForbiddenCharacter),
    ("http://kv.example\0/x", ForbiddenCharacter),
    ("http://kv.example/\u{7f}", ForbiddenCharacter),
    ("http://kv.example/\u{85}", ForbiddenCharacter),
    ("http://kv.example/\u{a0}", ForbiddenCharacter),
    ("http://kv\u{3000}.example/", ForbiddenCharacter),
    ("http:\\\\kv.example/x", ForbiddenCharacter),
    ("http://kv.example\\@evil.example/x", ForbiddenCharacter),
    ("tcp://kv.example:5\\", ForbiddenCharacter),
    // Schemes.
    ("", Scheme),
    ("kv.example:5", Scheme),
    ("//kv.example:5", Scheme),
    ("://kv.example:5", Scheme),
    ("http:kv.example", Scheme),
    ("http:/kv.example", Scheme),
    ("ftp://kv.example/x", Scheme),
    ("file:///etc/passwd", Scheme),
    ("ws://kv.example/x", Scheme),
    ("tcp6://kv.example:5", Scheme),
    ("ucx://kv.example:5", Scheme),
    ("http+unix://kv.example/x", Scheme),
    ("ｈttp://kv.example/x", Scheme),
    // Authority.
    ("http://", Authority),
    ("http:///kv.example/x", Authority),
    ("http:////kv.example/x", Authority),
    ("http://:80/x", Authority),
    ("tcp://:5", Authority),
    ("http://[::1/x", Authority),
    ("http://[::bad", Authority),
    ("http://::1/x", Authority),
    ("http://[127.0.0.1]/x", Authority),
    ("http://[::1]x:80/x", Authority),
    ("http://[]:80/x", Authority),
    ("http://256.0.0.1/x", Authority),
    ("http://1.2.3.4.5/x", Authority),
    ("http://0x100000000/x", Authority),
    ("http://1.2.3.08/x", Authority),
    ("http://kv.example:65536/x", Authority),
    ("http://kv.example:-1/x", Authority),
    ("http://kv.example:+80/x", Authority),
    ("http://kv.example:8o/x", Authority),
    ("http://kv.example:80:80/x", Authority),
    ("tcp://kv.example：5", Authority),
    ("http://kv.exa%00mple/x", Authority),
    ("http://kv%2fexample/x", Authority),
    ("http://kv%40example/x", Authority),
    ("http://kv<example/x", Authority),
    ("http://kv^example/x", Authority),
    ("http://xn--zzzz--/x", Authority),
    ("http://kv\u{200d}.example/x", Authority),
    ("http://%2531.0.0.1/x", Authority),
    ("http://4294967296/x", Authority),
    ("http://kv.example:０８０/x", Authority),
    ("http://kv.example:80%2f/x", Authority),
    ("http://kv.example:8\u{200b}0/x", Authority),
    ("\u{feff}http://kv.example/x", Scheme),
    ("http://[v1.x]/x", Authority),
    ("http://[::ffff:7f00:1]./x", Authority),
    ("http://fe80::1%25eth0/x", Authority),
    // Names with empty parts.
    ("http://./x", HostName),
    ("http://kv..example/x", HostName),
    ("http://kv.example../x", HostName),
    ("http://.kv.example/x", HostName),
    // User-info.
    ("http://user@kv.example/x", UserInfo),
    ("http://user:pass@kv.example/x", UserInfo),
    ("http://@kv.example/x", UserInfo),
    ("tcp://kv.example:5@evil.example:6", UserInfo),
    // Query and fragment.
    ("http://kv.example/x?y", Query),
    ("http://kv.example?", Query),
    ("tcp://kv.example:5?x", Query),
    ("http://kv.example/x?y#z", Query),
    ("http://kv.example/x#", Fragment),
    ("http://kv.example#?", Fragment),
    ("tcp://kv.example:5#x", Fragment),
    // Zone ids.
    ("http://[fe80::1%25eth0]/x", ZoneId),
    ("tcp://[fe80::1%eth0]:5", ZoneId),
    ("tcp://[::1%25]:5", ZoneId),
    // Wildcards in every spelling.
    ("http://0.0.0.0/x", Wildcard),
    ("tcp://0:5", Wildcard),
    ("tcp://0x0:5", Wildcard),
    ("tcp://0.0:5", Wildcard),
    ("tcp://[::]:5", Wildcard),
    ("tcp://[0:0:0:0:0:0:0:0]:5", Wildcard),
    ("tcp://[::0.0.0.0]:5", Wildcard),
    ("tcp://[::ffff:0.0.0.0]:5", Wildcard),
    ("tcp://*:5", Wildcard),
    ("http://*.example/x", Wildcard),
    ("http://%2a.example/x", Wildcard),
    // Ports.
    ("http://kv.example:0/x", PortZero),
    ("tcp://kv.example:0", PortZero),
    ("tcp://[::1]:00", PortZero),
    ("tcp://kv.example", PortMissing),
    ("tcp://kv.example:", PortMissing),
    ("tcp://[::1]", PortMissing),
    // Paths.
    ("tcp://kv.example:5/", TcpPath),
    ("tcp://kv.example:5/x", TcpPath),
    ("http://kv.example/é", Path),
];

#[test]
fn each_spelling_has_its_canonical_form() {
    assert!(ACCEPTED.len() + REFUSED.len() >= 150);
    for (text, canonical) in ACCEPTED {
        let endpoint = Endpoint::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(endpoint.canonical(), *canonical, "{text}");
        let again = Endpoint::parse(canonical).expect(canonical);
        assert_eq!(again, endpoint, "{text}: canonical text stands for itself");
    }
}

/// The host, port and path that other readers of URLs see in canonical text are ours: what is
/// judged here cannot be another place for whoever connects. `ureq` connects.
fn others_see_the_same(endpoint: &Endpoint) {
    let text = endpoint.canonical();
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_owned();
    // A reader that refuses the text connects nowhere.
    if let Ok(uri) = text.parse::<ureq::http::Uri>() {
        assert_eq!(uri.host().map(bare).as_deref(), Some(endpoint.host()), "{text}");
        assert_eq!(uri.port_u16(), Some(endpoint.port()), "{text}");
        if endpoint.scheme() != kvhints::plan::Scheme::Tcp {
            assert_eq!(uri.path(), endpoint.path(), "{text}");
        }
    }
    if let Ok(url) = url::Url::parse(&text.replacen("tcp://", "http://", 1)) {
        assert_eq!(url.host_str().map(bare).as_deref(), Some(endpoint.host()), "{text}");
        assert_eq!(url.port_or_known_default(), Some(endpoint.port()), "{text}");
    }
    // Whatever a resolver would read as an address, we did.
    let address = endpoint.host().parse::<std::net::IpAddr>().ok();
    assert_eq!(address, endpoint.address(), "{text}");
}

#[test]
fn other_readers_see_the_place_that_was_judged() {
    for (text, _) in ACCEPTED {
        others_see_the_same(&Endpoint::parse(text).expect(text));
    }
}

#[test]
fn each_refusal_has_its_reason() {
    for (text, error) in REFUSED {
        assert_eq!(Endpoint::parse(text), Err(*error), "{text:?}");
    }
    let name = |len: usize| format!("http://{}/x", "a.".repeat(len / 2) + "a");
    assert!(Endpoint::parse(&name(252)).is_ok());
    assert_eq!(Endpoint::parse(&name(254)), Err(HostName));
    let long = format!("http://kv.example/{}", "x".repeat(Endpoint::MAX_BYTES));
    assert_eq!(Endpoint::parse(&long), Err(TooLong));
    // Fits as given, but not with its port filled in.
    let grows = format!("http://kv.example/{}", "x".repeat(Endpoint::MAX_BYTES - 18));
    assert_eq!(grows.len(), Endpoint::MAX_BYTES);
    assert_eq!(Endpoint::parse(&grows), Err(TooLong));
}

#[test]
fn parts_are_those_of_the_canonical_text() {
    let http = Endpoint::parse("HTTP://KV.example./a/b").unwrap();
    assert_eq!(
        (http.scheme(), http.host(), http.port(), http.path(), http.address()),
        (kvhints::plan::Scheme::Http, "kv.example", 80, "/a/b", None)
    );
    let tcp = Endpoint::parse("tcp://[::1]:5").unwrap();
    assert_eq!(
        (tcp.scheme(), tcp.host(), tcp.port(), tcp.path(), tcp.address()),
        (kvhints::plan::Scheme::Tcp, "::1", 5, "", Some("::1".parse().unwrap()))
    );
    let mapped = Endpoint::parse("tcp://[::ffff:10.0.0.7]:5").unwrap();
    assert_eq!((mapped.host(), mapped.address()), ("10.0.0.7", Some("10.0.0.7".parse().unwrap())));
}

#[test]
fn debug_text_and_errors_do_not_repeat_what_a_hint_said() {
    let endpoint = Endpoint::parse("http://secret.example/token").unwrap();
    assert!(!format!("{endpoint:?}").contains("secret"), "{endpoint:?}");
    for (text, _) in REFUSED.iter().filter(|(text, _)| text.contains("kv.example")) {
        let error = Endpoint::parse(text).unwrap_err().to_string();
        assert!(!error.contains("kv.example"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_refused_or_has_one_stable_canonical_form(
        text in "(http|https|tcp)://[\\PC]{0,40}",
    ) {
        if let Ok(endpoint) = Endpoint::parse(&text) {
            let again = Endpoint::parse(endpoint.canonical());
            prop_assert_eq!(again, Ok(endpoint.clone()));
            others_see_the_same(&endpoint);
        }
    }

    #[test]
    fn host_like_text_is_refused_or_has_one_stable_canonical_form(
        text in "(http|tcp)://[0-9a-fxX.:%\\[\\]*-]{1,24}(:[0-9]{0,6})?(/[a-z./%]{0,8})?",
    ) {
        if let Ok(endpoint) = Endpoint::parse(&text) {
            let again = Endpoint::parse(endpoint.canonical());
            prop_assert_eq!(again, Ok(endpoint.clone()));
            others_see_the_same(&endpoint);
            prop_assert!(!endpoint.host().is_empty() && endpoint.port() != 0);
            prop_assert!(endpoint.address().is_none_or(|address| !address.is_unspecified()));
        }
    }
}
