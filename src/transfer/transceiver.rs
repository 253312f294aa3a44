//! A transceiver: one rank's end of all transfers, composed of transport, source, destination,
//! metadata and their threads.
//!
//! The host calls it from any thread; nothing here waits for a peer. Dropping it ends its threads,
//! fetches of metadata that are under way included; afterwards the host's memory is not touched any
//! more, and every prefetch has its outcome.

use std::collections::TryReserveError;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};

use super::attempt::{Attempt, HintRelation, Order, Report};
use super::block_owner::{Allocation, BlockOwner, OwnerError};
use super::block_part::BlockShape;
use super::cores::{BadCores, CoreSet};
use super::destination::Destination;
use super::driver::{Command, Mailbox, Parts};
use super::http::server::{Language, ServedState, StateServer};
use super::layout::{self, CacheLayout, ParallelLayout};
use super::loans::{Loans, Refusal};
use super::metadata::MetadataService;
use super::prefetch::{
    Deadlines, LeaseEnd, Outcome, Prefetch, State as PrefetchState, QUIESCE_GRACE_NS,
};
use super::protocol::MAX_BLOCKS_PER_REQUEST;
use super::rank_map::Place;
use super::reason::FailReason;
use super::source::{Identity, Source};
use super::sources::Wanted;
use super::state::{Incarnation, JoinError, RankAddress, State, MAX_NAMESPACE_BYTES};
use super::state_source::StateSource;
use super::transport::Transport;
use crate::clock::Clock;
use crate::plan::{AddressBounds, AllowList, AllowListError, Endpoint};
use crate::poison::Poison;
use crate::reuse::{Policy, Sequence};
use crate::telemetry::attempts::AttemptTrace;
use crate::telemetry::transfer_gauges::TransferGauges;
use crate::telemetry::Metrics;

pub use super::attempt::{HintCheck, Origin};
pub use super::block_owner::TreeAndPool;
pub use super::destination::DestinationLimits;
pub use super::driver::{Driver, Round, Status};
pub use super::source::SourceLimits;

/// What a transceiver is made of.
pub struct TransceiverConfig {
    /// The rank within its worker.
    pub rank: u32,
    /// What its names are about; sequences have the same.
    pub namespace: Vec<u8>,
    /// What its blocks are made of.
    pub cache: CacheLayout,
    /// How the worker's ranks share the model.
    pub parallel: ParallelLayout,
    /// Whose blocks it serves and fills: [`TreeAndPool`], or a host's own.
    pub owner: Arc<dyn BlockOwner>,
    /// What it allows others.
    pub source_limits: SourceLimits,
    /// What it allows itself.
    pub destination_limits: DestinationLimits,
    /// Prefetches that may run at once: those that are not quiesced.
    pub max_prefetches: usize,
}

/// What a transceiver takes from its surroundings.
pub struct Surroundings {
    /// This start's random number.
    pub incarnation: Incarnation,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Marked when a thread panics.
    pub poison: Arc<Poison>,
}

/// Why there is no transceiver.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A value of the layouts cannot be.
    #[error("the layout's {0} cannot be: compare it with the model's configuration")]
    Layout(&'static str),
    /// The owner of blocks cuts sequences differently.
    #[error("the layout says {layout} tokens per block, the owner of blocks {owner}")]
    TokensPerBlock {
        /// The layout's.
        layout: u32,
        /// The owner's.
        owner: usize,
    },
    /// The rank is outside of the worker.
    #[error("rank {rank} is outside of the worker's {rank_count} ranks")]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        rank_count: u32,
    },
    /// The namespace is too long.
    #[error("the namespace is longer than {MAX_NAMESPACE_BYTES} bytes")]
    Namespace,
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
    /// The thread cannot run there.
    #[error("the transfer thread cannot run on these cores: {0}")]
    Cores(#[from] BadCores),
}

impl From<TryReserveError> for CreateError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Why a state was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetStateError {
    /// The entries do not make a state.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// This rank is not among them, or with other contents.
    #[error("this rank's own entry is not among the given ones: gather the entries again")]
    OwnEntryMissing,
}

/// Why the state is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It already is.
    #[error("the state is served already: one server for each transceiver")]
    Already,
    /// The address cannot be listened on.
    #[error("cannot listen there: {0}")]
    Listen(#[from] std::io::Error),
}

