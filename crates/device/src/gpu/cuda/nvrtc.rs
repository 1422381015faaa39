//! NVIDIA's run-time compiler, loaded when kernels must be compiled. Any version from 12.0 on will
//! do: where it does not know the card, it makes PTX for the newest it knows, and the driver
//! compiles that.

use crate::Error;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// Names of the library, newest first.
#[cfg(not(windows))]
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Names of the library, newest first.
#[cfg(windows)]
const NAMES: [&str; 2] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];

/// Where toolkits are installed beside the loader's own folders.
const FOLDERS: [&str; 3] =
    ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/sbsa-linux/lib", "/opt/cuda/lib64"];

const HOW_TO_GET: &str = "NVRTC 12 or newer, to compile the kernels at the first start: install \
                          the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and put its lib \
                          folder on the loader's path";

type Program = *mut c_void;
type Status = c_int;

/// Functions of the library that are used, each with NVIDIA's own signature.
#[derive(Clone, Copy)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    architecture_count: unsafe extern "C" fn(*mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    log_bytes: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_bytes: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_bytes: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

/// The loaded compiler.
pub(super) struct Compiler {
    functions: Functions,
    /// Major and minor.
    version: (c_int, c_int),
    /// As 90 for 9.0.
    architectures: Vec<c_int>,
    /// Keeps the functions' code in memory.
    _libraries: Vec<Library>,
}

impl Compiler {
    /// Loads the library from a folder that is named, or from where it usually is.
    pub(super) fn load(folder: Option<&Path>) -> Result<Compiler, Error> {
        let mut libraries = Vec::new();
        for path in candidates(folder) {
            libraries.extend(builtins(&path));
            // SAFETY: NVRTC's initialisers have no conditions.
            if let Ok(library) = unsafe { Library::new(&path) } {
                let functions = functions(&library).ok_or_else(|| Error::Unsupported {
                    found: format!("{}, which lacks functions of NVRTC 12", path.display()),
                    wanted: HOW_TO_GET.into(),
                })?;
                libraries.push(library);
                return Compiler::new(functions, libraries);
            }
        }
        let found = match folder {
            Some(folder) => format!("no NVRTC library in {}", folder.display()),
            None => "a machine without NVRTC".into(),
        };
        Err(Error::Unsupported { found, wanted: HOW_TO_GET.into() })
    }

    fn new(functions: Functions, libraries: Vec<Library>) -> Result<Compiler, Error> {
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: three out-parameters that live across the calls.
        let status = unsafe {
            (functions.version)(&raw mut major, &raw mut minor)
                | (functions.architecture_count)(&raw mut count)
        };
        let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array is as long as the library just said.
        let listed = unsafe { (functions.architectures)(architectures.as_mut_ptr()) };
        if status | listed != 0 || architectures.is_empty() {
            let found = format!("an NVRTC that does not answer (status {})", status | listed);
            return Err(Error::Unsupported { found, wanted: HOW_TO_GET.into() });
        }
        Ok(Compiler { functions, version: (major, minor), architectures, _libraries: libraries })
    }

    /// Version for messages and as a part of cache keys.
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// What to compile for on a card of this compute capability (90 for 9.0): its own machine code,
    /// or PTX of the newest older one.
    fn target(&self, capability: c_int) -> Option<String> {
        if self.architectures.contains(&capability) {
            // Hopper has instructions of its own, which only this spelling allows.
            let own = if capability == 90 { "a" } else { "" };
            return Some(format!("sm_{capability}{own}"));
        }
        let older = self.architectures.iter().filter(|a| **a < capability).max()?;
        Some(format!("compute_{older}"))
    }

    /// Machine code, or PTX with its closing zero, for a card.
    pub(super) fn compile(
        &self,
        text: &str,
        options: &str,
        capability: c_int,
    ) -> Result<Vec<u8>, Error> {
        let target = self.target(capability).ok_or_else(|| Error::Unsupported {
            found: format!("a card of compute capability {}", f64::from(capability) / 10.0),
            wanted: format!("one that NVRTC {} compiles for", self.version()),
        })?;
        let architecture = format!("--gpu-architecture={target}");
        let words = options.lines().map(str::trim).filter(|word| !word.is_empty());
        let words: Vec<CString> = words.chain([architecture.as_str()]).map(c_string).collect();
        let program = Running::new(self.functions, text)?;
        match program.compile(&words, target.starts_with("sm_")) {
            Ok(code) => Ok(code),
            Err(log) => Err(Error::Unsupported {
                found: format!("NVRTC {} refuses the kernels for {target}: {log}", self.version()),
                wanted: "a newer NVRTC; if this one is of CUDA 12.8 or later, it is a bug of ours"
                    .into(),
            }),
        }
    }
}

