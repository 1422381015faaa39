//! The MPI library, loaded at run time, and the few calls of it that links make.
//!
//! Open MPI and MPICH have the same functions with different handles: the first gives addresses of
//! its own objects, the second numbers. Neither is wider than a pointer, so a word of that width
//! holds any of them, and what they are called is looked up once. Statuses, whose layouts differ,
//! are never asked for: a message says itself how long it is.

use crate::error::Error;
use crate::link::map::SharedMap;
use ironstar_device::library_functions;
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the library is when nobody says: Open MPI's, MPICH's by two names.
const LIBRARIES: [&str; 3] = ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12"];
/// One call at a time, from any thread: MPI's name for what [`Mpi::calls`] keeps.
const THREAD_SERIALIZED: c_int = 2;

/// A handle: an address or a number.
type Handle = usize;

library_functions! {
    MPI_Init_thread: fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
    MPI_Initialized: fn(*mut c_int) -> c_int;
    MPI_Finalize: fn() -> c_int;
    MPI_Comm_rank: fn(Handle, *mut c_int) -> c_int;
    MPI_Comm_size: fn(Handle, *mut c_int) -> c_int;
    MPI_Comm_set_errhandler: fn(Handle, Handle) -> c_int;
    MPI_Get_library_version: fn(*mut c_char, *mut c_int) -> c_int;
    MPI_Isend: fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
    MPI_Irecv: fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
    MPI_Test: fn(*mut Handle, *mut c_int, *mut c_void) -> c_int;
    MPI_Cancel: fn(*mut Handle) -> c_int;
}

/// What the library calls the things that links name.
#[derive(Clone, Copy)]
struct Names {
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    no_status: *mut c_void,
}

/// The library, begun.
pub struct Mpi {
    functions: Functions,
    names: Names,
    rank: usize,
    ranks: usize,
    /// Begun here, and so ended here.
    is_ours: bool,
    calls: Mutex<()>,
}

// SAFETY: the pointer in it is a mark that MPI compares, and calls are made one at a time, which
// the library was begun for.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

impl Mpi {
    /// Loads the library at `path`, or the first that the system has, and begins it. Once in a
    /// process: MPI cannot begin again after its end.
    pub fn begin(path: Option<&PathBuf>) -> Result<Arc<Self>, Error> {
        let (library, name) = match path {
            Some(path) => (open(path.as_os_str())?, path.display().to_string()),
            None => first()?,
        };
        let failed = |error: libloading::Error| refused(&name, error.to_string());
        let library = ManuallyDrop::new(library);
        let functions = Functions::find(&library).map_err(failed)?;
        let names = Names::of(&library);
        let mut mpi =
            Self { functions, names, rank: 0, ranks: 0, is_ours: false, calls: Mutex::new(()) };
        mpi.initialise(&name)?;
        Ok(Arc::new(mpi))
    }

    fn initialise(&mut self, name: &str) -> Result<(), Error> {
        let (mut begun, mut level, mut rank, mut ranks) = (0, 0, 0, 0);
        let (functions, names) = (&self.functions, self.names);
        // SAFETY: places for the answers are live; MPI may be asked this before it is begun.
        check(name, "MPI_Initialized", unsafe { (functions.MPI_Initialized)(&raw mut begun) })?;
        if begun == 0 {
            let begin = functions.MPI_Init_thread;
            // SAFETY: no words of the command line are given, which MPI allows.
            let code = unsafe { begin(null_mut(), null_mut(), THREAD_SERIALIZED, &raw mut level) };
            check(name, "MPI_Init_thread", code)?;
            self.is_ours = true;
            if level < THREAD_SERIALIZED {
                return Err(refused(name, "it allows calls from one thread only".into()));
            }
        }
        // SAFETY: MPI has begun; the handles are its own.
        unsafe {
            let handler = (functions.MPI_Comm_set_errhandler)(names.world, names.errors_return);
            check(name, "MPI_Comm_set_errhandler", handler)?;
            check(name, "MPI_Comm_rank", (functions.MPI_Comm_rank)(names.world, &raw mut rank))?;
            check(name, "MPI_Comm_size", (functions.MPI_Comm_size)(names.world, &raw mut ranks))?;
        }
        let count = |number: c_int| usize::try_from(number).unwrap_or(0);
        (self.rank, self.ranks) = (count(rank), count(ranks));
        Ok(())
    }

    /// Which process of those that the launcher started this is.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many it started.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// What the library calls itself: the first line.
    #[must_use]
    pub fn version(&self) -> String {
        // MPI promises no more than 8192 bytes with the end.
        let (mut text, mut length) = (vec![0_u8; 16_384], 0);
        let _one = self.one();
        // SAFETY: the text has more room than MPI fills.
        let code = unsafe {
            (self.functions.MPI_Get_library_version)(text.as_mut_ptr().cast(), &raw mut length)
        };
        text.truncate(if code == 0 { usize::try_from(length).unwrap_or(0) } else { 0 });
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().next().unwrap_or("an MPI library without a name").to_owned()
    }

    fn one(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: MPI has begun here; links, which hold this value, are gone.
            unsafe { (self.functions.MPI_Finalize)() };
        }
    }
}

