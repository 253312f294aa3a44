//! CUDA, opened at run time: whether there is a device, and the adapter that copies between one and
//! staging. A missing driver is an answer, not an error.
//!
//! Guards: nothing is linked; without the driver library calls into the crate that opens it panic, so
//! its presence is asked first, where a panic is caught. Functions are looked up once, and one that a
//! driver lacks is an answer too. Codes are numbers here: a younger driver returns some that no list has.
//! The calling thread's context and capture mode are what they were after each call, and a capture of a
//! CUDA graph elsewhere in the process is not disturbed.
//! Never does: make a context of its own, or decide what is copied.

use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::ptr::null_mut;
use std::sync::OnceLock;

use super::driver::{DeviceDriver, DeviceError, Event};
use super::plan::{Copy, Direction, Launch, KERNELS, THREADS};
use crate::poison::Poison;

/// The kernels, for the oldest device that is served; the driver compiles them for the one it has.
pub const KERNELS_PTX: &str = include_str!("kernels.ptx");

type Handle = *mut c_void;
type Address = u64;

/// Declares the driver's functions that are used, and how they are looked up.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// The functions of the library that is open; `Err` names one that it lacks.
            fn load() -> Result<Self, &'static str> {
                // SAFETY: the library was found, so it is opened, once for the process.
                let library = unsafe { cudarc::driver::sys::culib() };
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                        // SAFETY: the driver's function of that name has this signature, in all
                        // versions that have it; results are of an enumeration as wide as an int.
                        *unsafe { library.get::<Function>($symbol.as_bytes()) }.map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    retain_primary_context = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release_primary_context = "cuDevicePrimaryCtxRelease_v2" (c_int);
    push_context = "cuCtxPushCurrent_v2" (Handle);
    pop_context = "cuCtxPopCurrent_v2" (*mut Handle);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, Address);
    create_stream = "cuStreamCreate" (*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    synchronize_stream = "cuStreamSynchronize" (Handle);
    stream_waits = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    create_event = "cuEventCreate" (*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record_event = "cuEventRecord" (Handle, Handle);
    query_event = "cuEventQuery" (Handle);
    synchronize_event = "cuEventSynchronize" (Handle);
    allocate_host = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost" (*mut c_void);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    load_module = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload_module = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
        *mut *mut c_void
    );
}

// Numbers of the driver's interface, which do not change.
const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;
const CAPTURE_RELAXED: c_int = 2;
const POINTER_CONTEXT: c_int = 1;
const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_DEVICE_ORDINAL: c_int = 9;
const MEMORY_OF_DEVICE: c_uint = 2;
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_WITHOUT_TIME: c_uint = 2;
const HOST_PORTABLE_AND_MAPPED: c_uint = 1 | 2;

/// Says what was called where it did not succeed.
fn checked(call: &'static str, code: c_int) -> Result<(), DeviceError> {
    match code {
        SUCCESS => Ok(()),
        code => Err(DeviceError::Refused { call, code }),
    }
}

/// The driver, or why there is none. Asked once in a process's life, because loading a driver is slow
/// and its answer does not change.
fn functions() -> Result<&'static Functions, DeviceError> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| {
        let fault = || Err("a fault while the driver was opened".to_owned());
        Poison::default().catch(open).unwrap_or_else(|_| fault())
    });
    found.as_ref().map_err(|why| DeviceError::Unavailable(why.clone()))
}

fn open() -> Result<Functions, String> {
    // SAFETY: looks for a library by name; the driver has no initialiser with a precondition.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("there is no CUDA driver (libcuda.so.1)".to_owned());
    }
    let functions = Functions::load().map_err(|symbol| format!("the driver has no {symbol}"))?;
    let mut count = 0;
    // SAFETY: takes no memory; then writes one number.
    let status = unsafe {
        match (functions.init)(0) {
            SUCCESS => (functions.device_count)(&mut count),
            code => code,
        }
    };
    match (status, count) {
        (SUCCESS, 1..) => Ok(functions),
        (SUCCESS, _) => Err("the driver has no device".to_owned()),
        (code, _) => Err(format!("the driver does not start: {code}")),
    }
}

