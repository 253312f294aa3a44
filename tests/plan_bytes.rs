//! Plans as bytes: they come back as they were, and damage never makes another plan of them.

use kvhints::plan::{Endpoint, NamedFetch, Plan, PlanBytesError, Refusal, MAX_BLOCKS};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn fetch() -> NamedFetch {
    NamedFetch {
        binding_id: "pool-a".into(),
        endpoint: Endpoint::parse("http://kv.example").unwrap(),
        action_index: 3,
        block_count: 4096,
        last_block_hash: 0xfedc_ba98_7654_3210,
        then_paired_source: true,
        envelope: None,
    }
}

fn plans() -> Vec<Plan> {
    let mut plans: Vec<Plan> = Refusal::ALL.into_iter().map(Plan::Local).collect();
    plans.push(Plan::NamedFetch(fetch()));
    plans.push(Plan::NamedFetch(NamedFetch { then_paired_source: false, ..fetch() }));
    plans.push(Plan::NamedFetch(NamedFetch { envelope: Some(b"{}".to_vec().into()), ..fetch() }));
    plans
}

/// With a checksum that fits, so that what is behind the checksum is tested.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    body.extend_from_slice(&xxh3_64(&body).to_le_bytes());
    body
}

#[test]
fn plans_come_back_as_they_were() {
    for plan in plans() {
        let bytes = plan.to_bytes().expect("memory");
        assert_eq!(Plan::from_bytes(&bytes).as_ref(), Ok(&plan));
        assert!(bytes.len() < 300, "{} bytes", bytes.len());
    }
}

#[test]
fn the_longest_plan_fits_its_bound() {
    let path = "x".repeat(Endpoint::MAX_BYTES - "http://h:80/".len());
    let longest = NamedFetch {
        binding_id: "i".repeat(128).into(),
        endpoint: Endpoint::parse(&format!("http://h:80/{path}")).unwrap(),
        block_count: MAX_BLOCKS,
        ..fetch()
    };
    let plan = Plan::NamedFetch(longest.clone());
    assert_eq!(plan.to_bytes().expect("memory").len(), Plan::MAX_BYTES_WITHOUT_ENVELOPE);
    assert_eq!(Plan::from_bytes(&plan.to_bytes().expect("memory")), Ok(plan));
    let envelope = Some(vec![b' '; 65_536].into());
    let plan = Plan::NamedFetch(NamedFetch { envelope, ..longest });
    assert_eq!(plan.to_bytes().expect("memory").len(), Plan::MAX_BYTES);
    assert_eq!(Plan::from_bytes(&plan.to_bytes().expect("memory")), Ok(plan));
}

#[test]
fn every_flipped_bit_is_found() {
    for plan in plans() {
        let bytes = plan.to_bytes().expect("memory");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Plan::from_bytes(&damaged).is_err(), "bit {bit} of {plan:?}");
        }
    }
}

#[test]
fn every_other_length_is_found() {
    for plan in plans() {
        let bytes = plan.to_bytes().expect("memory");
        for len in 0..bytes.len() {
            assert!(Plan::from_bytes(&bytes[..len]).is_err(), "{len} bytes of {plan:?}");
        }
        assert!(Plan::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Plan::from_bytes(&[&bytes[..], &bytes[..]].concat()).is_err());
        let body = &bytes[..bytes.len() - 8];
        for len in 0..body.len() {
            assert!(Plan::from_bytes(&sealed(body[..len].to_vec())).is_err(), "{len} sealed");
        }
        let longer = sealed([body, &[0]].concat());
        assert_eq!(Plan::from_bytes(&longer), Err(PlanBytesError::Field));
    }
    let endless = vec![b'K'; Plan::MAX_BYTES + 1];
    assert_eq!(Plan::from_bytes(&endless), Err(PlanBytesError::NotAPlan));
}

#[test]
fn another_version_is_named() {
    let bytes = Plan::Local(Refusal::Lora).to_bytes().expect("memory");
    let mut body = bytes[..bytes.len() - 8].to_vec();
    body[4] = 2;
    assert_eq!(Plan::from_bytes(&sealed(body)), Err(PlanBytesError::Version(2)));
}

#[test]
fn fields_out_of_range_are_refused_behind_a_good_checksum() {
    let bytes = Plan::NamedFetch(fetch()).to_bytes().expect("memory");
    let body = &bytes[..bytes.len() - 8];
    let id_at = body.windows(6).position(|w| w == b"pool-a").unwrap();
    let host_at = body.windows(10).position(|w| w == b"kv.example").unwrap();
    let changes: &[(&str, usize, &[u8])] = &[
        ("kind 0", 5, &[0]),
        ("kind 3", 5, &[3]),
        ("kind local with a rest", 5, &[1]),
        ("unknown flag", 6, &[4]),
        ("flag of an envelope that is not there", 6, &[2]),
        ("a reason for a fetch", 7, &[1]),
        ("no blocks", 12, &[0, 0, 0, 0]),
        ("too many blocks", 12, &[1, 0, 0x10, 0]),
        ("id longer than the rest", 24, &[0xff, 0xff]),
        ("empty id", 24, &[0, 0]),
        ("endpoint one byte short", 26, &[host_at as u8]),
        ("envelope beyond the end", 28, &[1, 0, 0, 0]),
        ("huge envelope", 28, &[0xff, 0xff, 0xff, 0xff]),
        ("id not UTF-8", id_at, &[0xff]),
        ("endpoint not UTF-8", host_at, &[0xff]),
        ("endpoint not canonical", host_at, b"K"),
    ];
    for (name, at, change) in changes {
        let mut body = body.to_vec();
        body[*at..at + change.len()].copy_from_slice(change);
        assert_eq!(Plan::from_bytes(&sealed(body)), Err(PlanBytesError::Field), "{name}");
    }
    let local = Plan::Local(Refusal::Lora).to_bytes().expect("memory");
    for (at, value) in [(6, 1), (7, 0), (7, 11), (7, 255)] {
        let mut body = local[..8].to_vec();
        body[at] = value;
        assert_eq!(Plan::from_bytes(&sealed(body)), Err(PlanBytesError::Field), "{at} {value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn sealed_noise_is_refused_or_is_exactly_a_plans_bytes(
        mut body in prop::collection::vec(any::<u8>(), 0..64),
        kind in 0u8..4,
    ) {
        let head = [b'K', b'V', b'H', b'P', 1, kind, 0];
        body.splice(0..0, head);
        let bytes = sealed(body);
        if let Ok(plan) = Plan::from_bytes(&bytes) {
            prop_assert_eq!(plan.to_bytes().expect("memory"), bytes);
        }
    }
}