impl Names {
    /// Open MPI's objects where the library has them, else MPICH's numbers.
    fn of(library: &Library) -> Self {
        // SAFETY: only the addresses are used.
        let at = |name: &[u8]| unsafe {
            library.get::<*const c_void>(name).map(|symbol| (*symbol).addr())
        };
        match (
            at(b"ompi_mpi_comm_world\0"),
            at(b"ompi_mpi_byte\0"),
            at(b"ompi_mpi_errors_return\0"),
        ) {
            (Ok(world), Ok(byte), Ok(errors_return)) => {
                Names { world, byte, errors_return, no_status: null_mut() }
            }
            _ => Names {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                no_status: std::ptr::without_provenance_mut(1),
            },
        }
    }
}

/// A message that is under way, or none.
#[derive(Debug, Default)]
pub(super) struct Request(Option<Handle>);

impl Request {
    /// Whether it is under way.
    pub fn is_active(&self) -> bool {
        self.0.is_some()
    }
}

/// Pages that messages leave from and come to.
pub(super) struct Room {
    /// Given back by hand, once nothing is under way.
    map: ManuallyDrop<SharedMap>,
    under_way: usize,
}

impl Room {
    /// So many bytes.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        Ok(Self { map: ManuallyDrop::new(SharedMap::private(bytes)?), under_way: 0 })
    }

    /// Its bytes.
    pub fn map(&self) -> &SharedMap {
        &self.map
    }

    /// Begins to send `bytes` from `offset`; the number of the error if MPI refuses.
    pub fn send(
        &mut self,
        mpi: &Mpi,
        (offset, bytes): (usize, usize),
        (peer, tag): (c_int, c_int),
    ) -> Result<Request, c_int> {
        self.begin(mpi, (offset, bytes), |at, count, request| {
            let Names { world, byte, .. } = mpi.names;
            // SAFETY: the range is inside of the map, which stays until the request has ended.
            unsafe { (mpi.functions.MPI_Isend)(at, count, byte, peer, tag, world, request) }
        })
    }

    /// Begins to receive at most `bytes` at `offset`.
    pub fn receive(
        &mut self,
        mpi: &Mpi,
        (offset, bytes): (usize, usize),
        (peer, tag): (c_int, c_int),
    ) -> Result<Request, c_int> {
        self.begin(mpi, (offset, bytes), |at, count, request| {
            let Names { world, byte, .. } = mpi.names;
            // SAFETY: as for a send.
            unsafe { (mpi.functions.MPI_Irecv)(at, count, byte, peer, tag, world, request) }
        })
    }

    fn begin(
        &mut self,
        mpi: &Mpi,
        (offset, bytes): (usize, usize),
        start: impl FnOnce(*mut c_void, c_int, *mut Handle) -> c_int,
    ) -> Result<Request, c_int> {
        assert!(offset + bytes <= self.map.len(), "a range of the room");
        let count = c_int::try_from(bytes).expect("a slot is far below 2 GiB");
        let at = self.map.address().cast::<u8>().wrapping_add(offset).cast();
        let mut handle: Handle = 0;
        let _one = mpi.one();
        match start(at, count, &raw mut handle) {
            0 => {
                self.under_way += 1;
                Ok(Request(Some(handle)))
            }
            code => Err(code),
        }
    }

    /// Whether the message has left or come; a request that was none has.
    pub fn test(&mut self, mpi: &Mpi, request: &mut Request) -> Result<bool, c_int> {
        let Some(handle) = &mut request.0 else { return Ok(true) };
        let mut done = 0;
        let code = {
            let _one = mpi.one();
            // SAFETY: the request is under way and no status is wanted.
            unsafe { (mpi.functions.MPI_Test)(handle, &raw mut done, mpi.names.no_status) }
        };
        if code != 0 || done != 0 {
            request.0 = None;
            self.under_way -= 1;
        }
        if code == 0 { Ok(done != 0) } else { Err(code) }
    }

    /// Gives a receive up; [`Room::test`] then tells when it has ended.
    pub fn cancel(&mut self, mpi: &Mpi, request: &mut Request) {
        if let Some(handle) = &mut request.0 {
            let _one = mpi.one();
            // SAFETY: the request is under way.
            unsafe { (mpi.functions.MPI_Cancel)(handle) };
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Where MPI may still read or write, the pages stay for the life of the process.
        if self.under_way == 0 {
            // SAFETY: dropped once, here, and nothing is under way.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

fn first() -> Result<(Library, String), Error> {
    let mut last = None;
    for name in LIBRARIES {
        match open(name.as_ref()) {
            Ok(library) => return Ok((library, name.into())),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there are names"))
}

/// Its symbols are for all: Open MPI's own plugins look for them there.
fn open(name: &std::ffi::OsStr) -> Result<Library, Error> {
    use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: whoever names the library runs it.
    let library = unsafe { Unix::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    library.map(Library::from).map_err(|error| {
        let advice = "install Open MPI or MPICH (Debian: openmpi-bin or mpich)";
        refused(&name.to_string_lossy(), format!("{error}; {advice}, or choose another transport"))
    })
}

fn check(name: &str, call: &str, code: c_int) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(refused(name, format!("{call} gives error {code}"))) }
}

fn refused(name: &str, found: String) -> Error {
    Error::System { doing: format!("beginning MPI by {name}"), found }
}