/// Whether a CUDA device can be used, and if not why.
pub fn availability() -> Result<(), DeviceError> {
    functions().map(|_| ())
}

/// A context of the driver's.
#[derive(Clone, Copy)]
struct Context {
    functions: &'static Functions,
    handle: Handle,
}

impl Context {
    /// Runs `call` with the context current, and such that no capture of a graph that is under way in
    /// this process forbids it or hears of it.
    fn run(
        &self,
        name: &'static str,
        call: impl FnOnce(&Functions) -> c_int,
    ) -> Result<(), DeviceError> {
        let functions = self.functions;
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the context lives as long as the driver that has it; both calls are about this
        // thread alone, and are taken back below.
        unsafe {
            checked("cuCtxPushCurrent", (functions.push_context)(self.handle))?;
            (functions.exchange_capture_mode)(&mut mode);
        }
        let code = call(functions);
        let mut popped = null_mut();
        // SAFETY: what was there before; the code that counts is the call's.
        unsafe {
            (functions.exchange_capture_mode)(&mut mode);
            (functions.pop_context)(&mut popped);
        }
        checked(name, code)
    }
}

/// One device's stream, and what it takes to copy in it.
pub struct CudaDriver {
    context: Context,
    /// The device whose primary context this keeps alive; `None` where the context is the host's.
    retained: Option<c_int>,
    stream: Handle,
    is_own_stream: bool,
    /// The host's; NULL: nothing is waited for.
    ready_event: Handle,
    kernels: Option<Kernels>,
}

/// The module and its functions, gather and scatter.
struct Kernels {
    module: Handle,
    functions: [Handle; 2],
}

// SAFETY: handles of the driver, which any thread may use, several at once.
unsafe impl Send for CudaDriver {}
// SAFETY: as above.
unsafe impl Sync for CudaDriver {}

impl CudaDriver {
    /// A driver for the device that has the `bytes` bytes at `base`. `stream` is the one in which it
    /// works; NULL: one of its own. `ready_event`, if not NULL, is what [`DeviceDriver::follow_host`]
    /// waits for, as it was recorded last.
    ///
    /// # Safety
    /// Stream and event are NULL or live ones of that device, for as long as the driver lives.
    pub unsafe fn open(
        base: u64,
        bytes: usize,
        stream: *mut c_void,
        ready_event: *mut c_void,
    ) -> Result<Self, DeviceError> {
        let functions = functions()?;
        let (handle, device) = place_of(functions, base, bytes)?;
        // From here on dropping it gives back what was taken.
        let mut driver = Self {
            context: Context { functions, handle },
            retained: None,
            stream,
            is_own_stream: false,
            ready_event,
            kernels: None,
        };
        if handle.is_null() {
            // Memory of no context in particular: the primary one, which the runtime uses, reaches it.
            let mut device_handle = 0;
            // SAFETY: writes one handle.
            let code = unsafe { (functions.device)(&mut device_handle, device) };
            checked("cuDeviceGet", code)?;
            // SAFETY: as above, for a device that there is.
            let code = unsafe {
                (functions.retain_primary_context)(&mut driver.context.handle, device_handle)
            };
            checked("cuDevicePrimaryCtxRetain", code)?;
            driver.retained = Some(device_handle);
        }
        let context = driver.context;
        if stream.is_null() {
            context.run("cuStreamCreate", |functions| {
                // SAFETY: writes one handle.
                unsafe { (functions.create_stream)(&mut driver.stream, STREAM_NON_BLOCKING) }
            })?;
            driver.is_own_stream = true;
        }
        // Without them everything is plain copies.
        driver.kernels = Kernels::load(context).ok();
        Ok(driver)
    }

    /// The same driver with plain copies only: to compare.
    pub fn without_kernels(mut self) -> Self {
        self.kernels = None;
        self
    }
}

