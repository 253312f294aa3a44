//! `kvh_transceiver_t`: one rank's end of all block transfers.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::args::{self, Params};
use super::block_owner::kvh_block_owner_t;
use super::buffer::kvh_buffer_t;
use super::context::{kvh_context_t, Context};
use super::error::{explain, kvh_error_t};
use super::guard;
use super::handle::{self, Handle, Owned};
use super::key_ring::{kvh_key_ring_t, KeyRingObject};
use super::loopback::{self, kvh_loopback_t};
use super::reuse_tree::kvh_reuse_tree_t;
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use super::types::{kvh_bytes_t, kvh_str_t};
use crate::hint::signature::Code;
use crate::plan::{AddressBounds, AddressBoundsError, AllowListError, Endpoint};
use crate::telemetry::log::{Event, Value};
use crate::transfer::block_owner::BlockOwner;
use crate::transfer::device::cuda::CudaDriver;
use crate::transfer::device::driver::DeviceError;
use crate::transfer::device::pool::DevicePool;
use crate::transfer::gate::{Gate, Peers};
use crate::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use crate::transfer::memory::BlockPool;
use crate::transfer::session::SessionKeys;
use crate::transfer::state::{Incarnation, JoinError};
use crate::transfer::transceiver::{
    CreateError, DestinationLimits, ServeError, SetStateError, SourceLimits, Surroundings,
    Transceiver, TransceiverConfig, TreeAndPool,
};
use crate::transfer::transport::{Transport, TransportError};
use crate::transfer::ucx::{UcxOptions, UcxTransport};

/// One rank's end of all block transfers: it serves the blocks of its reuse tree to other workers,
/// and fetches blocks of theirs. It has threads of its own ("kvhints-transfer", "kvhints-metadata",
/// with kvh_transceiver_serve_http also "kvhints-http"), so transfers go on and deadlines hold
/// whether or not the host calls. No call waits for a peer. All calls but destroy may be made
/// concurrently.
///
/// With peer_keys, peers prove to each other that they hold a key before any name is answered; what
/// travels is not encrypted. Without, whoever is served (unauthenticated_peers) may fetch blocks by
/// name, and the context's log says so once ("peers_unauthenticated"). Keep transports on networks that only workers reach: UCX may end the process when anybody
/// else writes to its ports.
pub struct kvh_transceiver_t {
    _opaque: [u8; 0],
}

/// A transceiver and the context it belongs to.
pub struct TransceiverObject {
    pub(crate) transceiver: Transceiver,
    pub(crate) context: Arc<Context>,
    /// Whether the host's own functions set blocks aside.
    pub(crate) has_host_owner: bool,
}

impl Handle for kvh_transceiver_t {
    type Object = TransceiverObject;
}
impl Owned for kvh_transceiver_t {}

/// transport: within this process, over a kvh_loopback_t.
pub const KVH_TRANSPORT_LOOPBACK: u32 = 1;
/// transport: UCX, opened at run time.
pub const KVH_TRANSPORT_UCX: u32 = 2;

/// pool_memory: memory of the host's processors.
pub const KVH_MEMORY_HOST: u32 = 1;
/// pool_memory: memory of one CUDA device. KVH_ERR_UNSUPPORTED where there is no driver or device.
pub const KVH_MEMORY_CUDA: u32 = 2;

/// unauthenticated_peers: processes of this machine, where only these can reach the transport
/// (KVH_TRANSPORT_LOOPBACK, or a listen_address of this machine alone); else nobody.
pub const KVH_PEERS_OF_THIS_MACHINE: u32 = 0;
/// unauthenticated_peers: whoever reaches the transport.
pub const KVH_PEERS_ANYBODY: u32 = 1;

/// data_type: IEEE half precision.
pub const KVH_DATA_FLOAT16: u32 = 1;
/// data_type: bfloat16.
pub const KVH_DATA_BFLOAT16: u32 = 2;
/// data_type: IEEE single precision.
pub const KVH_DATA_FLOAT32: u32 = 3;
/// data_type: 8-bit float, 4 exponent bits.
pub const KVH_DATA_FLOAT8_E4M3: u32 = 4;
/// data_type: 8-bit float, 5 exponent bits.
pub const KVH_DATA_FLOAT8_E5M2: u32 = 5;
/// data_type: 8-bit integer with scales.
pub const KVH_DATA_INT8: u32 = 6;
/// data_type: 4-bit float with block scales.
pub const KVH_DATA_NVFP4: u32 = 7;