/// What to fetch.
pub struct FetchOrder<'a> {
    /// The request's tokens.
    pub sequence: &'a Sequence,
    /// Where the source's state comes from.
    pub origin: Origin,
    /// Blocks that the hint names, and its hash of the last one: they bound the range.
    pub hint: Option<(usize, u64)>,
    /// Leading full blocks that are here already.
    pub first_block: usize,
    /// The attention data parallel rank of the source that holds the blocks; 0 where it has no
    /// such parts.
    pub source_attention_data_rank: u32,
    /// Tokens that may be fetched, from the first; 0: all but the last one.
    pub max_tokens: usize,
    /// Where this rank's blocks go, in order (context ranks deal them out in turn): fresh blocks that nobody else uses until the end.
    pub destination: &'a [i32],
    /// Whether a part is of use.
    pub policy: Policy,
    /// How long each part may take.
    pub deadlines: Deadlines,
}

/// Why a fetch was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// All that could be fetched is here.
    #[error("there is nothing to fetch: everything within the bounds is here already")]
    NothingToFetch,
    /// The sequence is cut differently.
    #[error("the sequence has other tokens per block than the transceiver")]
    TokensPerBlock,
    /// A destination block is not in the pool, is given twice, or there are too few.
    #[error("destination blocks must be in the pool, distinct, and under `strict` one for each block to fetch")]
    BadDestination,
    /// A destination block belongs to another prefetch: it is not quiesced, or its lease has not
    /// ended.
    #[error("a destination block still belongs to another prefetch: wait until that is quiesced, and claim or cancel it")]
    DestinationInUse,
    /// A destination block is in the tree, or still protected by a pin on it.
    #[error("a destination block is held by the reuse tree: evict it first, or take a fresh one")]
    DestinationHeld,
    /// The owner has no blocks to set aside.
    #[error("the owner of blocks has none free now: try again later")]
    NoBlocks,
    /// Too many prefetches, or too many blocks.
    #[error("a limit is reached: too many prefetches at once, or too many blocks in one")]
    Limit,
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
    /// The transceiver is at its end.
    #[error("the transceiver takes no more: it was stopped by a fault")]
    Closed,
}

impl From<TryReserveError> for BeginError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl From<Refusal> for BeginError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Limit => Self::Limit,
            Refusal::Repeated => Self::BadDestination,
            Refusal::Lent => Self::DestinationInUse,
            Refusal::NoMemory => Self::NoMemory,
        }
    }
}

/// A copy, for which memory is asked.
fn copied<T: Copy>(values: &[T]) -> Result<Vec<T>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// One rank's end of all transfers.
pub struct Transceiver {
    incarnation: Incarnation,
    namespace: Vec<u8>,
    tokens_per_block: usize,
    /// This rank among those that deal blocks out in turn, and how many they are.
    context: (usize, usize),
    owner: Arc<dyn BlockOwner>,
    transport_name: &'static str,
    rank_entry: Arc<Vec<u8>>,
    served_state: ServedState,
    allow_list: Arc<RwLock<AllowList>>,
    loans: Arc<Loans>,
    status: Arc<Mutex<Status>>,
    last_sequence: AtomicU64,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    poison: Arc<Poison>,
    http: Mutex<Option<StateServer>>,
    tcp: Mutex<Option<StateServer>>,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
    // Last: its threads may still answer the one above.
    _states: Arc<dyn StateSource>,
}

impl Transceiver {
    /// Starts a transceiver over `transport`, with a thread that drives it.
    pub fn start(
        config: TransceiverConfig,
        transport: Box<dyn Transport>,
        surroundings: Surroundings,
    ) -> Result<Self, CreateError> {
        Self::start_on(&[], config, transport, surroundings)
    }