/// The context that has this memory, NULL for memory of none in particular, and its device.
fn place_of(
    functions: &Functions,
    base: u64,
    bytes: usize,
) -> Result<(Handle, c_int), DeviceError> {
    let device_of = |address: u64| {
        let (mut memory_type, mut device): (c_uint, c_int) = (0, -1);
        // SAFETY: each writes one number of that width.
        let codes = unsafe {
            let memory_type: *mut c_uint = &mut memory_type;
            let device: *mut c_int = &mut device;
            [
                (functions.pointer_attribute)(memory_type.cast(), POINTER_MEMORY_TYPE, address),
                (functions.pointer_attribute)(device.cast(), POINTER_DEVICE_ORDINAL, address),
            ]
        };
        (codes == [SUCCESS; 2] && memory_type == MEMORY_OF_DEVICE).then_some(device)
    };
    let last = base.saturating_add((bytes as u64).saturating_sub(1));
    let devices = (device_of(base), device_of(last));
    let (Some(device), true) = (devices.0, devices.0 == devices.1) else {
        let found = format!("its first byte is on {:?}, its last on {:?}", devices.0, devices.1);
        return Err(DeviceError::NotDeviceMemory(found));
    };
    let mut context: Handle = null_mut();
    let target: *mut Handle = &mut context;
    // SAFETY: writes one handle.
    let code = unsafe { (functions.pointer_attribute)(target.cast(), POINTER_CONTEXT, base) };
    Ok((if code == SUCCESS { context } else { null_mut() }, device))
}

impl Kernels {
    fn load(context: Context) -> Result<Self, DeviceError> {
        let no_plan = |_| DeviceError::NoPlan;
        let image = CString::new(KERNELS_PTX).map_err(no_plan)?;
        let mut module = null_mut();
        context.run("cuModuleLoadData", |functions| {
            // SAFETY: text with an end; writes one handle.
            unsafe { (functions.load_module)(&mut module, image.as_ptr().cast()) }
        })?;
        let mut kernels = Self { module, functions: [null_mut(); 2] };
        for (kernel, name) in kernels.functions.iter_mut().zip(KERNELS) {
            let name = CString::new(name).map_err(no_plan)?;
            context.run("cuModuleGetFunction", |functions| {
                // SAFETY: a live module, a name with an end; writes one handle.
                unsafe { (functions.function)(kernel, module, name.as_ptr()) }
            })?;
        }
        Ok(kernels)
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let (stream, kernels) = (self.stream, self.kernels.take());
        // What cannot be given back stays: the device has failed, or the process is at its end.
        let _ = self.context.run("cuStreamDestroy", |functions| {
            // SAFETY: this driver's own, and every copy was waited for.
            unsafe {
                if let Some(kernels) = kernels {
                    (functions.unload_module)(kernels.module);
                }
                if self.is_own_stream {
                    (functions.destroy_stream)(stream);
                }
            }
            SUCCESS
        });
        if let Some(device) = self.retained {
            // SAFETY: retained once, by `open`.
            unsafe { (self.context.functions.release_primary_context)(device) };
        }
    }
}

// SAFETY: pinned memory is at one address for all where addresses are unified, which they are for all
// 64-bit processes; a stream runs one after the other, and an event that was reached means that all
// before it is done and seen.
unsafe impl DeviceDriver for CudaDriver {
    fn allocate(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let mut memory = null_mut();
        self.context.run("cuMemHostAlloc", |functions| {
            // SAFETY: writes one address.
            unsafe { (functions.allocate_host)(&mut memory, bytes, HOST_PORTABLE_AND_MAPPED) }
        })?;
        Ok(memory.cast())
    }

    unsafe fn free(&self, memory: *mut u8) {
        // A device that failed keeps it.
        let _ = self.context.run("cuMemFreeHost", |functions| {
            // SAFETY: the caller's promise.
            unsafe { (functions.free_host)(memory.cast()) }
        });
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        let mut event = null_mut();
        self.context.run("cuEventCreate", |functions| {
            // SAFETY: writes one handle.
            unsafe { (functions.create_event)(&mut event, EVENT_WITHOUT_TIME) }
        })?;
        Ok(Event(event as usize))
    }

