//! What the documents say of metrics, events and the status exists, and what exists is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kvhints::telemetry::log::Event;
use kvhints::telemetry::nvtx::Step;
use kvhints::telemetry::Metrics;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of families, as the exposition declares them.
fn families(exposition: &str) -> BTreeSet<String> {
    let types = exposition.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().expect("a name").to_owned()).collect()
}

/// Words in `text` that are spelled like metrics of this library.
fn metrics_named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| {
            let rest = word.strip_prefix("kvhints_").or(word.strip_prefix("trtllm_kv_hints_"));
            rest.is_some_and(|rest| rest.contains('_'))
        })
        .map(str::to_owned)
        .collect()
}

/// The family that a series belongs to.
fn family_of(name: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    parts.into_iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}

#[test]
fn the_reader_knows_metrics_from_other_words() {
    let text = "rate(kvhints_a_total[5m]) trtllm_kv_hints_b_c `kvhints_h_seconds_bucket` kvhints kvhints_x";
    let named = ["kvhints_a_total", "kvhints_h_seconds_bucket", "trtllm_kv_hints_b_c"];
    assert_eq!(metrics_named(text), named.map(str::to_owned).into());
    assert_eq!(family_of("kvhints_h_seconds_bucket"), "kvhints_h_seconds");
}

#[test]
fn documents_name_only_metrics_that_exist() {
    let exist = families(&Metrics::new().render().expect("memory"));
    assert!(exist.len() > 30);
    for document in ["docs/grafana-dashboard.json", "docs/alerts.yml", "docs/operations.md"] {
        let named = metrics_named(&read(document));
        assert!(named.len() > 5, "{document} names too few metrics: was it read?");
        for name in named {
            assert!(exist.contains(family_of(&name)), "{document}: there is no metric {name}");
        }
    }
}

#[test]
fn every_metric_event_and_step_is_explained() {
    let operations = read("docs/operations.md");
    let named = metrics_named(&operations);
    for family in families(&Metrics::new().render().expect("memory")) {
        assert!(named.contains(&family), "docs/operations.md does not explain {family}");
    }
    for event in Event::ALL {
        let name = format!("`{}`", event.name());
        assert!(operations.contains(&name), "docs/operations.md does not explain {name}");
    }
    let profiling = read("docs/profiling.md");
    for step in Step::ALL {
        let name = format!("`{}`", step.name().to_str().expect("ASCII"));
        assert!(profiling.contains(&name), "docs/profiling.md does not explain {name}");
    }
}

#[test]
fn the_dashboard_is_json_whose_panels_do_not_overlap() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("docs/grafana-dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 10);
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(!panel["targets"].as_array().expect("targets").is_empty());
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{} lies over another panel",
                    panel["title"]
                );
            }
        }
    }
}