/// attention: keys and values for each KV head.
pub const KVH_ATTENTION_KEYS_AND_VALUES: u32 = 1;
/// attention: one latent vector (MLA).
pub const KVH_ATTENTION_LATENT: u32 = 2;

/// What a transceiver is made of. Limits that are 0 have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_transceiver_params_t {
    /// sizeof(kvh_transceiver_params_t).
    pub struct_size: usize,
    /// KVH_TRANSPORT_*.
    pub transport: u32,
    /// This rank within its worker.
    pub rank: u32,
    /// The hub, with KVH_TRANSPORT_LOOPBACK; else NULL.
    pub loopback: *const kvh_loopback_t,
    /// With KVH_TRANSPORT_UCX, which kinds of wires UCX may use, such as "tcp"; empty:
    /// UCX and its environment decide.
    pub wires: kvh_str_t,
    /// With KVH_TRANSPORT_UCX, which network devices, such as "lo"; empty: as above.
    pub network_devices: kvh_str_t,
    /// With KVH_TRANSPORT_UCX, the IPv4 address of this machine at which peers connect, told to them
    /// in the state: one that an interface has, which network_devices allow. Empty: 127.0.0.1, so
    /// that only processes of this machine are served. A wildcard (0.0.0.0) and IPv6
    /// are refused.
    pub listen_address: kvh_str_t,
    /// What names are about: model and weights revision, data type, position encoding. The same as
    /// in sequences, and in all workers that exchange blocks.
    pub namespace_bytes: kvh_bytes_t,
    /// Tensor, pipeline and context parallel size; 0 means 1. A worker has the product of them as
    /// ranks.
    pub tensor_parallel: u32,
    /// See tensor_parallel.
    pub pipeline_parallel: u32,
    /// See tensor_parallel.
    pub context_parallel: u32,
    /// Attention data parallel size; 0 means 1.
    pub attention_data_parallel: u32,
    /// Layers of each pipeline rank; none: shared out evenly.
    pub layers_per_pipeline_rank: *const u32,
    /// Length of layers_per_pipeline_rank.
    pub pipeline_rank_count: usize,
    /// For each layer of the worker, those of all its pipeline ranks in order, the KV heads that one
    /// rank has of it. The same on all ranks.
    pub kv_heads_per_layer: *const u32,
    /// Layers of the worker; not 0.
    pub layer_count: usize,
    /// Numbers for each head and token; not 0.
    pub head_size: u32,
    /// KVH_DATA_*.
    pub data_type: u32,
    /// KVH_ATTENTION_*.
    pub attention: u32,
    /// The attention window whose blocks are exchanged: one of the tree's.
    pub window: i32,
    /// KVH_MEMORY_*: where the pool lies.
    pub pool_memory: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The pool of blocks: block id i lies at pool_base + i * block_bytes (a tree in arbiter mode
    /// has slots as ids); with KVH_MEMORY_CUDA an address of the device. Stays valid until
    /// kvh_transceiver_destroy returned. The library reads blocks that are pinned in the tree, and writes
    /// blocks lent to a prefetch; no others.
    pub pool_base: *mut c_void,
    /// Bytes of one block. Between workers that share heads and layers out alike, blocks move as
    /// they are, padding and scales included. Between others they are cut, for which a block must be
    /// [layer][keys, values][head][token][number] with nothing in between.
    pub block_bytes: usize,
    /// Blocks in the pool.
    pub block_count: usize,
    /// Destinations that may be connected (default 64).
    pub max_destinations: u32,
    /// Their requests that may be served at once (default 256); one destination gets at most a
    /// quarter of them.
    pub max_requests: u32,
    /// Bytes handed to the transport for them and not yet taken (default 64 MiB). A destination that
    /// has none of them may always be sent one run of blocks, about 1 MiB.
    pub max_bytes_in_flight: u64,
    /// Longest time that blocks stay pinned for one request (default 60 s).
    pub max_hold_time_ns: u64,
    /// Sources that may be connected (default 64).
    pub max_sources: u32,
    /// Prefetches that may run at once (default 256).
    pub max_prefetches: u32,
    /// Bytes received and not yet verified (default 64 MiB).
    pub max_staging_bytes: u64,
    /// Keys of which each peer must prove to have one before it is heard, and this side proves to
    /// have peer_key_id. NULL: none, see unauthenticated_peers. Kept as long as the transceiver.
    pub peer_keys: *const kvh_key_ring_t,
    /// With peer_keys, the id of one of them; else empty.
    pub peer_key_id: kvh_str_t,
    /// KVH_PEERS_*: without peer_keys, who is served.
    pub unauthenticated_peers: u32,
    /// Must be 0.
    pub reserved_2: u32,
    /// The host's own block management; NULL: a tree and a pool. With it there is no tree, and
    /// pool_base, block_bytes and block_count are 0. Kept as long as the transceiver.
    pub block_owner: *const kvh_block_owner_t,
    /// With KVH_MEMORY_CUDA, the stream (CUstream, cudaStream_t) of the pool's device in which the
    /// library copies, none that is being captured; NULL: one of its own, which waits for no other.
    /// Blocks are delivered, and pins end, only when their copies are done. Else NULL.
    pub cuda_stream: *mut c_void,
    /// With KVH_MEMORY_CUDA, an event (CUevent, cudaEvent_t), or NULL. Each copy begins after what the
    /// event was recorded for last. Record it after the work that writes blocks and before they are
    /// stored in the tree, and after the work that last uses blocks and before they are lent to a
    /// prefetch, and again each time. Without it blocks are stored, and lent, only when the device is
    /// done with them, unless cuda_stream sees to the order. Stream and event stay valid until
    /// kvh_transceiver_destroy returned. Else NULL.
    pub cuda_ready_event: *mut c_void,
    /// The cores on which the thread that moves blocks, "kvhints-transfer", runs: some of those that
    /// the process may use. None: wherever the system puts it.
    pub thread_cores: *const u32,
    /// Length of thread_cores.
    pub thread_core_count: usize,
}

