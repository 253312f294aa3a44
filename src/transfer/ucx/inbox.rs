//! The messages of one connection in the order in which they were sent.
//!
//! UCX delivers what is whole at once and offers of longer things early, so a long message is
//! overtaken by what was sent after it. Each message has a number; here they wait for their turn.
//!
//! Guards: a peer that skips, repeats or floods numbers is found, not waited for without end.

use std::collections::VecDeque;
use std::ffi::c_void;

use super::frame::Kind;
use super::mailbox::Payload;

/// Most messages that wait for an earlier one.
const MAX_WAITING: usize = 1 << 16;

/// Most bytes of messages that wait for an earlier one.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// A message that can be told to the caller when its turn comes.
pub(super) enum Item {
    Message(Vec<u8>),
    LongHeader(Vec<u8>),
    /// Of that kind, between transports of one machine, and its number.
    Neighbour(Kind, u64, Vec<u8>),
    Data {
        header: Vec<u8>,
        payload: Payload,
        len: usize,
    },
    Bye,
}

/// The place of one message.
pub(super) enum Slot {
    /// Not arrived.
    Missing,
    /// A long message or header, to be fetched when its turn comes: one at a time bounds memory.
    Offered { kind: Kind, descriptor: *mut c_void, len: usize },
    /// Being fetched.
    Fetching(Kind),
    /// Here.
    Ready(Item),
}

/// See the module.
pub(super) struct Inbox {
    /// The number of the first slot.
    next: u64,
    slots: VecDeque<Slot>,
    waiting_bytes: usize,
}

impl Slot {
    /// Bytes of ours or UCX's that wait with it.
    fn bytes(&self) -> usize {
        match self {
            Self::Ready(
                Item::Message(bytes) | Item::LongHeader(bytes) | Item::Neighbour(_, _, bytes),
            ) => bytes.len(),
            Self::Ready(Item::Data { payload, len, .. }) if !payload.is_offer() => *len,
            _ => 0,
        }
    }
}

impl Inbox {
    /// An inbox whose first message has that number.
    pub fn starting_at(next: u64) -> Self {
        Self { next, slots: VecDeque::new(), waiting_bytes: 0 }
    }

    /// Puts an arrived message into its place. `Err` gives it back: the peer broke the rules.
    pub fn put(&mut self, sequence: u64, slot: Slot) -> Result<(), Slot> {
        let place = sequence.wrapping_sub(self.next);
        let bytes = slot.bytes();
        if place >= MAX_WAITING as u64 || self.waiting_bytes + bytes > MAX_WAITING_BYTES {
            return Err(slot);
        }
        let place = place as usize;
        while self.slots.len() <= place {
            self.slots.push_back(Slot::Missing);
        }
        if !matches!(self.slots[place], Slot::Missing) {
            return Err(slot);
        }
        self.slots[place] = slot;
        self.waiting_bytes += bytes;
        Ok(())
    }

    /// The message whose turn it is, if it is ready.
    pub fn take_ready(&mut self) -> Option<Item> {
        let bytes = match self.slots.front() {
            Some(slot @ Slot::Ready(_)) => slot.bytes(),
            _ => return None,
        };
        self.waiting_bytes -= bytes;
        self.next = self.next.wrapping_add(1);
        match self.slots.pop_front() {
            Some(Slot::Ready(item)) => Some(item),
            _ => None,
        }
    }

    /// The message whose turn it is, if it has to be fetched; it then counts as being fetched.
    pub fn take_offered(&mut self) -> Option<(Kind, *mut c_void, usize)> {
        let front = self.slots.front_mut()?;
        let Slot::Offered { kind, descriptor, len } = *front else { return None };
        *front = Slot::Fetching(kind);
        Some((kind, descriptor, len))
    }