    fn destroy_event(&self, event: Event) {
        // A device that failed keeps it.
        let _ = self.context.run("cuEventDestroy", |functions| {
            // SAFETY: from `create_event`, and used no more.
            unsafe { (functions.destroy_event)(event.0 as Handle) }
        });
    }

    fn has_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    fn follow_host(&self) -> Result<(), DeviceError> {
        if self.ready_event.is_null() {
            return Ok(());
        }
        self.context.run("cuStreamWaitEvent", |functions| {
            // SAFETY: both are live, as `open` was promised.
            unsafe { (functions.stream_waits)(self.stream, self.ready_event, 0) }
        })
    }

    unsafe fn copy(
        &self,
        direction: Direction,
        copy: Copy,
        staging: *mut u8,
    ) -> Result<(), DeviceError> {
        // SAFETY: the offset is inside of the staging, as the caller promises.
        let staging = unsafe { staging.add(copy.staging_offset) };
        match direction {
            Direction::Gather => self.context.run("cuMemcpyDtoHAsync", |functions| {
                // SAFETY: the caller's promise.
                unsafe {
                    (functions.copy_to_host)(staging.cast(), copy.device, copy.bytes, self.stream)
                }
            }),
            Direction::Scatter => self.context.run("cuMemcpyHtoDAsync", |functions| {
                // SAFETY: the caller's promise.
                unsafe {
                    (functions.copy_to_device)(copy.device, staging.cast(), copy.bytes, self.stream)
                }
            }),
        }
    }

    unsafe fn launch(
        &self,
        direction: Direction,
        launch: &Launch,
        table: *const u64,
        staging: *mut u8,
    ) -> Result<(), DeviceError> {
        let kernels = self.kernels.as_ref().ok_or(DeviceError::NoPlan)?;
        let function = kernels.functions[direction as usize];
        let mut arguments = launch.arguments(table, staging);
        let mut places =
            arguments.each_mut().map(|argument| std::ptr::from_mut(argument).cast::<c_void>());
        self.context.run("cuLaunchKernel", |functions| {
            // SAFETY: the function takes as many numbers of 64 bits as are given, which are copied
            // before the call returns; what they lead to is the caller's promise.
            unsafe {
                (functions.launch)(
                    function,
                    launch.grid.0,
                    launch.grid.1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    self.stream,
                    places.as_mut_ptr(),
                    null_mut(),
                )
            }
        })
    }

    fn record(&self, event: Event) -> Result<(), DeviceError> {
        self.context.run("cuEventRecord", |functions| {
            // SAFETY: both are live.
            unsafe { (functions.record_event)(event.0 as Handle, self.stream) }
        })
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let asked = self.context.run("cuEventQuery", |functions| {
            // SAFETY: a live event.
            unsafe { (functions.query_event)(event.0 as Handle) }
        });
        match asked {
            Ok(()) => Ok(true),
            Err(DeviceError::Refused { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.context.run("cuEventSynchronize", |functions| {
            // SAFETY: a live event.
            unsafe { (functions.synchronize_event)(event.0 as Handle) }
        })
    }

    fn wait_for_all(&self) -> Result<(), DeviceError> {
        self.context.run("cuStreamSynchronize", |functions| {
            // SAFETY: a live stream.
            unsafe { (functions.synchronize_stream)(self.stream) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_is_safe_with_and_without_a_driver() {
        let available = availability();
        assert_eq!(availability(), available);
        let memory = [0u8; 64];
        // SAFETY: no stream, no event.
        let opened = unsafe {
            CudaDriver::open(memory.as_ptr() as u64, memory.len(), null_mut(), null_mut())
        };
        let error = opened.err().expect("memory of the host's processors is no device's");
        match available {
            Ok(()) => assert!(matches!(error, DeviceError::NotDeviceMemory(_)), "{error}"),
            Err(why) => assert_eq!(error, why),
        }
    }
}