// SAFETY: repr(C), struct_size first, only integers, raw pointers and structs of these.
unsafe impl Params for kvh_transceiver_params_t {
    const MIN_SIZE: usize = offset_of!(Self, peer_keys);
}

/// What a transceiver is doing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_transceiver_status_t {
    /// sizeof(kvh_transceiver_status_t).
    pub struct_size: usize,
    /// The transport's name; static.
    pub transport: *const c_char,
    /// Sources connected to.
    pub sources: usize,
    /// Destinations that asked for something and are still connected.
    pub destinations: usize,
    /// Requests of destinations being served.
    pub requests_in_flight: usize,
    /// Prefetches that are not quiesced.
    pub prefetches_in_flight: usize,
}

// SAFETY: repr(C), struct_size first, only integers and raw pointers.
unsafe impl Params for kvh_transceiver_status_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// A status, and words for whoever asked for them.
type Explained<T> = Result<T, (kvh_status, String)>;

fn wrong(what: impl Into<String>) -> (kvh_status, String) {
    (KVH_ERR_INVALID_ARGUMENT, what.into())
}

impl From<&CreateError> for kvh_status {
    fn from(error: &CreateError) -> Self {
        match error {
            CreateError::Thread(_) => KVH_ERR_LIMIT,
            CreateError::NoMemory => KVH_ERR_NO_MEMORY,
            _ => KVH_ERR_INVALID_ARGUMENT,
        }
    }
}

/// Reports `outcome` to a caller that can be told in words.
///
/// # Safety
/// `error_out` is NULL or writable.
unsafe fn tell<T>(
    outcome: Explained<T>,
    error_out: *mut *mut kvh_error_t,
) -> Result<T, kvh_status> {
    outcome.map_err(|(status, text)| {
        // SAFETY: the caller's promise.
        unsafe { explain(error_out, text) };
        status
    })
}

/// Runs `body` on a live transceiver.
///
/// # Safety
/// `transceiver` is NULL or a live transceiver.
pub(crate) unsafe fn on_transceiver(
    transceiver: *const kvh_transceiver_t,
    body: impl FnOnce(&TransceiverObject) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(transceiver) } {
        Ok(object) => guard::with_context(&object.context, || body(object)),
        Err(status) => status as kvh_status_t,
    }
}

/// A copy of an argument.
fn kept_by<T: Copy>(values: &[T]) -> Explained<Vec<T>> {
    args::kept(values).map_err(|status| (status, "out of memory".to_owned()))
}