/// A program between its creation and its end.
struct Running {
    functions: Functions,
    program: Program,
}

impl Running {
    fn new(functions: Functions, text: &str) -> Result<Running, Error> {
        let (text, name) = (c_string(text), c_string("ironstar.cu"));
        let mut program = std::ptr::null_mut();
        // SAFETY: both strings end with zero and outlive the call, which copies them; no headers
        // are given, so their arrays may be null.
        let status = unsafe {
            (functions.create)(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if status != 0 {
            let (device, found) = ("cuda".into(), format!("NVRTC status {status}"));
            let (doing, advice) = ("preparing the kernels", "see `ironstar doctor`");
            return Err(Error::Device { device, doing, found, advice });
        }
        Ok(Running { functions, program })
    }

    /// The code, or what the compiler says is wrong.
    fn compile(&self, words: &[CString], machine_code: bool) -> Result<Vec<u8>, String> {
        let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).expect("a handful of options");
        let f = self.functions;
        // SAFETY: the program is alive until drop; the options end with zero and outlive the call.
        let status = unsafe { (f.compile)(self.program, count, pointers.as_ptr()) };
        if status != 0 {
            let log = self.take(f.log_bytes, f.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&log);
            let errors: Vec<&str> = text.lines().filter(|l| l.contains("error")).take(3).collect();
            return Err(format!("status {status}: {}", errors.join("; ")));
        }
        let code = match machine_code {
            true => self.take(f.cubin_bytes, f.cubin),
            false => self.take(f.ptx_bytes, f.ptx),
        };
        code.filter(|code| !code.is_empty()).ok_or_else(|| "it gave no code".into())
    }

    fn take(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        read: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is alive until drop; the size goes into a variable that lives here.
        if unsafe { size(self.program, &raw mut bytes) } != 0 {
            return None;
        }
        let mut out = vec![0u8; bytes];
        // SAFETY: `out` has the size that the library just gave for this result.
        (unsafe { read(self.program, out.as_mut_ptr().cast()) } == 0).then_some(out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed only here.
        unsafe { (self.functions.destroy)(&raw mut self.program) };
    }
}

fn functions(library: &Library) -> Option<Functions> {
    /// A symbol as the type that its field has.
    fn get<T: Copy>(library: &Library, name: &str) -> Option<T> {
        // SAFETY: each field below states the signature of NVIDIA's documentation for its name,
        // unchanged since CUDA 11.2.
        unsafe { library.get::<T>(name).ok().map(|symbol| *symbol) }
    }
    Some(Functions {
        version: get(library, "nvrtcVersion")?,
        architecture_count: get(library, "nvrtcGetNumSupportedArchs")?,
        architectures: get(library, "nvrtcGetSupportedArchs")?,
        create: get(library, "nvrtcCreateProgram")?,
        compile: get(library, "nvrtcCompileProgram")?,
        destroy: get(library, "nvrtcDestroyProgram")?,
        log_bytes: get(library, "nvrtcGetProgramLogSize")?,
        log: get(library, "nvrtcGetProgramLog")?,
        cubin_bytes: get(library, "nvrtcGetCUBINSize")?,
        cubin: get(library, "nvrtcGetCUBIN")?,
        ptx_bytes: get(library, "nvrtcGetPTXSize")?,
        ptx: get(library, "nvrtcGetPTX")?,
    })
}

fn candidates(folder: Option<&Path>) -> Vec<PathBuf> {
    let named = folder.into_iter().flat_map(|f| NAMES.iter().map(|n| f.join(n)));
    if folder.is_some() {
        return named.collect();
    }
    let plain = NAMES.iter().map(PathBuf::from);
    let usual = FOLDERS.iter().flat_map(|f| NAMES.iter().map(|n| Path::new(f).join(n)));
    plain.chain(usual).collect()
}

/// The compiler opens its built-in functions by their plain name, so beside a library that is not
/// on the loader's path they must be there before.
fn builtins(library: &Path) -> Option<Library> {
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let mut files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let path = files.find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins")
    })?;
    // SAFETY: NVRTC's own companion, whose initialisers have no conditions.
    unsafe { Library::new(path).ok() }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("zeros were replaced")
}
