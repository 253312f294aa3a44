//! Checks that a tree's parts agree with each other. Linear in what the tree holds; for tests and
//! for hunting faults, never on the way of a request.

use super::lookup::Lookup;
use super::node::{Slot, Tier};
use super::pin::Pinned;
use super::tree::State;
use super::window::Window;

/// Fails with what is wrong unless `condition` holds.
fn expect(condition: bool, what: &str) -> Result<(), String> {
    if condition {
        return Ok(());
    }
    Err(what.to_owned())
}

pub(super) fn verify(state: &State) -> Result<(), String> {
    let mut pins_on_slots: Vec<Vec<Slot>> = state.windows.iter().map(|_| Vec::new()).collect();
    for pin in state.pins.iter() {
        match &pin.pinned {
            Pinned::Prefix(slot) => pins_on_slots[pin.window].push(*slot),
            Pinned::Blocks(slots) => pins_on_slots[pin.window].extend(slots),
        }
    }
    expect(state.pins.iter().count() == state.pins.live(), "live pins are counted wrongly")?;
    for (window, pinned) in state.windows.iter().zip(&pins_on_slots) {
        verify_window(window, pinned)?;
    }
    Ok(())
}

fn verify_window(window: &Window, pinned: &[Slot]) -> Result<(), String> {
    let (mut attached, mut secondary, mut protected, mut by_name, mut by_id, mut chains) =
        (0, 0, 0, 0, 0, 0);
    for (slot, node) in window.nodes.iter() {
        let pins = pinned.iter().filter(|pinned| **pinned == slot).count();
        expect(node.pins as usize == pins, "a node's pins are not those of the pin table")?;
        expect(node.is_attached || node.is_protected(), "a node left behind is not protected")?;
        verify_protected_children(window, slot)?;
        verify_children(window, slot)?;
        by_name += usize::from(node.is_attached);
        if node.is_attached {
            expect(window.find_node(&node.name) == Some(slot), "a node is not found by name")?;
        }
        let Some(block) = &node.block else {
            expect(node.is_attached, "a node left behind holds nothing")?;
            expect(node.pins == 0, "a node without a block is pinned")?;
            expect(node.first_child.is_some(), "a node holds nothing and leads nowhere")?;
            let is_root = node.parent.is_none();
            expect(is_root || !window.is_full_window(), "the full window has a hole")?;
            continue;
        };
        expect(window.find_id(block.id) == Some(slot), "a block is not found by id")?;
        by_id += 1;
        protected += usize::from(node.is_protected());
        if node.is_attached {
            attached += 1;
            secondary += usize::from(block.tier == Tier::Secondary);
            expect(node.parent.is_some(), "an attached block has no parent")?;
            chains += usize::from(node.previous_same_hash.is_none());
            verify_hash_chain(window, slot)?;
        }
    }
    expect(attached == window.attached_blocks(), "attached blocks are counted wrongly")?;
    expect(secondary == window.secondary_blocks(), "secondary blocks are counted wrongly")?;
    expect(protected == window.protected_blocks(), "protected blocks are counted wrongly")?;
    let sizes = [&window.by_name, &window.by_id, &window.by_hash].map(Lookup::len);
    expect(sizes == [by_name, by_id, chains], "a table has entries too many or too few")
}

fn verify_protected_children(window: &Window, slot: Slot) -> Result<(), String> {
    let node = window.node(slot);
    let counts = window.is_full_window() && node.block.is_some();
    let protected_children = window
        .nodes
        .iter()
        .filter(|(_, child)| counts && child.parent == Some(slot) && child.is_protected())
        .count();
    expect(
        node.protected_children as usize == protected_children,
        "protected children are counted wrongly",
    )
}

fn verify_children(window: &Window, slot: Slot) -> Result<(), String> {
    let node = window.node(slot);
    let mut previous = None;
    let mut next = node.first_child;
    let mut count = 0;
    while let Some(child_slot) = next {
        let child = window.node(child_slot);
        expect(child.parent == Some(slot), "a child has another parent")?;
        expect(child.previous_sibling == previous, "siblings disagree")?;
        expect(child.is_attached && node.is_attached, "a list holds what left the tree")?;
        previous = next;
        next = child.next_sibling;
        count += 1;
    }
    expect(node.last_child == previous, "the last child is not the last")?;
    let children =
        window.nodes.iter().filter(|(_, child)| child.is_attached && child.parent == Some(slot));
    expect(children.count() == count, "a child is in no list")
}

fn verify_hash_chain(window: &Window, slot: Slot) -> Result<(), String> {
    let hash = window.block(slot).hash;
    if let Some(next) = window.node(slot).next_same_hash {
        expect(window.block(next).hash == hash, "a chain holds another hash")?;
        expect(window.node(next).previous_same_hash == Some(slot), "a chain's links disagree")?;
    }
    match window.node(slot).previous_same_hash {
        Some(previous) => {
            expect(window.node(previous).next_same_hash == Some(slot), "a chain's links disagree")
        }
        None => expect(window.find_hash(hash) == Some(slot), "a chain's head is not found"),
    }
}