    /// What was being fetched is here.
    pub fn fetched(&mut self, bytes: Vec<u8>) {
        if let Some(front) = self.slots.front_mut() {
            if let Slot::Fetching(kind) = *front {
                self.waiting_bytes += bytes.len();
                *front = Slot::Ready(match kind {
                    Kind::LongHeader => Item::LongHeader(bytes),
                    Kind::Message => Item::Message(bytes),
                    kind => Item::Neighbour(kind, self.next, bytes),
                });
            }
        }
    }

    /// Empties the inbox for good: everything in it that UCX left with us.
    pub fn drain(&mut self) -> Vec<*mut c_void> {
        self.waiting_bytes = 0;
        self.slots.drain(..).filter_map(Slot::into_descriptor).collect()
    }
}

impl Slot {
    /// What UCX left with us and wants back.
    pub fn into_descriptor(self) -> Option<*mut c_void> {
        match self {
            Self::Offered { descriptor, .. } => Some(descriptor),
            Self::Ready(Item::Data { payload: Payload::Descriptor { data, .. }, .. }) => Some(data),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Slot {
        Slot::Ready(Item::Message(text.as_bytes().to_vec()))
    }

    fn taken(inbox: &mut Inbox) -> Option<Vec<u8>> {
        inbox.take_ready().map(|item| match item {
            Item::Message(bytes) => bytes,
            _ => panic!("only messages were put"),
        })
    }

    #[test]
    fn messages_come_out_in_order_however_they_arrive() {
        let mut inbox = Inbox::starting_at(5);
        assert!(inbox.put(7, message("c")).is_ok());
        assert!(inbox.put(6, message("b")).is_ok());
        assert_eq!(taken(&mut inbox), None);
        assert!(inbox.put(5, message("a")).is_ok());
        for expected in ["a", "b", "c"] {
            assert_eq!(taken(&mut inbox).as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(taken(&mut inbox), None);
    }

    #[test]
    fn a_fetched_message_holds_back_what_was_sent_after_it() {
        let mut inbox = Inbox::starting_at(0);
        let descriptor = std::ptr::without_provenance_mut(64);
        let offer = Slot::Offered { kind: Kind::Message, descriptor, len: 4 };
        assert!(inbox.put(0, offer).is_ok());
        assert!(inbox.put(1, message("after")).is_ok());
        assert_eq!(taken(&mut inbox), None);
        assert_eq!(inbox.take_offered(), Some((Kind::Message, descriptor, 4)));
        assert_eq!(inbox.take_offered(), None, "it is being fetched");
        inbox.fetched(b"long".to_vec());
        assert_eq!(taken(&mut inbox).as_deref(), Some(&b"long"[..]));
        assert_eq!(taken(&mut inbox).as_deref(), Some(&b"after"[..]));
    }

    #[test]
    fn numbers_used_before_or_far_ahead_are_refused() {
        let mut inbox = Inbox::starting_at(5);
        assert!(inbox.put(4, message("past")).is_err());
        assert!(inbox.put(6, message("once")).is_ok());
        assert!(inbox.put(6, message("twice")).is_err());
        assert!(inbox.put(5 + MAX_WAITING as u64, message("far")).is_err());
        assert!(inbox.put(4 + MAX_WAITING as u64, message("last place")).is_ok());
    }

    #[test]
    fn bytes_that_wait_are_bounded() {
        let mut inbox = Inbox::starting_at(0);
        let data = |len| {
            let payload =
                Payload::Descriptor { data: std::ptr::without_provenance_mut(64), is_offer: false };
            Slot::Ready(Item::Data { header: Vec::new(), payload, len })
        };
        assert!(inbox.put(1, data(MAX_WAITING_BYTES)).is_ok());
        let refused = inbox.put(2, data(1)).expect_err("over the bound");
        assert!(refused.into_descriptor().is_some(), "the refused one can be released");
        assert_eq!(inbox.drain().len(), 1);
        assert!(inbox.put(3, data(MAX_WAITING_BYTES)).is_ok(), "nothing waits any more");
    }
}
