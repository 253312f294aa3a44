//! What can be broken on purpose in the surroundings of the shipped code, so that it is seen that the
//! simulation finds it. Broken variants of the shipped code itself are in
//! `scripts/simulation_controls.sh`.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// The transport keeps the end of a send to itself, so the source cannot unpin.
    SentIsLost,
    /// The host says that a fence has passed before the bytes are there.
    FenceSkipped,
    /// A worker's clock stands still for long whiles, so late completions are believed.
    ClockStandsStill,
    /// The host takes a block although its eviction was answered *busy*.
    BusyIgnored,
    /// Something writes to a block after its prefetch was quiesced.
    LateWrite,
    /// The host stores other blocks than those whose bytes it wrote.
    WrongBytes,
}

pub const ALL: [Sabotage; 6] = [
    Sabotage::SentIsLost,
    Sabotage::FenceSkipped,
    Sabotage::ClockStandsStill,
    Sabotage::BusyIgnored,
    Sabotage::LateWrite,
    Sabotage::WrongBytes,
];