/// # Safety
/// The pointers in `params` are as long as their counts say.
unsafe fn layouts_from(
    params: &kvh_transceiver_params_t,
    tokens_per_block: usize,
) -> Explained<(CacheLayout, ParallelLayout)> {
    let bad_array = |_| wrong("an array is NULL or longer than memory");
    // SAFETY: the caller's promise.
    let (kv_heads, pipeline_layers) = unsafe {
        (
            args::slice(params.kv_heads_per_layer, params.layer_count).map_err(bad_array)?,
            args::slice(params.layers_per_pipeline_rank, params.pipeline_rank_count)
                .map_err(bad_array)?,
        )
    };
    let attention = Attention::from_code(params.attention)
        .ok_or_else(|| wrong("attention must be one of KVH_ATTENTION_*"))?;
    let cache = CacheLayout {
        kv_heads_per_layer: kept_by(kv_heads)?,
        head_size: params.head_size,
        tokens_per_block: u32::try_from(tokens_per_block)
            .map_err(|_| wrong("the tree has too many tokens per block"))?,
        data_type: DataType::from_code(params.data_type)
            .ok_or_else(|| wrong("data_type must be one of KVH_DATA_*"))?,
        attention,
        kv_factor: match attention {
            Attention::KeysAndValues => 2,
            Attention::Latent => 1,
        },
        windows: vec![
            u32::try_from(params.window).map_err(|_| wrong("the window must not be negative"))?
        ],
    };
    let parallel = ParallelLayout {
        tensor: params.tensor_parallel.max(1),
        pipeline: params.pipeline_parallel.max(1),
        context: params.context_parallel.max(1),
        attention_data: params.attention_data_parallel.max(1),
        layers_per_pipeline_rank: kept_by(pipeline_layers)?,
    };
    Ok((cache, parallel))
}

/// # Safety
/// The pool is what its contract says, and lies in host memory.
unsafe fn host_pool_from(params: &kvh_transceiver_params_t) -> Explained<BlockPool> {
    // SAFETY: the caller's promise.
    unsafe { BlockPool::new(params.pool_base.cast(), params.block_bytes, params.block_count) }
        .map_err(|error| wrong(error.to_string()))
}

/// # Safety
/// The pool, the stream and the event are what their contracts say.
unsafe fn device_pool_from(params: &kvh_transceiver_params_t) -> Explained<DevicePool> {
    let base = params.pool_base as u64;
    let bytes = params.block_bytes.saturating_mul(params.block_count);
    // SAFETY: the caller's promise.
    let driver =
        unsafe { CudaDriver::open(base, bytes, params.cuda_stream, params.cuda_ready_event) };
    let driver = driver.map_err(|error| {
        let status = match error {
            DeviceError::Unavailable(_) => KVH_ERR_UNSUPPORTED,
            _ => KVH_ERR_INVALID_ARGUMENT,
        };
        (status, error.to_string())
    })?;
    // SAFETY: the caller's promise; the driver is one of the device that has both ends of the pool.
    unsafe { DevicePool::new(Arc::new(driver), base, params.block_bytes, params.block_count) }
        .map_err(|error| wrong(error.to_string()))
}

/// Whose blocks are exchanged.
///
/// # Safety
/// `tree` and `params.block_owner` are NULL or live, and the pool is what its contract says.
unsafe fn owner_from(
    tree: *const kvh_reuse_tree_t,
    params: &kvh_transceiver_params_t,
) -> Explained<Arc<dyn BlockOwner>> {
    if !params.block_owner.is_null() {
        let has_pool = !params.pool_base.is_null() || params.block_bytes != 0;
        if !tree.is_null() || has_pool || params.block_count != 0 {
            return Err(wrong("with a block_owner there is no tree and no pool"));
        }
        if params.pool_memory != KVH_MEMORY_HOST {
            return Err((
                KVH_ERR_UNSUPPORTED,
                "a block_owner's blocks are in host memory".to_owned(),
            ));
        }
        // SAFETY: not NULL, and held by the caller's promise.
        let owner = unsafe { handle::cloned(params.block_owner) };
        return Ok(Arc::new((*owner).clone()));
    }
    // SAFETY: the caller's promise.
    let tree = unsafe { handle::get(tree) }.map_err(|status| (status, "no tree".to_owned()))?;
    if !tree.tree.windows().contains(&params.window) {
        return Err(wrong("the tree has no such window"));
    }
    let (tree, window) = (tree.tree.clone(), params.window);
    match params.pool_memory {
        KVH_MEMORY_HOST => {
            // SAFETY: the caller's promise.
            let pool = unsafe { host_pool_from(params) }?;
            Ok(Arc::new(TreeAndPool { tree, window, pool }))
        }
        KVH_MEMORY_CUDA => {
            // SAFETY: the caller's promise.
            let pool = unsafe { device_pool_from(params) }?;
            Ok(Arc::new(TreeAndPool { tree, window, pool }))
        }
        _ => Err(wrong("pool_memory must be one of KVH_MEMORY_*")),
    }
}