    /// As [`Transceiver::start`], with the thread on some of the cores that the caller may use; with
    /// none named, on all of them.
    pub fn start_on(
        cores: &[u32],
        config: TransceiverConfig,
        transport: Box<dyn Transport>,
        surroundings: Surroundings,
    ) -> Result<Self, CreateError> {
        let cores = (!cores.is_empty()).then(|| CoreSet::new(cores)).transpose()?;
        let allow_list = Arc::new(RwLock::new(AllowList::new()));
        let states = Arc::new(MetadataService::new(
            Arc::clone(&allow_list),
            Arc::clone(&surroundings.clock),
            Arc::clone(&surroundings.poison),
        ));
        let (mut transceiver, driver) =
            Self::compose(config, transport, states, allow_list, surroundings)?;
        let thread = std::thread::Builder::new()
            .name("kvhints-transfer".to_owned())
            .spawn(move || driver.live())
            .map_err(CreateError::Thread)?;
        let pinned = cores.map_or(Ok(()), |cores| cores.pin(&thread));
        // From here on dropping the transceiver ends the thread.
        transceiver.thread = Some(thread);
        pinned?;
        Ok(transceiver)
    }

    /// A transceiver without a thread: whoever holds the driver drives it. The driver may outlive
    /// the transceiver; the host's memory must outlive both.
    pub fn without_thread(
        config: TransceiverConfig,
        transport: Box<dyn Transport>,
        states: Arc<dyn StateSource>,
        surroundings: Surroundings,
    ) -> Result<(Self, Driver), CreateError> {
        let allow_list = Arc::new(RwLock::new(AllowList::new()));
        Self::compose(config, transport, states, allow_list, surroundings)
    }

    fn compose(
        config: TransceiverConfig,
        mut transport: Box<dyn Transport>,
        states: Arc<dyn StateSource>,
        allow_list: Arc<RwLock<AllowList>>,
        surroundings: Surroundings,
    ) -> Result<(Self, Driver), CreateError> {
        check(&config)?;
        if let Some(memory) = config.owner.whole() {
            transport.register(memory);
        }
        let Surroundings { incarnation, clock, metrics, poison } = surroundings;
        let own_rank = RankAddress {
            rank: config.rank,
            incarnation,
            transport: transport.name().to_owned(),
            address: transport.address().to_vec(),
            block_bytes: config.owner.block_bytes() as u64,
        };
        let own_state = State {
            namespace: config.namespace.clone(),
            cache: config.cache.clone(),
            parallel: config.parallel.clone(),
            ranks: vec![own_rank],
        };
        let rank_entry = Arc::new(own_state.encode()?);
        // A worker of one rank is complete at once.
        let is_complete = config.parallel.rank_count() == Some(1);
        let served = is_complete.then(|| Arc::clone(&rank_entry));
        let loans = Arc::new(Loans::new(config.max_prefetches));
        let status = Arc::new(Mutex::new(Status::default()));
        let mailbox = Arc::new(Mailbox::new(transport.waker()));
        let identity = Arc::new(Identity {
            incarnation,
            namespace: config.namespace.clone(),
            layout_digest: layout::digest(&config.cache, &config.parallel),
            shape: own_shape(&config),
        });
        let place = Place::of(config.rank, &config.parallel);
        let context = (place.context as usize, config.parallel.context as usize);
        let tokens_per_block = config.cache.tokens_per_block as usize;
        let transport_name = transport.name();
        let parts = Parts {
            transport,
            source: Source::new(
                Arc::clone(&identity),
                Arc::clone(&config.owner),
                config.source_limits,
                Arc::clone(&metrics),
            ),
            destination: Destination::new(
                identity,
                config.cache,
                config.parallel,
                config.rank,
                Arc::clone(&config.owner),
                config.destination_limits,
                Arc::clone(&allow_list),
            ),
            mailbox: Arc::clone(&mailbox),
            states: Arc::clone(&states),
            status: Arc::clone(&status),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            gauges: TransferGauges::new(Arc::clone(&metrics)),
            wires_of: Default::default(),
        };
        let driver = Driver::new(parts, Arc::clone(&poison));
        let transceiver = Self {
            incarnation,
            namespace: config.namespace,
            tokens_per_block,
            context,
            owner: config.owner,
            transport_name,
            rank_entry,
            served_state: Arc::new(RwLock::new(served)),
            allow_list,
            loans,
            status,
            last_sequence: AtomicU64::new(0),
            clock,
            metrics,
            poison,
            http: Mutex::new(None),
            tcp: Mutex::new(None),
            mailbox,
            thread: None,
            _states: states,
        };
        Ok((transceiver, driver))
    }

