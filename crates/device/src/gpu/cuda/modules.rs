//! Loaded code: a module for each part of the text, and which of them has a kernel.

use super::call::check;
use crate::Error;
use cudarc::driver::sys;
use std::collections::HashSet;
use std::ffi::CString;

/// A module, and the names of its kernels: a driver that is asked for one that is not there tells
/// tools that look for errors.
pub(super) struct Module {
    module: sys::CUmodule,
    kernels: HashSet<String>,
}

impl Module {
    /// Loads code, which is a whole cubin, or PTX closed with zero, as NVRTC made it.
    pub fn load(code: &[u8]) -> Result<Module, Error> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is what the driver takes; the out-parameter lives here.
        let status = unsafe { sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) };
        check("loading the kernels", status)?;
        Ok(Module { module, kernels: kernels(code) })
    }

    pub fn raw(&self) -> sys::CUmodule {
        self.module
    }

    pub fn has(&self, kernel: &str) -> bool {
        self.kernels.contains(kernel)
    }

    /// One of its kernels.
    pub fn function(&self, name: &str) -> Result<sys::CUfunction, Error> {
        let text = CString::new(name).expect("names of kernels are words");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is alive until drop; the name ends with zero.
        let status =
            unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, text.as_ptr()) };
        check("looking a kernel up", status)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded only here; its owner has entered the context, and no
        // kernel of it runs any more.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// Names of the kernels of machine code, which has a section for each, or of PTX.
fn kernels(code: &[u8]) -> HashSet<String> {
    let of_a_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    let dots = (0..code.len()).filter(|at| code[*at] == b'.');
    let after = dots.filter_map(|at| {
        let rest = &code[at..];
        rest.strip_prefix(b".text.").or_else(|| rest.strip_prefix(b".entry "))
    });
    let names = after.map(|rest| rest.iter().take_while(of_a_name).map(|b| char::from(*b)));
    names.map(String::from_iter).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::kernels;

    #[test]
    fn names_of_machine_code_and_of_ptx() {
        let all = |code: &[u8]| {
            let mut names: Vec<_> = kernels(code).into_iter().collect();
            names.sort();
            names
        };
        assert_eq!(
            all(b"\x7fELF\0.shstrtab\0.text.big_q8_0\0.rela.text.few\0.text.\0"),
            ["big_q8_0", "few"]
        );
        assert_eq!(all(b".visible .entry add(\n.param .u64 add_0)\0"), ["add"]);
        assert!(all(b".tex").is_empty());
    }
}