/// # Safety
/// The pointers in `params` are NULL or what they should be.
unsafe fn transport_from(params: &kvh_transceiver_params_t) -> Explained<Box<dyn Transport>> {
    // SAFETY: the caller's promise.
    let options = unsafe {
        (
            args::text(params.wires),
            args::text(params.network_devices),
            args::text(params.listen_address),
        )
    };
    let (Ok(wires), Ok(network_devices), Ok(listen_address)) = options else {
        return Err(wrong("wires, network_devices and listen_address must be UTF-8"));
    };
    match params.transport {
        KVH_TRANSPORT_LOOPBACK if params.loopback.is_null() => {
            Err(wrong("KVH_TRANSPORT_LOOPBACK needs a kvh_loopback_t"))
        }
        KVH_TRANSPORT_LOOPBACK => {
            // SAFETY: not NULL; the caller's promise.
            let hub = unsafe { loopback::hub(params.loopback) };
            Ok(Box::new(hub.transport()))
        }
        KVH_TRANSPORT_UCX => {
            let chosen = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let mut options = UcxOptions {
                tls: chosen(wires),
                net_devices: chosen(network_devices),
                ..UcxOptions::default()
            };
            if !listen_address.is_empty() {
                options.listen = listen_address.parse().map_err(|_| {
                    wrong(format!(
                        "expected an IP address as listen_address, found {listen_address:?}"
                    ))
                })?;
            }
            match UcxTransport::open(options) {
                Ok(transport) => Ok(Box::new(transport)),
                Err(error @ TransportError::Unavailable(_)) => {
                    Err((KVH_ERR_UNSUPPORTED, error.to_string()))
                }
                Err(error) => Err(wrong(error.to_string())),
            }
        }
        _ => Err(wrong("transport must be one of KVH_TRANSPORT_*")),
    }
}

/// # Safety
/// `params.peer_keys` is NULL or held; `params.peer_key_id` is as long as it says.
unsafe fn peers_from(params: &kvh_transceiver_params_t) -> Explained<Peers> {
    // SAFETY: the caller's promise.
    let key_id = unsafe { args::text(params.peer_key_id) };
    let key_id = key_id.map_err(|_| wrong("peer_key_id must be UTF-8"))?;
    match (params.peer_keys.is_null(), key_id, params.unauthenticated_peers) {
        (true, "", KVH_PEERS_OF_THIS_MACHINE) => Ok(Peers::OfThisMachine),
        (true, "", KVH_PEERS_ANYBODY) => Ok(Peers::Anybody),
        (true, "", _) => Err(wrong("unauthenticated_peers must be one of KVH_PEERS_*")),
        (true, ..) => Err(wrong("peer_key_id needs peer_keys")),
        (false, _, KVH_PEERS_OF_THIS_MACHINE) => {
            // SAFETY: not NULL, and held by the caller's promise.
            let ring = unsafe { handle::cloned(params.peer_keys) };
            let keys = PeerKeys(ring);
            if keys.code(key_id, &[]).is_none() {
                return Err(wrong("peer_key_id must be the id of a key in peer_keys"));
            }
            Ok(Peers::WithKey(Arc::new(keys), key_id.to_owned()))
        }
        (false, ..) => Err(wrong("with peer_keys, unauthenticated_peers must be 0")),
    }
}

/// The host's ring; after a fault in it nobody is authenticated.
struct PeerKeys(Arc<KeyRingObject>);

impl SessionKeys for PeerKeys {
    fn code(&self, key_id: &str, parts: &[&[u8]]) -> Option<Code> {
        self.0.usable().ok()?.code(key_id, parts)
    }

    fn verifies(&self, key_id: &str, parts: &[&[u8]], code: &Code) -> bool {
        self.0.usable().is_ok_and(|ring| ring.verifies(key_id, parts, code))
    }
}

fn or_default<T: Default + PartialEq>(chosen: T, default: T) -> T {
    if chosen == T::default() {
        default
    } else {
        chosen
    }
}