    /// This start's number.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What the transport is called.
    pub fn transport_name(&self) -> &'static str {
        self.transport_name
    }

    /// Lets states be fetched from an endpoint, at addresses within `bounds`.
    pub fn allow(&self, endpoint: Endpoint, bounds: AddressBounds) -> Result<(), AllowListError> {
        self.allow_list.write().allow(endpoint, bounds)
    }

    /// This rank's entry of the worker's state.
    pub fn rank_entry(&self) -> &[u8] {
        &self.rank_entry
    }

    /// Makes the worker's state out of the entries of all its ranks, this one's among them.
    pub fn set_state(&self, entries: &[&[u8]]) -> Result<(), SetStateError> {
        // Its very bytes: with them, and all entries alike, namespace and layout are this rank's.
        if !entries.is_empty() && !entries.contains(&self.rank_entry()) {
            return Err(SetStateError::OwnEntryMissing);
        }
        let state = State::join(entries)?;
        *self.served_state.write() = Some(Arc::new(state.encode().map_err(JoinError::from)?));
        Ok(())
    }

    /// The worker's state; `None` until it is set, but for a worker of one rank.
    pub fn state(&self) -> Option<Arc<Vec<u8>>> {
        self.served_state.read().clone()
    }

    /// Serves the worker's state over HTTP; where.
    pub fn serve_http(&self, address: SocketAddr) -> Result<SocketAddr, ServeError> {
        self.serve(&self.http, address, Language::Http)
    }

    /// Serves the worker's state over plain TCP, for `tcp` endpoints; where.
    pub fn serve_tcp(&self, address: SocketAddr) -> Result<SocketAddr, ServeError> {
        self.serve(&self.tcp, address, Language::Tcp)
    }

    fn serve(
        &self,
        place: &Mutex<Option<StateServer>>,
        address: SocketAddr,
        language: Language,
    ) -> Result<SocketAddr, ServeError> {
        let mut place = place.lock();
        if place.is_some() {
            return Err(ServeError::Already);
        }
        let state = Arc::clone(&self.served_state);
        let server = StateServer::start(address, language, state, Arc::clone(&self.poison))?;
        let address = server.address();
        *place = Some(server);
        Ok(address)
    }

    /// What it is doing.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Prefetches that are not quiesced.
    pub fn prefetches_in_flight(&self) -> usize {
        self.loans.in_use()
    }

    /// Blocks that belong to prefetches, those on a lease too.
    pub fn blocks_lent(&self) -> usize {
        self.loans.blocks()
    }

    /// Has the owner set blocks aside for an order that names none.
    pub fn set_aside(&self, order: &FetchOrder<'_>) -> Result<Allocation, BeginError> {
        let (wanted, _) = self.wanted_blocks(order, usize::MAX)?;
        Allocation::new(&self.owner, wanted.count).map_err(|error| match error {
            OwnerError::Busy => BeginError::NoBlocks,
            OwnerError::Unsupported => BeginError::BadDestination,
        })
    }

    /// Begins to fetch blocks. Does not wait for anything.
    pub fn begin(&self, order: &FetchOrder<'_>) -> Result<PrefetchHandle, BeginError> {
        let sequence = order.sequence;
        if sequence.tokens_per_block() != self.tokens_per_block {
            return Err(BeginError::TokensPerBlock);
        }
        let (wanted, covered_blocks) = self.wanted_blocks(order, order.destination.len())?;
        let end = wanted.first + (wanted.count - 1) * wanted.step + 1;
        let hint = order.hint.map_or(HintRelation::Unknown, |(blocks, last_hash)| {
            HintRelation::new(sequence.block_hashes(), blocks, last_hash)
        });
        // All memory before blocks are lent.
        let destination = copied(&order.destination[..wanted.count])?;
        let full_end = end.min(sequence.full_block_count());
        let mut names = Vec::new();
        names.try_reserve_exact(end)?;
        names.extend_from_slice(&sequence.names()[..full_end]);
        let full_hashes = &sequence.block_hashes()[..full_end];
        let mut hashes = Vec::new();
        hashes.try_reserve_exact(wanted.count)?;
        hashes.extend(full_hashes.iter().skip(wanted.first).step_by(wanted.step));
        let mut tail = None;
        if end > full_end {
            tail = sequence.text_tail()?;
            // The last block is short: its identity is not kept.
            names.extend(sequence.name(full_end));
            hashes.extend(sequence.block_hash(full_end));
        }
        self.check_destination(&destination)?;
        let loan = self.loans.lend(&destination)?;
        let now_ns = self.clock.monotonic_ns();
        // Begun by the command below, which fetches the metadata.
        let requested = wanted.count as u32;
        let (mut prefetch, _) = Prefetch::begin(now_ns, requested, order.policy, order.deadlines);
        let number = self.last_sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = destination.len() as u64 * self.owner.block_bytes() as u64;
        prefetch.shown_by(AttemptTrace::begin(&self.metrics, number, bytes, now_ns));
        let hold_margin_ns = 2 * QUIESCE_GRACE_NS;
        let attempt = Arc::new(Attempt::new(
            Order {
                sequence: number,
                origin: order.origin.clone(),
                names,
                tail,
                token_count: sequence.token_count(),
                skipped_blocks: order.first_block,
                wanted,
                covered_blocks,
                source_attention_data_rank: order.source_attention_data_rank,
                hashes,
                destination,
                policy: order.policy,
                hold_time_ns: order.deadlines.transfer_ns.saturating_add(hold_margin_ns),
                hint,
            },
            prefetch,
            loan,
            self.owner.block_bytes(),
            Arc::clone(&self.metrics),
        ));
        let refusal = if !sequence.is_servable_to_peers() {
            Some(FailReason::NotShareable)
        } else if sequence.namespace() != self.namespace {
            Some(FailReason::NamespaceMismatch)
        } else {
            None
        };
        if let Some(reason) = refusal {
            attempt.shut_down(now_ns, reason);
        } else if self.mailbox.send(Command::Begin(Arc::clone(&attempt))).is_err() {
            attempt.shut_down(now_ns, FailReason::Fault);
            return Err(BeginError::Closed);
        }
        let mailbox = Arc::clone(&self.mailbox);
        Ok(PrefetchHandle { attempt, mailbox, clock: Arc::clone(&self.clock) })
    }

    /// Which blocks the bounds leave to fetch, where there is room for so many, and the prefix that
    /// is covered when all are here.
    fn wanted_blocks(
        &self,
        order: &FetchOrder<'_>,
        room: usize,
    ) -> Result<(Wanted, usize), BeginError> {
        let token_count = order.sequence.token_count();
        let usable_tokens = match order.max_tokens {
            // A context request computes at least its last token itself.
            0 => token_count.saturating_sub(1),
            max_tokens => max_tokens.min(token_count),
        };
        let full_blocks = usable_tokens / self.tokens_per_block;
        let (index, step) = self.context;
        let first = order.first_block;
        // The first block from there on that is dealt to this rank.
        let first = first.saturating_add((index + step - first % step) % step);
        let up_to = |blocks: usize| {
            let end = order.hint.map_or(blocks, |(hinted, _)| blocks.min(hinted));
            (end, end.saturating_sub(first).div_ceil(step))
        };
        let (mut end, mut count) = up_to(full_blocks);
        if usable_tokens == token_count {
            // The sequence's short last block, if there is room for it.
            let (all_end, all_count) = up_to(order.sequence.block_count());
            if all_count > count && room >= all_count {
                (end, count) = (all_end, all_count);
            }
        }
        if count == 0 {
            return Err(BeginError::NothingToFetch);
        }
        if end > MAX_BLOCKS_PER_REQUEST {
            return Err(BeginError::Limit);
        }
        match (order.policy, room) {
            (_, room) if room >= count => Ok((Wanted { first, step, count }, end)),
            (Policy::BestEffort, room) if room > 0 => {
                Ok((Wanted { first, step, count: room }, first + room * step))
            }
            _ => Err(BeginError::BadDestination),
        }
    }

    /// Whether the host may lend these blocks: they are the owner's, and it does not serve them to
    /// others. What it serves is shared, and may be on its way to a peer at this moment.
    fn check_destination(&self, destination: &[i32]) -> Result<(), BeginError> {
        if !destination.iter().all(|id| self.owner.contains(*id)) {
            return Err(BeginError::BadDestination);
        }
        if self.owner.serves_any(destination) {
            return Err(BeginError::DestinationHeld);
        }
        Ok(())
    }

    /// In a forked child: the threads are the parent's, so there is nobody to wait for. Leaks what
    /// they would have freed.
    pub fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for Transceiver {
    fn drop(&mut self) {
        drop(self.http.lock().take());
        drop(self.tcp.lock().take());
        self.mailbox.stop();
        if let Some(thread) = self.thread.take() {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}

fn check(config: &TransceiverConfig) -> Result<(), CreateError> {
    let CacheLayout { tokens_per_block, .. } = config.cache;
    config.cache.validate().map_err(CreateError::Layout)?;
    let rank_count = config.parallel.validate().map_err(CreateError::Layout)?;
    if config.rank >= rank_count {
        return Err(CreateError::Rank { rank: config.rank, rank_count });
    }
    if config.namespace.len() > MAX_NAMESPACE_BYTES {
        return Err(CreateError::Namespace);
    }
    if config.parallel.layers(config.cache.kv_heads_per_layer.len()).is_none() {
        return Err(CreateError::Layout(
            "layers per pipeline rank (they are all layers, in order)",
        ));
    }
    let owner = config.owner.tokens_per_block();
    if tokens_per_block as usize != owner {
        return Err(CreateError::TokensPerBlock { layout: tokens_per_block, owner });
    }
    Ok(())
}

/// How this rank's blocks can be cut, if they can.
fn own_shape(config: &TransceiverConfig) -> Option<BlockShape> {
    let layers = config.parallel.layers(config.cache.kv_heads_per_layer.len())?;
    let place = Place::of(config.rank, &config.parallel);
    let layers = layers.get(place.pipeline as usize)?.clone();
    let shape = BlockShape::new(&config.cache, layers)?;
    // With anything in between, it is not known where heads lie.
    (shape.block_bytes() == config.owner.block_bytes()).then_some(shape)
}

/// The host's hold on one attempt. Dropping it cancels; blocks are not written afterwards.
pub struct PrefetchHandle {
    attempt: Arc<Attempt>,
    mailbox: Arc<Mailbox>,
    clock: Arc<dyn Clock>,
}

impl PrefetchHandle {
    /// The attempt's number, as profiles, logs and the status show it.
    pub fn number(&self) -> u64 {
        self.attempt.order.sequence
    }

    /// State and outcome now.
    pub fn poll(&self) -> (PrefetchState, Option<Outcome>) {
        self.attempt.poll(self.clock.monotonic_ns())
    }

    /// Whether no access to the destination blocks is possible any more.
    pub fn is_quiesced(&self) -> bool {
        self.attempt.is_quiesced()
    }

    /// Commits what was claimed to the owner that set it aside; the rest goes back as it is.
    pub fn commit(&self, mut allocation: Allocation, blocks: u32) {
        let order = &self.attempt.order;
        let Wanted { first, step, .. } = order.wanted;
        allocation.commit(&order.names, first, step, blocks as usize);
    }

    /// How it went so far.
    pub fn report(&self) -> Report {
        self.attempt.report()
    }

    /// How the lease on delivered blocks ended, once it did.
    pub fn lease_end(&self) -> Option<LeaseEnd> {
        self.attempt.lease_end()
    }

    /// The end, in tokens from the sequence's first, of what is here after `blocks` were delivered.
    pub fn token_end(&self, blocks: u32, tokens_per_block: usize) -> usize {
        let Wanted { first, step, count } = self.attempt.order.wanted;
        let end = match blocks as usize {
            // Blocks after the last one are other ranks'.
            blocks if blocks == count => self.attempt.order.covered_blocks,
            blocks => first + blocks * step,
        };
        // The last block may be short.
        (end * tokens_per_block).min(self.attempt.order.token_count)
    }

    /// Asks for an end. The outcome follows; one that is already there stays.
    pub fn cancel(&self) {
        if self.attempt.ask_cancel(self.clock.monotonic_ns()) {
            // A thread that takes no more has ended the attempt itself.
            let _ = self.mailbox.send(Command::Cancel(self.attempt.order.sequence));
        }
    }

    /// Takes the delivered blocks; how many. `None` when there are none, or they were taken, or
    /// waited too long.
    pub fn claim(&self) -> Option<u32> {
        self.attempt.claim(self.clock.monotonic_ns())
    }
}

impl Drop for PrefetchHandle {
    fn drop(&mut self) {
        self.attempt.let_go();
        self.cancel();
    }
}