/// # Safety
/// As for `kvh_transceiver_create`.
unsafe fn create(
    context: &Arc<Context>,
    tree: *const kvh_reuse_tree_t,
    params: &kvh_transceiver_params_t,
) -> Explained<TransceiverObject> {
    if params.reserved != 0 || params.reserved_2 != 0 {
        return Err((KVH_ERR_ABI, "reserved fields must be 0".to_owned()));
    }
    let names_cuda = !params.cuda_stream.is_null() || !params.cuda_ready_event.is_null();
    if names_cuda && params.pool_memory != KVH_MEMORY_CUDA {
        return Err(wrong("cuda_stream and cuda_ready_event go with KVH_MEMORY_CUDA"));
    }
    // SAFETY: as above.
    let peers = unsafe { peers_from(params) }?;
    // SAFETY: the caller's promise, here and below.
    let owner = unsafe { owner_from(tree, params) }?;
    // SAFETY: as above.
    let namespace = unsafe { args::bytes(params.namespace_bytes) }
        .map_err(|_| wrong("namespace_bytes is NULL with a length"))?;
    // SAFETY: as above.
    let (cache, parallel) = unsafe { layouts_from(params, owner.tokens_per_block()) }?;
    // SAFETY: as above.
    let transport = unsafe { transport_from(params) }?;
    let gate = Gate::new(transport, peers, Arc::clone(&context.metrics));
    if let Some(served) = gate.served_without_proof() {
        context.log(Event::PeersUnauthenticated, &[("served", Value::Word(served))]);
    }
    let (source, destination) = (SourceLimits::default(), DestinationLimits::default());
    let bytes = |chosen: u64, default: usize| {
        or_default(usize::try_from(chosen).unwrap_or(usize::MAX), default)
    };
    let config = TransceiverConfig {
        rank: params.rank,
        namespace: kept_by(namespace)?,
        cache,
        parallel,
        owner,
        source_limits: SourceLimits {
            peers: or_default(params.max_destinations as usize, source.peers),
            requests: or_default(params.max_requests as usize, source.requests),
            bytes_in_flight: bytes(params.max_bytes_in_flight, source.bytes_in_flight),
            hold_time_ns: or_default(params.max_hold_time_ns, source.hold_time_ns),
            ..source
        },
        destination_limits: DestinationLimits {
            connections: or_default(params.max_sources as usize, destination.connections),
            staging_bytes: bytes(params.max_staging_bytes, destination.staging_bytes),
        },
        max_prefetches: or_default(params.max_prefetches as usize, 256),
    };
    let mut incarnation = [0u8; 16];
    getrandom::fill(&mut incarnation)
        .map_err(|_| (KVH_ERR_UNSUPPORTED, "the system gives no random numbers".to_owned()))?;
    let surroundings = Surroundings {
        incarnation: Incarnation(incarnation),
        clock: Arc::clone(&context.clock),
        metrics: Arc::clone(&context.metrics),
        poison: Arc::clone(&context.poison),
    };
    // SAFETY: as above.
    let cores = unsafe { args::slice(params.thread_cores, params.thread_core_count) }
        .map_err(|_| wrong("thread_cores is NULL with a count"))?;
    let transceiver = Transceiver::start_on(cores, config, Box::new(gate), surroundings)
        .map_err(|error| (kvh_status::from(&error), error.to_string()))?;
    let has_host_owner = !params.block_owner.is_null();
    Ok(TransceiverObject { transceiver, context: Arc::clone(context), has_host_owner })
}

/// Creates a transceiver and starts its threads. Destroy it with kvh_transceiver_destroy; context,
/// tree, hub, key ring and block owner may go first. With params->block_owner `tree` is NULL. KVH_ERR_INVALID_ARGUMENT: a value that cannot be.
/// KVH_ERR_UNSUPPORTED: no UCX here, or no CUDA device for KVH_MEMORY_CUDA. KVH_ERR_LIMIT: no thread could
/// be started. On each, *error_out, if not NULL, says it in words; destroy it with kvh_error_destroy.
///
/// # Safety
/// `context` is live, and `tree` too or it is NULL; `params` points at a parameter struct whose pointers are what it
/// says; `transceiver_out` is writable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_create(
    context: *const kvh_context_t,
    tree: *const kvh_reuse_tree_t,
    params: *const kvh_transceiver_params_t,
    transceiver_out: *mut *mut kvh_transceiver_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guard::on_context(context, |_| {
            let params = args::read_params(params)?;
            let transceiver_out = args::out(transceiver_out)?;
            let context = handle::cloned(context);
            let object = tell(create(&context, tree, &params), error_out)?;
            let name = Value::Word(object.transceiver.transport_name());
            let rank = Value::Number(params.rank.into());
            context.log(Event::TransceiverCreated, &[("transport", name), ("rank", rank)]);
            transceiver_out.write(handle::give(object));
            Ok(())
        })
    }
}

/// Lets states be fetched from an endpoint ("http://host:port/path"), whatever the binding table
/// allows: this list is the transfer's own. address_ranges (CIDR, such as "10.0.0.0/8") bound the
/// addresses that the endpoint may lead to, itself and the transport addresses in its state; none: any.
/// "http" and "tcp" are fetched. Listing an endpoint means trusting the host behind it: UCX may crash on
/// a peer that speaks its inner protocol wrongly. KVH_ERR_STATE: it is on the list already.
///
/// # Safety
/// `transceiver` is live; `endpoint` and `address_ranges` are as long as they say; `error_out` is
/// NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_allow(
    transceiver: *const kvh_transceiver_t,
    endpoint: kvh_str_t,
    address_ranges: *const kvh_str_t,
    address_range_count: usize,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let endpoint = args::text(endpoint)?;
            let mut ranges = Vec::new();
            ranges.try_reserve_exact(address_range_count)?;
            for range in args::slice(address_ranges, address_range_count)? {
                ranges.push(args::text(*range)?);
            }
            let outcome = allow(&object.transceiver, endpoint, &ranges);
            tell(outcome, error_out)
        })
    }
}

fn allow(transceiver: &Transceiver, endpoint: &str, ranges: &[&str]) -> Explained<()> {
    let endpoint = Endpoint::parse(endpoint).map_err(|error| wrong(error.to_string()))?;
    let bounds = match ranges {
        [] => AddressBounds::unbounded(),
        ranges => AddressBounds::within(ranges).map_err(|error| match error {
            AddressBoundsError::NoMemory => (KVH_ERR_NO_MEMORY, error.to_string()),
            error => wrong(error.to_string()),
        })?,
    };
    transceiver.allow(endpoint, bounds).map_err(|error| {
        let status = match error {
            AllowListError::Full => KVH_ERR_LIMIT,
            AllowListError::NoMemory => KVH_ERR_NO_MEMORY,
            _ => KVH_ERR_STATE,
        };
        (status, error.to_string())
    })
}

/// This rank's entry of the worker's state, for kvh_transceiver_set_state. Release it with
/// kvh_buffer_release.
///
/// # Safety
/// `transceiver` is live; `entry_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_rank_entry(
    transceiver: *const kvh_transceiver_t,
    entry_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let entry_out = args::out(entry_out)?;
            let entry = args::kept(object.transceiver.rank_entry())?;
            entry_out.write(handle::give(entry));
            Ok(())
        })
    }
}

/// Makes the worker's state out of the entries of all its ranks, in any order, this one's among
/// them; the host gathers them (MPI_Allgatherv, say). A worker of one rank needs no call.
/// KVH_ERR_INVALID_ARGUMENT: they do not make a state; *error_out, if not NULL, says why.
///
/// # Safety
/// `transceiver` is live; `entries` has `entry_count` entries, each as long as it says; `error_out`
/// is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_set_state(
    transceiver: *const kvh_transceiver_t,
    entries: *const kvh_bytes_t,
    entry_count: usize,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let mut borrowed = Vec::new();
            borrowed.try_reserve_exact(entry_count)?;
            for entry in args::slice(entries, entry_count)? {
                borrowed.push(args::bytes(*entry)?);
            }
            let outcome = object.transceiver.set_state(&borrowed);
            let outcome = outcome.map_err(|error| match error {
                SetStateError::Join(JoinError::NoMemory) => (KVH_ERR_NO_MEMORY, error.to_string()),
                error => wrong(error.to_string()),
            });
            tell(outcome, error_out)
        })
    }
}

/// The worker's state, for the host to serve itself. KVH_NOT_FOUND: not set yet. Release it with
/// kvh_buffer_release.
///
/// # Safety
/// `transceiver` is live; `state_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_state(
    transceiver: *const kvh_transceiver_t,
    state_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let state_out = args::out(state_out)?;
            let state = object.transceiver.state().ok_or(KVH_NOT_FOUND)?;
            state_out.write(handle::give(args::kept(&state)?));
            Ok(())
        })
    }
}

/// Serves the worker's state over HTTP (GET /v1/data_transceiver_state) at an IP address (empty:
/// 127.0.0.1) and port (0: any; *port_out says which). Until the state is set the answer is 503.
/// KVH_ERR_STATE: it is served already. KVH_ERR_UNSUPPORTED: that address cannot be listened on.
///
/// # Safety
/// `transceiver` is live; `address` is as long as it says; `port_out` is writable; `error_out` is
/// NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_serve_http(
    transceiver: *const kvh_transceiver_t,
    address: kvh_str_t,
    port: u16,
    port_out: *mut u16,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { serve(transceiver, address, port, port_out, error_out, Transceiver::serve_http) }
}

/// Serves the worker's state over plain TCP, for endpoints like tcp://host:port; the rest is as for
/// kvh_transceiver_serve_http, which may be called too. Until the state is set connections are closed.
///
/// # Safety
/// `transceiver` is live; `address` is as long as it says; `port_out` is writable; `error_out` is
/// NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_serve_tcp(
    transceiver: *const kvh_transceiver_t,
    address: kvh_str_t,
    port: u16,
    port_out: *mut u16,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { serve(transceiver, address, port, port_out, error_out, Transceiver::serve_tcp) }
}

/// What kvh_transceiver_serve_http and its twin for TCP have in common: all but the language.
///
/// # Safety
/// As for [`kvh_transceiver_serve_http`].
unsafe fn serve(
    transceiver: *const kvh_transceiver_t,
    address: kvh_str_t,
    port: u16,
    port_out: *mut u16,
    error_out: *mut *mut kvh_error_t,
    serve: fn(&Transceiver, SocketAddr) -> Result<SocketAddr, ServeError>,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let address = args::text(address)?;
            let port_out = args::out(port_out)?;
            let served = serve_at(address, port, |address| serve(&object.transceiver, address));
            port_out.write(tell(served, error_out)?.port());
            Ok(())
        })
    }
}

fn serve_at(
    address: &str,
    port: u16,
    serve: impl FnOnce(SocketAddr) -> Result<SocketAddr, ServeError>,
) -> Explained<SocketAddr> {
    let address = match address {
        "" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        text => text.parse().map_err(|_| wrong("expected an IP address to listen on"))?,
    };
    serve(SocketAddr::new(address, port)).map_err(|error| {
        let status = match error {
            ServeError::Already => KVH_ERR_STATE,
            ServeError::Listen(_) => KVH_ERR_UNSUPPORTED,
        };
        (status, error.to_string())
    })
}

/// What the transceiver is doing. Set status_out->struct_size first.
///
/// # Safety
/// `transceiver` is live; `status_out` points at a struct as long as it says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_status(
    transceiver: *const kvh_transceiver_t,
    status_out: *mut kvh_transceiver_status_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let status = object.transceiver.status();
            let transport = match object.transceiver.transport_name() {
                crate::transfer::loopback::NAME => c"loopback",
                _ => c"ucx",
            };
            let value = kvh_transceiver_status_t {
                struct_size: size_of::<kvh_transceiver_status_t>(),
                transport: transport.as_ptr(),
                sources: status.sources,
                destinations: status.destinations,
                requests_in_flight: status.requests_in_flight,
                prefetches_in_flight: object.transceiver.prefetches_in_flight(),
            };
            args::write_struct(status_out, &value)
        })
    }
}

/// Which wires lead to the sources connected to, for people to read; not NUL-terminated. The length
/// is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
///
/// # Safety
/// `transceiver` is live; `buf` has room for `buf_len` bytes; `len_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_wires(
    transceiver: *const kvh_transceiver_t,
    buf: *mut c_char,
    buf_len: usize,
    len_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let wires = object.transceiver.status().wires;
            args::copy_out(wires.as_bytes(), buf.cast(), buf_len, len_out)
        })
    }
}

/// Destroys the transceiver: its threads end, fetches of metadata are cancelled, prefetches that run
/// fail with "shutdown", pins of peers' requests are released. After this call the pool is not touched
/// any more. NULL is fine. Prefetches stay to be looked at and destroyed.
///
/// # Safety
/// `transceiver` is NULL or live, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_transceiver_destroy(transceiver: *mut kvh_transceiver_t) {
    guard::quietly(|| {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { handle::take(transceiver) }) else { return };
        if object.context.is_forked() {
            // The threads are the parent's: waiting for them would never end.
            object.transceiver.abandon();
        }
    });
}
